"""Groups rows by their keys, and merges the rows of each group without a loop over groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.protocol.arrow import combine_column_codes, encode_values_as_codes
from sessionlake.protocol.types import Int64s

Columns = Mapping[str, Any]
"""Numpy columns by name, all of the same length."""


@dataclass(frozen=True)
class RowGroups:
    """The rows of a table in groups: the rows of one group have equal keys.

    Attributes:
        row_order: Indices of the rows in the table, group by group.
        lengths: Number of rows of each group.
    """

    row_order: Int64s
    lengths: Int64s

    @staticmethod
    def group_rows(rows: pa.Table, keys: Iterable[str]) -> RowGroups:
        """Returns the groups of rows that have equal values in all key columns.

        Args:
            keys: Names of the key columns: texts, integers or times, without nulls.
        """
        number = combine_column_codes((encode_values_as_codes(rows[name]) for name in keys), rows.num_rows)
        order = np.argsort(number, kind="stable")
        starts = np.flatnonzero(np.diff(number[order], prepend=-1))
        return RowGroups(order, np.diff(starts, append=len(order)))

    @cached_property
    def group_start_positions(self) -> Int64s:
        """For each group, the position of its first row in `row_order`."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def first_row_indices(self) -> Int64s:
        """For each group, the index in the table of the group's first row."""
        return self.row_order[self.group_start_positions]

    @property
    def group_number_of_each_row(self) -> Int64s:
        """For each row of the table, the number of its group, from 0."""
        found = np.empty(len(self.row_order), np.int64)
        found[self.row_order] = np.repeat(np.arange(len(self.lengths)), self.lengths)
        return found

    def merge_rows_of_each_group(self, columns: Columns, combine: Callable[[Columns, Columns], Columns]) -> Columns:
        """Merges the rows of each group into one row, and returns one row per group.

        Rows are merged in pairs, then the results in pairs, and so on.

        Args:
            columns: The columns of all rows.
            combine: Function that merges row i of its first argument with row i of its second, for all i at once. The
                order in which rows are merged must not matter.
        """
        result = {name: column[self.first_row_indices] for name, column in columns.items()}
        several, rounds = self._pairs_to_merge_by_round
        if not rounds:
            return result
        held = {name: column[several.row_order] for name, column in columns.items()}
        for first, second in rounds:
            one = {name: column[first] for name, column in held.items()}
            other = {name: column[second] for name, column in held.items()}
            for name, column in combine(one, other).items():
                held[name][first] = column
        groups = np.flatnonzero(self.lengths > 1)
        for name, column in held.items():
            result[name][groups] = column[several.group_start_positions]
        return result

    @cached_property
    def _pairs_to_merge_by_round(self) -> tuple[RowGroups, list[tuple[Int64s, Int64s]]]:
        """The groups that have several rows, and for each round the pairs of rows to merge.

        A pair is two positions in the `row_order` of these groups. The second row is merged into the first. The first
        round merges neighbours, the next one rows that are two apart, then four apart, and so on. In the end the first
        row of a group has the result.
        """
        many = self.lengths > 1
        several = RowGroups(self.row_order[np.repeat(many, self.lengths)], self.lengths[many])
        starts, lengths = several.group_start_positions, several.lengths
        place, end = np.arange(len(several.row_order)), np.repeat(starts + lengths, lengths)
        rank, apart, rounds = place - np.repeat(starts, lengths), 1, list[tuple[Int64s, Int64s]]()
        while len(place):
            firsts = (rank % (2 * apart) == 0) & (place + apart < end)
            place, end, rank = place[firsts], end[firsts], rank[firsts]
            rounds.append((place, place + apart))
            apart *= 2
        return several, rounds[:-1]
