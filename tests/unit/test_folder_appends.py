"""Appends to folders, beside other commits: each is there once, and none is renamed over."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from sessionlake.config import Settings
from sessionlake.lake import folder_staging
from sessionlake.lake.folder_staging import Place, StagedFiles, StagedRows
from sessionlake.lake.folders import Folders
from sessionlake.lake.parquet import FileWriter
from sessionlake.lake.table_schema import APPEND_ONLY, DELETION_VECTORS
from sessionlake.lake.txn import Txn

TABLE = "gold.own"
ROW = pa.table({"value": [1]})


def made(folder: Path, **properties: str) -> Folders:
    lake = Folders(Settings(home=folder))
    write_deltalake(lake.path(TABLE), ROW, configuration=properties)
    return lake


@pytest.mark.parametrize("properties", [{}, {APPEND_ONLY: "true", DELETION_VECTORS: "true"}])
def test_a_table_that_is_merged_into_is_appended_to_in_its_turn(tmp_path: Path, properties: dict[str, str]) -> None:
    lake = made(tmp_path, **properties)
    thread = threading.Thread(target=lake.append, args=(None, TABLE, ROW, Txn("app", 0)))
    with lake.exclusive(TABLE):
        thread.start()
        thread.join(0.5)
        assert DeltaTable(lake.path(TABLE)).version() == 0
        write_deltalake(lake.path(TABLE), ROW, mode="append")
    thread.join()
    assert pa.table(DeltaTable(lake.path(TABLE)).scan()).num_rows == 3


def test_one_that_is_only_appended_to_does_not_wait_while_it_is_put_together(tmp_path: Path) -> None:
    lake = made(tmp_path, **{APPEND_ONLY: "true"})
    with lake.exclusive(TABLE):
        lake.append(None, TABLE, ROW, Txn("app", 0))
    assert DeltaTable(lake.path(TABLE)).version() == 1


@pytest.mark.parametrize("in_memory", [True, False])
def test_an_append_that_meets_a_removal_is_committed_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    lake = made(tmp_path, **{APPEND_ONLY: "false"})
    folder = lake.path(TABLE)
    rows = pa.table({"value": [2]})
    if in_memory:
        staged: StagedRows | StagedFiles = StagedRows(Place(folder, TABLE, lake.exclusive), rows)
    else:
        written = FileWriter(str(folder), rows.schema, ()).files(rows.to_batches())
        staged = StagedFiles(Place(folder, TABLE, lake.exclusive), rows.schema, written)
    found = folder_staging.without

    def then_removed(*table: Any) -> Any:
        delta = found(*table)
        if DeltaTable(folder).version() == 0:
            DeltaTable(folder).delete()
        return delta

    monkeypatch.setattr(folder_staging, "without", then_removed)
    for _ in range(2):
        staged.commit(Txn("app", 0))
    assert pa.table(DeltaTable(folder).scan())["value"].to_pylist() == [2]
    assert DeltaTable(folder).version() == 2
