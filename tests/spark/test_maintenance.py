"""Files merged and removed under running layers: no table changes, and nobody misses what he has yet to read."""

from __future__ import annotations

import json
import operator
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from sessionlake.cli.maintain import COLUMNS, maintain_once
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.catalog import storage as catalog
from sessionlake.delta.commit import append_rows, merge_rows
from sessionlake.delta.folders import compaction as tiers
from sessionlake.delta.folders.table_files import list_data_files, open_table
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    EVENTS,
    LEASES,
    LEDGER,
    MESSAGES,
    POSITIONS,
    QUARANTINE,
    RETAINED,
    ROWS,
    SESSIONS,
    SILVER,
)
from sessionlake.delta.schemas.properties import DELETION_VECTORS, RETENTION
from sessionlake.delta.storage.faults import VARIABLE
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger import positions
from sessionlake.ledger.positions import verify_ledger_sums
from sessionlake.operations.maintenance import (
    ReadingStreamProgress,
    TableMaintainer,
    TableMaintenanceResult,
    list_streams_reading_table,
)
from sessionlake.settings.model import MaintenanceSettings, Settings
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from spark.test_silver_law import TABLES, Pipeline, streams
from support.lakes import assert_silver_is_the_truth, find_table_folder, limit, rows_of
from support.waiting import eventually

