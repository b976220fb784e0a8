"""Finds the rows of a table's files that have given keys, and reads those rows alone.

Files never change. So what is read once of a file's keys is kept in memory, up to a limit: a MERGE of few rows into
many then reads no keys, but of what is new, and of the other columns only row groups that have such rows. Of a large
file whose rows have the beginnings of their keys in common, as those of a session do, these beginnings are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sessionlake.errors import LakeError
from sessionlake.lake.key_index import KeyIndex, Keys, RunIndex
from sessionlake.lake.reading import TooLargeError
from sessionlake.lake.table_files import TableFile
from sessionlake.lake.upsert import Combine
from sessionlake.protocol.arrow import codes
from sessionlake.protocol.types import Int64s

_Name = tuple[Path, tuple[str, ...]]
_Part = tuple[int, KeyIndex | RunIndex]  # of a file, with the number of its first row
# What was asked for since so many searches is in use: it is not given up for what is new.
_IN_USE = 64
_BATCH = 1 << 16
# Of a file with so many rows, the heads of keys are enough if there are so many rows to each.
_LARGE = 1 << 18
_LONG = 16
_PART = 1 << 21  # rows whose keys are read, and indexed, at once


@dataclass(frozen=True)
class _Asked:
    """Keys that are asked for, row by row.

    Attributes:
        keys: they, whole.
        heads: the distinct ones without the last column.
        head: of each row, the place of its own among these.
        tail: the last column.
    """

    keys: Keys
    heads: Keys
    head: Int64s
    tail: pa.Array

    @classmethod
    def of(cls, rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> _Asked:
        number = np.zeros(rows.num_rows, np.int64)
        for name in names[:-1]:
            code, values = codes(rows[name])
            number = np.unique(number * (len(values) + 1) + code, return_inverse=True)[1].reshape(-1)
        _, first, head = np.unique(number, return_index=True, return_inverse=True)
        heads = Keys.of(rows.take(pa.array(first)), names[:-1], schema)
        return cls(Keys.of(rows, names, schema), heads, head.reshape(-1), rows[names[-1]])

    def told_apart(self, head: Int64s, tail: pa.ChunkedArray) -> tuple[Int64s, Int64s]:
        """Which of some rows have one of the keys, and which.

        Args:
            head: of each row, the place of its own among `heads`.
            tail: the last column of its key.
        """
        pair = pa.schema([("head", pa.int64()), ("tail", tail.type)])
        index = KeyIndex.of(pa.table([pa.array(head), tail], schema=pair), pair)
        return index.find(Keys.of(pa.table({"head": self.head, "tail": self.tail}), pair.names, pair))


@dataclass(frozen=True)
class FoundRows:
    """Rows of a file with keys that were asked for.

    Attributes:
        rows: their numbers in the file, rising.
        source: of each, the place of its key among those asked for.
        footer: of the file, if it was read for that.
    """

    file: TableFile
    rows: Int64s
    source: Int64s
    footer: pq.FileMetaData | None = None

    def read(self, columns: Sequence[str]) -> pa.Table:
        """The rows; see `read_rows`."""
        return read_rows(self.file.path, self.rows, columns, self.footer)


class KeyIndexes:
    """Keeps the keys of files in memory between searches; also for several threads.

    Args:
        most: bytes that it keeps; of what is beyond, keys are read each time.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._searches = most, 0, 0
        self._kept = OrderedDict[
            _Name, tuple[tuple[_Part, ...], int, int]
        ]()  # with its bytes, and the search that used it last
        self._lock = Lock()

    @property
    def nbytes(self) -> int:
        """That are kept."""
        return self._bytes

    def find(
        self, files: Sequence[TableFile], rows: pa.Table, names: Sequence[str], schema: pa.Schema
    ) -> list[FoundRows]:
        """The files that have keys of these rows, and where.

        Args:
            files: all of a version of a table: what is known of others in its folder is given up.
            names: of the key columns, which have no nulls.
            schema: of the table.
        """
        if not rows.num_rows:
            return []
        self._searches += 1
        self._give_up_replaced(files)
        asked = _Asked.of(rows, names, schema)
        ends = {name: _ends(distinct) for name, (_, distinct) in zip(names, asked.keys.columns, strict=True)}
        found = (self._in_file(file, asked, names, schema) for file in files if file.may_have(ends))
        return [one for one in found if len(one.rows)]

    def _give_up_replaced(self, files: Sequence[TableFile]) -> None:
        there, folders = {file.path for file in files}, {file.folder for file in files}
        with self._lock:
            gone = [name for name in self._kept if name[0].parent in folders and name[0] not in there]
            self._bytes -= sum(self._kept.pop(name)[1] for name in gone)

    def _in_file(self, file: TableFile, asked: _Asked, names: Sequence[str], schema: pa.Schema) -> FoundRows:
        none = np.empty(0, np.int64)
        rows, source, near, heads = [none], [none], [none], [none]
        for first, index in self._parts(file, names, schema):
            by_head = isinstance(index, RunIndex)
            at, place = index.find(asked.heads if by_head else asked.keys)
            (near if by_head else rows).append(at + first)
            (heads if by_head else source).append(place)
        candidates, footer = np.concatenate(near), None
        if len(candidates):
            footer, name = pq.read_metadata(file.path), names[-1]
            tail = read_rows(file.path, candidates, [name], footer)[name].cast(schema.field(name).type)
            at, place = asked.told_apart(np.concatenate(heads), tail)
            rows.append(candidates[at])
            source.append(place)
        every, places = np.concatenate(rows), np.concatenate(source)
        there = np.flatnonzero(np.isin(every, file.gone, assume_unique=True, invert=True))
        there = there[np.argsort(every[there])]
        return FoundRows(file, every[there], places[there], footer)

    def _parts(self, file: TableFile, names: Sequence[str], schema: pa.Schema) -> Iterator[_Part]:
        name = file.path, tuple(names)
        known = self._used(name)
        if known is not None:
            yield from known
            return
        new, size = list[_Part](), 0
        for group in _read(file.path, names, schema):
            yield group
            size += group[1].nbytes
            if size <= self._most:
                new.append(group)
            else:
                new.clear()
        self._keep(name, tuple(new), size)

    def _used(self, name: _Name) -> tuple[_Part, ...] | None:
        with self._lock:
            if name not in self._kept:
                return None
            groups, size, _ = self._kept.pop(name)
            self._kept[name] = groups, size, self._searches
            return groups

    def _keep(self, name: _Name, groups: tuple[_Part, ...], size: int) -> None:
        with self._lock:
            while self._bytes + size > self._most and self._kept:
                oldest, (_, freed, used) = next(iter(self._kept.items()))
                if self._searches - used < _IN_USE:
                    return
                del self._kept[oldest]
                self._bytes -= freed
            if self._bytes + size <= self._most and name not in self._kept:
                self._kept[name] = groups, size, self._searches
                self._bytes += size


