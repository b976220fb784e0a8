"""Rows put together by their keys; what merges in any order is reduced group by group, without a loop over groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.protocol.arrow import codes, ranges
from sessionlake.protocol.types import Int64s

Columns = Mapping[str, Any]
"""Numpy columns by name, all of one length."""
_WIDEST = 1 << 62


@dataclass(frozen=True)
class Groups:
    """Rows with equal keys next to each other.

    Attributes:
        order: the rows' places, group by group.
        lengths: how many rows each group has.
    """

    order: Int64s
    lengths: Int64s

    @staticmethod
    def of(rows: pa.Table, keys: Iterable[str]) -> Groups:
        """Groups rows by columns that have no nulls: texts, whole numbers or times."""
        number, width = np.zeros(rows.num_rows, np.int64), 1
        for name in keys:
            code, distinct = codes(rows[name])
            if width * max(len(distinct), 1) >= _WIDEST:
                _, number = np.unique(number, return_inverse=True)
                width = rows.num_rows
            number, width = number * max(len(distinct), 1) + code, width * max(len(distinct), 1)
        order = np.argsort(number, kind="stable")
        starts = np.flatnonzero(np.diff(number[order], prepend=-1))
        return Groups(order, np.diff(starts, append=len(order)))

    @property
    def starts(self) -> Int64s:
        """Of each group, the place of its first row in `order`."""
        return np.cumsum(self.lengths) - self.lengths

    @property
    def firsts(self) -> Int64s:
        """Of each group, its first row."""
        return self.order[self.starts]

    @property
    def numbers(self) -> Int64s:
        """Of each place in `order`, the number of its group."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    def reduced(self, columns: Columns, combine: Callable[[Columns, Columns], Columns]) -> Columns:
        """One entry a group: its rows combined in pairs, those in pairs again, and so on.

        Args:
            combine: what two rows come to, for many pairs at once; in whatever order, it must come to the same.
        """
        held = {name: column[self.order] for name, column in columns.items()}
        lengths = self.lengths
        while (lengths > 1).any():
            halves = (lengths + 1) // 2
            inside = ranges(np.zeros(len(halves), np.int64), halves) * 2
            left = np.repeat(np.cumsum(lengths) - lengths, halves) + inside
            paired = inside + 1 < np.repeat(lengths, halves)
            after = {name: column[left] for name, column in held.items()}
            one = {name: column[left[paired]] for name, column in held.items()}
            other = {name: column[left[paired] + 1] for name, column in held.items()}
            for name, column in combine(one, other).items():
                after[name][paired] = column
            held, lengths = after, halves
        return held
