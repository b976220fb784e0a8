"""What is removed of a table's folder, and what stays, without Spark."""

from __future__ import annotations

import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import RETENTION, format_interval
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import HistoryToKeep, VacuumResult
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE
from sessionlake.settings.model import Settings
from support.lakes import limit

TABLE = "gold.own"
KEEP = timedelta(hours=6)
NO_SPARK: Any = None
UUID = "0b6ff18e-6b13-4a36-8c3f-0c9a2d1e5f70"


@pytest.fixture
def lake(tmp_path: Path) -> FolderStorage:
    """A table of three rows, each in a file of its own."""
    found = FolderStorage(Settings(home=tmp_path))
    write_deltalake(found.path(TABLE), rows(0), configuration={RETENTION: format_interval(KEEP)})
    for n in (1, 2):
        found.append_rows(None, TABLE, rows(n), Txn("app", n))
    return found


def rows(value: int) -> pa.Table:
    return pa.table({"value": [value]})


def pass_by(folder: Path, hours: float) -> None:
    """Has all files of a table, and what its log says of removed ones, be older by so much."""
    for file in filter(Path.is_file, folder.rglob("*")):
        written = file.stat().st_mtime
        if file.suffix == ".json":
            aged = re.sub(rb'("deletionTimestamp":\s*)(\d+)', lambda found: _earlier(found, hours), file.read_bytes())
            file.write_bytes(aged)
        os.utime(file, (written - hours * 3600,) * 2)


def _earlier(found: re.Match[bytes], hours: float) -> bytes:
    return found[1] + str(int(found[2]) - int(hours * 3_600_000)).encode()


def files(folder: Path) -> int:
    return len([*folder.glob("*.parquet")])


@pytest.mark.parametrize("put_together", [True, False])
def test_what_a_reader_which_rests_has_yet_to_read_stays_though_the_log_has_forgotten_it(
    lake: FolderStorage, put_together: bool
) -> None:
    folder = lake.path(TABLE)
    pass_by(folder, hours=100)
    lake.append_rows(None, TABLE, rows(3), Txn("app", 3))  # with which the reader goes on
    lake.replace_rows(None, TABLE, rows(4), None)
    pass_by(folder, hours=7)
    if put_together:
        DeltaTable(folder).create_checkpoint()
    lake.append_rows(None, TABLE, rows(5), Txn("app", 5))
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP, first_unread=3)).files == 0
    assert sorted(pa.table(DeltaTable(folder, version=3).scan())["value"].to_pylist()) == [0, 1, 2, 3]
    pass_by(folder, hours=7)
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP, first_unread=3)).files == 0
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP, first_unread=5)).files == 4
    assert (files(folder), len(lake.find_missing_files(None, TABLE))) == (2, 0)


UNNAMED = (
    "part-0.parquet#1",
    "_change_data/part-0.parquet#12",
    "staged-1/_temporary/0/task_0/part-0.parquet",
    f"_delta_log/.{UUID}.json",
    f"_delta_log/.{UUID}.crc",
    f"_delta_log/{7:020}.json#1",
    f"_delta_log/.{7:020}.json.{UUID}.tmp",
)


def kill(folder: Path) -> None:
    """Leaves what processes had begun to write."""
    for name in UNNAMED:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("alpha")


def begun(folder: Path) -> list[str]:
    return [name for name in UNNAMED if (folder / name).exists()]


def test_what_killed_processes_had_begun_to_write_goes_with_what_is_as_old(lake: FolderStorage) -> None:
    folder = lake.path(TABLE)
    log = [file.name for file in (folder / "_delta_log").iterdir()]
    kill(folder)
    pass_by(folder, hours=5)
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP)).files == 0
    assert begun(folder) == [*UNNAMED]
    pass_by(folder, hours=2)
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP)) == VacuumResult(len(UNNAMED), 5 * len(UNNAMED))
    assert begun(folder) == []
    assert {*log} <= {file.name for file in (folder / "_delta_log").iterdir()}
    assert (files(folder), lake.find_missing_files(None, TABLE)) == (3, [])


