"""Commits to folders: what fails behind one leaves it as it is, and its files where they are."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, PostCommitHookProperties, Schema, TableFeatures
from deltalake.exceptions import DeltaError
from deltalake.schema import PrimitiveType
from deltalake.transaction import AddAction

from sessionlake.delta.folders import compaction as folder_upkeep
from sessionlake.delta.folders import removal as folder_removal
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.parquet import DataFileWriter, WrittenFile
from sessionlake.delta.folders.staging import StagedFiles, TableLocation
from sessionlake.delta.folders.table_files import list_data_files, open_table
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import CHECKPOINTS, LOG_CLEANUP
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.settings.model import Settings

TABLE = "gold.own"
ROWS = pa.table({"place": ["a"], "value": [500]})
UPSERT = Upsert(("place",), ("value",))
FILES = 50
ALONE = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
NO_SPARK: Any = None
UP_TO_20 = ExpiredRowSelection((), "value", pa.table({"limit": [20]}), {})


def written(folder: Path, rows: pa.Table) -> WrittenFile:
    [file] = DataFileWriter(str(folder), ROWS.schema, ("value",)).write_files(rows.to_batches())
    return file


def passed(folder: Path, versions: int) -> None:
    for _ in range(versions):
        DeltaTable(folder).create_write_transaction([], "append", ROWS.schema, post_commithook_properties=ALONE)


@pytest.fixture(scope="module")
def at_version_48(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "table"
    fields = [Field("place", PrimitiveType("string")), Field("value", PrimitiveType("long"))]
    DeltaTable.create(folder, Schema(fields), configuration={CHECKPOINTS: "50", LOG_CLEANUP: "false"})
    files = [written(folder, pa.table({"place": ["b", "c"], "value": [n, 1000 + n]})) for n in range(FILES)]
    added: list[Any] = [
        AddAction(one.path, one.size, {}, n, data_change=True, stats=one.stats) for n, one in enumerate(files)
    ]
    DeltaTable(folder).create_write_transaction(added, "append", ROWS.schema, post_commithook_properties=ALONE)
    passed(folder, 47)
    return folder


@pytest.fixture
def lake(tmp_path: Path, at_version_48: Path) -> FolderStorage:
    found = FolderStorage(Settings(home=tmp_path))
    shutil.copytree(at_version_48, found.path(TABLE))
    return found


def staged(lake: FolderStorage) -> StagedFiles:
    folder = lake.path(TABLE)
    return StagedFiles(TableLocation(folder, TABLE, lake.hold_commit_lock), [written(folder, ROWS)])


def add_files(lake: FolderStorage) -> None:
    files = staged(lake)
    try:
        files.commit_rows(Txn("app", 0))
    finally:
        files.delete_staged_files()


def remove(lake: FolderStorage) -> None:
    folder_removal.remove_rows(lake.path(TABLE), UP_TO_20)


def compact(lake: FolderStorage) -> None:
    lake.compact_table(NO_SPARK, TABLE)


def mark(lake: FolderStorage) -> None:
    DeltaTable(lake.path(TABLE)).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True, post_commithook_properties=ALONE
    )
    assert merge_without_spark(DeltaTable(lake.path(TABLE)), ROWS, UPSERT, "app", 0)


COMMITS: dict[str, Callable[[FolderStorage], Any]] = {
    "rows": lambda lake: lake.append_rows(None, TABLE, ROWS, Txn("app", 0)),
    "files": add_files,
    "replacement": lambda lake: lake.replace_rows(None, TABLE, ROWS, None),
    "property": lambda lake: lake.set_property(NO_SPARK, TABLE, "delta.appendOnly", "false"),
    "merge": lambda lake: merge_without_spark(DeltaTable(lake.path(TABLE)), ROWS, UPSERT, "app", 0, uses_vectors=False),
    "marks": mark,
    "removal": remove,
    "compaction": compact,
}


@pytest.mark.parametrize("commit", COMMITS)
def test_a_checkpoint_that_cannot_be_written_fails_no_commit_and_is_made_behind_the_next(
    lake: FolderStorage, commit: str
) -> None:
    log = lake.path(TABLE) / "_delta_log"
    version = 50 if commit == "marks" else 49
    blocked = log / f"{version:020}.checkpoint.parquet"
    blocked.mkdir()  # as on a disk that is full
    COMMITS[commit](lake)
    assert DeltaTable(lake.path(TABLE)).version() == version
    assert lake.find_missing_files(None, TABLE) == []
    blocked.rmdir()
    lake.append_rows(None, TABLE, ROWS, Txn("next", 0))
    assert json.loads((log / "_last_checkpoint").read_bytes())["version"] == version + 1


def test_a_commit_of_which_the_checksum_alone_is_seen_is_waited_for(lake: FolderStorage) -> None:
    """The log is no list that is read at once: what comes meanwhile may be seen in part."""
    folder = lake.path(TABLE)
    add_files(lake)  # behind which the log is put together
    staged(lake).commit_rows(Txn("app", 1))
    commit, unseen = folder / "_delta_log" / f"{50:020}.json", folder / "unseen"
    assert commit.with_suffix(".crc").is_file()
    commit.rename(unseen)
    with pytest.raises(DeltaError, match="is newer than log segment version"):
        DeltaTable(folder)
    with ThreadPoolExecutor(1) as seen:
        seen.submit(lambda: (time.sleep(0.05), unseen.rename(commit)))
        assert open_table(folder).version() == 50
    commit.rename(unseen)
    with pytest.raises(LakeError, match="cannot be read without Spark, by delta-rs"):
        list(lake.reader(NO_SPARK).read_batches(TABLE))


def test_the_log_is_put_together_at_each_interval(lake: FolderStorage) -> None:
    log = lake.path(TABLE) / "_delta_log"
    for number in range(100):
        lake.append_rows(None, TABLE, ROWS, Txn("app", number))
    found = sorted(int(file.name.partition(".")[0]) for file in log.glob("*.checkpoint.parquet"))
    assert found == [49, 99]


def failing_commit(patch: pytest.MonkeyPatch, *, first: Callable[[Any], Any], is_there: bool) -> None:
    """Has the next commit fail, or only its answer."""
    real = os.link

    def link(source: Path, target: Path) -> None:
        patch.undo()
        if is_there:
            real(source, target)
        first(target)
        raise OSError("the disk does not answer")

    patch.setattr(os, "link", link)


@pytest.mark.parametrize("commit", ["rows", "files", "removal", "compaction"])
@pytest.mark.parametrize("is_there", [True, False])
def test_files_of_a_commit_that_fails_are_removed_unless_it_is_there_all_the_same(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch, commit: str, is_there: bool
) -> None:
    folder = lake.path(TABLE)
    before = {file.full_path.name for file in list_data_files(DeltaTable(folder))}
    failing_commit(monkeypatch, first=lambda _: None, is_there=is_there)
    with pytest.raises(OSError, match="does not answer"):
        COMMITS[commit](lake)
    assert lake.find_missing_files(None, TABLE) == []
    added = {file.name for file in folder.glob("*.parquet")} - before
    assert added == {file.full_path.name for file in list_data_files(DeltaTable(folder))} - before
    assert bool(added) == is_there


def test_files_of_a_commit_that_was_merged_with_others_since_stay(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version names them, which readers may be at."""
    failing_commit(
        monkeypatch, first=lambda _: folder_upkeep.compact_table_in_folder(NO_SPARK, lake.path(TABLE)), is_there=True
    )
    with pytest.raises(OSError, match="does not answer"):
        add_files(lake)
    assert len(list_data_files(DeltaTable(lake.path(TABLE)))) == 1
    assert pa.table(DeltaTable(lake.path(TABLE), version=49).scan()).num_rows == 2 * FILES + 1


