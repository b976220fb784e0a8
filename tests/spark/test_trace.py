"""`trace` and `status` over a real lake, whose messages met every fate: with Spark, and without it, the same.

Bronze's first batch is written by Spark, the others by delta-rs, as the job does.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
from operator import eq
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from sessionlake.cli import app as cli
from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, NotFoundError
from sessionlake.history.status import layer_statuses
from sessionlake.history.trace import trace
from sessionlake.history.traced import MessageTrace
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.ledger.progress import read_layer_offsets
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake_lab.truth import KafkaMessage
from support.lakes import find_table_folder, write_bronze

TOPIC, NOW = "capture.a", 1_700_000_000_000
CAPTURE = CaptureSettings(columns={"price": "double", "status": "string"}, on_violation=OnViolation.ISOLATE)
SAID: list[tuple[str | None, dict[str, Any] | str]] = [
    ("s", {"type": "snapshot", "seq": 0, "ts": 10, "rows": [{"id": "a", "price": 1.5}, {"id": "b"}]}),
    ("s", {"type": "update", "seq": 1, "ts": 11, "rows": [{"id": "a", "status": None, "new": 1}], "deleted": ["b"]}),
    ("s", {"type": "heartbeat", "seq": 2, "ts": 12}),
    ("s", {"type": "update", "seq": 1, "ts": 11, "rows": [{"id": "a", "price": 9}]}),
    ("s", "{no json"),
    (None, {"type": "heartbeat", "seq": 3, "ts": 13}),
    # -- the second batch
    ("s", {"type": "update", "seq": 5, "ts": 15, "rows": [{"id": "a", "price": 5}]}),
    ("s", {"type": "heartbeat", "seq": 6, "ts": 16}),
    ("s", {"type": "snapshot", "seq": 7, "ts": 17, "rows": []}),
    ("s", {"type": "update", "seq": 8, "ts": 18}),
    ("s", {"type": "end", "seq": 9, "ts": 19}),
    ("s", {"type": "heartbeat", "seq": 10, "ts": 20}),
    # -- in bronze only
    ("s", {"type": "heartbeat", "seq": 11, "ts": 21}),
]
SECOND, UNJUDGED = 6, 12


def text(said: dict[str, Any] | str) -> bytes:
    return (said if isinstance(said, str) else json.dumps(said)).encode()


class Traced:
    """A lake with two silver batches, the first of them merged, and its two readers."""

    def __init__(self, spark: Any, home: Path) -> None:
        self.settings = Settings(home=home, capture=CAPTURE, silver=SilverSettings(shards=2))
        self.spark, self.lake = spark, Lake(self.settings)
        self.lake.create_or_update_tables(spark, ["bronze.messages", LEDGER])
        for batch, (first, end) in enumerate([(0, SECOND), (SECOND, UNJUDGED), (UNJUDGED, len(SAID))]):
            self._bronze(batch, first, end)
            if batch < 2:
                job.start(spark, self.settings, once=True).wait()
            if batch == 0:
                TableMerger(spark, self.settings).merge_all_pending_batches()
        self.direct, self.through_spark = self.lake.reader(), SparkReader(self.lake.storage, spark)

    def _bronze(self, batch: int, first: int, end: int) -> None:
        messages = [
            KafkaMessage(TOPIC, 0, n, NOW + n, key and key.encode(), text(said))
            for n, (key, said) in enumerate(SAID[first:end], first)
        ]
        if batch:
            self._append_bronze(messages, batch)
        else:
            write_bronze(self.spark, self.lake, messages)
        version = self.lake.last_commit(self.spark, "bronze.messages").version
        entry = LedgerEntry(
            layer="bronze", txn=Txn("b", batch), source="kafka", started_at=datetime.now(UTC),
            offsets=(OffsetRange(TOPIC, 0, first, end - 1, end - first),),
            outputs=(TableOutput("bronze.messages", version, end - first),), messages=end - first, applied=end - first,
        )  # fmt: skip
        Ledger(self.lake).write_entry(self.spark, entry)

    def _append_bronze(self, messages: list[KafkaMessage], batch: int) -> None:
        rows = [
            {
                "topic": m.topic, "partition": m.partition, "offset": m.offset, "key": m.key, "value": m.value,
                "timestamp": datetime.fromtimestamp(m.timestamp / 1000, UTC), "ingested_at": datetime.now(UTC),
            }
            for m in messages
        ]  # fmt: skip
        schema = self.lake.read(self.spark, "bronze.messages").limit(0).toArrow().schema
        append_rows(self.spark, self.lake, "bronze.messages", pa.Table.from_pylist(rows, schema), Txn("b", batch))

    def at(
        self, offset: int, reader: TableReader | None = None, topic: str = TOPIC, partition: int = 0
    ) -> MessageTrace:
        return trace(reader or self.direct, self.settings, topic, partition, offset)


@pytest.fixture(scope="module")
def traced(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    return Traced(spark, tmp_path_factory.mktemp("traced") / "a home, söme where")


@pytest.mark.parametrize(
    ("offset", "type_", "fate", "reason", "events", "changes"),
    [
        (0, "snapshot", "applied", None, [], ["clear", "upsert", "upsert"]),
        (1, "update", "applied", None, [], ["upsert", "delete"]),
        (2, "heartbeat", "applied", None, [], []),
        (3, "update", "duplicate", None, [("duplicate", "dropped", 3, 1)], []),
        (4, None, "quarantined", "not_json", [], []),
        (5, None, "quarantined", "bad_key", [], []),
        (6, "update", "quarantined", "gap", [("gap", "isolated", 3, 5)], []),
        (7, "heartbeat", "quarantined", "session_broken", [], []),
        (8, "snapshot", "applied", None, [("healed", "applied", 3, 7)], ["clear"]),
        (9, "update", "applied", None, [], []),
        (10, "end", "applied", None, [], []),
        (11, "heartbeat", "quarantined", "after_end", [("after_end", "isolated", 10, 10)], []),
    ],
)
def test_every_fate_is_reported_with_its_reason_and_its_rows(traced, offset, type_, fate, reason, events, changes):
    found, batch = traced.at(offset), int(offset >= SECOND)
    assert (found.message.type, found.judgement.fate, found.judgement.reason) == (type_, fate, reason)
    told = ("event", "action", "expected_seq", "actual_seq")
    assert [tuple(event[name] for name in told) for event in found.judgement.events] == events
    assert [change["change"] for change in found.changes] == changes
    assert (found.bronze.batch, found.silver.batch, found.judgement.batch) == (batch, batch, batch)
    assert (found.tables is not None) == (fate == "applied" and batch == 0)


def test_commits_are_those_that_the_tables_own_logs_say(traced):
    found = traced.at(1)
    for commit in (found.silver, found.tables):
        for table, version in commit.versions.items():
            log = find_table_folder(traced.lake, table) / "_delta_log" / f"{version:020}.json"
            (txn,) = [json.loads(line)["txn"] for line in log.read_text().splitlines() if '"txn"' in line]
            assert (txn["appId"], txn["version"]) == (f"{commit.app_id}:{table}", commit.batch)
    assert set(found.tables.versions) == {"silver.session_rows", "silver.sessions"}
    assert (found.tables.first_batch, found.tables.last_batch) == (0, 0)
    assert found.bronze.committed_at <= found.silver.committed_at <= found.tables.committed_at


def test_row_changes_show_what_the_message_set_and_nothing_else(traced):
    upsert, delete = traced.at(1).changes
    assert upsert == {
        "change": "upsert", "row_id": "a", "set": {"status": None}, "_rescued": '{"new":1}', "_epoch": 0, "_seq": 1,
        "_position": 1, "ordinal": 0, "_batch": 0,
    }  # fmt: skip
    assert (delete["row_id"], delete["set"], delete["ordinal"]) == ("b", {}, 1)


def test_the_message_is_reported_as_bronze_has_it(traced):
    message = traced.at(1).message
    assert (message.key, message.session_id, message.seq, message.ts) == (b"s", "s", 1, 11)
    assert message.value_bytes == len(json.dumps(SAID[1][1]))
    assert message.timestamp == datetime.fromtimestamp((NOW + 1) / 1000, UTC)
    assert traced.at(5).message.session_id is None


def test_the_session_is_reported_as_it_is_now_also_for_a_malformed_message(traced):
    for offset in (0, 4, 11):
        session = traced.at(offset).session
        assert (session["session_id"], session["status"], session["next_seq"]) == ("s", "ended", 10)
    assert traced.at(5).session is None


def test_a_message_of_a_broken_session_names_what_broke_it(traced):
    broken_by = traced.at(7).judgement.broken_by
    assert (broken_by["offset"], broken_by["event"], broken_by["expected_seq"]) == (6, "gap", 3)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        ((TOPIC, 0, len(SAID)), "bronze holds offsets 0 to 12; 13 has not been read yet"),
        ((TOPIC, 1, 0), r"partition 1: bronze holds no message of it; it holds partition 0 \(offsets 0 to 12\)"),
        (("capture.x", 0, 0), "it knows capture.a"),
        ((TOPIC, 0, UNJUDGED), r"silver has judged offsets 0 to 11 so far; 12 is in bronze \(batch 2,"),
    ],
)
def test_a_miss_says_what_is_known_by_either_reader(traced, place, text):
    topic, partition, offset = place
    for reader in (traced.direct, traced.through_spark):
        with pytest.raises(NotFoundError, match=text):
            traced.at(offset, reader, topic, partition)


@pytest.mark.soak
@pytest.mark.parametrize("offset", [1, pytest.param(7, marks=pytest.mark.soak)])
def test_both_readers_tell_the_same(traced, offset):
    assert asdict(traced.at(offset, traced.through_spark)) == asdict(traced.at(offset))


def test_both_readers_give_the_same_status(traced):
    told = [
        [replace(layer, age_seconds=None) for layer in layer_statuses(reader, traced.settings)]
        for reader in (traced.direct, traced.through_spark)
    ]
    assert told[0] == told[1]
    layers = {layer.layer: layer for layer in told[0]}
    assert (layers["bronze"].messages, layers["silver"].behind, layers["silver_tables"].behind) == (13, 1, 6)
    silver = layers["silver"]
    assert (silver.messages, silver.duplicates, silver.quarantined, silver.events) == (12, 1, 5, 4)


def test_both_readers_know_the_same_spans(traced):
    assert read_layer_offsets(traced.direct) == read_layer_offsets(traced.through_spark) != []


def test_both_readers_read_a_table_with_deletion_vectors(traced):
    wanted = ("session_id", eq, "s")
    told = [
        list(reader.read_rows("silver.sessions", wanted, columns=["status", "next_seq", "ended_at"]))
        for reader in (traced.direct, traced.through_spark)
    ]
    assert told[0] == told[1] == [{"status": "open", "next_seq": 3, "ended_at": None}]


@pytest.mark.parametrize("session", ["it's", "\\'", "ünï", "' OR true --"])
def test_a_text_is_looked_up_as_it_stands_in_a_table_with_deletion_vectors(spark, settings, session):
    lake = Lake(settings)
    lake.create_or_update_tables(spark, ["silver.sessions"])
    rows = pa.table({"topic": ["a", "a", "b"], "session_id": [session, "other", session], "next_seq": [1, 2, 3]})
    append_rows(spark, lake, "silver.sessions", convert_to_spark_frame(spark, rows), Txn("fill", 0))
    for reader in (lake.reader(), SparkReader(lake.storage, spark)):
        wanted = ("topic", eq, "a"), ("session_id", eq, session)
        assert [row["next_seq"] for row in reader.read_rows("silver.sessions", *wanted, columns=["next_seq"])] == [1]


def test_rows_that_silver_should_have_and_has_not_are_reported(traced, tmp_path):
    home = tmp_path / "home"
    shutil.copytree(traced.settings.warehouse, home / "warehouse")
    shutil.rmtree(home / "warehouse" / "silver" / "session_changes")
    settings = traced.settings.model_copy(update={"home": home})
    with pytest.raises(LakeError, match=r"batch 0 read .* offset 1 \(update, 2 row changes\), but no table"):
        trace(Lake(settings).reader(), settings, TOPIC, 0, 1)


@pytest.fixture
def call(traced):
    """Runs `trace` on the lake."""
    columns = json.dumps(CAPTURE.columns)
    environment = {"SESSIONLAKE_HOME": str(traced.settings.home), "SESSIONLAKE_CAPTURE__COLUMNS": columns}
    return lambda *words: CliRunner().invoke(cli.app, ["trace", *words], env=environment)


def test_the_command_gives_one_json_object(call):
    result = call(TOPIC, "0", "6", "--format", "json")
    (line,) = result.stdout.splitlines()
    told = json.loads(line)
    assert (result.exit_code, told["judgement"]["fate"], told["bronze"]["versions"]) == (
        0, "quarantined", {"bronze.messages": 2},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("offset", "texts"),
    [
        ("1", [": applied", "update, seq 1", "silver batch 0 merged", "upsert", "status"]),
        ("2", [": applied", "it changes no rows"]),
        ("3", [": duplicate", "duplicate (class strict): expected seq 3, got 1"]),
        ("4", [": quarantined", "malformed", "judgement  quarantined: not_json"]),
        ("6", ["quarantined (class strict): gap, expected seq 3, got 5"]),
        ("7", ["session_broken; broken at offset 6 by gap (isolated), expected seq 3"]),
        ("8", ["healed (applied)", "not merged yet"]),
    ],
)
def test_the_command_says_it_in_a_few_lines(call, offset, texts):
    result = call(TOPIC, "0", offset)
    assert (result.exit_code, [text for text in texts if text not in result.stdout]) == (0, [])


def test_csv_has_the_same_columns_for_every_message(call):
    heads = {call(TOPIC, "0", offset, "--format", "csv").stdout.splitlines()[0] for offset in ("1", "5", "7")}
    assert len(heads) == 1


def test_a_miss_exits_with_1_and_one_text(call):
    result = call(TOPIC, "0", "5000")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: topic capture.a, partition 0: bronze holds offsets 0 to 12; 5000 has not been read yet\n"
    )