NOW = HistoryToKeep(timedelta(0))


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few files are many, and a few entries, of which the last alone is no part of the sums."""
    monkeypatch.setattr(positions, "_WORTHWHILE", 1)
    monkeypatch.setattr(positions, "_LAG", timedelta(0))
    monkeypatch.setattr(tiers, "_ENOUGH", (2, 2, 2))
    monkeypatch.setattr(tiers, "_ENOUGH_CLOSED", 2)
    monkeypatch.setattr(catalog, "_MANY_FILES", 2)


def maintained(pipeline: Pipeline, table: str) -> TableMaintenanceResult:
    (done,) = TableMaintainer(pipeline.spark, pipeline.settings).maintain_tables_once(table)
    return done


def events(count: int, first: int = 0) -> pa.Table:
    rows = [{"topic": "capture.a", "partition": 0, "offset": n, "_batch": n} for n in range(first, first + count)]
    names = ("topic", "partition", "session_id", "offset", "event", "action", "integrity")
    types = [pa.string(), pa.int32(), pa.string(), pa.int64(), *[pa.string()] * 3]
    more = [("expected_seq", pa.int64()), ("actual_seq", pa.int64()), ("kafka_timestamp", pa.timestamp("us", "UTC"))]
    return pa.Table.from_pylist(rows, pa.schema([*zip(names, types, strict=True), *more, ("_batch", pa.int64())]))


def append_events(lake: Lake, commits: int, first: int = 0) -> None:
    for n in range(first, first + commits):
        append_rows(None, lake, EVENTS, events(1, n), Txn("test", n))


def offsets_of(lake: Lake) -> list[int]:
    return sorted(row["offset"] for row in lake.reader().read_rows(EVENTS, columns=["offset"]))


@pytest.mark.soak
@pytest.mark.usefixtures("eager")
def test_tables_maintained_between_all_batches_are_the_truth_though_layers_lag(
    spark: Any, location: dict[str, Any]
) -> None:
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))
    pipeline.arrive(batches[0])
    pipeline.stream()
    assert pipeline.merge() == 1
    for batch in batches[1:4]:
        pipeline.arrive(batch)
    assert fewer(maintained(pipeline, MESSAGES)) == 4  # silver has read one of four commits
    pipeline.stream()
    assert fewer(maintained(pipeline, CHANGES)) > 1
    assert pipeline.merge() == 1
    pipeline.arrive(batches[4])
    pipeline.stream()
    assert pipeline.merge() == 1
    # A catalog has those of leases and retention, too.
    tended = {done.table for done in TableMaintainer(spark, pipeline.settings).maintain_tables_once()}
    assert len(tended - {LEASES, RETAINED}) == len(TABLES) + 3  # bronze, decisions, the ledger
    reader = pipeline.lake.reader(spark)
    assert verify_ledger_sums(reader)
    last = pipeline.batches()[-1]
    assert max(row["batch_id"] for row in reader.read_rows(POSITIONS)) == last  # which is made once more all the same
    pipeline.lose_last_commit()
    pipeline.stream()
    assert_silver_is_the_truth(spark, pipeline.settings, [message for batch in batches for message in batch])


def fewer(done: TableMaintenanceResult) -> int:
    """How many files the table had; it has fewer now."""
    assert done.compacted is not None
    assert done.compacted.after < done.compacted.before
    return done.compacted.before


@pytest.mark.soak
@pytest.mark.usefixtures("eager")
def test_a_running_stream_and_its_merges_are_the_truth_with_maintenance_beside_them(
    spark: Any, location: dict[str, Any]
) -> None:
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))[:3]
    quick = MaintenanceSettings(interval=timedelta(seconds=1))
    settings = pipeline.settings = pipeline.settings.model_copy(update={"maintain": quick})
    compacted: set[str] = set()
    merger = TableMerger(spark, settings)
    beside = TableMaintainer(spark, settings, lambda done: compacted.add(done.table) if done.compacted else None)
    query = job.start(spark, settings, on_batch=merger.add_pending_batch)
    merger.start_background_merging()
    beside.start()
    try:
        for batch in batches:
            for part in (batch[: len(batch) // 2], batch[len(batch) // 2 :]):
                pipeline.arrive(part)
        eventually(
            lambda: beside.error is not None or {MESSAGES, CHANGES} <= compacted,
            120,
            failure=lambda: f"only {compacted} have been compacted",
        )
        assert beside.error is None
        query.process_all_available()
        merger.wait_for_merges()
    finally:
        beside.stop()
        query.stop()
        merger.stop_background_merging()
    assert (beside.error, merger.error) == (None, None)
    assert_silver_is_the_truth(spark, settings, [message for batch in batches for message in batch])


@pytest.mark.soak
@pytest.mark.usefixtures("eager")
def test_merged_tables_are_compacted_between_their_merges(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, rewritten_rows=-1)  # a table that is written anew has one file
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))[:3]
    merged = []
    for batch in batches:
        pipeline.arrive(batch)
        pipeline.stream()
        assert pipeline.merge() == 1
        done = [pipeline.lake.storage.compact_table(spark, table) for table in (ROWS, SESSIONS)]
        merged += [compacted for compacted in done if compacted]
    assert merged
    assert all(done.after < done.before for done in merged)
    assert_silver_is_the_truth(spark, pipeline.settings, [message for batch in batches for message in batch])


@pytest.mark.soak
@pytest.mark.usefixtures("eager")
def test_a_first_read_of_merged_files_goes_in_the_order_in_which_messages_came(
    spark: Any, location: dict[str, Any]
) -> None:
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))
    for n, batch in enumerate(batches):
        pipeline.arrive(batch)
        if n == 2:
            assert pipeline.lake.storage.compact_table(spark, MESSAGES) is not None
    pipeline.stream()  # file by file; it refuses an offset that does not go on where the last ended
    assert len(pipeline.batches()) == 3
    pipeline.merge()
    assert_silver_is_the_truth(spark, pipeline.settings, [message for batch in batches for message in batch])


@pytest.mark.soak
@pytest.mark.usefixtures("eager")
def test_bronze_is_left_alone_before_silver_has_begun(spark: Any, location: dict[str, Any]) -> None:
    pipeline = Pipeline(spark, location)
    for batch in list(streams(seeds=1))[:3]:
        pipeline.arrive(batch)
    version = pipeline.lake.last_commit(spark, MESSAGES).version
    done = maintained(pipeline, MESSAGES)
    assert (done.compacted, done.vacuumed) == (None, None)
    assert done.waits.startswith("silver has not started to read it")
    assert pipeline.lake.last_commit(spark, MESSAGES).version == version
    pipeline.stream()
    assert list_streams_reading_table(pipeline.settings, MESSAGES) == [
        ReadingStreamProgress("silver", has_started=True, next_version=version + 1, last_start=version)
    ]


@pytest.mark.soak
def test_a_stream_that_has_read_everything_starts_again_though_all_is_older_than_is_kept(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark asks for the files of the last batch once more as it starts."""
    monkeypatch.setattr(
        "sessionlake.operations.maintenance.HistoryToKeep", lambda _, since, __: HistoryToKeep(timedelta(0), since)
    )
    pipeline, batches = Pipeline(spark, {"home": settings.home}), list(streams(seeds=1))[:3]
    pipeline.arrive(batches[0])
    pipeline.stream()
    for value in ("some", "other"):  # versions without rows: the next batch begins with the first of them
        pipeline.lake.set_property(spark, MESSAGES, "test.note", value)
    pipeline.arrive(batches[1])
    pipeline.stream()
    folder = find_table_folder(pipeline.lake, MESSAGES)
    DeltaTable(folder).create_checkpoint()
    long_ago = time.time() - 86_400
    for file in (folder / "_delta_log").iterdir():
        os.utime(file, (long_ago, long_ago))
    assert maintained(pipeline, MESSAGES).vacuumed is not None
    pipeline.arrive(batches[2])
    pipeline.stream()
    taken_in = sum(row["messages"] for row in rows_of(spark, pipeline.lake, LEDGER, ("layer", operator.eq, SILVER)))
    assert taken_in == sum(map(len, batches))


