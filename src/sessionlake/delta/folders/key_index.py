"""Indexes that find rows by their keys: for given keys, they return the numbers of the rows that have one of them.

Each index numbers the distinct values of each key column. The numbers of a row's values are combined into one number,
the row's key number, and rows are sorted by it. No hash is used, so two different keys never have the same number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import concatenate_ranges, encode_values_as_codes
from sessionlake.protocol.types import Bools, Int32s, Int64s

_WIDEST = 1 << 62


@dataclass(frozen=True)
class SearchKeys:
    """Keys of rows to search for. Key i consists of the values of row i in all key columns.

    Attributes:
        count: number of keys.
        columns: for each key column, two arrays: for each key the index of its value among the distinct values, and the
            distinct values.
    """

    count: int
    columns: tuple[tuple[Int64s, pa.Array], ...]

    @classmethod
    def from_rows(cls, rows: pa.Table, names: Sequence[str], schema: pa.Schema) -> SearchKeys:
        """Returns the keys of rows, to search for them in a table.

        Args:
            rows: the rows.
            names: the key columns.
            schema: columns of the searched table; keys are converted to its types.
        """
        numbered = (encode_values_as_codes(rows[name].unify_dictionaries()) for name in names)
        types = (schema.field(name).type for name in names)
        return cls(
            rows.num_rows, tuple((own, values.cast(t)) for (own, values), t in zip(numbered, types, strict=True))
        )


@dataclass(frozen=True)
class KeyIndex:
    """Index that finds rows by their keys. Build it with `from_rows`.

    Every distinct key has a number, which is combined from the numbers of its values in the key columns.

    Attributes:
        columns: for each key column, its distinct values and an array or None. The array is there if combined numbers
            would exceed 64 bits with this column. It holds the distinct numbers combined so far, ascending. From there
            on, the position in this array is combined instead of the number.
        numbers: the key number of each indexed row, ascending.
        rows: for each entry of `numbers`, the number of its row.
    """

    columns: tuple[tuple[pa.Array, Int64s | None], ...]
    numbers: Int64s
    rows: Int32s

    @classmethod
    def from_rows(cls, rows: pa.Table, schema: pa.Schema) -> KeyIndex:
        """Builds an index of rows. All columns of `rows` are key columns. Rows with a null are left out.

        Args:
            rows: the key columns of the rows.
            schema: the types in which keys are compared, since files may store other units or encodings.
        """
        number, width, has_key = np.zeros(rows.num_rows, np.int64), 1, np.ones(rows.num_rows, np.bool_)
        columns = list[tuple[pa.Array, Int64s | None]]()
        for name in rows.column_names:
            code, values = encode_values_as_codes(rows[name].unify_dictionaries())
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
        """Memory used by the index, in bytes."""
        dictionaries = sum(values.nbytes + (0 if kinds is None else kinds.nbytes) for values, kinds in self.columns)
        return int(self.numbers.nbytes + self.rows.nbytes + dictionaries)

    def find_row_and_key_numbers(self, keys: SearchKeys) -> tuple[Int64s, Int64s]:
        """Returns two arrays: the numbers of the rows that have one of the keys, ascending, and the key of each row.

        The key is given as its position in `keys`.
        """
        number, asked = np.zeros(keys.count, np.int64), np.arange(keys.count)
        for (values, kinds), (own, distinct) in zip(self.columns, keys.columns, strict=True):
            code = _find_position_of_each_distinct_value(values, distinct)[own[asked]]
            there = code >= 0
            if kinds is not None:
                number, same = _find_positions_in_sorted(kinds, number)
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
class PrefixIndex:
    """Index that finds runs of rows by their keys without the last key column.

    A run is a sequence of consecutive rows that differ only in the last key column, such as rows of a session that were
    written together. If runs are long, this index is much smaller than a `KeyIndex`.

    Attributes:
        index: index of the runs by their key columns without the last.
        first: the number of the first row of each run.
        length: the number of rows of each run.
    """

    index: KeyIndex
    first: Int32s
    length: Int32s

    @classmethod
    def from_rows(cls, prefixes: pa.Table, schema: pa.Schema) -> PrefixIndex:
        """Builds an index of rows by their key columns without the last one.

        Args:
            prefixes: the key columns of the rows, without the last.
            schema: the types in which keys are compared.
        """
        begins = np.zeros(prefixes.num_rows, np.bool_)
        begins[:1] = True
        for name in prefixes.column_names:
            begins[1:] |= np.diff(encode_values_as_codes(prefixes[name].unify_dictionaries())[0]) != 0
        first = np.flatnonzero(begins)
        length = np.diff(first, append=prefixes.num_rows)
        runs = KeyIndex.from_rows(prefixes.take(pa.array(first)), schema)
        return cls(runs, first.astype(np.int32), length.astype(np.int32))

    @property
    def nbytes(self) -> int:
        """Memory used by the index, in bytes."""
        return int(self.index.nbytes + self.first.nbytes + self.length.nbytes)

    def find_row_and_key_numbers(self, prefixes: SearchKeys) -> tuple[Int64s, Int64s]:
        """Returns two arrays: the numbers of rows with one of the prefixes, ascending, and the prefix of each row.

        Args:
            prefixes: keys without their last column. The result gives each row's prefix as its position here.
        """
        run, asked = self.index.find_row_and_key_numbers(prefixes)
        length = self.length[run].astype(np.int64)
        return concatenate_ranges(self.first[run].astype(np.int64), length), np.repeat(asked, length)


def _find_position_of_each_distinct_value(values: pa.Array, distinct: pa.Array) -> Int64s:
    """Returns the position in `values` of each distinct value; -1 for a missing one.

    A further -1 at the end is for null.
    """
    known = pc.fill_null(pc.index_in(values, value_set=distinct), -1).to_numpy()
    at = np.flatnonzero(known >= 0)
    places = np.full(len(distinct) + 1, -1, np.int64)
    places[known[at]] = at
    return places


def _find_positions_in_sorted(sorted_numbers: Int64s, number: Int64s) -> tuple[Int64s, Bools]:
    """Returns for each number its position in `sorted_numbers` (ascending), and whether it is there."""
    place = np.minimum(np.searchsorted(sorted_numbers, number), len(sorted_numbers) - 1)
    return place, sorted_numbers[place] == number
