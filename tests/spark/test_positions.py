"""A ledger of ten thousand entries: who starts, or asks, reads those of late, in a few files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from operator import eq
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.delta.folders import reader as folder_reader
from sessionlake.delta.folders.reader import FolderReader
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, POSITIONS
from sessionlake.delta.storage.spark_reader import SparkReader
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.errors import LakeError
from sessionlake.history import status
from sessionlake.history.batch_as_of import as_of_batch
from sessionlake.history.status import layer_statuses
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.entries import Ledger, LedgerEntry
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.positions import update_ledger_sums, verify_ledger_sums
from sessionlake.ledger.progress import (
    find_ledger_entry_of_message,
    has_read_message,
    read_last_batch_number,
    read_last_merged_batch_number,
    read_ledger_entries_after_batch,
)
from sessionlake.operations.maintenance import TableMaintainer
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import _read_followed_decisions
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from support.clocks import set_clock_back
from support.ledgers import LAYERS, NOON, SPACING, entries

ENTRIES, COMMITS = 10_000, 20
LAST = ENTRIES // len(LAYERS) - 1
LATE = timedelta(minutes=5) // SPACING
"""Entries that are no part of the sums."""


@pytest.fixture
def lake(spark: Any, settings: Settings) -> Lake:
    found = Lake(settings)
    found.create_or_update_tables(spark, [LEDGER])
    each = ENTRIES // COMMITS
    for n in range(COMMITS):
        found.storage.append_rows(spark, LEDGER, entries(n * each, (n + 1) * each), Txn("fill", n))
    return found


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many rows of the ledger each look into it gave."""
    rows: list[int] = []

    def batches(kind: type[FolderReader | SparkReader]) -> Callable[..., Any]:
        before = kind.read_batches

        def counting(reader: Any, table: str, *conditions: Any, **how: Any) -> Iterator[pa.RecordBatch]:
            for batch in before(reader, table, *conditions, **how):
                rows.append(batch.num_rows if table == LEDGER else 0)
                yield batch

        return counting

    def counted(kind: type[FolderReader | SparkReader]) -> Callable[..., Any]:
        before = kind.read_rows_and_total_count

        def counting(reader: Any, table: str, *conditions: Any, **how: Any) -> tuple[pa.Table, int]:
            found, known = before(reader, table, *conditions, **how)
            rows.append(found.num_rows)
            return found, known

        return counting

    for kind in (FolderReader, SparkReader):
        monkeypatch.setattr(kind, "read_batches", batches(kind))
        monkeypatch.setattr(kind, "read_rows_and_total_count", counted(kind))
    return rows


def asked(spark: Any, lake: Lake) -> dict[str, Callable[[], Any]]:
    """What is asked of the ledger by a start, by `status` and by an as-of; and of the place of one message."""
    reader, settings = lake.reader(spark), lake.settings
    again = Txn(f"6f1d1f5e-0000-4000-8000-{1:012}", LAST)
    return {
        "offsets": lambda: dict(OffsetLog.load_from_ledger(spark, lake, "silver").last_offsets),
        "offsets before a batch that is repeated": lambda: dict(
            OffsetLog.load_from_ledger(spark, lake, "silver", again).last_offsets
        ),
        "a fresh checkpoint": lambda: refused(spark, lake),
        "the last batch": lambda: read_last_batch_number(reader, "bronze"),
        "what is merged": lambda: read_last_merged_batch_number(reader),
        "what is to be merged": lambda: [
            row["batch_id"] for row in read_ledger_entries_after_batch(reader, "silver", LAST - 3)
        ],
        "decisions followed": lambda: _read_followed_decisions(reader),
        "status": lambda: [(layer.messages, layer.behind, layer.rows) for layer in layer_statuses(reader, settings)],
        "as of a late batch": lambda: as_of_batch(spark, settings, LAST - 1).versions,
        "whether a message was taken in": lambda: has_read_message(reader, "silver", "capture.a", 0, 17),
        "who took in a late message": lambda: find_ledger_entry_of_message(
            reader, "silver", "capture.a", 0, LAST * 10, latest()
        ),
    }


def latest() -> Any:
    return NOON + ENTRIES * SPACING


def refused(spark: Any, lake: Lake) -> bool:
    with pytest.raises(LakeError, match="the layer's tables already hold data"):
        refuse_new_checkpoint_over_data(spark, lake, lake.settings, "silver")
    return True


