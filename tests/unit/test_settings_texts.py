"""A wrong setting is described in words that need no knowledge of pydantic."""

from __future__ import annotations

import pytest

from sessionlake.errors import ConfigError
from sessionlake.settings.model import load_settings


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("silver: {shards: 0}", "silver.shards = 0: must be more than 0"),
        ("bronze: {source: files}", "bronze.source = 'files': must be 'kafka', 'archive' or 'kinesis'"),
        ("gold: {retention: {metrics_1m: 1 minute}}", "must be at least 1 hour"),
        ("processors: [{class: 'a:B'}]", "processors.0.name: the key is missing"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said_in_plain_words(text, said, tmp_path, monkeypatch):
    file = tmp_path / "sessionlake.yml"
    file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as failed:
        load_settings(file)
    assert said in str(failed.value)
    assert "timedelta" not in str(failed.value)
