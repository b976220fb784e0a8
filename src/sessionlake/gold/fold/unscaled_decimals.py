"""Exact values of decimal columns, and the averages over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.decimals import (
    build_decimals_from_64_bit_halves,
    join_64_bit_halves,
    split_decimals_into_64_bit_halves,
)
from sessionlake.gold.fold.series import EXACT
from sessionlake.protocol.arrow import convert_to_contiguous_array
from sessionlake.protocol.types import Bools, Float64s, Int64s, Uint64s

_NO_DECIMAL = -1
_LAST_INTEGER = 1 << 53
"""A double has every integer up to this one."""
_POWERS = np.array([10**digits for digits in range(16)], np.int64)
"""The powers of ten up to `_LAST_INTEGER`."""


@dataclass(frozen=True)
class UnscaledDecimals:
    """For each point, the exact value of a decimal column as a whole number of units of 10^-s (128 bits).

    Attributes:
        high: The upper 64 bits of the number of units.
        low: The lower 64 bits.
        scale: The number of digits after the point (s). -1 for a point of another type, which has 0 units.
    """

    high: Int64s
    low: Uint64s
    scale: Int64s

    def select_points(self, index: Int64s | Bools) -> UnscaledDecimals:
        """Returns the units of the points at these indices."""
        return UnscaledDecimals(self.high[index], self.low[index], self.scale[index])

    def to_columns(self) -> dict[str, pa.Array]:
        """Returns the columns `_units` and `_scale` of a table of averages. They are null for points of other types."""
        none = self.scale == _NO_DECIMAL
        columns = (
            build_decimals_from_64_bit_halves(self.high, self.low, none),
            pa.array(self.scale.astype(np.int32), mask=none),
        )
        return dict(zip(EXACT, columns, strict=True))

    @staticmethod
    def from_table(rows: pa.Table) -> UnscaledDecimals | None:
        """Reads the columns `_units` and `_scale` of rows. Returns None if no row has exact units."""
        units, scale = EXACT
        if scale not in rows.column_names or rows[scale].null_count == rows.num_rows:
            return None
        none = rows[scale].is_null().to_numpy()
        halves = (
            np.where(none, 0, half)
            for half in split_decimals_into_64_bit_halves(
                convert_to_contiguous_array(rows[units].cast(pa.decimal128(38, 0)))
            )
        )
        high, low = halves
        return UnscaledDecimals(high, low, rows[scale].fill_null(_NO_DECIMAL).cast(pa.int64()).to_numpy())

    @staticmethod
    def from_decimals(decimals: pa.Array) -> UnscaledDecimals:
        """Converts decimals without nulls to whole numbers of units of 10^-s, where s is the scale of their type."""
        high, low = split_decimals_into_64_bit_halves(decimals)
        return UnscaledDecimals(high, low, np.full(len(high), decimals.type.scale))

    @staticmethod
    def concat_points(*parts: UnscaledDecimals) -> UnscaledDecimals:
        """Concatenates the units of several sets of points."""
        names = ("high", "low", "scale")
        return UnscaledDecimals(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))

    @staticmethod
    def create_nulls(count: int) -> UnscaledDecimals:
        """Returns the units of `count` points that are not of a decimal column."""
        zeros = np.zeros(count, np.int64)
        return UnscaledDecimals(zeros, zeros.astype(np.uint64), np.full(count, _NO_DECIMAL))

    def replace_by_exact_averages(self, averages: Float64s, index: Int64s, sizes: Int64s) -> Float64s:
        """Returns averages, of which those over decimals are the doubles nearest to the exact averages.

        Args:
            averages: The averages over the nearest doubles of the values.
            index: For each average, the index of the last point that it is over.
            sizes: For each average, the number of points that it is over. They are consecutive.
        """
        end = index + 1
        exact, changed = (
            _count_true_values_before(self.scale != _NO_DECIMAL),
            _count_true_values_before(np.diff(self.scale, prepend=-1) != 0),
        )
        chosen = np.flatnonzero(exact[end] - exact[end - sizes] == sizes)
        if not len(chosen):
            return averages
        end, size, scale = end[chosen], sizes[chosen], self.scale[index[chosen]]
        units = self._read_unscaled_integers(int(size.max()))
        totals = np.concatenate([np.zeros(1, units.dtype), np.cumsum(units)])
        result = averages.copy()
        result[chosen] = _compute_exact_means(totals[end] - totals[end - size], size, scale)
        # A column whose scale was changed since has windows with both scales.
        for place in np.flatnonzero(changed[end] - changed[end - size + 1]).tolist():
            window = slice(end[place] - size[place], end[place])
            values = zip(units[window].tolist(), self.scale[window].tolist(), strict=True)
            result[chosen[place]] = float(sum(Fraction(unit, 10**digits) for unit, digits in values) / int(size[place]))
        return result

    def _read_unscaled_integers(self, summed_points: int) -> Any:
        """Returns the numbers of units: as int64 if a sum of `summed_points` of them cannot overflow, else as int."""
        low = self.low.view(np.int64)
        limit = np.iinfo(np.int64).max // summed_points
        if ((low >> 63) == self.high).all() and -limit <= low.min() and low.max() <= limit:
            return low
        return join_64_bit_halves(self.high, self.low)


def replace_decimal_columns_by_unscaled(points: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Replaces columns of decimals by the columns `_units` (decimal(38,0)) and `_scale` (int).

    Args:
        points: Points, each with a value in at most one of the columns.
        columns: Names of the columns; empty if there is no decimal column. Then all points are of other types.
    """
    found = UnscaledDecimals.create_nulls(points.num_rows)
    for column in map(points.column, columns):
        is_set = column.is_valid().to_numpy()
        own = UnscaledDecimals.from_decimals(convert_to_contiguous_array(column)).select_points(is_set)
        found.high[is_set], found.low[is_set], found.scale[is_set] = own.high, own.low, own.scale
    points = points.drop_columns([*columns])
    for name, values in found.to_columns().items():
        points = points.append_column(name, values)
    return points


def _count_true_values_before(is_counted: Bools) -> Int64s:
    """Returns, for each place and for the end, the number of true values before it."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(is_counted)])


def _compute_exact_means(unscaled_sums: Any, counts: Int64s, scale: Int64s) -> Float64s:
    """Returns the doubles nearest to `unscaled_sums / (counts * 10^scale)`."""
    power = _POWERS[np.minimum(scale, len(_POWERS) - 1)]
    # A division of two doubles is rounded once. So it is exact enough if both of them are.
    fits = (abs(unscaled_sums) <= _LAST_INTEGER) & (scale < len(_POWERS)) & (counts <= _LAST_INTEGER // power)
    result = np.zeros(len(unscaled_sums))
    result[fits] = unscaled_sums[fits].astype(np.float64) / (counts * power)[fits]
    rest = np.flatnonzero(~fits.astype(np.bool_))
    # Python divides integers exactly, and rounds once.
    numbers = zip(unscaled_sums[rest].tolist(), counts[rest].tolist(), scale[rest].tolist(), strict=True)
    result[rest] = [total / (count * 10**digits) for total, count, digits in numbers]
    return result
