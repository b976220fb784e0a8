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

from sessionlake.delta.folders.deletion_vectors import write_deletion_vectors
from sessionlake.delta.folders.file_rows import read_undeleted_rows
from sessionlake.delta.folders.log import (
    build_add_action,
    build_add_action_with_new_vector,
    build_file_action_fields,
    build_remove_action,
    build_txn_action,
    read_current_time_ms,
    write_next_version,
)
from sessionlake.delta.folders.parquet import (
    DataFileWriter,
    WrittenFile,
    combine_small_batches,
    convert_batch_to_schema,
)
from sessionlake.delta.folders.rows_by_key import MergeRowLookup, RowsFoundInFile, read_found_rows
from sessionlake.delta.folders.table_files import Action, TableFile
from sessionlake.delta.folders.writable import WritableTable, may_have_deletion_vectors, open_writable_table
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


def merge_without_spark(
    delta: DeltaTable,
    source: pa.Table,
    upsert: Upsert,
    app: str,
    batch: int,
    lookup: MergeRowLookup | None = None,
    *,
    uses_vectors: bool = True,
) -> bool:
    """MERGEs source rows into a table in one commit, without Spark.

    Args:
        delta: the table, at its latest version.
        source: the rows to merge, at most one per key.
        upsert: says which columns are the key, and how a source row changes the table's row with its key.
        app: application id of the transaction.
        batch: version of the transaction.
        lookup: finds the table's rows that have a key of the source, and may combine them with the source.
        uses_vectors: True to mark replaced rows in deletion vectors. False to rewrite the files that have them.

    Returns:
        False if another process committed first: nothing is committed, and the caller must try again. Else True.

    Raises:
        LakeError: a deletion vector does not match the log, or only Spark may write to the table.
        TooLargeError: the table's rows to combine with the source exceed the limit of `lookup`.
    """
    table = open_writable_table(delta)
    folder, schema, uses_vectors = table.folder, table.schema, uses_vectors and may_have_deletion_vectors(delta)
    merged = _PlannedMerge.plan_merge(table, source, upsert, lookup or MergeRowLookup())
    former = {one.file: one.rows for one in merged.found_rows}
    absorbed = _find_files_to_rewrite(table, [] if uses_vectors else former) if merged else []
    left = (replace(file, deleted_rows=_list_deleted_row_numbers(file, former)) for file in absorbed)
    rows = chain(read_undeleted_rows(left, schema), _iterate_table_batches([merged.updated, merged.inserted], schema))
    written = next(iter(table.create_data_file_writer().write_files(combine_small_batches(rows))), None)
    feed_file = _write_change_feed_file(table, merged)
    now = read_current_time_ms()
    files, vectors = [one for one in (written, feed_file) if one], list[Path]()
    changes = [build_remove_action(file, now) for file in absorbed]
    changes += _build_deletion_actions({file: former[file] for file in former if file not in absorbed}, vectors, now)
    changes += [] if written is None else [build_add_action(written, now)]
    changes += [] if feed_file is None else [{"cdc": build_file_action_fields(feed_file) | {"dataChange": False}}]
    info = {"operation": "MERGE", "operationMetrics": merged.build_merge_metrics()}
    if write_next_version(table, info, [build_txn_action(app, batch), *changes], files, *vectors):
        return True
    for path in (*(folder / one.path for one in files), *vectors):
        path.unlink(missing_ok=True)
    return False


def _find_files_to_rewrite(table: WritableTable, rewritten: Iterable[TableFile]) -> list[TableFile]:
    """Returns the files whose remaining rows move into the MERGE's new file: rewritten files, and some small files.

    Args:
        table: the table.
        rewritten: files that the MERGE rewrites because they have replaced rows.
    """
    crowded = [] if table.configuration.get(APPEND_ONLY) == "true" else _find_small_files_to_move(table.data_files)
    return [*dict.fromkeys([*rewritten, *crowded])]


def _list_deleted_row_numbers(file: TableFile, former: Mapping[TableFile, Int64s]) -> Int64s:
    """Returns the numbers of all rows of a file that are deleted after this commit, ascending.

    Args:
        file: the file. It may have deleted rows already.
        former: for each file, the numbers of the rows that this commit replaces or deletes.
    """
    return np.union1d(file.deleted_rows, former[file]) if file in former else file.deleted_rows


