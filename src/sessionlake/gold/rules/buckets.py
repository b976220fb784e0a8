"""Computes sliding windows from buckets. A bucket has the aggregates of one series in one minute, hour or day.

A window of `n` minutes that ends at minute `t` consists of the one-minute buckets that end at `t - n + 1` to `t`.
Windows that overlap are computed together. The part that they share is merged once, from buckets of hours and days
where possible. The minutes after this part are added one by one, going forward in time. The minutes before it are added
one by one, going backward. Nothing is ever subtracted, so this works for every aggregate that can be merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.functions import Aggregate
from sessionlake.gold.aggregate.groups import Columns, RowGroups
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.gold.aggregate.standard import METRICS_1M
from sessionlake.gold.rules.tree import Function, Selection, Window
from sessionlake.protocol.arrow import encode_values_as_codes
from sessionlake.protocol.types import Bools, Int64s

MINUTE, HOUR, DAY = 1, 60, 1440
"""The lengths that buckets can have, in minutes."""
# The row id comes last because only it can contain the separator.
_SERIES = ("topic", "session_id", PARTITION, "metric", "row_id")
_SEPARATOR = "\0"
_MINUTE_US = 60_000_000
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
    return tuple(column for name in sorted(names) for column, _ in _create_aggregate(name).list_state_columns(name))


def list_usable_lengths(minutes: int, first: int, last: int) -> tuple[int, ...]:
    """Returns the lengths in minutes, ascending, of the buckets from which windows are computed.

    Buckets of one minute are always used. Hours and days are used only if all windows contain the same hour or day.

    Args:
        minutes: length of the windows, in minutes.
        first: the first minute at which a window ends.
        last: the last minute at which a window ends.
    """
    shared = (
        length
        for length in (HOUR, DAY)
        if _find_first_bucket_end(last - minutes, length) < _find_last_bucket_end(first, length)
    )
    return (MINUTE, *shared)


def list_covering_buckets(
    lengths: Sequence[int], begins: tuple[int, int], ends: tuple[int, int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Yields the buckets that windows consist of, as pairs of a bucket length in minutes and a range `(low, high)`.

    The range stands for buckets that end after minute `low`, up to and including minute `high`. The longest buckets are
    used in the middle of the windows, shorter ones near their start and end.

    Args:
        lengths: the bucket lengths that `list_usable_lengths` returns.
        begins: the first and the last minute at which one of the windows starts.
        ends: the first and the last minute at which one of the windows ends.
    """
    for length, longer in pairwise(lengths):
        yield length, (_find_first_bucket_end(begins[0], length), _find_first_bucket_end(begins[1], longer))
        yield length, (_find_last_bucket_end(ends[0], longer), _find_last_bucket_end(ends[1], length))
    yield lengths[-1], (_find_first_bucket_end(begins[0], lengths[-1]), _find_last_bucket_end(ends[1], lengths[-1]))