def _ends(values: pa.Array) -> tuple[object, object]:
    ends = pc.min_max(values).as_py()
    return ends["min"], ends["max"]


def _read(path: Path, names: Sequence[str], schema: pa.Schema) -> Iterator[_Part]:
    texts = [name for name in names if pa.types.is_string(schema.field(name).type)]
    heads, first = list(names[:-1]), 0
    with pq.ParquetFile(path, read_dictionary=texts, coerce_int96_timestamp_unit="us") as content:
        large = heads and content.metadata.num_rows >= _LARGE
        for groups in _together(content.metadata):
            runs = RunIndex.of(content.read_row_groups(groups, columns=heads).select(heads), schema) if large else None
            if runs is not None and len(runs.first) * _LONG <= (count := int(runs.length.sum())):
                yield first, runs
            else:
                rows = content.read_row_groups(groups, columns=list(names)).select(list(names))
                count = rows.num_rows
                yield first, KeyIndex.of(rows, schema)
            first += count


def _together(footer: pq.FileMetaData) -> Iterator[list[int]]:
    """Row groups that are read as one: they are small where single rows are to be found in them."""
    groups, rows = list[int](), 0
    for number in range(footer.num_row_groups):
        groups.append(number)
        rows += footer.row_group(number).num_rows
        if rows >= _PART:
            yield groups
            groups, rows = [], 0
    if rows:
        yield groups


def _keep_nothing() -> KeyIndexes:
    return KeyIndexes(0)


