"""A batch that died between two tables is finished by the settings that began it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sessionlake.errors import LakeError
from sessionlake.ledger.entries import OffsetRange
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake.streaming.manifest import read_unfinished_batch as begun
from sessionlake.streaming.manifest import record_batch_commit
from sessionlake.streaming.manifest import remove_commit_manifest as forget_begun

RANGES = [OffsetRange("t", 0, 4, 6, 3)]


class PowerCutError(Exception):
    pass


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    found = Settings(home=tmp_path)
    Path(found.checkpoint_path("silver")).parent.mkdir(parents=True)
    with pytest.raises(PowerCutError), record_batch_commit(found, "silver", 3, "a", RANGES):
        raise PowerCutError
    return found


def test_other_settings_are_refused_until_the_batch_is_whole(settings):
    with (
        pytest.raises(LakeError, match=r"interrupted while it committed batch 3, .*config_hash a, now b"),
        record_batch_commit(settings, "silver", 3, "b", RANGES),
    ):
        pytest.fail("begun")
    with record_batch_commit(settings, "silver", 3, "a", RANGES):
        assert begun(settings, "silver").offsets == [("t", 0, 4, 6)]
    assert begun(settings, "silver") is None
    with record_batch_commit(settings, "silver", 4, "b", RANGES):
        pass


@pytest.mark.parametrize("layer", ["silver", "processor-p"])
def test_other_ways_to_judge_are_refused_until_the_query_knows_that_the_batch_is_done(settings, layer):
    judged = {by: CaptureSettings(integrity="window", lateness=by) for by in ("1 s", "2 s")}
    before, now = (settings.model_copy(update={"capture": capture}) for capture in judged.values())
    with record_batch_commit(before, layer, 3, "a", RANGES):
        pass
    with (
        pytest.raises(LakeError, match=r"interrupted while it committed batch 3, and its settings were changed since"),
        record_batch_commit(now, layer, 3, "a", RANGES),
    ):
        pytest.fail("begun")
    for batch, by, settings_then in ((3, "b", before), (4, "a", now), (5, "a", before)):
        with record_batch_commit(settings_then, layer, batch, by, RANGES):
            pass
    forget_begun(settings, layer)
    with record_batch_commit(now, layer, 5, "a", RANGES):
        pass


def test_another_layer_is_not_concerned(settings):
    with record_batch_commit(settings, "processor-p", 3, "b", RANGES):
        pass
    assert begun(settings, "silver") is not None


@pytest.mark.parametrize(
    "content", ["", '{"shards":3', '{"committed":{"batch":"three"}}', '{"committing":{"batch":3}}']
)
def test_a_note_that_cannot_be_read_is_named_with_what_to_do_and_stays(settings, content):
    note = Path(f"{settings.checkpoint_path('silver')}.json")
    note.write_text(content)
    with (
        pytest.raises(LakeError, match=r"silver.json cannot be read .*recover silver.*backup.*remove the file and run"),
        record_batch_commit(settings, "silver", 3, "a", RANGES),
    ):
        pytest.fail("begun")
    assert note.read_text() == content


def test_a_note_that_was_not_whole_when_the_power_failed_leaves_the_one_before(settings, monkeypatch):
    def power_cut(_: int) -> None:
        raise PowerCutError

    with monkeypatch.context() as failing:
        failing.setattr("os.fsync", power_cut)
        with pytest.raises(PowerCutError), record_batch_commit(settings, "silver", 4, "a", RANGES):
            pytest.fail("begun")
    assert begun(settings, "silver").batch == 3
