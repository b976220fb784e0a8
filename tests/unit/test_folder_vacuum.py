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

from sessionlake.delta.folders.storage import Folders
from sessionlake.delta.schemas.definition import RETENTION, interval
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upkeep import Kept, Vacuumed
from sessionlake.settings.model import Settings

TABLE = "gold.own"
KEEP = timedelta(hours=6)
NO_SPARK: Any = None
UUID = "0b6ff18e-6b13-4a36-8c3f-0c9a2d1e5f70"


@pytest.fixture
def lake(tmp_path: Path) -> Folders:
    """A table of three rows, each in a file of its own."""
    found = Folders(Settings(home=tmp_path))
    write_deltalake(found.path(TABLE), rows(0), configuration={RETENTION: interval(KEEP)})
    for n in (1, 2):
        found.append(None, TABLE, rows(n), Txn("app", n))
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
    lake: Folders, put_together: bool
) -> None:
    folder = lake.path(TABLE)
    pass_by(folder, hours=100)
    lake.append(None, TABLE, rows(3), Txn("app", 3))  # with which the reader goes on
    lake.replace(None, TABLE, rows(4), None)
    pass_by(folder, hours=7)
    if put_together:
        DeltaTable(folder).create_checkpoint()
    lake.append(None, TABLE, rows(5), Txn("app", 5))
    assert lake.vacuum(NO_SPARK, TABLE, Kept(KEEP, since=3)).files == 0
    assert sorted(pa.table(DeltaTable(folder, version=3).scan())["value"].to_pylist()) == [0, 1, 2, 3]
    pass_by(folder, hours=7)
    assert lake.vacuum(NO_SPARK, TABLE, Kept(KEEP, since=3)).files == 0
    assert lake.vacuum(NO_SPARK, TABLE, Kept(KEEP, since=5)).files == 4
    assert (files(folder), len(lake.lost_files(None, TABLE))) == (2, 0)


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


def test_what_killed_processes_had_begun_to_write_goes_with_what_is_as_old(lake: Folders) -> None:
    folder = lake.path(TABLE)
    log = [file.name for file in (folder / "_delta_log").iterdir()]
    kill(folder)
    pass_by(folder, hours=5)
    assert lake.vacuum(NO_SPARK, TABLE, Kept(KEEP)).files == 0
    assert begun(folder) == [*UNNAMED]
    pass_by(folder, hours=2)
    assert lake.vacuum(NO_SPARK, TABLE, Kept(KEEP)) == Vacuumed(len(UNNAMED), 5 * len(UNNAMED))
    assert begun(folder) == []
    assert {*log} <= {file.name for file in (folder / "_delta_log").iterdir()}
    assert (files(folder), lake.lost_files(None, TABLE)) == (3, [])


def test_what_killed_processes_had_begun_to_write_goes_at_once_with_a_tables_history(lake: Folders) -> None:
    kill(lake.path(TABLE))
    lake.purge(NO_SPARK, TABLE, "receipt")
    assert begun(lake.path(TABLE)) == []
    assert files(lake.path(TABLE)) == 3
