"""MERGE without Spark: marks replaced rows as deleted, and appends their new versions and new rows in one file.

So the cost depends on the number of merged rows, not on the size of the table. `rows_by_key` finds the rows to replace.
They are marked in deletion vectors, which neither delta-rs nor Arrow can write. So the commit is written here according
to Delta's protocol. If the table has a change feed, the changed rows are also written to a separate file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.deletion_vectors import write_vectors
from sessionlake.delta.folders.file_rows import read_files
from sessionlake.delta.folders.log import (
    add_action,
    build_file_fields,
    build_marked_add_action,
    build_txn_action,
    read_current_time_ms,
    remove_action,
    write_commit,
)
from sessionlake.delta.folders.parquet import FileWriter, WrittenFile, conform_batch, gather_batches
from sessionlake.delta.folders.rows_by_key import FoundRows, RowLookup, read_found_rows
from sessionlake.delta.folders.table_files import Action, TableFile
from sessionlake.delta.folders.writable import WritableTable, has_vectors, open_writable
from sessionlake.delta.schemas.properties import APPEND_ONLY
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE, WRITTEN
from sessionlake.protocol.types import Bools, Int64s

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CROWD = 16
_LARGEST_TIER = 5  # files with `_CROWD ** 5` rows (a million) or more are never moved
_NO_ROWS = np.empty(0, np.int64)
_FEED, _CHANGE = "_change_data", pa.field("_change_type", pa.string())


def merge_by_marking(
    delta: DeltaTable,
    source: pa.Table,
    upsert: Upsert,
    app: str,
    batch: int,
    lookup: RowLookup | None = None,
    *,
    uses_vectors: bool = True,
) -> bool:
    """MERGEs source rows into a table in one commit.

    Args:
        delta: the table, at its latest version.
        source: the rows to merge, at most one per key.
        upsert: says how source rows change the table.
        app: application id of the transaction.
        batch: version of the transaction.
        lookup: finds the table's rows that have a key of the source, and may combine them with the source.
        uses_vectors: True to mark replaced rows in deletion vectors. False to rewrite the files that have them.

    Returns:
        False if another process committed first. Nothing is committed then, and the caller must try again.

    Raises:
        LakeError: a deletion vector does not match the log, or only Spark may write to the table.
        TooLargeError: the table's rows to combine with the source exceed the limit of `lookup`.
    """
    table = open_writable(delta)
    folder, schema, uses_vectors = table.folder, table.schema, uses_vectors and has_vectors(delta)
    lookup, all_columns = lookup or RowLookup(), table.has_change_feed
    merged = _MergeResult.compute_result(table.data_files, source, upsert, schema, lookup, all_columns=all_columns)
    former = {one.file: one.rows for one in merged.found_rows}
    absorbed = _find_absorbed_files(table, [] if uses_vectors else former) if merged else []
    moved = [read_files([replace(file, deleted_rows=_find_removed_rows(file, former))], schema) for file in absorbed]
    rows = chain(*moved, _yield_batches([merged.updated, merged.inserted], schema))
    written = next(iter(table.open_writer().write_files(gather_batches(rows))), None)
    feed_file = _write_change_file(folder, merged.change_rows(), schema) if table.has_change_feed and merged else None
    now = read_current_time_ms()
    files, vectors = [one for one in (written, feed_file) if one], list[Path]()
    changes = [remove_action(file, now) for file in absorbed]
    changes += _create_file_actions({file: former[file] for file in former if file not in absorbed}, vectors, now)
    changes += [] if written is None else [add_action(written, now)]
    changes += [] if feed_file is None else [{"cdc": build_file_fields(feed_file) | {"dataChange": False}}]
    info = {"operation": "MERGE", "operationMetrics": merged.build_metrics()}
    if write_commit(table, info, [build_txn_action(app, batch), *changes], files, *vectors):
        return True
    for path in (*(folder / one.path for one in files), *vectors):
        path.unlink(missing_ok=True)
    return False


def _find_absorbed_files(table: WritableTable, rewritten: Iterable[TableFile]) -> list[TableFile]:
    """Returns the files whose remaining rows move into the file that the MERGE writes: rewritten files and small files.

    Args:
        rewritten: files that the MERGE rewrites because they have replaced rows.
    """
    crowded = [] if table.configuration.get(APPEND_ONLY) == "true" else _find_crowded_files(table.data_files)
    return [*dict.fromkeys([*rewritten, *crowded])]


def _find_removed_rows(file: TableFile, former: Mapping[TableFile, Int64s]) -> Int64s:
    """Returns the numbers of all rows of a file that are deleted after this commit, ascending.

    Args:
        former: for each file, the numbers of the rows that this commit replaces or deletes.
    """
    return np.union1d(file.deleted_rows, former[file]) if file in former else file.deleted_rows


@dataclass(frozen=True)
class _MergeResult:
    """The result of a MERGE, before it is written: which table rows are replaced or deleted, and the new rows.

    Attributes:
        found_rows: the table rows that are replaced or deleted, by file.
        is_deleted: for each former row, True if it is deleted and False if it is replaced.
        replaced_rows: the former rows as they were. All columns, or only those from which new values may be computed.
        updated: the new versions of the replaced rows, in the order of the replaced rows in `replaced_rows`.
        inserted: rows whose keys the table does not have yet.
    """

    found_rows: list[FoundRows]
    is_deleted: Bools
    replaced_rows: pa.Table
    updated: pa.Table
    inserted: pa.Table

    @classmethod
    def compute_result(
        cls,
        files: Sequence[TableFile],
        source: pa.Table,
        upsert: Upsert,
        schema: pa.Schema,
        lookup: RowLookup,
        *,
        all_columns: bool,
    ) -> _MergeResult:
        """Finds and reads the table's rows with keys of the source, and computes the result.

        Args:
            files: all files of the table.
            source: the rows to merge.
            schema: the table's columns.
            all_columns: True to read all columns of former rows, which a change feed needs.
        """
        found = lookup.find_rows(files, source, upsert.keys, schema)
        source = lookup.combine_rows(source, found, upsert.keys, schema).combine_chunks()
        former = _find_former_rows(found, source, upsert)
        given = np.concatenate([_NO_ROWS, *(one.key_places for one in former)])
        gone = _find_deletes(source, upsert)[given]
        read = schema.names if all_columns else [*upsert.keys, *_list_unmerged_columns(upsert, schema)]
        held = read_found_rows(
            former, source.select(list(upsert.keys)), pa.schema([schema.field(name) for name in read])
        )
        updated = _create_updated_rows(
            held.filter(pa.array(~gone)), source.take(pa.array(given[~gone])), upsert, schema
        )
        return cls(former, gone, held, updated, _create_inserted_rows(source, upsert, found))

    def __bool__(self) -> bool:
        """True if any row changes."""
        return bool(len(self.is_deleted) or self.inserted.num_rows)

    def build_metrics(self) -> dict[str, str]:
        """Returns the numbers of inserted, updated and deleted rows under Delta's metric names."""
        return {
            "numTargetRowsInserted": str(self.inserted.num_rows),
            "numTargetRowsUpdated": str(self.updated.num_rows),
            "numTargetRowsDeleted": str(len(self.is_deleted) - self.updated.num_rows),
        }

    def change_rows(self) -> Iterator[pa.Table]:
        """Yields the rows of the change feed, with the column `_change_type`.

        They are deleted rows, replaced rows before and after the change, and inserted rows.
        """
        yield _with_change_type(self.replaced_rows.filter(pa.array(self.is_deleted)), "delete")
        yield _with_change_type(self.replaced_rows.filter(pa.array(~self.is_deleted)), "update_preimage")
        yield _with_change_type(self.updated, "update_postimage")
        yield _with_change_type(self.inserted, "insert")


