"""Finds the rows of a table that have given keys, and reads only these rows.

The search uses cached indexes of each file's keys (`file_keys`). An index by complete keys gives the rows. An index by
prefixes (the key columns without the last one) only gives candidates: rows whose prefix is that of a searched key. For
candidates the last key column is read from the file and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.file_keys import FileKeyCache
from sessionlake.delta.folders.file_rows import ParquetFooter, get_column_or_nulls, read_rows
from sessionlake.delta.folders.key_index import KeyIndex, PrefixIndex, SearchKeys
from sessionlake.delta.folders.table_files import TableFile
from sessionlake.delta.storage.reading import TooLargeError
from sessionlake.delta.storage.upsert import Combine
from sessionlake.delta.storage.values import convert_to_python_value
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import encode_values_as_codes
from sessionlake.protocol.types import Bools, Int64s

_COMPARED = 1 << 21  # from this number on, the candidates of several files are compared, and their memory is freed
_IN_ONE_PIECE = 32 << 20  # up to this many bytes, rows of many files are copied into one chunk
_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class _KeySearch:
    """The keys to search for, in the forms that the indexes of files need.

    Attributes:
        keys: the complete keys.
        prefixes: the distinct prefixes. A prefix is a key without its last column.
        prefix_places: for each key, the position of its prefix in `prefixes`.
        last_values: for each key, its value in the last key column.
    """

    keys: SearchKeys
    prefixes: SearchKeys
    prefix_places: Int64s
    last_values: pa.Array

    @classmethod
    def from_rows(cls, rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> _KeySearch:
        number = np.zeros(rows.num_rows, np.int64)
        for name in names[:-1]:
            code, values = encode_values_as_codes(rows[name])
            number = np.unique(number * (len(values) + 1) + code, return_inverse=True)[1].reshape(-1)
        _, first, head = np.unique(number, return_index=True, return_inverse=True)
        heads = SearchKeys.from_rows(rows.take(pa.array(first)), names[:-1], schema)
        return cls(SearchKeys.from_rows(rows, names, schema), heads, head.reshape(-1), rows[names[-1]])

    def find_rows(self, file_matches: Sequence[_KeySearchResult]) -> Iterator[RowsFoundInFile]:
        """Yields for each file its rows that have one of the searched keys. Deleted rows are left out.

        Args:
            file_matches: what the indexes of the files returned.
        """
        tails = [chunk for one in file_matches for chunk in one.last_values.chunks]
        if tails:
            at, place = self._match_candidates_to_keys(
                np.concatenate([one.prefix_places for one in file_matches]), pa.chunked_array(tails)
            )
        else:
            at = place = _NO_ROWS
        first = np.cumsum([0, *(len(one.candidates) for one in file_matches)])
        ends = np.searchsorted(at, first)
        for one, before, begin, end in zip(file_matches, first, ends, ends[1:], strict=False):
            yield one.select_rows(at[begin:end] - before, place[begin:end])

    def _match_candidates_to_keys(self, prefix_places: Int64s, last_values: pa.ChunkedArray) -> tuple[Int64s, Int64s]:
        """Finds the candidates that have one of the searched keys, by their prefixes and their last key column.

        Args:
            prefix_places: for each candidate, the position of its prefix in `prefixes`.
            last_values: for each candidate, its value in the last key column.

        Returns:
            Two arrays: the positions of these candidates, ascending, and for each the position of its key in `keys`.
        """
        pair = pa.schema([("head", pa.int64()), ("tail", last_values.type)])
        index = KeyIndex.from_rows(pa.table([pa.array(prefix_places), last_values], schema=pair), pair)
        return index.find_row_and_key_numbers(
            SearchKeys.from_rows(pa.table({"head": self.prefix_places, "tail": self.last_values}), pair.names, pair)
        )


@dataclass(frozen=True)
class RowsFoundInFile:
    """Rows of one data file that have a searched key.

    Attributes:
        file: the file.
        rows: the numbers of the rows in the file, ascending.
        key_places: for each row, the position of its key among the searched keys.
        footer: the file's footer.
    """

    file: TableFile
    rows: Int64s
    key_places: Int64s
    footer: ParquetFooter

    def read_columns(self, columns: Sequence[str]) -> pa.Table:
        """Reads these columns of the found rows from the file. Columns that the file lacks are left out."""
        return read_rows(self.file.full_path, self.rows, columns, self.footer)


@dataclass(frozen=True)
class _KeySearchResult:
    """What the indexes of one data file return for the searched keys.

    Rows that are marked as deleted are still included.

    Attributes:
        confirmed: rows that have a searched key, in any order.
        candidates: numbers of further rows, of which only the prefix is known to match a searched key.
        prefix_places: for each candidate, the position of its prefix among the searched prefixes.
        last_values: for each candidate, its value in the last key column.
    """

    confirmed: RowsFoundInFile
    candidates: Int64s
    prefix_places: Int64s
    last_values: pa.ChunkedArray

    def select_rows(self, candidate_positions: Int64s, key_places: Int64s) -> RowsFoundInFile:
        """Returns the file's rows with a searched key, without deleted rows: the confirmed rows and some candidates.

        Args:
            candidate_positions: positions in `candidates` of those that have a searched key.
            key_places: for each of these, the position of its key among the searched keys.
        """
        rows = np.concatenate([self.confirmed.rows, self.candidates[candidate_positions]])
        source = np.concatenate([self.confirmed.key_places, key_places])
        there = np.flatnonzero(~_mask_values_in_sorted(rows, self.confirmed.file.deleted_rows))
        there = there[np.argsort(rows[there])]
        return replace(self.confirmed, rows=rows[there], key_places=source[there])


class KeyIndexCache:
    """Finds rows of tables by their keys, with indexes of the keys in files that are cached.

    Several threads may use it.

    Args:
        max_bytes: limit of the cache in bytes. If it is reached, footers are dropped first. If keys still do not fit,
            they are read from the file in each search.
    """

    def __init__(self, max_bytes: int) -> None:
        self._known = FileKeyCache(max_bytes)

    @property
    def nbytes(self) -> int:
        """Memory used by the cached indexes, in bytes."""
        return self._known.nbytes

    def find_rows(
        self, files: Sequence[TableFile], rows: pa.Table, names: Sequence[str], schema: pa.Schema
    ) -> list[RowsFoundInFile]:
        """Returns the table's rows that have the same key as one of `rows`, grouped by file.

        Args:
            files: all files of the table's version. Cached keys of files that the table no longer has are dropped.
            rows: rows with the keys to search for.
            names: the key columns, which have no nulls.
            schema: the table's columns.
        """
        if not rows.num_rows:
            return []
        self._known.evict_files_not_in_table(files)
        asked = _KeySearch.from_rows(rows, names, schema)
        ends = {
            name: _compute_min_and_max(distinct) for name, (_, distinct) in zip(names, asked.keys.columns, strict=True)
        }
        seen, found, near = list[_KeySearchResult](), list[RowsFoundInFile](), 0
        for file in files:
            if file.may_have_values_in_ranges(ends):
                one = self._search_key_indexes_of_file(file, asked, names, schema)
                if one is not None:
                    seen.append(one)
                    near += len(one.candidates)
            if near >= _COMPARED:
                found += asked.find_rows(seen)
                seen, near = [], 0
        return [one for one in (*found, *asked.find_rows(seen)) if len(one.rows)]

    def _search_key_indexes_of_file(
        self, file: TableFile, search: _KeySearch, names: Sequence[str], schema: pa.Schema
    ) -> _KeySearchResult | None:
        """Returns what the indexes of a data file find for the searched keys; None if they find no row."""
        rows, source, near, heads = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
        for first, index in self._known.read_key_indexes(file.full_path, names, schema):
            by_head = isinstance(index, PrefixIndex)
            at, place = index.find_row_and_key_numbers(search.prefixes if by_head else search.keys)
            (near if by_head else rows).append(at + first)
            (heads if by_head else source).append(place)
        exact, candidates = np.concatenate(rows), np.concatenate(near)
        if not len(exact) and not len(candidates):
            return None
        footer, last = self._known.read_footer(file.full_path, names), schema.field(names[-1])
        tail = pa.chunked_array([], last.type)
        if len(candidates):
            tail = read_rows(file.full_path, candidates, [last.name], footer)[last.name].cast(last.type)
        found = RowsFoundInFile(file, exact, np.concatenate(source), footer)
        return _KeySearchResult(found, candidates, np.concatenate(heads), tail)


def _mask_values_in_sorted(rows: Int64s, sorted_rows: Int64s) -> Bools:
    """Returns a boolean for each element of `rows`: True if `sorted_rows`, which is ascending, contains it."""
    place = np.searchsorted(sorted_rows, rows)
    return np.append(sorted_rows, -1)[place] == rows


def _compute_min_and_max(values: pa.Array) -> tuple[object, object]:
    ends = convert_to_python_value(pc.min_max(values))
    return ends["min"], ends["max"]


def _create_key_index_cache() -> KeyIndexCache:
    return KeyIndexCache(0)


@dataclass(frozen=True)
class MergeRowLookup:
    """Finds the table's rows that a MERGE changes, and optionally combines the source rows with them.

    Attributes:
        indexes: cached indexes of the keys in the table's files.
        combine: computes the rows to merge from the source rows and the table's rows with the same keys. None to merge
            the source rows as they are.
        max_bytes: limit in bytes for the table's rows that are read to combine them.
    """

    indexes: KeyIndexCache = field(default_factory=_create_key_index_cache)
    combine: Combine | None = None
    max_bytes: int = 0

    def find_rows(
        self, files: Sequence[TableFile], source: pa.Table, names: Sequence[str], schema: pa.Schema
    ) -> list[RowsFoundInFile]:
        """Returns the table's rows that have the key of a source row, grouped by file.

        Args:
            files: all files of the table's version.
            source: the source rows of the MERGE.
            names: the key columns.
            schema: the table's columns.
        """
        return self.indexes.find_rows(files, source, names, schema)

    def combine_source_with_table_rows(
        self, source: pa.Table, found_rows: Sequence[RowsFoundInFile], names: Sequence[str], schema: pa.Schema
    ) -> pa.Table:
        """Returns the rows to merge, one for each source row, in the order of the source.

        They are the source rows themselves if `combine` is None.

        Args:
            source: the source rows of the MERGE.
            found_rows: the table's rows, as `find_rows` returns them.
            names: the key columns.
            schema: the table's columns.

        Raises:
            TooLargeError: the table's rows exceed `max_bytes` bytes.
        """
        if self.combine is None or not found_rows:
            return source
        keys = pa.table([source[name].cast(schema.field(name).type) for name in names], list(names))
        rows = self.combine(source, read_found_rows(found_rows, keys, schema, self.max_bytes))
        at, asked = KeyIndex.from_rows(rows.select(list(names)), schema).find_row_and_key_numbers(
            SearchKeys.from_rows(source, names, schema)
        )
        if not len(at) == rows.num_rows == source.num_rows:
            raise LakeError(
                f"an upsert of {source.num_rows} rows gave {rows.num_rows} rows after rows of the same "
                "key were combined",
                why="It needs exactly one row for each key. Nothing was written",
                fix="Report this as a bug of sessionlake",
            )
        return rows.take(pa.array(at[np.argsort(asked)]))


def read_found_rows(
    found_rows: Sequence[RowsFoundInFile], keys: pa.Table, schema: pa.Schema, max_bytes: int | None = None
) -> pa.Table:
    """Reads the rows that a search found from their files, and returns them in the order of `found_rows`.

    Args:
        found_rows: file and numbers of the rows.
        keys: the searched keys. Key columns are copied from here, and not read from files.
        schema: the columns to return, with the table's types.
        max_bytes: limit in bytes for the columns that are read; None for no limit.

    Raises:
        TooLargeError: these columns exceed `max_bytes` bytes.
    """
    known = [name for name in schema.names if name in keys.column_names]
    others = pa.schema([column for column in schema if column.name not in known])
    parts, size = [others.empty_table()], 0
    for one in found_rows if others.names else ():
        rows = one.read_columns(others.names)
        size += rows.nbytes
        if max_bytes is not None and size > max_bytes:
            raise TooLargeError(
                f"{one.file.folder}: the rows of {keys.num_rows} keys have more than {max_bytes} bytes, "
                "the limit for one read into memory",
                fix="Read fewer keys at once",
            )
        parts.append(pa.table([get_column_or_nulls(rows, column, len(one.rows)) for column in others], schema=others))
    given = keys.select(known).take(pa.array(np.concatenate([_NO_ROWS, *(one.key_places for one in found_rows)])))
    rest = pa.concat_tables(parts)
    rest = rest.combine_chunks() if size <= _IN_ONE_PIECE else rest
    columns = [given[f.name].cast(f.type) if f.name in known else rest[f.name] for f in schema]
    return pa.table(columns, schema=schema)
