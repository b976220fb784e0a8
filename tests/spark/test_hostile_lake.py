"""Every command that prints data, over a lake with hostile texts and times beyond the year 9999.

No character of the data reaches a terminal as a command, and no time is too far for an answer.
"""

from __future__ import annotations

import csv
import io
import json
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.cli.explain import show_explained_rows
from sessionlake.cli.show import OutputFormat
from sessionlake.cli.state import show_session_state
from sessionlake.settings.model import load_settings
from sessionlake_lab.truth import KafkaMessage
from support.engines import write_files_with_spark
from support.notebooks import CONFIG, fill_with
from support.seeds import long_beyond

HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# A session's id has no control characters; every other kind is allowed.
SESSION = "s\u202e[red]\u200b\ufeff\u2028\ue000"
TEXT = "\x1b]52;c;aGk=\x07\x9b2J\x7f\u202e\u2066[red]x[/red]\u200b\ufeff\u2029\u0378\ue000"
TOPIC = "capture.depth-00"
FAR = 10**15
"""ms: in the year 33658."""
CODES = ("\x1b[1m", "\x1b[0m", "\x1b[2m")

# Commands that show rows, ids, texts or errors of the data, as they are called.
PRINT: dict[str, list[str]] = {
    "status": [],
    "report": ["--output", "page.html"],
    "trace": [TOPIC, "0", "1"],
    "doctor": [],
    "session show": [SESSION],
    "session as-of": [SESSION, "--seq", "1"],
    "rules check": ["rules.yml"],
    "rules test": ["rules.yml"],
    "rules list": [],
    "resolve": ["--session", TEXT, "--isolate"],
    "metrics": ["--from", "2023-11-14T00:00", "--to", "2023-11-15T00:00"],
    "reference list": [],
}
SOME = long_beyond([("status",), ("trace",), ("report",), ("session show",)], [(name,) for name in PRINT])
# Commands that need Spark; their answers go through the same functions, called below with the session of the tests.
BY_SPARK = {"query", "explain", "state show", "state stats"}
# Commands that print counts, names of tables and paths, and errors, which standard error shows as `say` does.
COUNTS = {
    "run", "publish", "maintain", "recover", "export", "archive", "forget", "reshard", "types", "rebuild silver",
    "rebuild gold", "verify bronze", "verify silver", "verify gold", "rules apply", "broker up", "broker down",
    "broker status", "bronze skip", "simulate", "demo", "reference load", "feed infer", "feed send",
    "feed test", "feed try",
}  # fmt: skip
REMOTE = {f"remote {name}" for name in ("status", "logs", "run", "pause", "resolve", "query")}


def require_harmless(text: str) -> None:
    for code in CODES:
        text = text.replace(code, "")
    assert {f"U+{ord(c):04X}" for c in text if c != "\n" and unicodedata.category(c) in HIDDEN} == set()


def texts_in(value: Any) -> Iterator[str]:
    """All texts of a JSON value; of a text that is JSON itself, those in it, too."""
    if isinstance(value, dict | list):
        for one in [*value, *value.values()] if isinstance(value, dict) else value:
            yield from texts_in(one)
    if isinstance(value, str):
        yield value
        with suppress(json.JSONDecodeError):
            yield from texts_in(json.loads(value))


