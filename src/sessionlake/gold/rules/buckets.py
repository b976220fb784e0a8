"""Computes sliding windows from buckets. A bucket has the aggregates of one series in one minute, hour or day.

A window of `n` minutes that ends at minute `t` consists of the one-minute buckets that end at `t - n + 1` to `t`.
Windows that overlap are computed together. The part that they share is merged once, from buckets of hours and days
where possible. The minutes after this part are added one by one, going forward in time. The minutes before it are added
one by one, going backward. Nothing is ever subtracted, so this works for every aggregate that can be merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from sessionlake.gold.aggregate.functions import Aggregate
from sessionlake.gold.aggregate.groups import Columns, RowGroups
from sessionlake.gold.aggregate.standard import METRICS_1M
from sessionlake.gold.rules.condition_tree import Function, Window
from sessionlake.gold.rules.metric_buckets import MetricBuckets, RuleKeys
from sessionlake.protocol.types import Bools, Int64s

MINUTE, HOUR, DAY = 1, 60, 1440
"""The lengths that buckets can have, in minutes."""
_COUNT = "points"
_FUNCTION_COLUMNS = {
    Function.COUNT: (_COUNT,),
    Function.SUM: (_COUNT, "sum"),
    Function.MIN: (_COUNT, "min"),
    Function.MAX: (_COUNT, "max"),
    Function.AVG: (_COUNT, "sum"),
    Function.FIRST: (_COUNT, "first"),
    Function.LAST: (_COUNT, "last"),
}
_MIN_INT64 = np.iinfo(np.int64).min
_EMPTY_VALUES: Mapping[str, Any] = {
    "min": np.inf,
    "max": -np.inf,
    "_first_ts": np.iinfo(np.int64).max,
    "_last_ts": _MIN_INT64,
}


def list_columns_of_functions(functions: Iterable[Function]) -> tuple[str, ...]:
    """Returns the names of the columns of buckets from which some functions of rules are computed."""
    names = {name for function in functions for name in _FUNCTION_COLUMNS[function]} | {_COUNT}
    return tuple(column for name in sorted(names) for column, _ in _get_metric_aggregate(name).list_state_columns(name))


def list_usable_bucket_lengths(window_minutes: int, first_window_end: int, last_window_end: int) -> tuple[int, ...]:
    """Returns the lengths in minutes, ascending, of the buckets from which windows are computed.

    Buckets of one minute are always used. Hours and days are used only if all windows contain the same hour or day.

    Args:
        window_minutes: length of the windows, in minutes.
        first_window_end: the first minute at which a window ends.
        last_window_end: the last minute at which a window ends.
    """
    shared = (
        length
        for length in (HOUR, DAY)
        if _find_first_bucket_end(last_window_end - window_minutes, length)
        < _find_last_bucket_end(first_window_end, length)
    )
    return (MINUTE, *shared)


def list_buckets_that_cover_windows(
    bucket_lengths: Sequence[int], window_begins: tuple[int, int], window_ends: tuple[int, int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields the buckets that windows consist of, as pairs of a bucket length in minutes and a range `(low, high)`.

    The range stands for buckets that end after minute `low`, up to and including minute `high`. The longest buckets are
    used in the middle of the windows, shorter ones near their start and end.

    Args:
        bucket_lengths: the bucket lengths that `list_usable_bucket_lengths` returns.
        window_begins: the first and the last minute at which one of the windows starts.
        window_ends: the first and the last minute at which one of the windows ends.
    """
    for length, longer in pairwise(bucket_lengths):
        yield (
            length,
            (_find_first_bucket_end(window_begins[0], length), _find_first_bucket_end(window_begins[1], longer)),
        )
        yield length, (_find_last_bucket_end(window_ends[0], longer), _find_last_bucket_end(window_ends[1], length))
    yield (
        bucket_lengths[-1],
        (
            _find_first_bucket_end(window_begins[0], bucket_lengths[-1]),
            _find_last_bucket_end(window_ends[1], bucket_lengths[-1]),
        ),
    )