def test_what_killed_processes_had_begun_to_write_goes_at_once_with_a_tables_history(lake: FolderStorage) -> None:
    kill(lake.path(TABLE))
    lake.purge_history(NO_SPARK, TABLE, "receipt")
    assert begun(lake.path(TABLE)) == []
    assert files(lake.path(TABLE)) == 3


# -- deletion vectors of a table whose newest version has none


@pytest.fixture
def purged(lake: FolderStorage, monkeypatch: pytest.MonkeyPatch) -> tuple[FolderStorage, int]:
    """A table whose vectors were purged long after they were written, and its last version with a vector."""
    limit(monkeypatch, rewritten_rows=-1)
    lake.append_rows(None, TABLE, pa.table({"value": [3, 4]}), Txn("app", 3))
    lake.merge_rows(NO_SPARK, TABLE, rows(3).append_column(DELETE, [[True]]), DELETES, Txn("merge", 0))
    version = DeltaTable(lake.path(TABLE)).version()
    pass_by(lake.path(TABLE), hours=100)
    assert lake.purge_deletion_vectors(TABLE) == 1
    for checkpoint in (f"{version + 1:020}.checkpoint.parquet", "_last_checkpoint"):
        (lake.path(TABLE) / "_delta_log" / checkpoint).unlink()  # `pass_by` would not change the times in it
    return lake, version


DELETES = Upsert(("value",), (), deletes=True)


def values(folder: Path, version: int) -> list[int]:
    return sorted(pa.table(DeltaTable(folder, version=version).scan())["value"].to_pylist())


def vectors(folder: Path) -> int:
    return len([*folder.glob("deletion_vector_*.bin")])


@pytest.mark.parametrize("follows", [False, True])
def test_vectors_count_from_the_commit_that_purged_them(purged: tuple[FolderStorage, int], follows: bool) -> None:
    lake, version = purged
    folder, since = lake.path(TABLE), version if follows else None
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP, since)).files == 0
    assert values(folder, version) == [0, 1, 2, 4]
    pass_by(folder, hours=5)
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP, since)).files == 0
    assert values(folder, version) == [0, 1, 2, 4]


def test_vectors_that_were_purged_go_with_their_file(purged: tuple[FolderStorage, int]) -> None:
    lake, version = purged
    pass_by(lake.path(TABLE), hours=7)
    assert lake.vacuum_table(NO_SPARK, TABLE, HistoryToKeep(KEEP)).files == 2
    assert (vectors(lake.path(TABLE)), lake.find_missing_files(None, TABLE)) == (0, [])
    assert values(lake.path(TABLE), version + 1) == [0, 1, 2, 4]


def test_vectors_stay_as_long_as_their_file_though_the_log_no_longer_has_the_commit_that_purged_them(
    purged: tuple[FolderStorage, int],
) -> None:
    lake, version = purged
    folder, kept = lake.path(TABLE), HistoryToKeep(KEEP, log_span=timedelta(hours=1))
    read = DeltaTable(folder, version=version)  # by a query that takes hours
    lake.vacuum_table(NO_SPARK, TABLE, kept)
    pass_by(folder, hours=2)
    lake.append_rows(None, TABLE, rows(5), Txn("app", 5))
    DeltaTable(folder).create_checkpoint()
    pass_by(folder, hours=2)
    for _ in range(2):
        lake.vacuum_table(NO_SPARK, TABLE, kept)
    assert not (folder / "_delta_log" / f"{version + 1:020}.json").exists()
    assert sorted(pa.table(read.scan())["value"].to_pylist()) == [0, 1, 2, 4]


def test_vectors_that_were_purged_go_at_once_with_a_tables_history(purged: tuple[FolderStorage, int]) -> None:
    lake, _ = purged
    lake.purge_history(NO_SPARK, TABLE, "receipt")
    assert (files(lake.path(TABLE)), vectors(lake.path(TABLE))) == (4, 0)
