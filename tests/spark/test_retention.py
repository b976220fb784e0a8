"""Old rows leave while layers run on: nobody misses what he needs, and whoever asks for what is gone is told so."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli import doctor
from sessionlake.cli.doctor import CheckSeverity, _check_offsets_are_contiguous, _check_table_row_counts
from sessionlake.cli.maintain import describe_maintenance, maintain_once
from sessionlake.cli.options import RecoverableLayer
from sessionlake.cli.query import fetch_query_result, show_query_result_as_of
from sessionlake.cli.rebuild import verify_silver
from sessionlake.cli.recover import recover_layer
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.commit import remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    CUTS,
    EVENTS,
    LEDGER,
    MESSAGES,
    POSITIONS,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    SESSIONS,
    SILVER,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.delta.storage.commits import TableCommit
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, NotFoundError, UsageError
from sessionlake.history.asof import compute_session_table, find_session
from sessionlake.history.batch_as_of import as_of_batch
from sessionlake.history.status import layer_statuses
from sessionlake.history.trace import trace
from sessionlake.ledger.books import StoredLedgerSums
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange
from sessionlake.ledger.progress import read_last_offsets
from sessionlake.ledger.retained import (
    CLAIM,
    LIMITS,
    RetentionRecord,
    delete_removal_records,
    read_last_removed_position,
    read_limits_changed_by_last_removal,
    read_partition_starts,
    read_removal_records,
    read_removal_records_without_limits,
    select_rows_removed_by_retention,
    store_removal_record,
)
from sessionlake.operations.forgetting.forget import SessionForgetter
from sessionlake.operations.forgetting.rows import remove_session_from_operations_tables
from sessionlake.operations.maintenance import TableMaintenanceResult
from sessionlake.operations.rebuild.preflight import require_silver_read_all_bronze
from sessionlake.operations.rebuild.replay import SessionSelection, replay_messages_into_staging
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.retention import by_session
from sessionlake.operations.retention import removal as module
from sessionlake.operations.retention.removal import RetentionRunner, RowRemovalResult
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.silence import Silence
from sessionlake.settings.model import CaptureSettings, MaintenanceSettings, ProcessorSettings, Settings
from sessionlake.settings.section import Integrity
from sessionlake.silver import job
from sessionlake.silver.merge.sql_function import create_session_as_of
from sessionlake.silver.stream_times import StreamTimesLog, _read_stream_times_from_bronze
from sessionlake.silver.tables.as_of import SessionMoment
from sessionlake.streaming import losses
from sessionlake.streaming.losses import refuse_lost_ledger
from sessionlake_lab.truth import KafkaMessage
from support.folding import truth_of
from support.lakes import assert_silver_is_the_truth, find_table_folder, rows_of, write_bronze, write_rows
from support.retention import BATCHES, CUT, MINUTE, SPAN, START, TOPIC, Aging

GONE = {CHANGES, CUTS, EVENTS, MESSAGES, PROGRESS, QUARANTINE, SNAPSHOT_INDEX, SNAPSHOTS}
FLOOR = 10
"""The offset behind which the changes of the session that goes on begin."""


@pytest.fixture(scope="module")
def three_batches(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Aging:
    """The lake after three batches of all layers; each test takes a copy."""
    aging = Aging(spark, {"home": tmp_path_factory.mktemp("aging") / "home"})
    for _ in range(3):
        aging.take_in()
    return aging


@pytest.fixture
def aging(three_batches: Aging, tmp_path: Path) -> Aging:
    return three_batches.copied(tmp_path / "copy")


@pytest.mark.soak
def test_of_a_lake_that_is_younger_than_its_span_nothing_goes(spark: Any, aging: Aging) -> None:
    # Of each session silver has written another row of its progress since.
    found = {
        table: RetentionRunner(spark, aging.settings).remove_expired_rows(table, aging.moments[1]) for table in CUT
    }
    assert {table: (done.rows, done.waits) for table, done in found.items()} == dict.fromkeys(CUT, (0, ""))
    assert read_removal_records(aging.reader) == {}


@pytest.fixture(scope="module")
def cut(three_batches: Aging, tmp_path_factory: pytest.TempPathFactory) -> Aging:
    """The lake after three batches, two of which are old, and after one more."""
    aging = three_batches.copied(tmp_path_factory.mktemp("cut") / "home")
    aging.cut_and_go_on()
    return aging


def test_streams_run_on_through_a_cut_and_what_is_left_is_the_truth(cut: Aging) -> None:
    assert {table: done.rows for table, done in cut.removed.items()} == {
        CHANGES: 13,
        PROGRESS: 1,
        SNAPSHOTS: 8,
        QUARANTINE: 1,
        EVENTS: 1,
        MESSAGES: 6,
    }
    assert cut.offsets() == list(range(6, len(cut.come)))  # the session that goes on is whole
    assert_silver_is_the_truth(cut.spark, cut.settings, cut.come, cut=GONE)
    said = [said for batch in BATCHES for said in batch]
    assert cut.points() == {(s.session, row, s.minute): (1, price) for s in said for row, price in s.rows}


def test_the_books_balance_and_a_row_that_is_lost_besides_is_missed(cut: Aging) -> None:
    assert _check_table_row_counts(cut.spark, cut.lake) == (
        "hold what the ledger says was written, less 21 that maintain.retention or `sessionlake forget` removed"
    )
    known = read_removal_records(cut.reader)
    store_removal_record(cut.spark, cut.lake, replace(known[MESSAGES], removed=5))
    with pytest.raises(
        LakeError, match=r"has 17 rows, but by the ledger it should have 23, less 5 that maintain\.retention or"
    ):
        _check_table_row_counts(cut.spark, cut.lake)
    store_removal_record(cut.spark, cut.lake, known[MESSAGES])
    assert read_removal_records(cut.reader) == known


def test_a_session_is_reported_at_each_moment_from_its_last_old_table_on_and_refused_before(cut: Aging) -> None:
    reader = cut.reader
    session = find_session(reader, cut.settings, "long")
    for offset in range(6, len(cut.come)):
        if offset < FLOOR:
            with pytest.raises(LakeError, match=r"the table before its snapshot of .* offset 10, next seq 5"):
                compute_session_table(reader, cut.settings, session, SessionMoment(offset=offset))
            continue
        found = compute_session_table(reader, cut.settings, session, SessionMoment(offset=offset)).to_pylist()
        expected = truth_of(cut.come[: offset + 1], cut.settings.capture).session_rows[TOPIC, 0, "long"]
        assert {row["row_id"]: row["price"] for row in found} == {n: row["price"] for n, row in expected.items()}
    with pytest.raises(LakeError, match="the table before its snapshot"):
        compute_session_table(reader, cut.settings, session, SessionMoment(seq=3))
    over = find_session(reader, cut.settings, "old")
    assert compute_session_table(reader, cut.settings, over, SessionMoment(seq=3)).num_rows == 2
    with pytest.raises(
        LakeError, match=r"offset 5, next seq 4\) is not known any more\. maintain.retention has removed"
    ):
        compute_session_table(reader, cut.settings, over, SessionMoment(ts=START + 2 * MINUTE))


@pytest.mark.soak
def test_sql_tells_the_same_and_refuses_the_same(cut: Aging) -> None:
    create_session_as_of(cut.spark, Lake(cut.settings))
    asked = "SELECT count(*) FROM session_as_of('long', timestamp_millis({}))"
    assert fetch_query_result(cut.spark, cut.settings, asked.format(START + (4 + 30 * 5) * MINUTE))[1] == [(3,)]
    with pytest.raises(UsageError, match="session_changes does not reach back that far"):
        fetch_query_result(cut.spark, cut.settings, asked.format(START + (4 + 30 * 2) * MINUTE))


def test_silver_is_read_as_of_a_batch_from_the_cut_on(cut: Aging) -> None:
    counting = "SELECT count(*) FROM silver.session_changes"
    assert show_query_result_as_of(cut.spark, cut.settings, counting, 1, OutputFormat.CSV) == 1
    with pytest.raises(LakeError, match=r"session_changes that were .* up to 1, so .* cannot be read as of batch 0"):
        show_query_result_as_of(cut.spark, cut.settings, counting, 0, OutputFormat.CSV)


def test_a_trace_tells_what_is_gone(cut: Aging) -> None:
    assert trace(cut.reader, cut.settings, TOPIC, 0, 16).judgement.batch == 2
    with pytest.raises(NotFoundError, match=r"offset 3 is not in bronze any .*bronze\.messages begins at offset 6"):
        trace(cut.reader, cut.settings, TOPIC, 0, 3)
    with pytest.raises(
        NotFoundError, match=r"judged the message in batch 1, but retention has removed rows of silver\.\w+ th"
    ):
        trace(cut.reader, cut.settings, TOPIC, 0, 12)


def test_a_topic_whose_changes_are_gone_is_not_folded_from_its_first_change_on(cut: Aging) -> None:
    once = cut.settings.capture.model_copy(update={"integrity": Integrity.ONCE})
    with pytest.raises(LakeError, match=r"topic capture\.a has the class once .* Set the class of the topic back"):
        job.start(cut.spark, cut.settings.model_copy(update={"capture": once}))


def test_silver_is_not_built_from_a_bronze_that_is_cut(cut: Aging) -> None:
    with pytest.raises(
        LakeError, match=r"bronze\.messages begins at offset 6, by maintain.retention\. So silver cannot be"
    ):
        replay_messages_into_staging(cut.spark, cut.settings, version=cut.lake.last_commit(cut.spark, MESSAGES).version)


@pytest.mark.soak
def test_silver_has_taken_in_all_of_a_bronze_that_has_nothing_more_of_a_topic_partition(
    spark: Any, location: dict[str, Any]
) -> None:
    aging = Aging(spark, location)
    lake = aging.lake
    lake.create_or_update_tables(spark, [LEDGER])
    write_bronze(spark, lake, [KafkaMessage(TOPIC, 1, offset, START, b"broken", b"{") for offset in range(2)])
    there = OffsetRange(TOPIC, 1, 0, 1, 2)
    now = datetime.now(UTC)
    Ledger(lake).write_entry(
        spark, LedgerEntry(BRONZE, Txn("other", 0), "kafka", now, offsets=(there,), messages=2, applied=2)
    )
    aging.take_in(with_gold=False)
    aging.cut(0, MESSAGES)
    assert {row["partition"] for row in rows_of(spark, lake, MESSAGES)} == {0}
    require_silver_read_all_bronze(spark, lake, lake.last_commit(spark, MESSAGES).version)

    write_bronze(spark, lake, [KafkaMessage(TOPIC, 1, 2, START, b"broken", b"{")])
    with pytest.raises(LakeError, match=r"has not read exactly the messages of"):
        require_silver_read_all_bronze(spark, lake, lake.last_commit(spark, MESSAGES).version)


@pytest.mark.soak
def test_verify_compares_what_is_left_and_a_rebuild_makes_silver_whole_again(
    spark: Any, location: dict[str, Any]
) -> None:
    aging = Aging(spark, location)
    for number in range(3):
        aging.take_in(with_gold=number > 1)
    aging.cut(1, *(table for table in CUT if table != MESSAGES))
    said: list[str] = []
    assert verify_silver(spark, aging.settings, said.append)
    *since, states = said[1:]
    assert [line.partition(" of ")[2].partition(" ")[0] for line in since] == [EVENTS, QUARANTINE, CHANGES, SNAPSHOTS]
    assert all(line.endswith("only later rows are compared") for line in since)
    assert states.startswith("also exact")
    with pytest.raises(LakeError, match="single sessions cannot be rebuilt"):
        rebuild_silver_tables(spark, aging.settings, selection=SessionSelection(sessions=("long",)))
    rebuilt = rebuild_silver_tables(spark, aging.settings)
    assert rebuilt.comparison is not None
    assert rebuilt.comparison.is_exact
    assert read_removal_records(aging.reader) == {}
    # All is as old as the rebuild; and gold, which is emptied, has yet to read it.
    unread = {CHANGES: RowRemovalResult(waits="gold has not read anything yet, and is computed from all changes")}
    assert aging.cut(1) | {MESSAGES: RowRemovalResult()} == dict.fromkeys(CUT, RowRemovalResult()) | unread
    aging.take_in()
    assert_silver_is_the_truth(spark, aging.settings, aging.come, ledger=False, cut={MESSAGES})
    assert _check_table_row_counts(spark, aging.lake).startswith("hold what the ledger says")


def test_stream_time_that_is_looked_up_knows_of_messages_that_are_gone(cut: Aging) -> None:
    place = TOPIC, 0
    assert _read_stream_times_from_bronze(cut.spark, cut.lake, {place: 5}) == {place: START + 3 * MINUTE}
    assert _read_stream_times_from_bronze(cut.spark, cut.lake, {place: 6}) == {place: START + 4 * MINUTE}
    with pytest.raises(LakeError, match=r"stream time up to offset 4, .*is not known any more"):
        _read_stream_times_from_bronze(cut.spark, cut.lake, {place: 4})


def test_a_ledger_that_is_cut_has_all_sums_and_says_which_batches_it_tells(
    cut: Aging, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = cut.reader
    before = [replace(layer, age_seconds=None) for layer in layer_statuses(reader, cut.settings)]
    held = reader.read_arrow_table(LEDGER).num_rows
    assert cut.cut(1, LEDGER) == {LEDGER: RowRemovalResult(8)}
    assert cut.cut(1, LEDGER) == {LEDGER: RowRemovalResult(0)}
    assert reader.read_arrow_table(LEDGER).num_rows == held - 8
    assert [replace(layer, age_seconds=None) for layer in layer_statuses(reader, cut.settings)] == before
    assert _check_table_row_counts(cut.spark, cut.lake).endswith(
        "less 21 that maintain.retention or `sessionlake forget` removed"
    )
    assert _check_offsets_are_contiguous(reader, allow_gaps=False) == "contiguous in 1 topic-partitions"
    assert trace(reader, cut.settings, TOPIC, 0, 16).judgement.batch == 2
    with pytest.raises(
        NotFoundError,
        match=r"bronze has read offset 12, but it is not known in which batch: retention has removed rows of ops\.",
    ):
        trace(reader, cut.settings, TOPIC, 0, 12)
    refuse_lost_ledger(cut.spark, cut.settings, SILVER)
    with monkeypatch.context() as patch:
        patch.setattr(losses, "read_stored_sums", lambda _: StoredLedgerSums(None, pa.table({})))
        with pytest.raises(LakeError, match=r"ops\.positions .*\. Only ops\.positions has the sums"):
            refuse_lost_ledger(cut.spark, cut.settings, SILVER)
    with pytest.raises(LakeError, match=r"retention has removed rows of ops\.ledger that were .*after batch 0"):
        as_of_batch(cut.spark, cut.settings, 0)
    assert [as_of_batch(cut.spark, cut.settings, batch).batch for batch in (1, 2)] == [1, 2]


@pytest.mark.soak
@pytest.mark.parametrize("bronze", [False, True], ids=["", "bronze"])
def test_a_ledger_that_is_cut_and_lost_is_made_again_unless_bronze_is_cut_too(
    spark: Any, aging: Aging, bronze: bool
) -> None:
    cut = aging.cut(1, LEDGER, *([MESSAGES] if bronze else []))
    assert all(done.rows for done in cut.values())
    whole = read_last_offsets(aging.reader, SILVER)
    for file in find_table_folder(aging.lake, LEDGER).glob("*.parquet"):
        file.unlink()
    said: list[str] = []
    if bronze:
        with pytest.raises(
            LakeError, match=r"ops\.ledger cannot be computed again\. Restore ops\.ledger from a backup"
        ):
            recover_layer(spark, aging.settings, RecoverableLayer.LEDGER, said.append)
        return
    recover_layer(spark, aging.settings, RecoverableLayer.LEDGER, said.append)
    assert read_last_offsets(aging.reader, "bronze") == read_last_offsets(aging.reader, SILVER) == whole
    aging.take_in()
    assert_silver_is_the_truth(spark, aging.settings, aging.come, ledger=False)
    assert [found for found in doctor._run_table_checks(aging.settings) if found.level is CheckSeverity.FAIL] == []


class Events:
    """A lake of events alone, of four batches of one each."""

    def __init__(self, spark: Any, location: dict[str, Any]) -> None:
        maintain = MaintenanceSettings(retention={"events": SPAN})
        self.settings = Settings(**location, maintain=maintain)
        self.spark, self.lake = spark, Lake(self.settings)
        self.lake.create_or_update_tables(spark, [EVENTS, LEDGER])
        self.moments = [datetime.now(UTC) + timedelta(minutes=number) for number in range(4)]
        place = {"topic": TOPIC, "partition": 0}
        write_rows(spark, self.lake, EVENTS, [place | {"offset": n, "_batch": n} for n in range(4)])
        zero = dict.fromkeys(("messages", "applied", "duplicates", "quarantined", "held"), 0)
        entry = {"layer": SILVER, "app_id": "s", "outputs": [], "decisions": [], **zero}
        entries = [
            entry
            | {"batch_id": n, "committed_at": moment - timedelta(seconds=1)}
            | {"offsets": [place | {"first": n, "last": n, "messages": 1}]}
            for n, moment in enumerate(self.moments)
        ]
        write_rows(spark, self.lake, LEDGER, entries)

    def cut(self, batch: int) -> int:
        return RetentionRunner(self.spark, self.settings).remove_expired_rows(EVENTS, self.moments[batch] + SPAN).rows

    def noted(self) -> tuple[int, int]:
        found = read_removal_records(self.lake.reader(self.spark))[EVENTS]
        return found.removed, found.pending

    def left(self) -> int:
        return self.lake.reader(self.spark).read_arrow_table(EVENTS).num_rows


def test_rows_up_to_their_limits_go_in_one_commit_of_none_and_again_none_do(
    spark: Any, location: dict[str, Any]
) -> None:
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [EVENTS])
    place = {"topic": TOPIC, "partition": 0}
    write_rows(spark, lake, EVENTS, [place | {"offset": n, "_batch": (n or 0) % 2} for n in (0, 1, 2, 3, None)])
    limits = pa.Table.from_pylist([place | {"limit": 2}], LIMITS)
    old = select_rows_removed_by_retention(EVENTS, limits, 0)
    assert lake.storage.count_rows(spark, EVENTS, old) == 2
    before = lake.last_commit(spark, EVENTS).version
    remove_rows(spark, lake, EVENTS, old)
    assert lake.last_commit(spark, EVENTS) == TableCommit(before + 2, 0)  # behind that which lets rows go
    left = [row["offset"] for row in lake.reader(spark).read_rows(EVENTS, columns=["offset"])]
    assert sorted(left, key=str) == [1, 3, None]
    assert lake.storage.count_rows(spark, EVENTS, old) == 0


class StoppedError(Exception):
    pass


def stop(*_: Any) -> None:
    raise StoppedError


def die_removing(patch: pytest.MonkeyPatch, *, gone: bool) -> None:
    """Has retention die before it removes rows, or right behind it."""

    def die(*given: Any) -> None:
        if gone:
            remove_rows(*given)
        raise StoppedError

    patch.setattr(module, "remove_rows", die)


@pytest.mark.parametrize("gone", [False, True])
def test_what_is_noted_as_gone_is_as_many_as_are_though_a_cut_died(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    events = Events(spark, location)
    with monkeypatch.context() as patch:
        die_removing(patch, gone=gone)
        with pytest.raises(StoppedError):
            events.cut(1)
    assert events.noted() == (0, 2)
    assert events.left() == (2 if gone else 4)
    assert events.cut(2) == (1 if gone else 3)
    assert (events.noted(), events.left()) == ((3, 0), 1)


@pytest.mark.soak
def test_nothing_goes_by_notes_that_were_set_back(spark: Any, location: dict[str, Any]) -> None:
    events = Events(spark, location)
    assert events.cut(0) == 1
    spark.sql(f"RESTORE TABLE {events.lake.to_sql_identifier(RETAINED)} TO VERSION AS OF 1")
    waits = RetentionRunner(spark, events.settings).remove_expired_rows(EVENTS, events.moments[2] + SPAN).waits
    assert re.match(rf"{RETAINED} has lost its latest changes: .* Bring the newer version back", waits)
    assert events.left() == 3


@pytest.mark.soak
@pytest.mark.parametrize("gone", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_of_sessions_too_as_many_are_noted_as_gone_as_are_though_a_cut_died(
    spark: Any, aging: Aging, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    cut = (CHANGES, PROGRESS, SNAPSHOTS)
    before = {table: aging.reader.read_arrow_table(table).num_rows for table in (*cut, CUTS, SNAPSHOT_INDEX)}
    with monkeypatch.context() as patch:
        die_removing(patch, gone=gone)
        for table in cut:
            with pytest.raises(StoppedError):
                aging.cut(1, table)
            assert read_removal_records_without_limits(aging.reader)[table].pending
    aging.cut(2, *cut)
    assert read_removal_records_without_limits(aging.reader).keys() == {*cut}
    left = {table: aging.reader.read_arrow_table(table).num_rows for table in before}
    for table, found in read_removal_records_without_limits(aging.reader).items():
        parts = (SNAPSHOTS, CUTS, SNAPSHOT_INDEX) if table == SNAPSHOTS else (table,)
        assert (found.pending, found.removed) == (0, sum(before[part] - left[part] for part in parts))
        assert found.removed
    assert _check_table_row_counts(spark, aging.lake).startswith("hold what the ledger says")


@pytest.mark.soak
def test_what_a_forgotten_session_had_of_a_cut_that_died_is_counted_once(
    spark: Any, aging: Aging, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        die_removing(patch, gone=False)
        with pytest.raises(StoppedError):
            aging.cut(1, CHANGES)
    (first, *_) = read_limits_changed_by_last_removal(
        aging.reader, read_removal_records_without_limits(aging.reader)[CHANGES]
    )["session_id"].to_pylist()
    with monkeypatch.context() as patch:
        patch.setattr(
            "sessionlake.operations.forgetting.rows.remove_session_rows", stop
        )  # counted, and not yet removed
        with pytest.raises(StoppedError):
            SessionForgetter(spark, aging.settings, shorten=True).forget_session(first)
    assert not read_removal_records_without_limits(aging.reader)[CHANGES].pending
    waits = RetentionRunner(spark, aging.settings).remove_expired_rows(CHANGES, aging.moments[2] + SPAN).waits
    assert waits.startswith("the forgetting of a session was interrupted")
    SessionForgetter(spark, aging.settings, shorten=True).forget_session(first)
    assert _check_table_row_counts(spark, aging.lake).startswith("hold what the ledger says")


def test_limits_of_sessions_are_changed_where_they_are(spark: Any, location: dict[str, Any]) -> None:
    lake, now = Lake(Settings(**location)), datetime.now(UTC)

    def limits(**of: int) -> pa.Table:
        return pa.Table.from_pylist(
            [{"topic": TOPIC, "partition": 0, "session_id": name, "limit": at} for name, at in of.items()], LIMITS
        )

    def noted(table: str = CHANGES) -> dict[str, int]:
        return {
            row["session_id"]: row["limit"]
            for row in read_removal_records(lake.reader(spark))[table].limits.to_pylist()
        }

    store_removal_record(spark, lake, RetentionRecord(CHANGES, now, 1, 0, 9, limits(a=1, b=2)))
    store_removal_record(spark, lake, RetentionRecord(SNAPSHOTS, now, 1, 0, 4, limits(a=7)))
    done = RetentionRecord(CHANGES, now, 3, 9, 0, limits(b=5, c=4))
    store_removal_record(spark, lake, done)
    assert noted() == {"a": 1, "b": 5, "c": 4}
    assert noted(SNAPSHOTS) == {"a": 7}
    assert [read_last_removed_position(lake.reader(spark), TOPIC, 0, name) for name in "abx"] == [1, 5, None]
    assert {
        table: found.max_missing_rows
        for table, found in read_removal_records_without_limits(lake.reader(spark)).items()
    } == {CHANGES: 9, SNAPSHOTS: 4}
    last = read_limits_changed_by_last_removal(lake.reader(spark), done)
    assert {row["session_id"]: row["limit"] for row in last.to_pylist()} == {"b": 5, "c": 4}
    delete_removal_records(spark, lake, [SNAPSHOTS, MESSAGES])
    assert [*read_removal_records(lake.reader(spark))] == [CHANGES]
    assert noted() == {"a": 1, "b": 5, "c": 4}


@pytest.mark.soak
def test_up_to_where_rows_of_sessions_go_by_each_sessions_whole_tables_and_what_is_noted(
    spark: Any, location: dict[str, Any]
) -> None:
    rnd = random.Random(5)
    once = {"pattern": "o", "integrity": "once"}
    lake = Lake(Settings(**location, capture=CaptureSettings(by_topic=(once,))))
    lake.create_or_update_tables(spark, [CUTS, SNAPSHOT_INDEX, PROGRESS])
    of = [{"topic": rnd.choice("abo"), "partition": n % 2, "session_id": f"s{n // 2}"} for n in range(120)]
    cuts = [[{"position": n, "_batch": n // 3} for n in sorted(rnd.sample(range(1, 30), 6))] for _ in of]
    kept = [[cut for cut in own if rnd.random() < 0.4] for own in cuts]
    late = [rnd.random() < 0.2 for _ in of]
    write_rows(spark, lake, CUTS, [s | cut | {"changes": 1} for s, own in zip(of, cuts, strict=True) for cut in own])
    write_rows(spark, lake, SNAPSHOT_INDEX, [s | cut for s, own in zip(of, kept, strict=True) for cut in own])
    filled_late = [s | {"_batch": 1, "beneath": is_late or None} for s, is_late in zip(of, late, strict=True)]
    write_rows(spark, lake, PROGRESS, filled_late)
    rules = {
        CHANGES: by_session.compute_removal_limits_of_changes,
        SNAPSHOTS: by_session.compute_removal_limits_of_snapshots,
    }
    noted: dict[tuple[str, str, int, str], int] = {}
    # Of whole tables, more may be old than of changes, or less.
    for steps in (((CHANGES, 4), (SNAPSHOTS, 2)), ((SNAPSHOTS, 7), (CHANGES, 5)), ((SNAPSHOTS, 7), (CHANGES, 9))):
        for table, batch in steps:
            expected = {}
            for session, all_cuts, own, is_late in zip(of, cuts, kept, late, strict=True):
                name = tuple(session[key] for key in SESSION)
                last = max((cut["position"] for cut in own if cut["_batch"] <= batch), default=None)
                if last is None or (table == CHANGES and (is_late or name[0] == "o")):
                    continue
                limit = last if table == CHANGES else min(last, noted.get((CHANGES, *name), last)) - 1
                if table == SNAPSHOTS and limit < min(cut["position"] for cut in all_cuts):
                    continue
                if limit > noted.get((table, *name), -1):
                    expected[name] = limit
            found = rules[table](spark, lake, batch)
            assert {tuple(row[key] for key in SESSION): row["limit"] for row in found.to_pylist()} == expected
            assert found.schema == LIMITS
            store_removal_record(spark, lake, RetentionRecord(table, datetime.now(UTC), batch, limits=found))
            noted |= {(table, *name): limit for name, limit in expected.items()}
    assert {table for table, *_ in noted} == {CHANGES, SNAPSHOTS}


def test_of_progress_goes_what_a_later_old_row_has_replaced_and_nothing_with_a_late_fill(
    spark: Any, location: dict[str, Any]
) -> None:
    rnd, lake = random.Random(6), Lake(Settings(**location))
    lake.create_or_update_tables(spark, [PROGRESS])
    rows = []
    for number in range(200):
        place = {"topic": TOPIC, "partition": number % 2, "session_id": f"s{number % 80 // 2}"}
        life = place | {"first_offset": rnd.choice([None, 1, 2])}
        rows.append(life | {"_batch": number // 10, "beneath": rnd.choice([None, False, True])})
    write_rows(spark, lake, PROGRESS, rows)
    for batch in (-1, 5, 12, 30):
        expected: dict[tuple[Any, ...], int] = {}
        for row in rows:
            own = [r for r in rows if all(r[name] == row[name] for name in (*SESSION, "first_offset"))]
            last = max((r["_batch"] for r in own if r["_batch"] <= batch), default=-1)
            if row["first_offset"] is not None and not row["beneath"] and row["_batch"] < last:
                expected[*(row[name] for name in SESSION), row["first_offset"]] = last - 1
        found = by_session.compute_removal_limits_of_progress(spark, lake, batch).to_pylist()
        names = (*SESSION, "first_offset")
        assert {tuple(row[name] for name in names): row["limit"] for row in found} == expected


@pytest.mark.soak
def test_a_session_that_is_forgotten_is_taken_out_of_its_limits_files_and_all(
    spark: Any, location: dict[str, Any]
) -> None:
    lake, now = Lake(Settings(**location)), datetime.now(UTC)
    rows = [{"topic": TOPIC, "partition": 0, "session_id": name, "limit": 4} for name in ("somebody", "other")]
    store_removal_record(spark, lake, RetentionRecord(CHANGES, now, 1, limits=pa.Table.from_pylist(rows, LIMITS)))
    places = [{"topic": TOPIC, "partition": 0, "limit": 7, "highest_timestamp": now}]
    store_removal_record(spark, lake, RetentionRecord(MESSAGES, now, limits=pa.Table.from_pylist(places, LIMITS)))
    lake.set_property(spark, RETAINED, "delta.enableDeletionVectors", "true")
    lake.storage.open_delta_table(spark, RETAINED).update(
        "session_id = 'somebody'", {"limit": "5"}
    )  # the former row is marked
    lake.create_or_update_tables(spark, [LEDGER, POSITIONS])
    for session in ("somebody", ""):  # of messages without an id of a session
        remove_session_from_operations_tables(spark, lake, (TOPIC, session))
    assert [read_last_removed_position(lake.reader(spark), TOPIC, 0, name) for name in ("somebody", "other")] == [
        None,
        4,
    ]
    assert read_partition_starts(lake.reader(spark))[TOPIC, 0].last_removed == 7
    lake.storage.purge_history(spark, RETAINED, "test")
    held = [file for file in find_table_folder(lake, RETAINED).rglob("*.parquet") if b"somebody" in file.read_bytes()]
    assert held == []


def test_maintenance_says_how_many_rows_it_has_removed_and_looks_again_when_they_are_a_24th_older(
    spark: Any, location: dict[str, Any], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    events = Events(spark, location)
    late = RetentionRunner.remove_expired_rows
    now = events.moments[1] + SPAN
    monkeypatch.setattr(
        RetentionRunner, "remove_expired_rows", lambda self, table, _, **how: late(self, table, now, **how)
    )
    maintain_once(spark, events.settings, EVENTS, OutputFormat.CSV)
    assert capsys.readouterr().out.splitlines()[1].split(",")[-2:] == ["2", ""]
    beside = RetentionRunner(spark, events.settings)
    assert late(beside, EVENTS, now, only_if_due=True) == RowRemovalResult(0)
    soon = max(events.moments[3] + SPAN, now)
    assert late(beside, EVENTS, soon, only_if_due=True) == RowRemovalResult(0)  # looked at just now
    assert late(beside, EVENTS, soon + SPAN / 24, only_if_due=True) == RowRemovalResult(2)
    assert describe_maintenance(TableMaintenanceResult(EVENTS, rows=2)) == f"{EVENTS}: 2 old rows removed"


def test_what_a_reader_that_has_not_begun_would_read_stays(spark: Any, location: dict[str, Any]) -> None:
    events = Events(spark, location)
    events.lake.create_or_update_tables(spark, [CHANGES, CUTS, MESSAGES, PROGRESS, SNAPSHOT_INDEX])
    own = ProcessorSettings(name="logins", target="a:B")
    spans = MaintenanceSettings(retention={"bronze": SPAN, "changes": SPAN})
    settings = events.settings.model_copy(update={"maintain": spans, "processors": (own,)})
    found = {
        table: RetentionRunner(spark, settings).remove_expired_rows(table, events.moments[3] + SPAN)
        for table in (MESSAGES, CHANGES)
    }
    assert {table: done.waits.partition(":")[0] for table, done in found.items()} == {
        MESSAGES: "processor-logins has not read anything yet",
        CHANGES: "gold has not read anything yet, and is computed from all changes",
    }
    entry = LedgerEntry("gold", Txn("g", 0), CHANGES, datetime.now(UTC), source_from=0, source_to=3)
    Ledger(events.lake).write_entry(spark, entry)
    checkpoint = Path(settings.checkpoint_path("gold"))
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
    (checkpoint / "commits" / "0").touch()
    for first, waits in (
        (True, "gold still reads the first snapshot of silver.session_changes"),
        (False, ""),
    ):
        place = {"reservoirId": "a", "reservoirVersion": 1, "index": 2, "isStartingVersion": first}
        (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(place)}")
        done = RetentionRunner(spark, settings).remove_expired_rows(CHANGES, events.moments[3] + SPAN)
        assert done.waits.partition(",")[0] == waits


def test_what_silver_may_remember_is_reported_by_the_last_message_of_each_topic_partition(
    spark: Any, location: dict[str, Any]
) -> None:
    rnd, lake = random.Random(8), Lake(Settings(**location))
    lake.create_or_update_tables(spark, [PROGRESS, SESSIONS, LEDGER, MESSAGES])
    timeout = int(lake.settings.capture.session_timeout.total_seconds() * 1000)
    rows: dict[str, list[dict[str, Any]]] = {PROGRESS: [], SESSIONS: []}
    for number in range(300):  # most in both, with another beginning and end
        place = {"topic": rnd.choice("ab"), "partition": rnd.randrange(3), "session_id": f"s{number}"}
        for table in rnd.choice([[SESSIONS], [PROGRESS], [SESSIONS, PROGRESS]]):
            last = datetime.fromtimestamp(START / 1000, UTC) + timedelta(milliseconds=rnd.randrange(5 * timeout))
            first = rnd.choice([None, rnd.randrange(1000)])
            rows[table].append(place | {"first_offset": first, "last_kafka_timestamp": last, "_batch": 0})
    for table, some in rows.items():
        names = lake.reader(spark).read_table_schema(table).names
        write_rows(spark, lake, table, [{name: row[name] for name in row if name in names} for row in some])
    firsts, lasts, come = dict[Any, int](), dict[Any, datetime](), dict[Any, datetime]()
    for row in [*rows[SESSIONS], *rows[PROGRESS]]:
        of, last = (row["topic"], row["partition"]), row["last_kafka_timestamp"]
        session = *of, row["session_id"]
        firsts[session] = min(firsts.get(session, 1000), row["first_offset"] or 0)
        lasts[session], come[of] = max(lasts.get(session, last), last), max(come.get(of, last), last)
    # A silence moves time on where silver has passed it.
    silent = {("a", n): timeout * (n + 3) for n in range(3)}
    found = [Silence(*place, 2000 - place[1], START + until, timeout) for place, until in silent.items()]
    write_bronze(spark, lake, found)
    judged = tuple(OffsetRange("a", n, 0, 1999, 2000) for n in range(3))
    Ledger(lake).write_entry(spark, LedgerEntry("silver", Txn("q", 0), "any", datetime.now(UTC), offsets=judged))
    StreamTimesLog.open_log(spark, lake.settings, SILVER, {("a", n): 1999 for n in range(3)})
    for place in (("a", 1), ("a", 2)):
        moment = datetime.fromtimestamp((START + silent[place]) / 1000, UTC)
        come[place] = max(come.get(place, moment), moment)
    least = dict[Any, int]()
    for session, last in lasts.items():
        if come[session[:2]] <= last + timedelta(milliseconds=2 * timeout):
            least[session[:2]] = min(least.get(session[:2], 1000), firsts[session])
    told = RetentionRunner(spark, lake.settings)._read_lowest_session_start_offsets().to_pylist()
    assert {(row["topic"], row["partition"]): row["first_offset"] for row in told} == least


def test_nothing_goes_while_another_process_must_not_have_rows_removed(spark: Any, location: dict[str, Any]) -> None:
    events = Events(spark, location)
    with events.lake.storage.hold_exclusive_claim(spark, CLAIM, "verifies silver"):
        found = RetentionRunner(spark, events.settings).remove_expired_rows(EVENTS, events.moments[3] + SPAN)
    assert found.rows == 0
    assert "verifies silver" in found.waits or "another process" in found.waits