def _with_change_type(rows: pa.Table, change: str) -> pa.Table:
    return rows.append_column(_CHANGE, pa.array([change] * rows.num_rows, _CHANGE.type))


def _find_former_rows(found_rows: Iterable[FoundRows], source: pa.Table, upsert: Upsert) -> list[FoundRows]:
    """Returns those of the found rows that the MERGE replaces or deletes.

    Args:
        found_rows: all table rows that have a key of the source.
    """
    if upsert.updates:
        return list(found_rows)
    gone = _find_deletes(source, upsert)
    own = ((one, gone[one.key_places]) for one in found_rows)
    return [replace(one, rows=one.rows[mine], key_places=one.key_places[mine]) for one, mine in own if mine.any()]


def _find_deletes(source: pa.Table, upsert: Upsert) -> Bools:
    """Returns for each source row whether it deletes the table's row with its key."""
    if not upsert.deletes:
        return np.zeros(source.num_rows, np.bool_)
    return pc.fill_null(source[DELETE], False).to_numpy()


def _list_unmerged_columns(upsert: Upsert, schema: pa.Schema) -> list[str]:
    """Returns the columns that a replaced row may keep: all except key columns and columns always set by the source."""
    return [name for name in schema.names if name not in {*upsert.keys, *upsert.columns}]