@dataclass(frozen=True)
class _PlannedMerge:
    """What a MERGE will change, before it is written.

    Attributes:
        found_rows: the table's rows that are replaced or deleted, by file.
        is_deleted: for each of these rows, True if it is deleted and False if it is replaced.
        replaced_rows: the content of these rows. All columns, or only those from which new values may be computed.
        updated: the new versions of the replaced rows, in the order of the replaced rows in `replaced_rows`.
        inserted: rows whose keys the table does not have yet.
    """

    found_rows: list[RowsFoundInFile]
    is_deleted: Bools
    replaced_rows: pa.Table
    updated: pa.Table
    inserted: pa.Table

    @classmethod
    def plan_merge(
        cls, table: WritableTable, source: pa.Table, upsert: Upsert, lookup: MergeRowLookup
    ) -> _PlannedMerge:
        """Finds and reads the table's rows with keys of the source, and computes what the MERGE changes.

        For a table with a change feed, all columns of its rows are read.

        Args:
            table: the table.
            source: the rows to merge.
            upsert: says which columns are the key, and how a source row changes the table's row with its key.
            lookup: finds the table's rows that have a key of the source.
        """
        schema = table.schema
        found = lookup.find_rows(table.data_files, source, upsert.keys, schema)
        source = lookup.combine_source_with_table_rows(source, found, upsert.keys, schema).combine_chunks()
        former = _select_changed_rows(found, source, upsert)
        given = np.concatenate([_NO_ROWS, *(one.key_places for one in former)])
        gone = _mask_rows_that_delete(source, upsert)[given]
        read = schema.names if table.has_change_feed else [*upsert.keys, *_list_columns_to_keep(upsert, schema)]
        held = read_found_rows(
            former, source.select(list(upsert.keys)), pa.schema([schema.field(name) for name in read])
        )
        updated = _create_updated_rows(
            held.filter(pa.array(~gone)), source.take(pa.array(given[~gone])), upsert, schema
        )
        return cls(former, gone, held, updated, _create_inserted_rows(source, upsert, found))

    def __bool__(self) -> bool:
        """True if the MERGE changes any row."""
        return bool(len(self.is_deleted) or self.inserted.num_rows)

    def build_merge_metrics(self) -> dict[str, str]:
        """Returns how many rows the MERGE inserts, updates and deletes, under Delta's metric names."""
        return {
            "numTargetRowsInserted": str(self.inserted.num_rows),
            "numTargetRowsUpdated": str(self.updated.num_rows),
            "numTargetRowsDeleted": str(len(self.is_deleted) - self.updated.num_rows),
        }

    def list_change_feed_rows(self) -> Iterator[pa.Table]:
        """Yields the rows for the table's change feed, with the column `_change_type`.

        They are deleted rows, replaced rows before and after the change, and inserted rows.
        """
        yield _add_change_type(self.replaced_rows.filter(pa.array(self.is_deleted)), "delete")
        yield _add_change_type(self.replaced_rows.filter(pa.array(~self.is_deleted)), "update_preimage")
        yield _add_change_type(self.updated, "update_postimage")
        yield _add_change_type(self.inserted, "insert")


def _add_change_type(rows: pa.Table, change: str) -> pa.Table:
    return rows.append_column(_CHANGE, pa.array([change] * rows.num_rows, _CHANGE.type))


def _select_changed_rows(
    found_rows: Iterable[RowsFoundInFile], source: pa.Table, upsert: Upsert
) -> list[RowsFoundInFile]:
    """Returns the table's rows that the MERGE replaces or deletes.

    Args:
        found_rows: all rows of the table that have a key of the source.
        source: the rows to merge.
        upsert: says how a source row changes the table's row with its key. Some source rows may change nothing.
    """
    if upsert.updates:
        return list(found_rows)
    gone = _mask_rows_that_delete(source, upsert)
    own = ((one, gone[one.key_places]) for one in found_rows)
    return [replace(one, rows=one.rows[mine], key_places=one.key_places[mine]) for one, mine in own if mine.any()]


