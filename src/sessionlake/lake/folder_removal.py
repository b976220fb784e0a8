"""Rows removed from a table that is a folder, or blanked: each file that has some is written anew, in one commit.

Like merging, it needs no Spark. What is left of a file has that file's place in the order in which rows came.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import LakeError
from sessionlake.lake.expired import Chosen
from sessionlake.lake.folder_commits import discard
from sessionlake.lake.folder_upkeep import gathered, replace, rows_of
from sessionlake.lake.log_commits import Placed
from sessionlake.lake.parquet import SMALL
from sessionlake.lake.session_rows import SessionRows
from sessionlake.lake.table_files import TableFile, opened
from sessionlake.lake.writable import Writable, writable


def count(folder: Path, chosen: Chosen) -> int:
    """How many rows are chosen."""
    table = writable(opened(folder))
    return sum(_count(file, chosen, table.schema) for file in _concerned(table, chosen))


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
    table = writable(opened(folder))
    writer = table.writer(SMALL)
    gone = [file for file in _concerned(table, chosen) if _count(file, chosen, table.schema)]
    left: list[Placed] = []
    try:
        for file in gone:
            parts = writer.files(gathered(map(change, rows_of([file], table.schema))))
            left += [(part, file.add["modificationTime"]) for part in parts]
    except BaseException:
        discard(folder, [written.path for written, _ in left], None)
        raise
    if gone and not replace(table, gone, left, "DELETE", changes=True):
        raise LakeError(f"{folder}: other commits have replaced files while rows were removed; repeat the command")


def _count(file: TableFile, chosen: Chosen, schema: pa.Schema) -> int:
    read = pa.schema([schema.field(name) for name in chosen.columns])
    return sum(pc.sum(chosen.mask(batch)).as_py() or 0 for batch in rows_of([file], read))


def _concerned(table: Writable, chosen: Chosen) -> list[TableFile]:
    """The files whose least values leave it open whether they have such rows."""
    ends = {name: (None, value) for name, value in chosen.most.items()}
    return [file for file in table.files if file.may_have(ends)]


def drop(folder: Path, *above: Path) -> None:
    """Removes a table, and those of the folders above it, from the nearest on, that are empty then."""
    shutil.rmtree(folder, ignore_errors=True)
    with suppress(OSError):
        for parent in above:
            parent.rmdir()