def _find_first_bucket_end(minute: int, length: int) -> int:
    """Returns the first minute, from `minute` on, at which a bucket of this length ends."""
    return -(-minute // length) * length


def _find_last_bucket_end(minute: int, length: int) -> int:
    """Returns the last minute, up to `minute`, at which a bucket of this length ends."""
    return minute // length * length


@dataclass(frozen=True)
class MetricBuckets:
    """Buckets, as columns. A bucket has the aggregates of one series over a minute, hour or day.

    Attributes:
        series: one row per series: topic, session_id, partition, metric, row_id.
        series_row: for each bucket, the index of its series in `series`.
        end: for each bucket, the minute since 1970 at which it ends.
        length: for each bucket, its length in minutes.
        columns: for each aggregate of `gold.metrics_1m`, by name, an array with one value per bucket.
    """

    series: pa.Table
    series_row: Int64s
    end: Int64s
    length: Int64s
    columns: Columns

    def select_buckets_of_series(self, rows: Bools) -> MetricBuckets:
        """Returns the buckets of some series.

        Args:
            rows: for each row of `series`, True to keep the buckets of this series.
        """
        is_chosen = rows[self.series_row]
        number = np.cumsum(rows) - 1
        columns = {name: column[is_chosen] for name, column in self.columns.items()}
        series = self.series.filter(pa.array(rows))
        return MetricBuckets(
            series, number[self.series_row[is_chosen]], self.end[is_chosen], self.length[is_chosen], columns
        )


def build_buckets_from_rows(
    parts: Iterable[tuple[int, pa.Table]], columns: Sequence[str], keys: pa.Table | None
) -> MetricBuckets:
    """Converts rows of `gold.metrics_1m`, `metrics_1h` and `metrics_1d` to buckets.

    Args:
        parts: pairs of a bucket length in minutes and rows of the table with this length.
        columns: names of the aggregates to keep.
        keys: the keys to keep, one row per key, with some columns of `MetricBuckets.series`; None to keep all.
    """
    numbers: dict[str, int] = {}
    row, end, length = list[Int64s](), list[Int64s](), list[Int64s]()
    parts_of = {name: list[Any]() for name in columns}
    for minutes, table in parts:
        # Joined to one text, because encoding each column by itself takes a fifth longer.
        code, named = encode_values_as_codes(
            pc.binary_join_element_wise(*(_convert_to_texts(table[name]) for name in _SERIES), _SEPARATOR)
        )
        known = np.array([numbers.setdefault(name, len(numbers)) for name in named.to_pylist()], np.int64)
        row.append(known[code])
        end.append(table[START].cast(pa.int64()).to_numpy() // _MINUTE_US + minutes)
        length.append(np.full(table.num_rows, minutes))
        for name in columns:
            parts_of[name].append(table[name].to_numpy())
    names = [name.split(_SEPARATOR, len(_SERIES) - 1) for name in numbers]
    series = pa.table([pa.array([name[i] for name in names], pa.string()) for i in range(len(_SERIES))], list(_SERIES))
    place = _SERIES.index(PARTITION)
    series = series.set_column(place, PARTITION, series[PARTITION].cast(pa.int32()))
    joined = {name: _concatenate_or_empty(parts_of.pop(name)) for name in columns}
    buckets = MetricBuckets(
        series, _concatenate_or_empty(row), _concatenate_or_empty(end), _concatenate_or_empty(length), joined
    )
    if keys is None:
        return buckets
    wanted_keys = {*zip(*(keys[name].to_pylist() for name in keys.column_names), strict=True)}
    series_keys = zip(*(series[name].to_pylist() for name in keys.column_names), strict=True)
    return buckets.select_buckets_of_series(np.array([key in wanted_keys for key in series_keys], np.bool_))


def _convert_to_texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """Returns a column's values as texts. Each distinct integer is formatted only once."""
    if not pa.types.is_integer(column.type):
        return column
    code, distinct = encode_values_as_codes(column)
    return distinct.cast(pa.string()).take(pa.array(code))


def _concatenate_or_empty(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    """Concatenates arrays; without any, returns an empty array of int64."""
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class RuleKeys:
    """For each of some series, the rule's key to which the series belongs.

    Attributes:
        code: for each series, the index of its key in `table`.
        table: one row per key, with the rule's key columns.
    """

    code: Int64s
    table: pa.Table

    @staticmethod
    def from_series(series: pa.Table, by: tuple[str, ...]) -> RuleKeys:
        """Computes the keys of series.

        Args:
            series: one row per series, as in `MetricBuckets.series`.
            by: the rule's key columns.
        """
        groups = RowGroups.group_rows(series, by)
        return RuleKeys(groups.group_numbers, series.select(list(by)).take(pa.array(groups.first_rows)))


def select_series(series: pa.Table, selection: Selection, metric: str) -> Bools:
    """Returns True for each series whose numbers a window of a rule contains.

    Args:
        series: one row per series, as in `MetricBuckets.series`.
        selection: the topics and row ids that the window reads.
        metric: the declared column that the window reads.
    """
    topic = map_distinct(series["topic"], selection.includes_topic)
    row = map_distinct(series["row_id"], selection.includes_row) if selection.rows else np.ones(len(topic), np.bool_)
    return topic & row & map_distinct(series["metric"], metric.__eq__)


def map_distinct(column: pa.ChunkedArray, predicate: Callable[[str], bool]) -> Bools:
    """Returns the result of `predicate` for each text in a column without nulls. Calls it once per distinct text."""
    code, distinct = encode_values_as_codes(column)
    return np.array([predicate(value) for value in distinct.to_pylist()], np.bool_)[code]


_Tier: TypeAlias = "tuple[Int64s, Int64s, Columns]"
"""Buckets of one length, merged to one per end and key: ends in ascending order, indexes of keys, and aggregates."""
_Tiers: TypeAlias = "dict[int, _Tier]"
"""For each bucket length in minutes, the buckets of that length."""


@dataclass(frozen=True)
class MovingWindows:
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
        return {name: _create_aggregate(name) for name in sorted(names)}

    @cached_property
    def _column_names(self) -> list[str]:
        return [column for name, one in self._aggregate_by_column.items() for column, _ in one.list_state_columns(name)]

    def aggregate_at(self, minutes: Int64s) -> Columns:
        """Returns the aggregates in the windows that end at some minutes: arrays of shape `(minutes, keys)`, by name.

        Args:
            minutes: the minutes since 1970 at which the windows end, in ascending order.
        """
        tiers = self._group_buckets_by_length(int(minutes[0]), int(minutes[-1]))
        parts, begin = [], 0
        while begin < len(minutes):
            end = int(np.searchsorted(minutes, minutes[begin] + self.minutes))
            parts.append(self._compute_overlapping_windows(tiers, minutes[begin:end].tolist()))
            begin = end
        return {name: np.concatenate([part[name] for part in parts]) for name in self._column_names}

    def _group_buckets_by_length(self, first: int, last: int) -> _Tiers:
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

    def _compute_overlapping_windows(self, tiers: _Tiers, moments: list[int]) -> Columns:
        """Returns the aggregates in windows that end at the minutes `moments`. They must have a minute in common."""
        heads = [self._compute_shared_part(tiers, moments[-1] - self.minutes, moments[0])]
        for before, moment in pairwise(moments):
            heads.append(self._add_minute_buckets(tiers, heads[-1], before, moment))
        tail = self._fill_missing_keys(*_select_buckets_between(tiers[1], 0, 0))
        contents = [heads[-1]]
        for at in range(len(moments) - 2, -1, -1):
            tail = self._add_minute_buckets(tiers, tail, moments[at] - self.minutes, moments[at + 1] - self.minutes)
            contents.append(self._combine_aggregates(tail, heads[at]))
        return {name: np.stack([columns[name] for columns in reversed(contents)]) for name in self._column_names}

    def _add_minute_buckets(self, tiers: _Tiers, contents: Columns, after: int, until: int) -> Columns:
        """Returns `contents` merged with the one-minute buckets that end after minute `after`, up to `until`."""
        key, columns = _select_buckets_between(tiers[1], after, until)
        if not len(key):
            return contents
        return self._combine_aggregates(
            contents,
            self._fill_missing_keys(
                *(self._merge_rows_by_number(key, columns) if until - after > 1 else (key, columns))
            ),
        )

    def _compute_shared_part(self, tiers: _Tiers, after: int, until: int) -> Columns:
        """Returns, for each key, the aggregates of all points after minute `after`, up to minute `until`."""
        ranges = list_covering_buckets(self.lengths, (after, after), (until, until))
        parts = [_select_buckets_between(tiers[length], low, high) for length, (low, high) in ranges]
        key = np.concatenate([part[0] for part in parts])
        columns = {name: np.concatenate([part[1][name] for part in parts]) for name in self._column_names}
        return self._fill_missing_keys(*self._merge_rows_by_number(key, columns))

    def _fill_missing_keys(self, key: Int64s, columns: Columns) -> Columns:
        """Returns columns with one value for each key, given the values of some keys.

        All other keys get a value that changes nothing when it is merged, such as 0 for a sum.

        Args:
            key: indices of the keys that have values.
            columns: the values of these keys.
        """
        out = {}
        for name, column in columns.items():
            values = np.full(self.key_count, _EMPTY_VALUES.get(name, 0), column.dtype)
            values[key] = column
            out[name] = values
        return out

    def _merge_rows_by_number(self, number: Int64s, columns: Columns) -> tuple[Int64s, Columns]:
        """Merges rows that have the same number. Returns the distinct numbers, ascending, and the merged rows."""
        order = np.argsort(number, kind="stable")
        starts = np.flatnonzero(np.diff(number[order], prepend=_MIN_INT64))
        groups = RowGroups(order, np.diff(starts, append=len(order)))
        return number[groups.first_rows] if len(order) else number, groups.merge_rows(columns, self._combine_aggregates)

    def _combine_aggregates(self, left: Columns, right: Columns) -> Columns:
        out: dict[str, Any] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for name, aggregate in self._aggregate_by_column.items():
                out |= aggregate.combine(name, left, right)
        return out


def _select_buckets_between(tier: _Tier, after: int, until: int) -> tuple[Int64s, Columns]:
    """Returns key indices and aggregates of the buckets that end after minute `after`, up to minute `until`."""
    ends, key, columns = tier
    low, high = np.searchsorted(ends, [after, until], side="right")
    return key[low:high], {name: column[low:high] for name, column in columns.items()}


def compute_window_values(window: Window, contents: Columns) -> tuple[Any, Bools]:
    """Returns the values of a window's function, and True where there is a value. Both have the shape of `contents`.

    Args:
        contents: the aggregates in the window, as `MovingWindows.aggregate_at` returns them.
    """
    has_value = contents[_COUNT] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        match window.function:
            case Function.COUNT:
                value = contents[_COUNT].astype(np.float64)
            case Function.AVG:
                value = contents["sum"] / contents[_COUNT]
            case function:
                value = contents[str(function)]
    return value, np.ones(has_value.shape, np.bool_) if window.function.is_zero_when_empty else has_value


def have_points(contents: Columns) -> Bools:
    """Returns True where a window contains at least one point, in the shape of the arrays in `contents`."""
    found: Bools = contents[_COUNT] > 0
    return found


def _create_aggregate(name: str) -> Aggregate:
    found = METRICS_1M.aggregates[name]
    assert isinstance(found, Aggregate)  # noqa: S101  (callers name no derived column)
    return found