def _find_first_bucket_end(minute: int, length: int) -> int:
    """Returns the first minute, from `minute` on, at which a bucket of this length ends."""
    return -(-minute // length) * length


def _find_last_bucket_end(minute: int, length: int) -> int:
    """Returns the last minute, up to `minute`, at which a bucket of this length ends."""
    return minute // length * length


_BucketsOfLength: TypeAlias = "tuple[Int64s, Int64s, Columns]"
"""Buckets of one length, merged to one per end and key: ends in ascending order, indexes of keys, and aggregates."""
_BucketsByLength: TypeAlias = "dict[int, _BucketsOfLength]"
"""For each bucket length in minutes, the buckets of that length."""


@dataclass(frozen=True)
class SlidingWindows:
    """Computes the aggregates in sliding windows of one length, for each key of a rule.

    Attributes:
        buckets: the buckets that the windows can contain.
        keys: the key of each series in `buckets`.
        functions: the functions to compute.
        minutes: length of the windows in minutes.
        lengths: lengths in minutes of the buckets from which the windows are computed.
    """

    buckets: MetricBuckets
    keys: RuleKeys
    functions: tuple[Function, ...]
    minutes: int
    lengths: tuple[int, ...]

    @property
    def key_count(self) -> int:
        """The number of keys."""
        return self.keys.table.num_rows

    @cached_property
    def _aggregate_by_column(self) -> dict[str, Aggregate]:
        names = {name for function in self.functions for name in _FUNCTION_COLUMNS[function]}
        return {name: _get_metric_aggregate(name) for name in sorted(names)}

    @cached_property
    def _column_names(self) -> list[str]:
        return [column for name, one in self._aggregate_by_column.items() for column, _ in one.list_state_columns(name)]

    def aggregate_windows_ending_at(self, end_minutes: Int64s) -> Columns:
        """Returns the aggregates in the windows that end at some minutes: arrays of shape `(minutes, keys)`, by name.

        Args:
            end_minutes: the minutes since 1970 at which the windows end, in ascending order.
        """
        tiers = self._group_buckets_by_length(int(end_minutes[0]), int(end_minutes[-1]))
        parts, begin = [], 0
        while begin < len(end_minutes):
            end = int(np.searchsorted(end_minutes, end_minutes[begin] + self.minutes))
            parts.append(self._compute_overlapping_windows(tiers, end_minutes[begin:end].tolist()))
            begin = end
        return {name: np.concatenate([part[name] for part in parts]) for name in self._column_names}

    def _group_buckets_by_length(self, first: int, last: int) -> _BucketsByLength:
        """Returns, by bucket length, the buckets in windows that end at minutes `first` to `last`, merged by key."""
        buckets, found = self.buckets, {}
        for length in self.lengths:
            inside = (buckets.end > first - self.minutes) & (buckets.end <= last)
            chosen = np.flatnonzero(inside & (buckets.length == length))
            key, end = self.keys.code[buckets.series_row[chosen]], buckets.end[chosen] - first
            values = {name: buckets.columns[name][chosen] for name in self._column_names}
            number, columns = self._merge_rows_by_number(end * max(self.key_count, 1) + key, values)
            ends, key = np.divmod(number, max(self.key_count, 1))
            found[length] = (ends + first, key, columns)
        return found

    def _compute_overlapping_windows(self, buckets: _BucketsByLength, end_minutes: list[int]) -> Columns:
        """Returns the aggregates in windows that end at `end_minutes`. They must have a minute in common."""
        heads = [self._aggregate_shared_part(buckets, end_minutes[-1] - self.minutes, end_minutes[0])]
        for before, moment in pairwise(end_minutes):
            heads.append(self._add_minute_buckets(buckets, heads[-1], before, moment))
        tail = self._fill_in_missing_keys(*_select_buckets_ending_between(buckets[1], 0, 0))
        contents = [heads[-1]]
        for at in range(len(end_minutes) - 2, -1, -1):
            tail = self._add_minute_buckets(
                buckets, tail, end_minutes[at] - self.minutes, end_minutes[at + 1] - self.minutes
            )
            contents.append(self._combine_aggregates(tail, heads[at]))
        return {name: np.stack([columns[name] for columns in reversed(contents)]) for name in self._column_names}

    def _add_minute_buckets(self, buckets: _BucketsByLength, contents: Columns, after: int, until: int) -> Columns:
        """Returns `contents` merged with the one-minute buckets that end after minute `after`, up to `until`."""
        key, columns = _select_buckets_ending_between(buckets[1], after, until)
        if not len(key):
            return contents
        return self._combine_aggregates(
            contents,
            self._fill_in_missing_keys(
                *(self._merge_rows_by_number(key, columns) if until - after > 1 else (key, columns))
            ),
        )

    def _aggregate_shared_part(self, buckets: _BucketsByLength, after: int, until: int) -> Columns:
        """Returns, for each key, the aggregates of all points after minute `after`, up to minute `until`."""
        ranges = list_buckets_that_cover_windows(self.lengths, (after, after), (until, until))
        parts = [_select_buckets_ending_between(buckets[length], low, high) for length, (low, high) in ranges]
        key = np.concatenate([part[0] for part in parts])
        columns = {name: np.concatenate([part[1][name] for part in parts]) for name in self._column_names}
        return self._fill_in_missing_keys(*self._merge_rows_by_number(key, columns))

    def _fill_in_missing_keys(self, key_indices: Int64s, columns: Columns) -> Columns:
        """Returns columns with one value for each key, given the values of some keys.

        All other keys get a value that changes nothing when it is merged, such as 0 for a sum.

        Args:
            key_indices: indices of the keys that have values.
            columns: the values of these keys.
        """
        out = {}
        for name, column in columns.items():
            values = np.full(self.key_count, _EMPTY_VALUES.get(name, 0), column.dtype)
            values[key_indices] = column
            out[name] = values
        return out

    def _merge_rows_by_number(self, number: Int64s, columns: Columns) -> tuple[Int64s, Columns]:
        """Merges rows that have the same number. Returns the distinct numbers, ascending, and the merged rows."""
        order = np.argsort(number, kind="stable")
        starts = np.flatnonzero(np.diff(number[order], prepend=_MIN_INT64))
        groups = RowGroups(order, np.diff(starts, append=len(order)))
        return number[groups.first_row_indices] if len(order) else number, groups.merge_rows_of_each_group(
            columns, self._combine_aggregates
        )

    def _combine_aggregates(self, left: Columns, right: Columns) -> Columns:
        out: dict[str, Any] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for name, aggregate in self._aggregate_by_column.items():
                out |= aggregate.combine_partial_results(name, left, right)
        return out


def _select_buckets_ending_between(buckets: _BucketsOfLength, after: int, until: int) -> tuple[Int64s, Columns]:
    """Returns key indices and aggregates of the buckets that end after minute `after`, up to minute `until`."""
    ends, key, columns = buckets
    low, high = np.searchsorted(ends, [after, until], side="right")
    return key[low:high], {name: column[low:high] for name, column in columns.items()}


def compute_window_values(window: Window, window_aggregates: Columns) -> tuple[Any, Bools]:
    """Returns the values of a window's function, and True where there is one, in the shape of `window_aggregates`.

    Args:
        window_aggregates: the aggregates in the window, as `SlidingWindows.aggregate_windows_ending_at` returns them.
    """
    has_value = window_aggregates[_COUNT] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        match window.function:
            case Function.COUNT:
                value = window_aggregates[_COUNT].astype(np.float64)
            case Function.AVG:
                value = window_aggregates["sum"] / window_aggregates[_COUNT]
            case function:
                value = window_aggregates[str(function)]
    return value, np.ones(has_value.shape, np.bool_) if window.function.is_zero_without_points else has_value


def do_windows_have_points(window_aggregates: Columns) -> Bools:
    """Returns True where a window contains at least one point, in the shape of the arrays in `window_aggregates`."""
    found: Bools = window_aggregates[_COUNT] > 0
    return found


def _get_metric_aggregate(name: str) -> Aggregate:
    found = METRICS_1M.aggregates[name]
    assert isinstance(found, Aggregate)  # noqa: S101  (callers name no derived column)
    return found
