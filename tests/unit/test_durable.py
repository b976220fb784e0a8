"""What a power cut leaves of a table: every version whose entry is there can be read, with all its rows.

The disk keeps the content of a file from `fsync` on, and the names in a folder from the folder's. What was written
since may be there in part: here none of it, or the names alone, with empty files.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from sessionlake.delta.folders import compaction as tiers
from sessionlake.delta.folders import removal as folder_removal
from sessionlake.delta.folders.marked_merge import merge_without_spark
from sessionlake.delta.folders.table_files import open_table
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.schemas.properties import CHANGE_FEED, CHECKPOINTS, DELETION_VECTORS
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE
from sessionlake.settings.model import Settings

TABLE = "gold.own"
SCHEMA = pa.schema([("place", pa.string()), ("value", pa.int64())])
UPSERT = Upsert(("place",), ("value",), deletes=True)
NO_SPARK: Any = None


class Disk:
    """Records what `fsync` has put on the disk, and what a power cut then leaves."""

    def __init__(self, patch: pytest.MonkeyPatch, root: Path) -> None:
        self._root, self._contents, self._names = root, dict[int, bytes](), dict[Path, dict[str, int]]()
        self._sync, self._link = os.fsync, os.link
        self.links, self.syncs = 0, 0
        self.at_link: Callable[[], None] = lambda: None
        for folder, _, files in os.walk(root):  # what was there before is on the disk
            for name in files:
                self._keep(Path(folder, name))
            self._keep(Path(folder))
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "link", self.link)

    def _keep(self, path: Path) -> None:
        if path.is_dir():
            self._names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
        else:
            self._contents[path.stat().st_ino] = path.read_bytes()

    def fsync(self, descriptor: int) -> None:
        self.syncs += 1
        self._sync(descriptor)
        self._keep(Path(f"/proc/self/fd/{descriptor}").readlink())

    def link(self, source: Path, target: Path) -> None:
        self._link(source, target)
        self.links += 1
        self.at_link()

    def cut(self, into: Path, *, names: bool) -> None:
        """Copies what is left: names that are not on the disk yet, too, or not."""
        shutil.rmtree(into, ignore_errors=True)
        for folder, folders, files in os.walk(self._root):
            place, known = into / Path(folder).relative_to(self._root), self._names.get(Path(folder), {})
            place.mkdir(parents=True)
            if not names:
                folders[:] = [name for name in folders if name in known]
            for name in files:
                inode = Path(folder, name).stat().st_ino
                if names or known.get(name) == inode:
                    (place / name).write_bytes(self._contents.get(inode, b""))


def rows(*, delete: bool | None = None, **values: int) -> pa.Table:
    found = pa.table({"place": [*values], "value": [*values.values()]}, SCHEMA)
    return found if delete is None else found.append_column(DELETE, [[delete] * len(values)])


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FolderStorage:
    monkeypatch.setattr(tiers, "_ENOUGH", (2, 2, 2))
    lake = FolderStorage(Settings(home=tmp_path / "home"))
    DeltaTable.create(lake.path(TABLE), SCHEMA, configuration={CHANGE_FEED: "true", CHECKPOINTS: "4"})
    for number in range(2):
        lake.append_rows(None, TABLE, rows(**{f"a{number}": 1, f"b{number}": 2}), Txn("app", number))
    return lake


COMMITS: dict[str, Callable[[FolderStorage], object]] = {
    "append": lambda lake: lake.append_rows(None, TABLE, rows(x=9), Txn("app", 9)),
    "replacement": lambda lake: lake.replace_rows(None, TABLE, rows(x=9), None),
    "marks": lambda lake: lake.set_property(NO_SPARK, TABLE, DELETION_VECTORS, "true"),
    "merge": lambda lake: merge_without_spark(
        open_table(lake.path(TABLE)), rows(a0=9, n=1, delete=False), UPSERT, "m", 1
    ),
    "deletes": lambda lake: merge_without_spark(open_table(lake.path(TABLE)), rows(a1=9, delete=True), UPSERT, "m", 2),
    "removal": lambda lake: folder_removal.remove_rows(
        lake.path(TABLE), ExpiredRowSelection((), "value", pa.table({"limit": [1]}), {})
    ),
    "compaction": lambda lake: lake.compact_table(NO_SPARK, TABLE),
    "purge": lambda lake: lake.purge_deletion_vectors(TABLE),
}
TABLE_OF_STEPS = ["append", "marks", "merge", "deletes", "purge", "removal", "compaction", "replacement"]


def held(folder: Path) -> list[dict[str, Any]]:
    return sorted(pa.table(DeltaTable(folder).scan()).to_pylist(), key=lambda row: row["place"])


def entries(folder: Path) -> int:
    return len([file for file in (folder / "_delta_log").glob("*.json") if file.stem.isdigit()])


def told(folder: Path) -> list[Path]:
    """Files of changes that the latest commit names."""
    newest = max((folder / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in newest.read_text(encoding="utf-8").splitlines()]
    return [folder / action["cdc"]["path"] for action in actions if "cdc" in action]


def test_a_version_that_is_there_after_a_power_cut_is_whole_and_one_that_was_answered_for_is_there(
    lake: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, left = lake.path(TABLE), tmp_path / "left"
    disk = Disk(monkeypatch, folder)

    def at_link() -> None:
        """The moment at which the version may first be seen."""
        expected = held(folder)
        disk.cut(left, names=True)
        assert held(left) == expected
        assert all(file.stat().st_size for file in told(left))
        disk.cut(left, names=False)
        assert held(left) in (expected, before)

    disk.at_link = at_link
    for step in TABLE_OF_STEPS:
        before, links = held(folder), disk.links
        COMMITS[step](lake)
        assert disk.links == links + 1, step
        for names in (True, False):
            disk.cut(left, names=names)
            assert held(left) == held(folder), step
            assert entries(left) == entries(folder)


@pytest.mark.parametrize(("step", "times"), [("append", 4), ("marks", 2), ("merge", 7)])
def test_each_file_and_folder_is_put_on_the_disk_once_a_commit(
    lake: FolderStorage, monkeypatch: pytest.MonkeyPatch, step: str, times: int
) -> None:
    """Data, its folder, entry, log; of a merge also vectors and the change feed with its folder."""
    lake.set_property(NO_SPARK, TABLE, CHECKPOINTS, "100")
    if step == "merge":
        COMMITS["marks"](lake)
    disk = Disk(monkeypatch, lake.path(TABLE))
    COMMITS[step](lake)
    assert disk.syncs == times


def test_a_property_and_a_checkpoint_are_on_the_disk_when_they_are_answered_for(
    lake: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, left = lake.path(TABLE), tmp_path / "left"
    disk = Disk(monkeypatch, folder)
    lake.set_property(NO_SPARK, TABLE, "sessionlake.note", "one")
    for number in range(2, 6):
        lake.append_rows(None, TABLE, rows(**{f"c{number}": 1}), Txn("app", number))
    assert [*(folder / "_delta_log").glob("*.checkpoint.parquet")]
    disk.cut(left, names=False)
    assert DeltaTable(left).metadata().configuration["sessionlake.note"] == "one"
    assert {f.name for f in (left / "_delta_log").glob("*.checkpoint.parquet")} == {
        f.name for f in (folder / "_delta_log").glob("*.checkpoint.parquet")
    }
    assert held(left) == held(folder)