def test_files_stay_where_the_log_does_not_tell_whose_they_are(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = staged(lake)
    failing_commit(monkeypatch, first=lambda entry: shutil.rmtree(entry.parent), is_there=False)
    with pytest.raises(OSError, match=r"does not answer|No such file"):
        files.commit_rows(Txn("app", 0))
    files.delete_staged_files()
    assert len([*lake.path(TABLE).glob("*.parquet")]) == FILES + 1


def test_files_that_were_never_to_be_committed_are_removed(lake: FolderStorage) -> None:
    staged(lake).delete_staged_files()
    assert len([*lake.path(TABLE).glob("*.parquet")]) == FILES


def test_delta_is_reported_once_to_leave_the_log_of_an_earlier_version_alone(lake: FolderStorage) -> None:
    DeltaTable(lake.path(TABLE)).alter.set_table_properties({LOG_CLEANUP: "true"})
    assert (
        lake.set_properties_that_differ(NO_SPARK, TABLE, lake.log_properties)[LOG_CLEANUP] == "true"
    )  # as maintenance does
    told = DeltaTable(lake.path(TABLE))
    assert told.metadata().configuration[LOG_CLEANUP] == "false"
    for _ in range(2):
        lake.set_history_retention(NO_SPARK, TABLE)  # which says how far history reaches, besides
    assert DeltaTable(lake.path(TABLE)).version() == told.version() + 1