@pytest.mark.soak
def test_a_merge_that_meets_an_optimize_is_done_again(
    spark: Any, location: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(**location)
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS])
    columns = lake.read(spark, SESSIONS).columns
    for n in range(2):
        row = spark.sql(f"SELECT 'capture.a' topic, 's{n}' session_id, {n}L messages").coalesce(1)
        append_rows(spark, lake, SESSIONS, row, Txn("fill", n))
    monkeypatch.setattr(type(lake.storage), "hold_commit_lock", lambda *_: threading.Lock())  # as if in another place
    begun, go_on = tmp_path / "begun", tmp_path / "go-on"

    def waiting(batches: Any) -> Any:
        for batch in batches:
            with begun.open("a") as file:
                file.write("x")
            while not go_on.exists():
                time.sleep(0.05)
            yield batch

    def optimize() -> None:
        while not begun.exists():
            threading.Event().wait(0.05)
        lake.open_delta_table(other, SESSIONS).optimize().executeCompaction()
        go_on.touch()

    one = spark.sql("SELECT 'capture.a' topic, 's1' session_id, 7L messages")
    source = one.coalesce(1).mapInArrow(waiting, one.schema)
    other = spark.newSession()
    thread = threading.Thread(target=optimize)
    thread.start()
    upsert = Upsert(("topic", "session_id"), ("messages",), inserts=False)
    merge_rows(spark, lake, SESSIONS, source, upsert, Txn("merge", 0))
    thread.join()
    assert len(begun.read_text()) > 1
    found = {row["session_id"]: row["messages"] for row in lake.read(spark, SESSIONS).collect()}
    assert found == {"s0": 0, "s1": 7}
    told = [row["operation"] for row in lake.open_delta_table(spark, SESSIONS).history().collect()]
    assert (told.count("OPTIMIZE"), told.count("MERGE")) == (1, 1)
    assert lake.read(spark, SESSIONS).columns == columns


def test_vacuum_keeps_what_a_stream_has_yet_to_read_and_what_time_travel_promises(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiers, "_ENOUGH", (3, 2, 2))
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS])
    folder = find_table_folder(lake, EVENTS)
    append_events(lake, 120)
    log = sorted((folder / "_delta_log").glob("*.json"))
    for n, file in enumerate(log):  # a commit a minute, the last one now
        os.utime(file, (file.stat().st_mtime - 60 * (len(log) - 1 - n),) * 2)
    assert lake.storage.compact_table(spark, EVENTS) is not None

    lake.storage.vacuum_table(spark, EVENTS, HistoryToKeep(timedelta(0), first_unread=40))
    assert int(min((folder / "_delta_log").glob("*.json")).stem) == 0  # there is no checkpoint before what is read
    freed = lake.storage.vacuum_table(spark, EVENTS, HistoryToKeep(timedelta(days=1), log_span=timedelta(minutes=30)))
    assert (freed.files, len(list(folder.glob("*.parquet")))) == (0, 121)
    lake.storage.vacuum_table(spark, EVENTS, HistoryToKeep(timedelta(minutes=30)))
    # 30 minutes are an hour to VACUUM; of the log, what is behind the last checkpoint before them.
    for version in (91, 105, 120):
        assert lake.read(spark, EVENTS, version).count() == version
    assert int(min((folder / "_delta_log").glob("*.json")).stem) in {49, 50}
    with pytest.raises(LakeError, match=r"version 12 cannot be read\. It does not exist, or .* maintain\.versions"):
        lake.read(spark, EVENTS, 12)

    kept = lake.storage.vacuum_table(spark, EVENTS, HistoryToKeep(timedelta(0), first_unread=110))
    assert kept.files == 0
    assert offsets_of(lake) == list(range(120))
    assert int(min((folder / "_delta_log").glob("*.json")).stem) in {99, 100}
    assert DeltaTable(folder, version=110).to_pyarrow_table().num_rows == 110
    freed = lake.storage.vacuum_table(spark, EVENTS, NOW)
    assert (freed.files, freed.freed > 0) == (120, True)
    assert offsets_of(lake) == list(range(120))
    assert len(list(folder.glob("*.parquet"))) == len(list_data_files(DeltaTable(folder))) == 1


