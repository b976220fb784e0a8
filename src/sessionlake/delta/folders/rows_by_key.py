"""Finds the rows of a table's files that have given keys, and reads only those rows.

Cached keys (`file_keys`) give the rows, or candidates. For candidates, the last key column is read and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.folders.file_keys import FileKeys
from sessionlake.delta.folders.file_rows import Footer, column_of, read_rows
from sessionlake.delta.folders.key_index import KeyIndex, Keys, RunIndex
from sessionlake.delta.folders.table_files import TableFile
from sessionlake.delta.storage.reading import TooLargeError
from sessionlake.delta.storage.upsert import Combine
from sessionlake.delta.storage.values import value_of
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import dictionary_codes
from sessionlake.protocol.types import Bools, Int64s

_COMPARED = 1 << 21  # candidates that are compared at once
_IN_ONE_PIECE = 32 << 20  # up to this many bytes, rows of many files are copied into one chunk
_NO_ROWS = np.empty(0, np.int64)


@dataclass(frozen=True)
class _KeySearch:
    """The keys to search for, one per row.

    Attributes:
        keys: the complete keys.
        heads: the distinct keys without their last column.
        head: for each row, the position of its head in `heads`.
        tail: the last key column.
    """

    keys: Keys
    heads: Keys
    head: Int64s
    tail: pa.Array

    @classmethod
    def of(cls, rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> _KeySearch:
        number = np.zeros(rows.num_rows, np.int64)
        for name in names[:-1]:
            code, values = dictionary_codes(rows[name])
            number = np.unique(number * (len(values) + 1) + code, return_inverse=True)[1].reshape(-1)
        _, first, head = np.unique(number, return_index=True, return_inverse=True)
        heads = Keys.of(rows.take(pa.array(first)), names[:-1], schema)
        return cls(Keys.of(rows, names, schema), heads, head.reshape(-1), rows[names[-1]])

    def resolve(self, seen: Sequence[_FileMatch]) -> Iterator[FoundRows]:
        """Yields, for each file, the rows that are not deleted and have one of the keys."""
        tails = [chunk for one in seen for chunk in one.tail.chunks]
        if tails:
            at, place = self._find_pairs(np.concatenate([one.head for one in seen]), pa.chunked_array(tails))
        else:
            at = place = _NO_ROWS
        first = np.cumsum([0, *(len(one.candidates) for one in seen)])
        ends = np.searchsorted(at, first)
        for one, before, begin, end in zip(seen, first, ends, ends[1:], strict=False):
            yield one.resolved_rows(at[begin:end] - before, place[begin:end])

    def _find_pairs(self, head: Int64s, tail: pa.ChunkedArray) -> tuple[Int64s, Int64s]:
        """Returns which candidates have one of the keys, and which key.

        Args:
            head: for each candidate, the position of its head in `heads`.
            tail: its last key column.
        """
        pair = pa.schema([("head", pa.int64()), ("tail", tail.type)])
        index = KeyIndex.of(pa.table([pa.array(head), tail], schema=pair), pair)
        return index.find(Keys.of(pa.table({"head": self.head, "tail": self.tail}), pair.names, pair))


@dataclass(frozen=True)
class FoundRows:
    """Rows of a file that have searched keys.

    Attributes:
        rows: their numbers in the file, ascending.
        key_places: for each row, the position of its key among the searched ones.
        footer: the file's footer.
    """

    file: TableFile
    rows: Int64s
    key_places: Int64s
    footer: Footer

    def read(self, columns: Sequence[str]) -> pa.Table:
        """Reads these columns of the rows."""
        return read_rows(self.file.path, self.rows, columns, self.footer)


@dataclass(frozen=True)
class _FileMatch:
    """What a file's index finds.

    Attributes:
        exact: rows that have searched keys, in any order.
        candidates: further rows that share a head with a searched key.
        head: for each candidate, the position of its head.
        tail: the last key column of the candidates.
    """

    exact: FoundRows
    candidates: Int64s
    head: Int64s
    tail: pa.ChunkedArray

    def resolved_rows(self, at: Int64s, place: Int64s) -> FoundRows:
        """Returns the rows that are not deleted: the exact ones, and the candidates with complete keys.

        Args:
            at: which candidates have complete keys.
            place: for each of them, the position of its key.
        """
        rows = np.concatenate([self.exact.rows, self.candidates[at]])
        source = np.concatenate([self.exact.key_places, place])
        there = np.flatnonzero(~_among(rows, self.exact.file.deleted_rows))
        there = there[np.argsort(rows[there])]
        return replace(self.exact, rows=rows[there], key_places=source[there])


class KeyIndexes:
    """Finds rows by their keys, with cached keys of files. Safe for several threads.

    Args:
        most: limit of the cache in bytes. If it is reached, footers are read again each time, and then keys.
    """

    def __init__(self, most: int) -> None:
        self._known = FileKeys(most)

    @property
    def nbytes(self) -> int:
        """Bytes that the cache holds."""
        return self._known.nbytes

    def find(
        self, files: Sequence[TableFile], rows: pa.Table, names: Sequence[str], schema: pa.Schema
    ) -> list[FoundRows]:
        """Returns the files that have keys of these rows, and where.

        Args:
            files: all files of a table's version. Cached keys of other files in its folder are evicted.
            names: the key columns, which have no nulls.
            schema: the table's.
        """
        if not rows.num_rows:
            return []
        self._known.begin_search(files)
        asked = _KeySearch.of(rows, names, schema)
        ends = {name: _ends(distinct) for name, (_, distinct) in zip(names, asked.keys.columns, strict=True)}
        seen, found, near = list[_FileMatch](), list[FoundRows](), 0
        for file in files:
            if file.may_have(ends):
                one = self._in_file(file, asked, names, schema)
                if one is not None:
                    seen.append(one)
                    near += len(one.candidates)
            if near >= _COMPARED:
                found += asked.resolve(seen)
                seen, near = [], 0
        return [one for one in (*found, *asked.resolve(seen)) if len(one.rows)]

    def _in_file(
        self, file: TableFile, asked: _KeySearch, names: Sequence[str], schema: pa.Schema
    ) -> _FileMatch | None:
        """Returns the file's matches; None if it has none."""
        rows, source, near, heads = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
        for first, index in self._known.parts(file.path, names, schema):
            by_head = isinstance(index, RunIndex)
            at, place = index.find(asked.heads if by_head else asked.keys)
            (near if by_head else rows).append(at + first)
            (heads if by_head else source).append(place)
        exact, candidates = np.concatenate(rows), np.concatenate(near)
        if not len(exact) and not len(candidates):
            return None
        footer, last = self._known.footer(file.path, names), schema.field(names[-1])
        tail = pa.chunked_array([], last.type)
        if len(candidates):
            tail = read_rows(file.path, candidates, [last.name], footer)[last.name].cast(last.type)
        found = FoundRows(file, exact, np.concatenate(source), footer)
        return _FileMatch(found, candidates, np.concatenate(heads), tail)


