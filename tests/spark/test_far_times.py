"""Event times and Kafka timestamps of any size, through all layers: every command that tells times still answers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from sessionlake import cli
from sessionlake.config import CaptureSettings, Integrity, OnViolation, Settings, SilverSettings
from sessionlake.gold import job as gold
from sessionlake.gold.declared import tables_of
from sessionlake.gold.verify import verify_gold
from sessionlake.lab.truth import KafkaMessage
from sessionlake.lake.ledger import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.lake.names import (
    AVERAGES,
    CHANGES,
    CUTS,
    DATA_QUALITY,
    LEDGER,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    ROWS,
    SESSION_SUMMARY,
    SESSIONS,
    SNAPSHOTS,
)
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.rebuild.verify import verify
from support.lakes import assert_silver_is_the_truth, write_bronze
from support.streams import NO_TIME, START, YEAR_10000

INT64_MAX = 2**63 - 1
YEAR_1 = -62_135_596_800_000
MOST_MS = INT64_MAX // 1000
EVENT_TIMES = [YEAR_10000, YEAR_10000 - 1, YEAR_1, YEAR_1 - 1, -1, 0, INT64_MAX, -INT64_MAX - 1]
TIMES = {
    # No Kafka timestamp: any event time is believed.
    **{f"event {ts}": (NO_TIME, ts) for ts in EVENT_TIMES},
    # When bronze read the message is not known: any Kafka timestamp is.
    **{f"kafka {at}": (at, 0) for at in (YEAR_10000, YEAR_1 - 1, -(10**14), 2**53, 2 - MOST_MS)},
    "usual": (START, START),
}
FORMS = ("table", "json", "csv")


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Silver and gold over a topic for each pair of times, each with a session of two messages."""
    capture = CaptureSettings(integrity=Integrity.WINDOW, on_violation=OnViolation.RECORD, lateness="0 ms")
    home = tmp_path_factory.mktemp("far") / "home"
    settings = Settings(home=home, capture=capture, silver=SilverSettings(shards=2, snapshot_interval="1 s"))
    made, messages = Lake(settings), []
    for number, (at, ts) in enumerate(TIMES.values()):
        for seq, kind in enumerate(("snapshot", "update", "end")):
            rows = {} if kind == "end" else {"rows": [{"id": "r", "qty": seq, "price": 1.5}]}
            body = {"type": kind, "seq": seq, "ts": ts} | rows
            messages.append(KafkaMessage(topic(number), 0, seq, at, b"s", json.dumps(body).encode()))
    made.ensure(spark, [MESSAGES, LEDGER])
    write_bronze(spark, made, messages)
    version = made.last_commit(spark, MESSAGES).version
    entry = LedgerEntry(
        layer="bronze", txn=Txn("b", 0), source="kafka", started_at=datetime.now(UTC),
        offsets=tuple(OffsetRange(topic(number), 0, 0, 2, 3) for number in range(len(TIMES))),
        outputs=(TableOutput(MESSAGES, version, len(messages)),), messages=len(messages), applied=len(messages),
    )  # fmt: skip
    Ledger(made).write(spark, entry)
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).catch_up()
    gold.start(spark, settings, once=True).wait()
    assert_silver_is_the_truth(spark, settings, messages)
    return made


def topic(number: int) -> str:
    return f"capture.t{number:02}"


def called(lake: Lake, *words: str) -> str:
    """What a command writes; it must succeed."""
    file = Path(lake.settings.home).parent / "sessionlake.yml"
    content = lake.settings.model_dump(mode="json", include={"home", "capture", "silver"}, exclude_defaults=True)
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    result = CliRunner().invoke(cli.app, ["--config", str(file), *words], catch_exceptions=False)
    assert result.exit_code == 0, (words, result.stderr)
    return result.stdout


def test_what_was_built_equals_what_is_built_anew(spark: Any, lake: Lake) -> None:
    assert verify(spark, lake.settings).exact
    assert [one.first for one in verify_gold(spark, lake.settings, tables_of(lake.settings)) if one.first] == []


@pytest.mark.parametrize("number", range(len(TIMES)), ids=list(TIMES))
def test_a_message_and_its_session_are_told(lake: Lake, number: int) -> None:
    at, _ = [*TIMES.values()][number]
    for form in FORMS:
        told = called(lake, "trace", topic(number), "0", "1", "--format", form)
        assert ("Kafka time" in told) is (form == "table")
        called(lake, "session", "show", "s", "--topic", topic(number), "--format", form)
        called(lake, "session", "as-of", "s", "--topic", topic(number), "--offset", "1", "--format", form)
        called(lake, "session", "as-of", "s", "--topic", topic(number), "--ts", str(at), "--format", form)
        called(lake, "state", "show", "--session", "s", "--topic", topic(number), "--format", form)


TABLES = (
    MESSAGES, CHANGES, ROWS, SESSIONS, CUTS, SNAPSHOTS, PROGRESS, QUARANTINE, AVERAGES, SESSION_SUMMARY, DATA_QUALITY,
)  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_every_table_is_shown(lake: Lake, table: str) -> None:
    for form in FORMS:
        told = called(lake, "query", f"SELECT * FROM {table}", "--format", form)  # noqa: S608 - a table of ours
        assert told


def test_far_times_of_a_query_are_numbers_for_programs_and_hinted_for_people(lake: Lake) -> None:
    sql = "SELECT timestamp FROM bronze.messages WHERE timestamp = timestamp_millis(253402300800000) LIMIT 1"
    assert json.loads(called(lake, "query", sql, "--format", "json")) == {"timestamp": YEAR_10000}
    assert f"{YEAR_10000} ms since 1970 (beyond the year 9999)" in called(lake, "query", sql)
    nested = "SELECT array(struct(timestamp_millis(-99999999999999) AS at)) AS x, date'9999-12-31' + 9 AS d"
    found = json.loads(called(lake, "query", nested, "--format", "json"))
    assert found["x"] == [{"at": -99999999999999}]


def test_the_lake_as_a_whole_is_told(lake: Lake, tmp_path: Path) -> None:
    for form in FORMS:
        called(lake, "status", "--format", form)
        called(lake, "explain", "gold.metrics_1h", "--where", f"topic = '{topic(len(TIMES) - 1)}'", "--format", form)
    called(lake, "report", "--output", str(tmp_path / "report.html"))
    called(lake, "metrics", "--from", "2023-11-14T00:00", "--to", "2023-11-15T00:00", "--format", "json")
    for form in ("parquet", "csv", "jsonl"):
        called(lake, "export", "bronze.messages", str(tmp_path / form), "--format", form)
    called(lake, "archive", str(tmp_path / "archive"), "--where", f"topic = '{topic(0)}'")