def test_whoever_starts_or_asks_reads_the_entries_of_late_and_answers_the_same(
    spark: Any, lake: Lake, read: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(status, "read_kafka_end_offsets", lambda _: None)
    monkeypatch.setattr("sessionlake.ledger.progress._REACHES", (timedelta(minutes=5), timedelta(minutes=20)))
    whole = {name: answer() for name, answer in asked(spark, lake).items()}
    assert whole["offsets"]["capture.a", 3] == LAST * 10 + 9
    (done,) = TableMaintainer(spark, lake.settings).maintain_tables_once(LEDGER)
    assert done.waits == ""
    for name, answer in asked(spark, lake).items():
        read.clear()
        assert answer() == whole[name], name
        assert 0 < max(read) <= LATE + 1, name  # of ten thousand
        assert sum(read) <= 3 * (LATE + 1), name
    assert verify_ledger_sums(lake.reader(spark))


def test_sums_go_on_from_sums_and_are_those_of_all(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    assert update_ledger_sums(spark, lake)
    assert not update_ledger_sums(spark, lake)  # nothing to speak of has come
    for n in range(3):
        lake.storage.append_rows(spark, LEDGER, entries(ENTRIES + n * 300, ENTRIES + (n + 1) * 300), Txn("more", n))
    assert update_ledger_sums(spark, lake)
    reader = lake.reader(spark)
    assert sum(row["batches"] for row in reader.read_rows(POSITIONS)) == ENTRIES + 900 - LATE - 1
    assert verify_ledger_sums(reader)
    late = LedgerEntry("gold", Txn("by a clock set back", 0), "x", NOON)
    monkeypatch.setattr("sessionlake.ledger.entries.datetime", Clock)
    Ledger(lake).write_entry(spark, late)
    assert not LedgerReader(reader).uses_sums_of_old_entries
    assert read_last_batch_number(reader, "gold", "by a clock set back") == 0
    assert update_ledger_sums(spark, lake)  # of all, once more
    assert LedgerReader(reader).uses_sums_of_old_entries
    assert verify_ledger_sums(reader)


class Clock:
    @staticmethod
    def now(_: Any) -> Any:
        return NOON


def test_entries_tell_by_their_times_whether_they_are_from_before_a_rebuild_whatever_the_clock_says(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [LEDGER])
    reader, before = lake.reader(spark), datetime.now(UTC)

    def written(layer: str, app_id: str, batch: int = 0) -> Any:
        Ledger(lake).write_entry(spark, LedgerEntry(layer, Txn(app_id, batch), "x", NOON))
        [row] = reader.read_rows(LEDGER, ("app_id", eq, app_id), ("batch_id", eq, batch))
        return row["committed_at"]

    of_gold, of_bronze = written("gold", "a"), written("bronze", "b")
    assert before <= of_gold <= of_bronze <= datetime.now(UTC)
    set_clock_back(monkeypatch, hours=1)
    assert written("gold", "a", 1) < before  # nothing was rebuilt
    first = written("gold", f"{REBUILD}1:gold")
    assert first == of_gold + timedelta(microseconds=1)  # whatever time others have written
    set_clock_back(monkeypatch, hours=2)
    job = Ledger(lake)
    for batch in range(2):
        job.write_entry(spark, LedgerEntry("gold", Txn("c", batch), "x", NOON))
    assert written("bronze", "b", 1) < before
    second = written("silver", f"{REBUILD}2")
    assert second > first
    assert written("silver", "d") > second
    current = [
        (row["app_id"], row["batch_id"])
        for row in iterate_rows_as_dicts(LedgerReader(reader).read_entries_since_rebuild(("layer", eq, "gold")))
    ]
    assert sorted(current) == [("c", 0), ("c", 1), (f"{REBUILD}1:gold", 0)]


def test_files_from_before_are_not_opened(spark: Any, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    left_open = folder_reader._select_candidate_files

    def counting(files: Any, conditions: Any) -> Any:
        found = left_open(files, conditions)
        opened.append(len(found))
        return found

    monkeypatch.setattr(folder_reader, "_select_candidate_files", counting)
    update_ledger_sums(spark, lake)
    opened.clear()
    assert read_last_batch_number(lake.reader(spark), "bronze") == LAST
    assert opened == [1, LATE * COMMITS // ENTRIES + 1]  # the sums, and three of twenty
