"""Exact aggregates of a column of type `decimal(p,s)`. Sums are counted in units of 10^-s, as integers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.functions import Aggregate, DerivedAggregate
from sessionlake.gold.aggregate.groups import Columns, RowGroups
from sessionlake.protocol.arrow import convert_to_contiguous_array
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Bools, Int64s, Uint64s

MOST_DIGITS = 38
"""The most digits of a decimal in Spark, Arrow and Delta."""
_LIMB = 1 << 64
_UNITS = np.dtype([("low", "<u8"), ("high", "<i8")])


@dataclass(frozen=True)
class DecimalSum(Aggregate):
    """The exact sum of a decimal column, as `decimal(38,s)`. It is null if it has more than 38 digits.

    A second column stores the sum in units of 10^-s, as a text, which has no limit. So a sum with too many digits is
    right again once further values make it smaller, and the result does not depend on the order of the events.

    Attributes:
        of: Name of the column.
        scale: Number of digits after the point (s).
    """

    of: str
    scale: int

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (self.of,)

    def list_state_columns(self, result_name: str) -> tuple[tuple[str, str], ...]:
        return (result_name, f"decimal({MOST_DIGITS},{self.scale})"), (
            build_unscaled_sum_column_name(result_name),
            "string",
        )

    def build_state_of_each_event(self, result_name: str, events: pa.Table) -> Columns:
        # `merge_partial_results_by_group` reads units from decimals, too. It makes the texts once per row, not per
        # event.
        return {result_name: events[self.of], build_unscaled_sum_column_name(result_name): events[self.of]}

    def combine_partial_results(self, result_name: str, left: Columns, right: Columns) -> Columns:
        return {
            build_unscaled_sum_column_name(result_name): left[build_unscaled_sum_column_name(result_name)]
            + right[build_unscaled_sum_column_name(result_name)]
        }

    def merge_partial_results_by_group(self, result_name: str, partial_results: pa.Table, groups: RowGroups) -> Columns:
        units = build_unscaled_sum_column_name(result_name)
        held = {units: read_unscaled_integers(partial_results[units])}
        merged = groups.merge_rows_of_each_group(
            held, lambda one, other: self.combine_partial_results(result_name, one, other)
        )[units].tolist()
        return {
            result_name: _create_decimals_from_unscaled(merged, self.scale),
            units: pa.array(map(str, merged), pa.string()),
        }

    @property
    def column_comment(self) -> str:
        return f"Exact sum of {self.of}; null if it has more than {MOST_DIGITS} digits"

    def build_result_sql(self) -> str:
        return f"try_sum({quote(self.of)})"

    def build_rounding_error_scale_sql(self) -> str:
        # SQL has no sum if a sum of some of the values has too many digits. Then any result is accepted.
        return f"IF({self.build_result_sql()} IS NULL, double('Infinity'), 0D)"


@dataclass(frozen=True)
class DecimalMean(DerivedAggregate):
    """The double nearest to the exact mean of a decimal column.

    Attributes:
        sum: Name of the aggregate with the sum, a `DecimalSum`.
        count: Name of the aggregate with the number of events.
        scale: Number of digits of the column after the point.
        value: Name of the events' column, for the SQL.
    """

    sum: str
    count: str
    scale: int
    value: str = "value"

    def compute_from_results(self, results: Columns) -> Any:
        # Python divides integers exactly and rounds once.
        units, counts = (
            read_unscaled_integers(results[build_unscaled_sum_column_name(self.sum)]).tolist(),
            results[self.count].tolist(),
        )
        return np.array([total / (n * 10**self.scale) for total, n in zip(units, counts, strict=True)], np.float64)

    @property
    def column_comment(self) -> str:
        return f"Mean of {self.value}: the double nearest to the exact mean"

    def build_result_sql(self) -> str:
        return f"avg(CAST({quote(self.value)} AS DOUBLE))"

    def build_rounding_error_scale_sql(self) -> str:
        return f"avg(abs(CAST({quote(self.value)} AS DOUBLE)))"


def build_unscaled_sum_column_name(sum_column: str) -> str:
    """Returns the name of the column in which a `DecimalSum` stores its sum in units of 10^-s.

    Args:
        sum_column: Name of the column with the sum itself.
    """
    return f"_{sum_column}_units"


def read_unscaled_integers(column: pa.ChunkedArray | pa.Array) -> Any:
    """Returns decimals in units of 10^-s, as Python integers in a numpy array.

    Args:
        column: Decimals (128 bits) without nulls, or their units as texts of integers.
    """
    values = convert_to_contiguous_array(column) if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_decimal(values.type):
        return np.array([int(text) for text in values.to_pylist()], object)
    return join_64_bit_halves(*split_decimals_into_64_bit_halves(values))


def split_decimals_into_64_bit_halves(decimals: pa.Array) -> tuple[Int64s, Uint64s]:
    """Returns the upper and the lower 64 bits of the units of decimals (128 bits). They have no meaning for nulls."""
    parts = np.frombuffer(decimals.buffers()[1], _UNITS)[decimals.offset : decimals.offset + len(decimals)]
    return parts["high"].astype(np.int64), parts["low"].astype(np.uint64)


def join_64_bit_halves(high: Int64s, low: Uint64s) -> Any:
    """Returns unscaled decimals as Python integers in a numpy array, given their upper and lower 64 bits."""
    return high.astype(object) * _LIMB + low.astype(object)


def build_decimals_from_64_bit_halves(high: Int64s, low: Uint64s, is_null: Bools) -> pa.Array:
    """Returns unscaled decimals as `decimal(38,0)`, given their upper and lower 64 bits; null where `is_null`."""
    parts = np.empty(len(high), _UNITS)
    parts["high"], parts["low"] = high, low
    valid = pa.array(~is_null).buffers()[1]
    return pa.Array.from_buffers(pa.decimal128(MOST_DIGITS, 0), len(high), [valid, pa.py_buffer(parts)])


def _create_decimals_from_unscaled(unscaled_integers: Iterable[int], scale: int) -> pa.Array:
    """Converts integers in units of 10^-scale to decimals; null for integers with more than 38 digits."""
    every = list(unscaled_integers)
    fits = pa.array([abs(one) < 10**MOST_DIGITS for one in every], pa.bool_())
    content = b"".join(
        one.to_bytes(16, "little", signed=True) if valid else bytes(16)
        for one, valid in zip(every, fits.to_pylist(), strict=True)
    )
    kind = pa.decimal128(MOST_DIGITS, scale)
    return pa.Array.from_buffers(kind, len(every), [fits.buffers()[1], pa.py_buffer(content)])