def _create_updated_rows(stored_rows: pa.Table, source_rows: pa.Table, upsert: Upsert, schema: pa.Schema) -> pa.Table:
    """Returns the new versions of replaced rows.

    Args:
        stored_rows: the replaced rows as they were.
        source_rows: for each replaced row, the source row with its key.
    """
    columns: dict[str, Any] = {name: source_rows[name] for name in (*upsert.keys, *upsert.columns)}
    columns |= {name: stored_rows[name] for name in _list_unmerged_columns(upsert, schema)}
    for i, name in enumerate(upsert.optional_columns):
        new = source_rows[name].cast(schema.field(name).type)
        columns[name] = pc.if_else(pc.list_element(source_rows[WRITTEN], i), new, columns[name])
    return pa.table(columns)


def _create_inserted_rows(source: pa.Table, upsert: Upsert, found: Iterable[FoundRows]) -> pa.Table:
    new = ~_find_deletes(source, upsert) & upsert.inserts
    for one in found:
        new[one.key_places] = False
    return source.select([*upsert.keys, *upsert.columns, *upsert.optional_columns]).filter(pa.array(new))


def _write_change_file(folder: Path, changes: Iterable[pa.Table], schema: pa.Schema) -> WrittenFile | None:
    """Writes the commit's change-feed file, which readers of the change feed use instead of the data files.

    Returns:
        The file; None if no row changed, so that none was written.
    """
    feed_folder, feed_schema = folder / _FEED, schema.append(_CHANGE)
    feed_folder.mkdir(exist_ok=True)
    files = FileWriter(str(feed_folder), feed_schema, ()).write_files(
        gather_batches(_yield_batches(changes, feed_schema))
    )
    return next((replace(file, path=f"{_FEED}/{file.path}") for file in files), None)


def _yield_batches(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (conform_batch(batch, schema) for part in parts for batch in part.to_batches())


def _find_crowded_files(files: Sequence[TableFile]) -> list[TableFile]:
    """Returns `_CROWD` (16) small files of about the same number of rows; empty if there are fewer such files.

    Their rows are moved into the file that the MERGE writes anyway. So the number of files grows with the logarithm of
    the table's size, and each row is moved only a few times.
    """
    for size in range(_LARGEST_TIER):
        tier = [file for file in files if _CROWD**size <= file.row_count < _CROWD ** (size + 1)]
        if len(tier) >= _CROWD:
            return tier[:_CROWD]
    return []


def _create_file_actions(marked: Mapping[TableFile, Int64s], written: list[Path], now: int) -> list[Action]:
    """Returns the actions that mark further rows of files as deleted. A file without remaining rows is removed.

    Args:
        marked: for each file, the numbers of the rows to mark.
        written: list to which the path of the new file with deletion vectors is appended, if one is written.
        now: time of the commit in milliseconds since 1970.
    """
    every = {file: _find_removed_rows(file, marked) for file in marked}
    left = {file: rows for file, rows in every.items() if len(rows) < file.row_count}
    actions = [remove_action(file, now) for file in every]
    if left:
        vectors, path = write_vectors(next(iter(left)).folder, [*left.values()])
        written.append(path)
        actions += [build_marked_add_action(file, vector) for file, vector in zip(left, vectors, strict=True)]
    return actions
