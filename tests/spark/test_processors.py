"""Processors through real Spark and Delta: exactly once, states that outlive restarts, and errors before anything."""

from __future__ import annotations

import shutil
import threading
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli import doctor
from sessionlake.delta.folders import removal as folder_removal
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import PROCESSOR_ERRORS, ROWS
from sessionlake.errors import ConfigError, DataLossError, IntegrityViolationError, LakeError, ProcessorError
from sessionlake.history.status import layer_statuses
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.operations.rebuild.processors import preview_processor_rebuild, rebuild_processor
from sessionlake.processors import keyed
from sessionlake.protocol.types import Row
from sessionlake.settings.model import CaptureSettings, ProcessorSettings, Settings, SilverSettings
from sessionlake.silver.decisions import read_message_that_stopped_layer, record_decision
from sessionlake_lab.truth import KafkaMessage
from support.checkpoints import lose_last_commit
from support.clocks import set_clock_back
from support.lakes import find_table_folder, rows_of, write_bronze, write_rows

HOUR = 3_600_000
MODULE = """
from dataclasses import dataclass
from sessionlake.processors import Processor, Timer

@dataclass
class Count:
    seen: int = 0

class Counted(Processor[Count]):
    state = Count
    output = {{"seen": "bigint", "why": "string"{column}}}
    version = {version}

    def on_message(self, state, message):
        if message.type == "heartbeat":
            raise RuntimeError("no heart")
        state.seen += 1
        yield {{"seen": state.seen, "why": message.type}}
        yield Timer(message.stream_time + 1000)

    def on_timeout(self, state, timer):
        yield {{"seen": state.seen, "why": "expired" if timer.expired else "quiet"}}
{migrate}
"""
MIGRATE = """
    def migrate(self, old, version):
        return Count(old["seen"] + 100)
"""