def _mask_rows_that_delete(source: pa.Table, upsert: Upsert) -> Bools:
    """Returns a boolean for each source row: True if it deletes the table's row with its key."""
    if not upsert.deletes:
        return np.zeros(source.num_rows, np.bool_)
    return pc.fill_null(source[DELETE], False).to_numpy()


def _list_columns_to_keep(upsert: Upsert, schema: pa.Schema) -> list[str]:
    """Returns the columns whose values replaced rows may keep: all but keys and columns that the source always sets."""
    return [name for name in schema.names if name not in {*upsert.keys, *upsert.columns}]


def _create_updated_rows(stored_rows: pa.Table, source_rows: pa.Table, upsert: Upsert, schema: pa.Schema) -> pa.Table:
    """Returns the new versions of replaced rows.

    Args:
        stored_rows: the replaced rows as they were.
        source_rows: for each replaced row, the source row with its key.
        upsert: says which columns the source sets.
        schema: the table's columns.
    """
    columns: dict[str, Any] = {name: source_rows[name] for name in (*upsert.keys, *upsert.columns)}
    columns |= {name: stored_rows[name] for name in _list_columns_to_keep(upsert, schema)}
    for i, name in enumerate(upsert.optional_columns):
        new = source_rows[name].cast(schema.field(name).type)
        columns[name] = pc.if_else(pc.list_element(source_rows[WRITTEN], i), new, columns[name])
    return pa.table(columns)


def _create_inserted_rows(source: pa.Table, upsert: Upsert, found: Iterable[RowsFoundInFile]) -> pa.Table:
    new = ~_mask_rows_that_delete(source, upsert) & upsert.inserts
    for one in found:
        new[one.key_places] = False
    return source.select([*upsert.keys, *upsert.columns, *upsert.optional_columns]).filter(pa.array(new))


def _write_change_feed_file(table: WritableTable, merge: _PlannedMerge) -> WrittenFile | None:
    """Writes the rows for the table's change feed to a new file.

    Returns:
        The file; None if the table has no change feed or no row changed, so that none was written.
    """
    if not table.has_change_feed or not merge:
        return None
    feed_folder, feed_schema = table.folder / _FEED, table.schema.append(_CHANGE)
    feed_folder.mkdir(exist_ok=True)
    files = DataFileWriter(str(feed_folder), feed_schema, ()).write_files(
        combine_small_batches(_iterate_table_batches(merge.list_change_feed_rows(), feed_schema))
    )
    return next((replace(file, path=f"{_FEED}/{file.path}") for file in files), None)


def _iterate_table_batches(parts: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    return (convert_batch_to_schema(batch, schema) for part in parts for batch in part.to_batches())


def _find_small_files_to_move(files: Sequence[TableFile]) -> list[TableFile]:
    """Returns 16 small files that have about the same number of rows; empty if there are not so many.

    Their rows are moved into the file that the MERGE writes anyway. So the number of files grows with the logarithm of
    the table's size, and each row is moved only a few times.
    """
    for size in range(_LARGEST_TIER):
        tier = [file for file in files if _CROWD**size <= file.row_count < _CROWD ** (size + 1)]
        if len(tier) >= _CROWD:
            return tier[:_CROWD]
    return []


def _build_deletion_actions(marked: Mapping[TableFile, Int64s], written: list[Path], now: int) -> list[Action]:
    """Returns actions of Delta's log that mark further rows of files as deleted.

    A file without remaining rows is removed.

    Args:
        marked: for each file, the numbers of the rows to mark.
        written: a list, to which the path of the new file with deletion vectors is appended, if one is written.
        now: time of the commit in milliseconds since 1970.
    """
    every = {file: _list_deleted_row_numbers(file, marked) for file in marked}
    left = {file: rows for file, rows in every.items() if len(rows) < file.row_count}
    actions = [build_remove_action(file, now) for file in every]
    if left:
        vectors, path = write_deletion_vectors(next(iter(left)).folder, [*left.values()])
        written.append(path)
        actions += [build_add_action_with_new_vector(file, vector) for file, vector in zip(left, vectors, strict=True)]
    return actions