def _among(rows: Int64s, some: Int64s) -> Bools:
    """Returns which of the rows are among `some`, which is ascending."""
    place = np.searchsorted(some, rows)
    return np.append(some, -1)[place] == rows


def _ends(values: pa.Array) -> tuple[object, object]:
    ends = value_of(pc.min_max(values))
    return ends["min"], ends["max"]


def _keep_nothing() -> KeyIndexes:
    return KeyIndexes(0)


@dataclass(frozen=True)
class Lookup:
    """How a MERGE finds the table's rows of its source's keys, and what it combines them with.

    Attributes:
        indexes: cached keys of files.
        combine: computes the merged rows from the source and the table's rows; None to merge the source as it is.
        most: limit in bytes for the table's rows that are combined.
    """

    indexes: KeyIndexes = field(default_factory=_keep_nothing)
    combine: Combine | None = None
    most: int = 0

    def find(
        self, files: Sequence[TableFile], source: pa.Table, names: Sequence[str], schema: pa.Schema
    ) -> list[FoundRows]:
        """Returns the files that have keys of the source's rows, and where."""
        return self.indexes.find(files, source, names, schema)

    def combined(
        self, source: pa.Table, found: Sequence[FoundRows], names: Sequence[str], schema: pa.Schema
    ) -> pa.Table:
        """Returns the rows to merge, in the order of the source.

        Raises:
            TooLargeError: the table's rows are too large.
        """
        if self.combine is None or not found:
            return source
        keys = pa.table([source[name].cast(schema.field(name).type) for name in names], list(names))
        rows = self.combine(source, read_found_rows(found, keys, schema, self.most))
        at, asked = KeyIndex.of(rows.select(list(names)), schema).find(Keys.of(source, names, schema))
        if not len(at) == rows.num_rows == source.num_rows:
            raise LakeError(f"{source.num_rows} rows were combined into {rows.num_rows}, and not into one for each key")
        return rows.take(pa.array(at[np.argsort(asked)]))


def read_found_rows(found: Sequence[FoundRows], keys: pa.Table, schema: pa.Schema, most: int | None = None) -> pa.Table:
    """Reads the found rows.

    Args:
        keys: the searched keys, which are not read again.
        schema: the columns to return, with the table's types.
        most: limit in bytes; None for no limit.

    Raises:
        TooLargeError: the rows are larger.
    """
    known = [name for name in schema.names if name in keys.column_names]
    others = pa.schema([column for column in schema if column.name not in known])
    parts, size = [others.empty_table()], 0
    for one in found if others.names else ():
        rows = one.read(others.names)
        size += rows.nbytes
        if most is not None and size > most:
            raise TooLargeError(f"{one.file.folder}: the rows of {keys.num_rows} keys have more than {most} bytes")
        parts.append(pa.table([column_of(rows, column, len(one.rows)) for column in others], schema=others))
    given = keys.select(known).take(pa.array(np.concatenate([_NO_ROWS, *(one.key_places for one in found)])))
    rest = pa.concat_tables(parts)
    rest = rest.combine_chunks() if size <= _IN_ONE_PIECE else rest
    columns = [given[f.name].cast(f.type) if f.name in known else rest[f.name] for f in schema]
    return pa.table(columns, schema=schema)
