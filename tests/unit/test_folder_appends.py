"""Appends to folders, beside other commits: each is there once, and none is renamed over."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sessionlake.delta.folders import staging as folder_staging
from sessionlake.delta.folders.staging import TableLocation, write_rows_to_staged_files
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import APPEND_ONLY, DELETION_VECTORS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.settings.model import Settings

TABLE = "gold.own"
ROW = pa.table({"value": [1]})


def made(folder: Path, **properties: str) -> FolderStorage:
    lake = FolderStorage(Settings(home=folder))
    write_deltalake(lake.path(TABLE), ROW, configuration=properties)
    return lake


@pytest.mark.parametrize("properties", [{}, {APPEND_ONLY: "true", DELETION_VECTORS: "true"}])
def test_a_table_that_is_merged_into_is_appended_to_in_its_turn(tmp_path: Path, properties: dict[str, str]) -> None:
    lake = made(tmp_path, **properties)
    thread = threading.Thread(target=lake.append_rows, args=(None, TABLE, ROW, Txn("app", 0)))
    with lake.hold_commit_lock(TABLE):
        thread.start()
        thread.join(0.5)
        assert DeltaTable(lake.path(TABLE)).version() == 0
        write_deltalake(lake.path(TABLE), ROW, mode="append")
    thread.join()
    assert pa.table(DeltaTable(lake.path(TABLE)).scan()).num_rows == 3


def test_one_that_is_only_appended_to_does_not_wait_while_it_is_put_together(tmp_path: Path) -> None:
    lake = made(tmp_path, **{APPEND_ONLY: "true"})
    with lake.hold_commit_lock(TABLE):
        lake.append_rows(None, TABLE, ROW, Txn("app", 0))
    assert DeltaTable(lake.path(TABLE)).version() == 1


def test_an_append_that_meets_a_removal_is_committed_behind_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = made(tmp_path, **{APPEND_ONLY: "false"})
    folder, commit = lake.path(TABLE), folder_staging.commit_appended_files

    def then_removed(*args: Any) -> bool:
        if DeltaTable(folder).version() == 0:
            DeltaTable(folder).delete()
        return commit(*args)

    monkeypatch.setattr(folder_staging, "commit_appended_files", then_removed)
    place = TableLocation(folder, TABLE, lake.hold_commit_lock)
    with write_rows_to_staged_files(place, pa.table({"value": [2]}), DeltaTable(folder)) as staged:
        for _ in range(2):
            staged.commit_rows(Txn("app", 0))
    assert pa.table(DeltaTable(folder).scan())["value"].to_pylist() == [2]
    assert DeltaTable(folder).version() == 2


def test_rows_with_a_column_that_the_table_has_not_are_refused(tmp_path: Path) -> None:
    lake = made(tmp_path)
    with pytest.raises(LakeError, match="columns that the table lacks: other"):
        lake.append_rows(None, TABLE, pa.table({"value": [1], "other": [2]}), Txn("app", 0))
    assert len([*lake.path(TABLE).glob("*.parquet")]) == 1


def test_many_who_append_at_once_are_all_there(tmp_path: Path) -> None:
    lake = made(tmp_path, **{APPEND_ONLY: "true"})

    def append(app: int) -> None:
        for number in range(10):
            lake.append_rows(None, TABLE, pa.table({"value": [100 * app + number]}), Txn(f"app-{app}", number))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(append, range(1, 9)))
    found = pa.table(DeltaTable(lake.path(TABLE)).scan())["value"].to_pylist()
    assert sorted(found) == [1, *(100 * app + number for app in range(1, 9) for number in range(10))]
