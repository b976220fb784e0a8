"""Rows removed from a table that is a folder, or blanked: each file that has some is written anew, in one commit.

Like merging, it needs no Spark. What is left of a file has that file's place in the order in which rows came.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.lake.expired import Chosen
from sessionlake.lake.folder_commits import discard
from sessionlake.lake.folder_upkeep import gathered, live_files, replace, rows_of
from sessionlake.lake.parquet import SMALL, FileWriter, WrittenFile, indexed_columns
from sessionlake.lake.session_rows import SessionRows
from sessionlake.lake.table_files import opened
from sessionlake.lake.tiers import LiveFile
from sessionlake.laptop.paths import relative_path

if TYPE_CHECKING:
    from deltalake import DeltaTable


def count(folder: Path, chosen: Chosen) -> int:
    """How many rows are chosen."""
    delta = opened(folder)
    return sum(_count(folder, file, chosen, _schema(delta)) for file in _concerned(delta, chosen))


def remove(folder: Path, chosen: Chosen) -> None:
    """Removes them; nobody else may merge or remove files of the table meanwhile.

    Raises:
        LakeError: somebody has.
    """
    _write_anew(folder, chosen, lambda batch: batch.filter(pc.invert(chosen.mask(batch))))


def blank(folder: Path, rows: SessionRows) -> None:
    """Blanks the messages of a session, as `remove` does."""
    _write_anew(folder, rows, rows.blanked)


def _write_anew(folder: Path, chosen: Chosen, change: Callable[[pa.RecordBatch], pa.RecordBatch]) -> None:
    delta = opened(folder)
    schema = _schema(delta)
    writer = FileWriter(str(folder), schema, indexed_columns(delta), SMALL)
    gone: list[LiveFile] = []
    left: list[tuple[WrittenFile, int]] = []
    try:
        for file in _concerned(delta, chosen):
            if not _count(folder, file, chosen, schema):
                continue
            gone.append(file)
            parts = writer.files(gathered(map(change, rows_of(folder, [file], schema))))
            left += [(part, file.modified) for part in parts]
        if not gone or replace(folder, gone, left, schema, changes=True):
            left = []
            return
    finally:
        discard(folder, [written.path for written, _ in left], delta.version())
    raise LakeError(f"{folder}: other commits were in the way of removing rows, again and again")


def _count(folder: Path, file: LiveFile, chosen: Chosen, schema: pa.Schema) -> int:
    read = pa.schema([schema.field(name) for name in chosen.columns])
    return sum(pc.sum(chosen.mask(batch)).as_py() or 0 for batch in rows_of(folder, [file], read))


def _schema(delta: DeltaTable) -> pa.Schema:
    return pa.schema(delta.schema().to_arrow())


def _concerned(delta: DeltaTable, chosen: Chosen) -> list[LiveFile]:
    """The files whose least values leave it open whether they have such rows."""
    least = pa.table(delta.get_add_actions(flatten=True))
    beyond: set[str] = set()
    for name, value in chosen.most.items():
        if f"min.{name}" in least.column_names:
            pairs = zip(least["path"].to_pylist(), least[f"min.{name}"].to_pylist(), strict=True)
            beyond |= {relative_path(path) for path, first in pairs if first is not None and _is_more(first, value)}
    return [file for file in live_files(delta) if file.path not in beyond]


def _is_more(value: int | datetime, most: int | datetime) -> bool:
    if isinstance(value, datetime) and isinstance(most, datetime):
        return value.replace(tzinfo=most.tzinfo) > most  # statistics are in UTC, whether or not they say so
    return bool(value > most)  # type: ignore[operator]


def drop(folder: Path, *above: Path) -> None:
    """Removes a table, and those of the folders above it, from the nearest on, that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for parent in above:
            parent.rmdir()
