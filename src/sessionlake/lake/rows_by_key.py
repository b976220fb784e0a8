"""Finds the rows of a table's files that have given keys, and reads those rows alone.

Files never change. So what is read once of a file's keys is kept in memory, up to a limit, and its footer with it: a
MERGE of few rows into many then reads no keys, but of what is new, and of the other columns only row groups that have
such rows. Of a large file whose rows have the beginnings of their keys in common, as those of a session do, these
beginnings are kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Lock

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from sessionlake.errors import LakeError
from sessionlake.lake.file_rows import Footer, read_rows
from sessionlake.lake.key_index import KeyIndex, Keys, RunIndex
from sessionlake.lake.reading import TooLargeError
from sessionlake.lake.table_files import TableFile
from sessionlake.lake.upsert import Combine
from sessionlake.protocol.arrow import codes
from sessionlake.protocol.types import Bools, Int64s

_Name = tuple[Path, tuple[str, ...]]
_Part = tuple[int, KeyIndex | RunIndex]  # of a file, with the number of its first row
# What was asked for since so many searches is in use: it is not given up for what is new.
_IN_USE = 64
# Of a file with so many rows, the heads of keys are enough if there are so many rows to each.
_LARGE = 1 << 18
_LONG = 16
_PART = 1 << 21  # rows whose keys are read, and indexed or compared, at once
_NO_ROWS = np.empty(0, np.int64)


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

    def settled(self, seen: Sequence[_Seen]) -> Iterator[FoundRows]:
        """Of each file the rows that are there and have one of the keys."""
        tails = [chunk for one in seen for chunk in one.tail.chunks]
        if tails:
            at, place = self._told_apart(np.concatenate([one.head for one in seen]), pa.chunked_array(tails))
        else:
            at = place = _NO_ROWS
        first = np.cumsum([0, *(len(one.near) for one in seen)])
        ends = np.searchsorted(at, first)
        for one, before, begin, end in zip(seen, first, ends, ends[1:], strict=False):
            yield one.with_those(at[begin:end] - before, place[begin:end])

    def _told_apart(self, head: Int64s, tail: pa.ChunkedArray) -> tuple[Int64s, Int64s]:
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
        footer: of the file.
    """

    file: TableFile
    rows: Int64s
    source: Int64s
    footer: Footer

    def read(self, columns: Sequence[str]) -> pa.Table:
        """The rows; see `read_rows`."""
        return read_rows(self.file.path, self.rows, columns, self.footer)


@dataclass(frozen=True)
class _Seen:
    """What a file's index tells.

    Attributes:
        found: the rows that have keys that were asked for, in any order.
        near: others with the heads of such keys.
        head: of each of these, the place of its head among those asked for.
        tail: the last column of their keys.
    """

    found: FoundRows
    near: Int64s
    head: Int64s
    tail: pa.ChunkedArray

    def with_those(self, at: Int64s, place: Int64s) -> FoundRows:
        """The rows that are there, together with those of `near` that have whole keys.

        Args:
            at: which of them.
            place: of each, the place of its key among those asked for.
        """
        rows = np.concatenate([self.found.rows, self.near[at]])
        source = np.concatenate([self.found.source, place])
        there = np.flatnonzero(~_among(rows, self.found.file.gone))
        there = there[np.argsort(rows[there])]
        return replace(self.found, rows=rows[there], source=source[there])


@dataclass(frozen=True)
class _Known:
    """What is kept of a file's keys.

    Attributes:
        parts: where they are.
        size: bytes of these.
        used: the search that used it last.
        footer: the file's, where there is room for it.
    """

    parts: tuple[_Part, ...]
    size: int
    used: int
    footer: Footer | None = None

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return self.size + (0 if self.footer is None else self.footer.nbytes)