@pytest.fixture(scope="module")
def home(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("terminal") / "home"
    home.mkdir()
    (home / "sessionlake.yml").write_text(CONFIG, encoding="utf-8")
    settings = load_settings(home / "sessionlake.yml").model_copy(update={"home": home})
    row = {"id": TEXT, "price": 1.5, "qty": 2, "status": TEXT, TEXT: TEXT}
    sent = [
        {"type": "snapshot", "seq": 0, "ts": 1_700_000_000_000, "rows": [row]},
        {"type": "update", "seq": 1, "ts": 1_700_000_001_000, "rows": [row | {"price": 2.5}]},
        {"type": TEXT, "seq": 2, "ts": 1_700_000_002_000},
        {"type": "update", "seq": 2, "ts": FAR, "rows": [row | {"price": 3.5}]},
    ]
    values = [json.dumps(one).encode() for one in sent]
    keys = [SESSION.encode()] * 2 + [TEXT.encode(), SESSION.encode()]
    # No Kafka time is what lets a far event time in.
    times = [1_700_000_000_000 + n * 1000 for n in range(3)] + [-1]
    messages = [
        KafkaMessage(TOPIC, 0, n, time, key, value)
        for n, (time, key, value) in enumerate(zip(times, keys, values, strict=True))
    ]
    fill_with(spark, settings, messages)
    return home


@pytest.fixture
def call(home: Path, tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "sessionlake.spark.session.stop_spark", lambda: None
    )  # doctor stops Spark, which these tests share
    rules = [{"name": "r", "when": f"price > 1 and status = '{TEXT}'"}]
    (tmp_path / "rules.yml").write_text(json.dumps({"rules": rules}))
    given = {"SESSIONLAKE_HOME": str(home), "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port}"}
    return lambda *words: CliRunner().invoke(cli.app, list(words), env=given)


@pytest.mark.parametrize("command", SOME)
def test_a_command_shows_what_is_hidden_as_escapes(call, command, tmp_path):
    result = call(*command.split(), *PRINT[command])
    assert result.exit_code in {0, 1, 2}
    assert "unexpected" not in result.stderr
    require_harmless(result.stdout)
    require_harmless(result.stderr)
    if command == "report":
        require_harmless((tmp_path / "page.html").read_text())


@pytest.mark.parametrize("command", ["session show", "session as-of", "trace"])
def test_what_a_command_shows_is_there_all_the_same(call, command):
    words = [*command.split(), *PRINT[command]]
    assert r"\x1b]52;c;aGk=\x07\x9b2J\x7f\u202e\u2066[red]x[/red]\u200b" in call(*words).stdout
    line = call(*words, "--format", "json").stdout
    require_harmless(line)
    assert any(TEXT in text for row in line.splitlines() for text in texts_in(json.loads(row)))
    table = list(csv.reader(io.StringIO(call(*words, "--format", "csv").stdout, newline="")))
    assert any(TEXT in text for text in texts_in(table))


@pytest.mark.parametrize("form", [OutputFormat.TABLE, OutputFormat.JSON])
@pytest.mark.parametrize(
    "show",
    [
        lambda spark, own, form: write_files_with_spark(spark, own, "SELECT * FROM silver.session_rows", form),
        lambda spark, own, form: write_files_with_spark(spark, own, "SELECT * FROM bronze.messages", form),
        lambda spark, own, form: write_files_with_spark(spark, own, "SELECT * FROM silver.quarantine", form),
        lambda spark, own, form: write_files_with_spark(spark, own, f"SELECT 1 AS `{TEXT}`, map('{TEXT}', 1)", form),
        lambda spark, own, form: show_explained_rows(spark, own, "gold.metrics_1h", "", None, form),
        lambda spark, own, form: show_session_state(spark, own, SESSION, None, form),
    ],
)
def test_answers_of_spark_show_what_is_hidden_as_escapes(spark, home, show: Callable[..., None], form, capsys):
    own = load_settings(home / "sessionlake.yml").model_copy(update={"home": home})
    show(spark, own, form)
    out = capsys.readouterr().out
    require_harmless(out)
    assert "\\u" in out


def test_an_error_shows_what_is_hidden_as_escapes(call):
    for words in (["session", "show", TEXT], ["trace", TEXT, "0", "0"], [TEXT], ["status", f"--{TEXT}"]):
        result = call(*words)
        assert result.exit_code in {1, 2}
        require_harmless(result.stderr)


def test_every_command_is_known_to_print_data_or_not_to():
    def names(command: Any, before: str = "") -> set[str]:
        context = typer.Context(command)
        if not hasattr(command, "list_commands"):
            return {before.strip()}
        return {
            name
            for word in command.list_commands(context)
            for name in names(command.get_command(context, word), f"{before} {word}")
        }

    assert names(typer.main.get_command(cli.app)) == {*PRINT, *BY_SPARK, *COUNTS, *REMOTE}