@pytest.mark.soak
def test_files_that_a_reader_which_rests_goes_on_with_stay_for_longer_than_others(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Delta goes by the table's property, whatever VACUUM is told."""
    limit(monkeypatch, rewritten_rows=0)
    lake = Lake(Settings(**location))
    lake.create_or_update_tables(spark, [ROWS])
    for n in range(3):
        rows = pa.table({"row_id": [f"r{n % 2}"], "_seq": pa.array([n])})
        merge_rows(spark, lake, ROWS, rows, Upsert(("row_id",), ("_seq",)), Txn("m", n))
    lake.set_property(spark, ROWS, RETENTION, "interval 1 seconds")
    since = lake.last_commit(spark, ROWS).version - 2  # the last two MERGEs are yet to be read
    before = {row["row_id"]: row["_seq"] for row in lake.read(spark, ROWS, since).collect()}
    time.sleep(3)
    if not lake.storage.needs_spark:  # files of long before, which the log does not name any more
        for file in find_table_folder(lake, ROWS).glob("*.*"):
            os.utime(file, (0, 0))
        DeltaTable(find_table_folder(lake, ROWS)).create_checkpoint()
    lake.storage.vacuum_table(spark, ROWS, HistoryToKeep(timedelta(seconds=1), first_unread=since))
    assert {row["row_id"]: row["_seq"] for row in lake.read(spark, ROWS, since).collect()} == before
    lake.create_or_update_tables(spark, [ROWS])
    assert lake.storage.vacuum_table(spark, ROWS, NOW).files > 0
    assert {row["row_id"]: row["_seq"] for row in lake.read(spark, ROWS).collect()} == {"r0": 2, "r1": 1}


@pytest.mark.soak
def test_log_entries_older_than_a_month_stay_as_long_as_somebody_has_yet_to_read_them(
    spark: Any, settings: Settings
) -> None:
    """Spark's commits remove what Delta calls expired, each fiftieth."""
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS])
    append_events(lake, 49)
    log = find_table_folder(lake, EVENTS) / "_delta_log"
    month_ago = time.time() - timedelta(days=31).total_seconds()
    for file in log.iterdir():
        os.utime(file, (month_ago, month_ago))
    none = lake.read(spark, EVENTS).limit(0)
    lake.storage.append_rows_with_spark(none, EVENTS, Txn("test", 49).build_writer_options(EVENTS))
    assert (log / f"{50:020}.checkpoint.parquet").exists()
    assert len(list(log.glob("*.json"))) == 51
    lake.storage.vacuum_table(spark, EVENTS, HistoryToKeep(timedelta(days=30)))
    assert not (log / f"{0:020}.json").exists()


@pytest.mark.parametrize("rewritten", [0, 100])
def test_a_merged_table_keeps_its_rows_when_it_is_vacuumed(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch, rewritten: int
) -> None:
    limit(monkeypatch, rewritten_rows=rewritten)
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [ROWS])
    for n in range(3):
        rows = pa.table({"row_id": [f"r{n % 2}"], "_seq": pa.array([n])})
        merge_rows(spark, lake, ROWS, rows, Upsert(("row_id",), ("_seq",)), Txn("m", n))
    assert lake.storage.read_properties(spark, ROWS).get(DELETION_VECTORS) == (None if rewritten else "true")
    freed = lake.storage.vacuum_table(spark, ROWS, NOW)
    assert freed.files > 0
    assert freed.freed > 0
    assert {row["row_id"]: row["_seq"] for row in lake.read(spark, ROWS).collect()} == {"r0": 2, "r1": 1}