class KeyIndexes:
    """Keeps the keys of files in memory between searches, and their footers; also for several threads.

    Args:
        most: bytes that it keeps; of what is beyond, footers are read each time, and then keys.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes, self._searches = most, 0, 0
        self._kept = OrderedDict[_Name, _Known]()  # what was not used for longest comes first
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
        seen, found, near = list[_Seen](), list[FoundRows](), 0
        for file in files:
            if file.may_have(ends):
                one = self._in_file(file, asked, names, schema)
                if one is not None:
                    seen.append(one)
                    near += len(one.near)
            if near >= _PART:
                found += asked.settled(seen)
                seen, near = [], 0
        return [one for one in (*found, *asked.settled(seen)) if len(one.rows)]

    def _give_up_replaced(self, files: Sequence[TableFile]) -> None:
        there, folders = {file.path for file in files}, {file.folder for file in files}
        with self._lock:
            gone = [name for name in self._kept if name[0].parent in folders and name[0] not in there]
            for name in gone:
                self._give_up(name)

    def _in_file(self, file: TableFile, asked: _Asked, names: Sequence[str], schema: pa.Schema) -> _Seen | None:
        """None of a file that has nothing of the keys."""
        rows, source, near, heads = [_NO_ROWS], [_NO_ROWS], [_NO_ROWS], [_NO_ROWS]
        for first, index in self._parts(file, names, schema):
            by_head = isinstance(index, RunIndex)
            at, place = index.find(asked.heads if by_head else asked.keys)
            (near if by_head else rows).append(at + first)
            (heads if by_head else source).append(place)
        exact, candidates = np.concatenate(rows), np.concatenate(near)
        if not len(exact) and not len(candidates):
            return None
        footer, last = self._footer((file.path, tuple(names))), schema.field(names[-1])
        tail = pa.chunked_array([], last.type)
        if len(candidates):
            tail = read_rows(file.path, candidates, [last.name], footer)[last.name].cast(last.type)
        found = FoundRows(file, exact, np.concatenate(source), footer)
        return _Seen(found, candidates, np.concatenate(heads), tail)

    def _parts(self, file: TableFile, names: Sequence[str], schema: pa.Schema) -> Iterator[_Part]:
        name = file.path, tuple(names)
        known = self._used(name)
        if known is not None:
            yield from known.parts
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

    def _footer(self, name: _Name) -> Footer:
        known = self._used(name)
        if known is not None and known.footer is not None:
            return known.footer
        footer = Footer.read(name[0])
        with self._lock:
            known = self._kept.get(name)
            if known is not None and known.footer is None and self._has_room(footer.nbytes):
                self._kept[name] = replace(known, footer=footer)
                self._bytes += footer.nbytes
        return footer

    def _used(self, name: _Name) -> _Known | None:
        with self._lock:
            if name not in self._kept:
                return None
            self._kept[name] = replace(self._kept[name], used=self._searches)
            self._kept.move_to_end(name)
            return self._kept[name]

    def _keep(self, name: _Name, parts: tuple[_Part, ...], size: int) -> None:
        with self._lock:
            if name not in self._kept and self._has_room(size, instead_of_footers=True):
                self._kept[name] = _Known(parts, size, self._searches)
                self._bytes += size

    def _has_room(self, size: int, *, instead_of_footers: bool = False) -> bool:
        """Makes room, if it can: of what is out of use, and of footers, which are soon read again."""
        lacking, gone, smaller = self._bytes + size - self._most, list[_Name](), list[_Name]()
        for name, known in self._kept.items():
            if lacking <= 0:
                break
            if self._searches - known.used >= _IN_USE:
                gone.append(name)
                lacking -= known.nbytes
            elif instead_of_footers and known.footer is not None:
                smaller.append(name)
                lacking -= known.footer.nbytes
        if lacking > 0:
            return False
        for name in gone:
            self._give_up(name)
        for name in smaller:
            self._bytes -= self._kept[name].nbytes - self._kept[name].size
            self._kept[name] = replace(self._kept[name], footer=None)
        return True

    def _give_up(self, name: _Name) -> None:
        self._bytes -= self._kept.pop(name).nbytes


def _among(rows: Int64s, some: Int64s) -> Bools:
    """Which of the rows are among some, which rise."""
    place = np.searchsorted(some, rows)
    return np.append(some, -1)[place] == rows


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


def held_rows(found: Iterable[FoundRows], keys: pa.Table, schema: pa.Schema, most: int | None = None) -> pa.Table:
    """The rows that were found, in one piece.

    Args:
        keys: those asked for: they are not read again.
        schema: the columns that are wanted, of the table's.
        most: bytes in memory.

    Raises:
        TooLargeError: they have more.
    """
    parts, size = [schema.empty_table()], 0
    wanted = [name for name in schema.names if name in keys.column_names]
    others = [name for name in schema.names if name not in wanted]
    for one in found:
        rows = one.read(others)
        size += rows.nbytes
        if most is not None and size > most:
            raise TooLargeError(f"{one.file.folder}: the rows of {keys.num_rows} keys have more than {most} bytes")
        known = keys.take(pa.array(one.source))
        given = {name: known[name] for name in wanted} | {name: rows[name] for name in rows.column_names}
        count = len(one.rows)
        columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in schema]
        parts.append(pa.table(columns, schema=schema))
    return pa.concat_tables(parts).combine_chunks()
