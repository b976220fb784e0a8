"""Where rows with given keys are: an index over the key columns of a part of a table, and the keys asked of it.

Of each column the distinct values are numbered; a row's key is then one number, by which the rows are sorted. Nothing
is hashed together: two keys never share a number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import concatenate_ranges, dictionary_codes
from sessionlake.protocol.types import Bools, Int32s, Int64s

_WIDEST = 1 << 62


@dataclass(frozen=True)
class Keys:
    """Keys that are looked for, row by row.

    Attributes:
        count: how many.
        columns: of each key column, the number of each row's value among the distinct ones, and these.
    """

    count: int
    columns: tuple[tuple[Int64s, pa.Array], ...]

    @classmethod
    def of(cls, rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> Keys:
        """The keys of rows.

        Args:
            schema: whose types their columns get, those of the table that is searched.
        """
        numbered = (dictionary_codes(rows[name].unify_dictionaries()) for name in names)
        types = (schema.field(name).type for name in names)
        return cls(
            rows.num_rows, tuple((own, values.cast(t)) for (own, values), t in zip(numbered, types, strict=True))
        )


@dataclass(frozen=True)
class KeyIndex:
    """The keys of some rows, sorted.

    Attributes:
        columns: of each key column, its distinct values; and, where the numbers of the columns before it were too
            large to go on with, these as they were, each once and rising, in whose places it goes on.
        numbers: of the rows, rising.
        rows: the row of each number.
    """

    columns: tuple[tuple[pa.Array, Int64s | None], ...]
    numbers: Int64s
    rows: Int32s

    @classmethod
    def of(cls, rows: pa.Table, schema: pa.Schema) -> KeyIndex:
        """Sorts rows by all of their columns; rows with nulls have no key.

        Args:
            schema: with the types of the columns, which files may have in other units, or encoded.
        """
        number, width, whole = np.zeros(rows.num_rows, np.int64), 1, np.ones(rows.num_rows, np.bool_)
        columns = list[tuple[pa.Array, Int64s | None]]()
        for name in rows.column_names:
            code, values = dictionary_codes(rows[name].unify_dictionaries())
            size, kinds = max(len(values), 1), None
            if width * size >= _WIDEST:
                kinds, number = np.unique(number, return_inverse=True)
                width = len(kinds)
            number, width = number * size + code, width * size
            whole &= code >= 0
            columns.append((values.cast(schema.field(name).type), kinds))
        kept = np.flatnonzero(whole)
        order = kept[np.argsort(number[kept], kind="stable")]
        return cls(tuple(columns), number[order], order.astype(np.int32))

    @property
    def nbytes(self) -> int:
        """Of memory."""
        dictionaries = sum(values.nbytes + (0 if kinds is None else kinds.nbytes) for values, kinds in self.columns)
        return int(self.numbers.nbytes + self.rows.nbytes + dictionaries)

    def find(self, keys: Keys) -> tuple[Int64s, Int64s]:
        """The rows that have one of the keys, rising, and of each the place of its key among those asked for."""
        number, asked = np.zeros(keys.count, np.int64), np.arange(keys.count)
        for (values, kinds), (own, distinct) in zip(self.columns, keys.columns, strict=True):
            code = _places(values, distinct)[own[asked]]
            there = code >= 0
            if kinds is not None:
                number, same = _at(kinds, number)
                there &= same
            number = (number * len(values) + code)[there]
            asked = asked[there]
            if not len(asked):
                break
        first = np.searchsorted(self.numbers, number)
        many = np.searchsorted(self.numbers, number, side="right") - first
        rows = self.rows[concatenate_ranges(first, many)].astype(np.int64)
        order = np.argsort(rows)
        return rows[order], np.repeat(asked, many)[order]


@dataclass(frozen=True)
class RunIndex:
    """The heads of the keys of some rows: runs of rows that have all key columns but the last in common.

    Rows that were written together mostly are so. Then this is a small part of what a `KeyIndex` takes.

    Attributes:
        runs: their heads.
        first: the first row of each.
        length: how many rows it has.
    """

    runs: KeyIndex
    first: Int32s
    length: Int32s

    @classmethod
    def of(cls, heads: pa.Table, schema: pa.Schema) -> RunIndex:
        """Finds the runs of rows.

        Args:
            heads: their key columns but the last.
            schema: as for `KeyIndex.of`.
        """
        begins = np.zeros(heads.num_rows, np.bool_)
        begins[:1] = True
        for name in heads.column_names:
            begins[1:] |= np.diff(dictionary_codes(heads[name].unify_dictionaries())[0]) != 0
        first = np.flatnonzero(begins)
        length = np.diff(first, append=heads.num_rows)
        runs = KeyIndex.of(heads.take(pa.array(first)), schema)
        return cls(runs, first.astype(np.int32), length.astype(np.int32))

    @property
    def nbytes(self) -> int:
        """Of memory."""
        return int(self.runs.nbytes + self.first.nbytes + self.length.nbytes)

    def find(self, heads: Keys) -> tuple[Int64s, Int64s]:
        """The rows that have one of the heads, rising, and of each the place of its head among those asked for."""
        run, asked = self.runs.find(heads)
        length = self.length[run].astype(np.int64)
        return concatenate_ranges(self.first[run].astype(np.int64), length), np.repeat(asked, length)


def _places(values: pa.Array, distinct: pa.Array) -> Int64s:
    """Of each distinct value asked for, its place among an index's; -1 for those that are not there, and for null."""
    known = pc.fill_null(pc.index_in(values, value_set=distinct), -1).to_numpy()
    at = np.flatnonzero(known >= 0)
    places = np.full(len(distinct) + 1, -1, np.int64)
    places[known[at]] = at
    return places


def _at(kinds: Int64s, number: Int64s) -> tuple[Int64s, Bools]:
    """The place of each number among some, and whether it is there."""
    place = np.minimum(np.searchsorted(kinds, number), len(kinds) - 1)
    return place, kinds[place] == number