def test_files_that_share_a_file_of_deletion_vectors_are_read_by_all_and_keep_it_in_a_vacuum(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, rewritten_rows=0)
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [ROWS])
    upsert = Upsert(("row_id",), ("_seq",))
    for n, rows in enumerate([range(10), range(10, 20), range(20, 30), (1, 11, 21), (2, 12)]):
        source = pa.table({"row_id": [f"r{row}" for row in rows], "_seq": pa.array([n] * len(rows))})
        merge_rows(spark, lake, ROWS, source, upsert, Txn("m", n))
    expected = {f"r{row}": row // 10 for row in range(30)} | {f"r{row}": 3 for row in (1, 11, 21)}
    expected |= {f"r{row}": 4 for row in (2, 12)}
    folder = find_table_folder(lake, ROWS)
    assert len([*folder.glob("deletion_vector_*.bin")]) == 2
    for _ in range(2):
        assert {row["row_id"]: row["_seq"] for row in lake.read(spark, ROWS).collect()} == expected
        read = lake.reader(None).read_arrow_table(ROWS, columns=["row_id", "_seq"]).to_pylist()
        assert sorted(row["row_id"] for row in read) == sorted(expected)
        assert {row["row_id"]: row["_seq"] for row in read} == expected
        lake.storage.vacuum_table(spark, ROWS, NOW)
        assert len([*folder.glob("deletion_vector_*.bin")]) == 2  # the third file still has the first's


@pytest.mark.usefixtures("eager")
def test_fresh_files_are_written_quickly_and_what_is_merged_is_packed_well(
    spark: Any, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit(monkeypatch, rewritten_rows=0)
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [ROWS, EVENTS])
    for n in range(3):
        rows = pa.table({"row_id": [f"r{n}"], "_seq": [n]})
        merge_rows(spark, lake, ROWS, rows, Upsert(("row_id",), ("_seq",)), Txn("m", n))
    append_events(lake, 3)
    for table in (ROWS, EVENTS):
        assert codecs(lake, table) == {"SNAPPY"}
        assert lake.storage.compact_table(spark, table) is not None
        assert codecs(lake, table) == {"ZSTD"}


def codecs(lake: Lake, table: str) -> set[str]:
    """What the files of a table are compressed with."""
    folder = find_table_folder(lake, table)
    footers = [pq.read_metadata(file.full_path) for file in list_data_files(DeltaTable(folder))]
    return {footer.row_group(0).column(0).compression for footer in footers}


def test_a_compaction_that_is_killed_leaves_the_table_whole(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS])
    append_events(lake, 50)
    script = (
        "import sys; from pathlib import Path; from sessionlake.settings.model import Settings;"
        "from sessionlake.delta.home import FolderStorage;"
        f"FolderStorage(Settings(home=Path(sys.argv[1]))).compact_table(None, {EVENTS!r})"
    )
    folder = find_table_folder(lake, EVENTS)
    for place, files in ((f"before:compact:{EVENTS}", 51), (f"after:compact:{EVENTS}", 52)):
        ended = subprocess.run(
            [sys.executable, "-c", script, str(settings.home)], env=os.environ | {VARIABLE: place}, check=False
        )
        assert ended.returncode == -9
        assert offsets_of(lake) == list(range(50))
        assert len(list(folder.glob("*.parquet"))) == files
    assert len(list_data_files(DeltaTable(folder))) == 1
    lake.storage.vacuum_table(spark, EVENTS, NOW)
    assert len(list(folder.glob("*.parquet"))) == 1
    assert offsets_of(lake) == list(range(50))


def compact_all(lake: Lake) -> None:
    while lake.storage.compact_table(None, EVENTS):
        pass


def commits_beside_compaction(lake: Lake, commits: int) -> tuple[int, int]:
    """Appends one event a commit while another thread compacts; the most files at any time, and those at the end."""
    ended, most = threading.Event(), 0

    def compact() -> None:
        nonlocal most
        while not ended.wait(0.05):
            most = max(most, len(list_data_files(open_table(find_table_folder(lake, EVENTS)))))
            compact_all(lake)

    with ThreadPoolExecutor(1) as beside:
        done = beside.submit(compact)
        try:
            append_events(lake, commits)
        finally:
            ended.set()
        done.result()
    compact_all(lake)
    return most, len(list_data_files(open_table(find_table_folder(lake, EVENTS))))


@pytest.mark.soak
def test_two_hundred_commits_beside_compaction_lose_nothing_and_leave_few_files(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS])
    _, left = commits_beside_compaction(lake, 200)
    assert left < 50
    assert offsets_of(lake) == list(range(200))


@pytest.mark.soak
def test_five_thousand_commits_beside_compaction_leave_few_files(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS])
    most, left = commits_beside_compaction(lake, 5_000)
    print(f"5,000 commits: at most {most} files at any time, {left} at the end")  # noqa: T201 (a figure to read)
    assert left < 50
    assert offsets_of(lake) == list(range(5_000))


@pytest.mark.usefixtures("eager")
def test_the_command_shows_a_row_a_table(spark: Any, settings: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [EVENTS, CUTS, QUARANTINE])
    append_events(lake, 5)
    maintain_once(spark, settings, None, OutputFormat.JSON)
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    idle = dict(zip(COLUMNS[1:], (None, None, 0, 0, None, ""), strict=True))
    assert rows == [
        {"table": CUTS} | idle,
        {"table": QUARANTINE} | idle,
        {"table": EVENTS} | idle | {"files_before": 5, "files_after": 1},
    ]
    with pytest.raises(
        UsageError,
        match=r"maintain: there is no table 'a\.b'\. Name one of the tables of this lake: silver\.session_cuts, ",
    ):
        maintain_once(spark, settings, "a.b", OutputFormat.JSON)