@pytest.fixture
def counted(spark: Any, tmp_path: Path, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Counted:
    monkeypatch.chdir(tmp_path)
    return Counted(spark, tmp_path, location)


class Counted:
    """A processor from a module in the working folder, over a bronze table that the test writes."""

    def __init__(self, spark: Any, folder: Path, location: dict[str, Any]) -> None:
        self.spark, self.folder = spark, folder
        capture = CaptureSettings(columns={"x": "bigint"})
        self.settings = Settings(**location, capture=capture, silver=SilverSettings(shards=3))
        self.lake = Lake(self.settings)
        self.lake.create_or_update_tables(spark, ["bronze.messages"])
        self._offset = 0
        self.use("counted_v1")

    def use(self, module: str, version: int = 1, migrate: str = "", column: str = "", **settings: Any) -> None:
        """Deploys a version of the class; with a column more in its output, if one is given."""
        declared = f', "{column}": "bigint"' if column else ""
        (self.folder / f"{module}.py").write_text(MODULE.format(version=version, migrate=migrate, column=declared))
        own = ProcessorSettings(name="counted", target=f"{module}:Counted", topics=r"capture\.a", **settings)
        self.settings = self.settings.model_copy(update={"processors": (own,)})

    def arrive(self, *messages: tuple[str, str, int], topic: str = "capture.a") -> None:
        """Session, JSON and Kafka time of each."""
        found = []
        for session, text, time in messages:
            found.append(KafkaMessage(topic, 0, self._offset, time, session.encode(), text.encode()))
            self._offset += 1
        write_bronze(self.spark, self.lake, found)

    def run(self, layer: Layer = Layer.PROCESSOR) -> None:
        run_once(self.spark, self.settings, layer, threading.Event())

    def rows(self) -> list[tuple[Any, ...]]:
        columns = ["session_id", "_offset", "ordinal", "seen", "why"]
        return sorted(tuple(row[name] for name in columns) for row in rows_of(self.spark, self.lake, "silver.counted"))

    def errors(self) -> list[tuple[Any, ...]]:
        columns = ["processor", "session_id", "_offset", "event", "action", "error"]
        rows = rows_of(self.spark, self.lake, "silver.processor_errors")
        return [tuple(row[name] for name in columns) for row in rows]

    def ledger(self) -> list[Row]:
        return rows_of(self.spark, self.lake, "ops.ledger", ("layer", eq, "processor-counted"))

    def forget_last_batch(self) -> None:
        """Takes the checkpoint back to a batch that committed its tables and then died."""
        lose_last_commit(self.settings.checkpoint_path("processor-counted"))


def said(kind: str, seq: int) -> str:
    rows = ',"rows":[]' if kind in {"snapshot", "update"} else ""
    return f'{{"type":"{kind}","seq":{seq},"ts":0{rows}}}'


def test_records_come_exactly_once_states_outlive_restarts_and_are_migrated_or_refused_before_anything(
    counted: Counted,
) -> None:
    counted.arrive(("s", said("snapshot", 0), 0), ("t", said("snapshot", 0), 500))
    counted.run()
    counted.arrive(("s", said("update", 1), 1200))
    counted.run()
    before = [("s", 0, 0, 1, "snapshot"), ("s", 0, 1, 1, "quiet"), ("s", 2, 0, 2, "update"), ("t", 1, 0, 1, "snapshot")]
    assert counted.rows() == before

    counted.forget_last_batch()
    counted.arrive(("s", said("update", 2), 1300))
    counted.use("counted_v2", version=2)
    refused = (
        r"processor counted: the state of session '[st]' is of version 1, the class is of version 2.*no migrate\(\)"
    )
    with pytest.raises(LakeError, match=refused):
        counted.run()
    assert len(counted.ledger()) == 2
    assert counted.rows() == before
    counted.use("counted_v3", version=2, migrate=MIGRATE)
    counted.run()
    assert counted.rows() == sorted([*before, ("s", 3, 0, 103, "update")])
    assert len(counted.ledger()) == 3

    status = {found.layer: found for found in layer_statuses(counted.lake.reader(), counted.settings)}
    assert (status["processor-counted"].messages, status["processor-counted"].behind) == (4, 0)


def test_one_that_raises_stops_alone_names_the_place_and_follows_the_policy(counted: Counted) -> None:
    counted.arrive(("s", said("snapshot", 0), 0), ("t", said("snapshot", 0), 1))
    counted.arrive(("s", said("heartbeat", 1), 2), ("s", said("update", 2), 3), ("t", said("update", 1), 3 * HOUR))
    counted._offset = 0
    counted.arrive(("other", said("heartbeat", 0), 2), topic="capture.b")
    counted.settings = counted.settings.model_copy(
        update={"capture": CaptureSettings(columns={"x": "bigint"}, integrity="order", on_violation="record")}
    )
    counted.use("counted_v1", on_error="fail")
    place = r"counted failed: session 's', topic capture.a, partition 0, offset 2: RuntimeError: no heart"
    with pytest.raises(ProcessorError, match=place):
        counted.run()
    assert (counted.rows(), counted.errors(), counted.ledger()) == ([], [], [])

    counted.use("counted_v1", on_error="isolate")
    counted.run()
    failed = ("counted", "s", 2, "message", "isolated", "RuntimeError: no heart")
    assert counted.errors()[0] == failed
    assert [row[:5] for row in counted.errors()[1:]] == [("counted", "s", 3, "message", "skipped")]
    assert counted.rows() == [
        ("s", 0, 0, 1, "snapshot"),
        ("t", 1, 0, 1, "snapshot"),
        ("t", 1, 1, 1, "quiet"),
        ("t", 1, 2, 1, "expired"),
        ("t", 4, 0, 1, "update"),
    ]
    counts = [sum(row[name] for row in counted.ledger()) for name in ("messages", "applied", "quarantined")]
    assert counts == [5, 3, 2]


def test_where_one_stops_is_decided_before_silver_comes_there(counted: Counted) -> None:
    counted.arrive(("s", said("snapshot", 0), 0), ("s", said("update", 2), 1200))
    with pytest.raises(IntegrityViolationError, match=r"gap: session 's'.*offset 1: expected seq 1"):
        counted.run()
    stopped = read_message_that_stopped_layer(counted.settings, "processor-counted")
    assert stopped is not None
    assert (stopped.session_id, stopped.offset, read_message_that_stopped_layer(counted.settings)) == ("s", 1, None)
    record_decision(counted.settings, None, "s", OperatorDecision.ACCEPT_GAP, who="me")
    for layer in (Layer.PROCESSOR, Layer.SILVER):
        counted.run(layer)
    assert read_message_that_stopped_layer(counted.settings, "processor-counted") is None
    assert [row[1] for row in counted.rows()] == [0, 0, 1]
    changed = rows_of(counted.spark, counted.lake, "silver.integrity_events")
    assert [(row["action"], row["offset"]) for row in changed] == [("accepted", 1)]


OTHERWISE = """
    def initial(self, session):
        return Count(10 if session.session_id == "t" else 0)

    def on_timeout(self, state, timer):
        return ()
"""


@pytest.mark.soak
def test_a_new_class_is_shown_against_history_then_published_at_once_and_gone_on_from(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.arrive(("s", said("snapshot", 0), 0), ("t", said("snapshot", 0), 500))
    counted.run()
    counted.arrive(("s", said("update", 1), 1200))
    counted.run()
    stored = counted.rows()
    counted.arrive(("t", said("update", 1), 1300))

    counted.use("counted_v4", version=2, migrate=OTHERWISE, column="more")
    shown = preview_processor_rebuild(counted.spark, counted.settings, "counted")
    assert shown.counts == {"removed": 1, "changed": 1}
    assert shown.columns == ("more",)
    one = {"topic": "capture.a", "partition": 0, "_position": 1, "ordinal": 0, "session_id": "t"}
    changed = next(row for row in shown.first if row.change == "changed")
    assert (changed.key, changed.before["seen"], changed.after["seen"]) == (one, 1, 11)
    assert counted.rows() == stored

    monkeypatch.setattr(
        "sessionlake.streaming.journal.inject_fault_if_requested", _dies_at("after:publish:silver.counted")
    )
    with pytest.raises(_DeathError):
        rebuild_processor(counted.spark, counted.settings, "counted")
    refused = "was interrupted while .* Run `sessionlake rebuild processor:counted`"
    with pytest.raises(LakeError, match=refused):
        counted.run()
    with pytest.raises(LakeError, match=refused):
        preview_processor_rebuild(counted.spark, counted.settings, "counted")
    monkeypatch.undo()
    monkeypatch.chdir(counted.folder)
    set_clock_back(monkeypatch, hours=1)
    rebuilt = rebuild_processor(counted.spark, counted.settings, "counted")
    assert (rebuilt.messages, rebuilt.different) == (4, None)
    anew = [("s", 0, 0, 1, "snapshot"), ("s", 2, 0, 2, "update"), ("t", 1, 0, 11, "snapshot")]
    assert counted.rows() == [*anew, ("t", 3, 0, 12, "update")]

    set_clock_back(monkeypatch, hours=2)
    for number in (2, 3):
        counted.arrive(("t", said("update", number), 1400))
        counted.run()
    later = [("t", number, 0, 9 + number, "update") for number in (3, 4, 5)]
    assert counted.rows() == anew + later
    assert sorted(row["batch_id"] for row in counted.ledger()) == [0, 1, 2, 3, 4]
    assert not preview_processor_rebuild(counted.spark, counted.settings, "counted")


class _DeathError(BaseException):
    """As if the process had been killed."""


def _power_cut(*_: object) -> None:
    raise LakeError("the power fails")


def _dies_at(place: str) -> Any:
    def inject_fault_if_requested(name: str) -> None:
        if name == place:
            raise _DeathError

    return inject_fault_if_requested


@pytest.mark.soak
def test_a_rebuild_that_was_interrupted_is_finished_whatever_was_done_with_another_processor(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.use("counted_v1", on_error="record")
    own = counted.settings.processors[0]
    counted.settings = counted.settings.model_copy(
        update={"processors": (own, own.model_copy(update={"name": "other"}))}
    )
    counted.arrive(("s", said("snapshot", 0), 0), ("s", said("heartbeat", 1), 1))
    with monkeypatch.context() as patch:
        patch.setattr(
            "sessionlake.streaming.journal.inject_fault_if_requested", _dies_at("after:publish:silver.counted")
        )
        with pytest.raises(_DeathError):
            rebuild_processor(counted.spark, counted.settings, "counted")
    preview_processor_rebuild(counted.spark, counted.settings, "other")
    assert rebuild_processor(counted.spark, counted.settings, "counted").different is None
    assert [row[:3] for row in counted.errors()] == [("counted", "s", 1)]


@pytest.mark.soak
def test_a_rebuild_leaves_no_error_of_a_batch_that_died_before_its_ledger_row(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.use("counted_v1", on_error="record")
    counted.arrive(("s", said("snapshot", 0), 0), ("s", said("heartbeat", 1), 1))
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.ledger.entries.Ledger.write_entry", _power_cut)
        with pytest.raises(LakeError, match="the power fails"):
            counted.run()
    assert (len(counted.errors()), counted.ledger()) == (1, [])
    replace = folder_removal.replace_files

    def beside_another(*removed: Any, **how: Any) -> bool:
        write_rows(counted.spark, counted.lake, PROCESSOR_ERRORS, [{"processor": "other", "session_id": "s"}])
        return replace(*removed, **how)

    monkeypatch.setattr(folder_removal, "replace_files", beside_another)
    rebuild_processor(counted.spark, counted.settings, "counted")
    assert sorted(row[:3] for row in counted.errors()) == [("counted", "s", 1), ("other", "s", None)]


@pytest.mark.soak
def test_another_name_over_the_same_table_and_a_column_of_another_type_take_a_rebuild(counted: Counted) -> None:
    counted.use("counted_v1", table="silver.kept")
    counted.arrive(("s", said("snapshot", 0), 0), ("t", said("snapshot", 0), 500))
    counted.run()

    retyped = MODULE.format(version=1, migrate="", column="").replace('"seen": "bigint"', '"seen": "timestamp"')
    (counted.folder / "counted_typed.py").write_text(retyped)
    own = counted.settings.processors[0]
    typed = own.model_copy(update={"target": "counted_typed:Counted"})
    counted.settings = counted.settings.model_copy(update={"processors": (typed,)})
    with pytest.raises(LakeError, match=r"in the output of processor counted.*`sessionlake rebuild processor:counted`"):
        counted.run()
    assert str(preview_processor_rebuild(counted.spark, counted.settings, "counted")).startswith(
        "column seen in only one table"
    )

    renamed = own.model_copy(update={"name": "renamed"})
    counted.settings = counted.settings.model_copy(update={"processors": (renamed,)})
    with pytest.raises(DataLossError, match=r"silver\.kept has rows already"):
        counted.run()
    assert not rebuild_processor(counted.spark, counted.settings, "renamed").different
    counted.arrive(("s", said("update", 1), 600))
    counted.run()
    rows = rows_of(counted.spark, counted.lake, "silver.kept")
    assert sorted((row["session_id"], row["seen"]) for row in rows) == [("s", 1), ("s", 2), ("t", 1)]


KEYED = """
from dataclasses import dataclass
from sessionlake.processors import KeyedProcessor

@dataclass
class Seen:
    last: str = ""
    changes: int = 0

class Changes(KeyedProcessor[Seen]):
    state = Seen
    output = {{"at": "bigint", "x": "bigint", "sessions": "bigint"}}

    def on_row(self, state, row):
        state.changes += row["session_id"] != state.last
        state.last = row["session_id"]
        if row["x"] is not None and row["x"] < 0:
            raise ValueError("below nothing")
        if {wanted}:
            yield {{"at": row["_ts"], "x": row["x"]}}

    def on_end(self, state):
        yield {{"sessions": state.changes}}
"""


def test_one_with_a_key_is_a_function_of_the_rows_whatever_their_order_of_coming(counted: Counted) -> None:
    own = ProcessorSettings(name="changes", target="keyed_v1:Changes", key=("topic", "row_id"))
    counted.settings = counted.settings.model_copy(update={"processors": (own,)})
    (counted.folder / "keyed_v1.py").write_text(KEYED.format(wanted="True"))
    counted.lake.create_or_update_tables(counted.spark, ["silver.session_changes"])
    rows = [("s", "a", 0, 1), ("s", "a", 20, 2), ("t", "a", 10, 3), ("t", "b", 5, 4), ("s", "a", 30, None)]

    def arrive(*found: tuple[str, str, int, int | None]) -> None:
        names = ("topic", "session_id", "row_id", "_ts", "x", "partition", "_position", "ordinal")
        told = [(("capture.a"), session, row, ts, x, 0, ts, 0) for session, row, ts, x in found]
        changes = [dict(zip(names, one, strict=True)) for one in told]
        write_rows(counted.spark, counted.lake, "silver.session_changes", changes)
        counted.run()

    def table() -> list[tuple[Any, ...]]:
        columns = ("row_id", "ordinal", "at", "x", "sessions")
        found = rows_of(counted.spark, counted.lake, "silver.changes")
        return sorted(tuple(row[name] for name in columns) for row in found)

    arrive(*rows[:2])
    assert table() == [("a", 0, 0, 1, None), ("a", 1, 20, 2, None), ("a", 2, None, None, 1)]
    arrive(*rows[2:])
    whole = [("a", 0, 0, 1, None), ("a", 1, 10, 3, None), ("a", 2, 20, 2, None), ("a", 3, 30, None, None)]
    whole += [("a", 4, None, None, 3), ("b", 0, 5, 4, None), ("b", 1, None, None, 1)]
    assert table() == whole
    assert not keyed.preview_keyed_table_rebuild(counted.spark, counted.settings, own)

    (counted.folder / "keyed_v2.py").write_text(KEYED.format(wanted="row['_ts'] > 5"))
    own = own.model_copy(update={"target": "keyed_v2:Changes"})
    counted.settings = counted.settings.model_copy(update={"processors": (own,)})
    shown = keyed.preview_keyed_table_rebuild(counted.spark, counted.settings, own)
    assert shown.counts == {"changed": 5, "removed": 2}
    assert table() == whole
    keyed.rebuild_table(counted.spark, counted.settings, own)
    anew = [("a", 0, 10, 3, None), ("a", 1, 20, 2, None), ("a", 2, 30, None, None), ("a", 3, None, None, 3)]
    assert table() == [*anew, ("b", 0, None, None, 1)]
    with pytest.raises(ProcessorError, match=r'key \{"topic": "capture.a", "row_id": "b"\}: ValueError: below nothing'):
        arrive(("t", "b", 6, -1))
    assert table() == [*anew, ("b", 0, None, None, 1)]

    with pytest.raises(
        ConfigError,
        match=r"silver\.changes was written with the key topic, row_id, but the configuration has the key topic",
    ):
        keyed.rebuild_table(counted.spark, counted.settings, own.model_copy(update={"key": ("topic",)}))


@pytest.mark.soak
def test_one_with_a_key_refuses_a_checkpoint_older_than_its_table_and_makes_the_same_of_none(counted: Counted) -> None:
    (counted.folder / "keyed_v1.py").write_text(KEYED.format(wanted="True"))
    own = ProcessorSettings(name="changes", target="keyed_v1:Changes", key=("topic", "row_id"))
    counted.settings = counted.settings.model_copy(update={"processors": (own,)})
    counted.lake.create_or_update_tables(counted.spark, ["silver.session_changes"])
    checkpoint = Path(counted.settings.checkpoint_path(own.layer))
    older = counted.folder / "older"

    def arrive(row: str, ts: int) -> None:
        told = {"topic": "capture.a", "session_id": "s", "row_id": row, "_ts": ts, "x": 1}
        place = {"partition": 0, "_position": ts, "ordinal": 0}
        write_rows(counted.spark, counted.lake, "silver.session_changes", [told | place])

    arrive("a", 0)
    counted.run()
    assert doctor._check_layer_states(counted.settings)  # it keeps none
    shutil.copytree(checkpoint, older)
    arrive("b", 1)
    counted.run()
    shutil.rmtree(checkpoint)
    shutil.copytree(older, checkpoint)
    arrive("c", 2)
    with pytest.raises(DataLossError, match="ends with batch 0, but its table holds batches up to 1"):
        counted.run()
    shutil.rmtree(checkpoint)
    counted.run()
    assert sorted({row["row_id"] for row in rows_of(counted.spark, counted.lake, "silver.changes")}) == ["a", "b", "c"]
    assert not keyed.preview_keyed_table_rebuild(counted.spark, counted.settings, own)


@pytest.mark.soak
def test_one_with_a_key_that_begins_again_or_whose_source_was_put_back_has_the_rows_that_there_are(
    counted: Counted,
) -> None:
    (counted.folder / "keyed_v1.py").write_text(KEYED.format(wanted="True"))
    own = ProcessorSettings(
        name="rows", target="keyed_v1:Changes", source=ROWS, key=("topic", "row_id"), order=("_ts",)
    )
    counted.settings = counted.settings.model_copy(update={"processors": (own,)})
    spark, lake = counted.spark, counted.lake
    lake.create_or_update_tables(spark, [ROWS])
    checkpoint, place = Path(counted.settings.checkpoint_path(own.layer)), find_table_folder(lake, ROWS)

    def arrive(*rows: str) -> None:
        told = {"topic": "capture.a", "session_id": "s", "_ts": 0, "x": 1}
        write_rows(spark, lake, ROWS, [told | {"row_id": row} for row in rows])

    def held() -> list[str]:
        return sorted({row["row_id"] for row in rows_of(spark, lake, "silver.rows")})

    arrive("a", "b", "c")
    counted.run()
    shutil.rmtree(checkpoint)
    lake.open_delta_table(spark, ROWS).delete("row_id = 'b'")
    counted.run()  # no change that it reads tells of it
    assert held() == ["a", "c"]

    shutil.copytree(place, counted.folder / "backup")
    arrive("d")
    counted.run()
    assert held() == ["a", "c", "d"]
    shutil.rmtree(place)
    shutil.copytree(counted.folder / "backup", place)
    with pytest.raises(DataLossError, match=r"has read versions of silver\.session_rows that are gone"):
        counted.run()
    keyed.rebuild_table(spark, counted.settings, own)
    arrive("e")
    counted.run()
    assert held() == ["a", "c", "e"]
    assert not keyed.preview_keyed_table_rebuild(spark, counted.settings, own)