@dataclass(frozen=True)
class Lookup:
    """What a MERGE does to find the rows that its table has of its source's keys.

    Attributes:
        indexes: where keys are, as far as is known.
        combine: what the source becomes with those rows; None: it is merged as it is.
        most: bytes of them that may be in memory for it.
    """

    indexes: KeyIndexes = field(default_factory=_keep_nothing)
    combine: Combine | None = None
    most: int = 0

    def find(
        self, files: Sequence[TableFile], source: pa.Table, names: Sequence[str], schema: pa.Schema
    ) -> list[FoundRows]:
        """See `KeyIndexes.find`."""
        return self.indexes.find(files, source, names, schema)

    def combined(
        self, source: pa.Table, found: Sequence[FoundRows], names: Sequence[str], schema: pa.Schema
    ) -> pa.Table:
        """The rows that are merged, in the order of the source's.

        Raises:
            TooLargeError: the rows that were found are too large.
        """
        if self.combine is None or not found:
            return source
        keys = pa.table([source[name].cast(schema.field(name).type) for name in names], list(names))
        rows = self.combine(source, held_rows(found, keys, schema, self.most))
        at, asked = KeyIndex.of(rows.select(list(names)), schema).find(Keys.of(source, names, schema))
        if not len(at) == rows.num_rows == source.num_rows:
            raise LakeError(f"{source.num_rows} rows were combined into {rows.num_rows}, and not into one for each key")
        return rows.take(pa.array(at[np.argsort(asked)]))


def read_rows(path: Path, rows: Int64s, columns: Sequence[str], footer: pq.FileMetaData | None = None) -> pa.Table:
    """Rows of a Parquet file: of its row groups only those are read that have any.

    Args:
        rows: their numbers, rising.
        columns: of which the file may lack some, as those that are younger than it.
        footer: the file's, if it is known.
    """
    footer = footer or pq.read_metadata(path)
    texts = _numbered_texts(footer, columns)
    with pq.ParquetFile(path, metadata=footer, read_dictionary=texts, coerce_int96_timestamp_unit="us") as content:
        schema = content.schema_arrow
        present = [schema.field(name) for name in columns if name in schema.names]
        if not present:
            return pa.table({})
        sizes = np.array([footer.row_group(n).num_rows for n in range(footer.num_row_groups)], np.int64)
        first = np.cumsum(sizes) - sizes
        group = np.searchsorted(first, rows, side="right") - 1
        read = np.unique(group)
        skipped = np.zeros(len(sizes), np.int64)
        skipped[read] = first[read] - (np.cumsum(sizes[read]) - sizes[read])
        wanted, place = rows - skipped[group], 0
        plain = pa.schema([field.with_type(pa.string()) if field.name in texts else field for field in present])
        parts = list[pa.Table]()
        for batch in content.iter_batches(_BATCH, row_groups=read.tolist(), columns=plain.names):
            here = wanted[np.searchsorted(wanted, place) : np.searchsorted(wanted, place + batch.num_rows)]
            if len(here):
                chosen = batch.select(plain.names).take(pa.array(here - place))
                parts.append(pa.Table.from_batches([chosen]).cast(plain))
            place += batch.num_rows
        return pa.concat_tables(parts) if parts else plain.empty_table()


def _numbered_texts(footer: pq.FileMetaData, columns: Sequence[str]) -> list[str]:
    """Of these columns the texts that the file has as numbers into a list: all but the few rows are left as these."""
    if not footer.num_row_groups:
        return []
    group = footer.row_group(0)
    chunks = (
        group.column(number)
        for number in range(group.num_columns)
        if footer.schema.column(number).logical_type.type == "STRING"
    )
    listed = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    return [name for name in columns if name in listed]


def held_rows(found: Iterable[FoundRows], keys: pa.Table, schema: pa.Schema, most: int) -> pa.Table:
    """The rows that were found, whole.

    Args:
        keys: those asked for: they are not read again.
        schema: of the table.
        most: bytes in memory.

    Raises:
        TooLargeError: they have more.
    """
    parts, size = [schema.empty_table()], 0
    others = [name for name in schema.names if name not in keys.column_names]
    for one in found:
        rows = one.read(others)
        size += rows.nbytes
        if size > most:
            raise TooLargeError(f"{one.file.folder}: the rows of {keys.num_rows} keys have more than {most} bytes")
        known = keys.take(pa.array(one.source))
        given = {name: known[name] for name in keys.column_names} | {name: rows[name] for name in rows.column_names}
        count = len(one.rows)
        columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in schema]
        parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts)
