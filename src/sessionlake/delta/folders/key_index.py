"""Finds rows by their keys, with an index over the key columns of a part of a table.

The distinct values of each column are numbered. A row's key is then one number, and the index sorts rows by it. Nothing
is hashed, so two keys never share a number.
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
    """Keys to search for, one per row.

    Attributes:
        count: how many keys there are.
        columns: for each key column, the number of each row's value among the distinct values, and the distinct values.
    """

    count: int
    columns: tuple[tuple[Int64s, pa.Array], ...]

    @classmethod
    def of(cls, rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> Keys:
        """Returns the keys of rows.

        Args:
            schema: of the searched table; the key columns are cast to its types.
        """
        numbered = (dictionary_codes(rows[name].unify_dictionaries()) for name in names)
        types = (schema.field(name).type for name in names)
        return cls(
            rows.num_rows, tuple((own, values.cast(t)) for (own, values), t in zip(numbered, types, strict=True))
        )


@dataclass(frozen=True)
class KeyIndex:
    """The sorted keys of some rows.

    Attributes:
        columns: for each key column, its distinct values. If the combined numbers of the columns before it were too
            large, also those numbers, distinct and ascending; from there on, their positions are combined instead.
        numbers: the keys' numbers, ascending.
        rows: the row of each number.
    """

    columns: tuple[tuple[pa.Array, Int64s | None], ...]
    numbers: Int64s
    rows: Int32s

    @classmethod
    def of(cls, rows: pa.Table, schema: pa.Schema) -> KeyIndex:
        """Builds the index over all columns of these rows. Rows with nulls have no key.

        Args:
            schema: with the types of the columns; files may store other units or encodings.
        """
        number, width, has_key = np.zeros(rows.num_rows, np.int64), 1, np.ones(rows.num_rows, np.bool_)
        columns = list[tuple[pa.Array, Int64s | None]]()
        for name in rows.column_names:
            code, values = dictionary_codes(rows[name].unify_dictionaries())
            size, kinds = max(len(values), 1), None
            if width * size >= _WIDEST:
                kinds, number = np.unique(number, return_inverse=True)
                width = len(kinds)
            number, width = number * size + code, width * size
            has_key &= code >= 0
            columns.append((values.cast(schema.field(name).type), kinds))
        kept = np.flatnonzero(has_key)
        order = kept[np.argsort(number[kept], kind="stable")]
        return cls(tuple(columns), number[order], order.astype(np.int32))

    @property
    def nbytes(self) -> int:
        """Bytes of memory."""
        dictionaries = sum(values.nbytes + (0 if kinds is None else kinds.nbytes) for values, kinds in self.columns)
        return int(self.numbers.nbytes + self.rows.nbytes + dictionaries)

    def find(self, keys: Keys) -> tuple[Int64s, Int64s]:
        """Returns the rows that have one of the keys, ascending, and for each the position of its key in `keys`."""
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
    """Index of runs: consecutive rows that share all key columns but the last.

    Rows that were written together mostly form runs. The index is then much smaller than a `KeyIndex`.

    Attributes:
        runs: index of the shared key columns, one per run.
        first: the first row of each run.
        length: the number of rows of each run.
    """

    runs: KeyIndex
    first: Int32s
    length: Int32s

    @classmethod
    def of(cls, heads: pa.Table, schema: pa.Schema) -> RunIndex:
        """Builds the index.

        Args:
            heads: the rows' key columns except the last.
            schema: with the types of the columns.
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
        """Bytes of memory."""
        return int(self.runs.nbytes + self.first.nbytes + self.length.nbytes)

    def find(self, heads: Keys) -> tuple[Int64s, Int64s]:
        """Returns the rows of the runs with one of these heads, ascending, and for each the position of its head."""
        run, asked = self.runs.find(heads)
        length = self.length[run].astype(np.int64)
        return concatenate_ranges(self.first[run].astype(np.int64), length), np.repeat(asked, length)


def _places(values: pa.Array, distinct: pa.Array) -> Int64s:
    """Returns the position of each distinct value in an index's values; -1 if it is missing, and for null."""
    known = pc.fill_null(pc.index_in(values, value_set=distinct), -1).to_numpy()
    at = np.flatnonzero(known >= 0)
    places = np.full(len(distinct) + 1, -1, np.int64)
    places[known[at]] = at
    return places


def _at(kinds: Int64s, number: Int64s) -> tuple[Int64s, Bools]:
    """Returns the position of each number in `kinds`, and whether it is there."""
    place = np.minimum(np.searchsorted(kinds, number), len(kinds) - 1)
    return place, kinds[place] == number
