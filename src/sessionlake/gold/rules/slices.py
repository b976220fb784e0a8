"""Sliding windows over slices that all rules share: a row a series and minute, or hour, of what came in it.

A window of `n` minutes that ends at minute `t` holds the slices that end at `t - n + 1` to `t`. For some moments less
than `n` apart, what is in all their windows is put together once, days and hours where there are, and then from moment
to moment what comes in and what goes: whatever merges in any order is computed so, without ever taking anything away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.functions import Aggregate
from sessionlake.gold.aggregate.groups import Columns, Groups
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.gold.aggregate.standard import METRICS_1M
from sessionlake.gold.rules.tree import Function, Selection, Window
from sessionlake.protocol.arrow import codes
from sessionlake.protocol.types import Bools, Int64s

MINUTE, HOUR, DAY = 1, 60, 1440
"""Lengths of slices, in minutes."""
# The row's id comes last: it alone may contain the separator.
_SERIES = ("topic", "session_id", PARTITION, "metric", "row_id")
_SEPARATOR = "\0"
_MINUTE_US = 60_000_000
_COUNT = "points"
_NEEDS = {
    Function.COUNT: (_COUNT,),
    Function.SUM: (_COUNT, "sum"),
    Function.MIN: (_COUNT, "min"),
    Function.MAX: (_COUNT, "max"),
    Function.AVG: (_COUNT, "sum"),
    Function.FIRST: (_COUNT, "first"),
    Function.LAST: (_COUNT, "last"),
}
_LEAST = np.iinfo(np.int64).min
_NOTHING: Mapping[str, Any] = {"min": np.inf, "max": -np.inf, "_first_ts": np.iinfo(np.int64).max, "_last_ts": _LEAST}


def columns_for(functions: Iterable[Function]) -> tuple[str, ...]:
    """The columns of slices that these functions are computed from."""
    names = {name for function in functions for name in _NEEDS[function]} | {_COUNT}
    return tuple(column for name in sorted(names) for column, _ in _aggregate(name).columns(name))


def lengths_for(minutes: int, first: int, last: int) -> tuple[int, ...]:
    """The slices, by length, that windows of so many minutes are put together of which end at `first` to `last`.

    They are of those lengths of which all windows have a slice in common, and of minutes.
    """
    shared = (length for length in (HOUR, DAY) if _end_from(last - minutes, length) < _end_until(first, length))
    return (MINUTE, *shared)


def cover(
    lengths: Sequence[int], begins: tuple[int, int], ends: tuple[int, int]
) -> Iterator[tuple[int, tuple[int, int]]]:
    """Which slices of each length windows hold: their ends are behind the first minute, and up to the second.

    The longest are in the middle, and shorter ones towards both ends.

    Args:
        lengths: see `lengths_for`.
        begins: the first and the last minute at which such a window begins.
        ends: likewise, at which one ends.
    """
    for length, longer in pairwise(lengths):
        yield length, (_end_from(begins[0], length), _end_from(begins[1], longer))
        yield length, (_end_until(ends[0], longer), _end_until(ends[1], length))
    yield lengths[-1], (_end_from(begins[0], lengths[-1]), _end_until(ends[1], lengths[-1]))


def _end_from(minute: int, length: int) -> int:
    """The first end of a slice that is not before the minute."""
    return -(-minute // length) * length


def _end_until(minute: int, length: int) -> int:
    """The last end of a slice that is not behind the minute."""
    return minute // length * length


@dataclass(frozen=True)
class Slices:
    """Slices of some series.

    Attributes:
        series: one row a series: topic, session_id, partition, metric, row_id.
        row: of each slice, its series.
        end: of each slice, the minute since the epoch at which it ends.
        length: of each slice, minutes.
        columns: by name, as `gold.metrics_1m` has them.
    """

    series: pa.Table
    row: Int64s
    end: Int64s
    length: Int64s
    columns: Columns

    def of(self, chosen: Bools) -> Slices:
        """Those of some series alone."""
        kept = chosen[self.row]
        number = np.cumsum(chosen) - 1
        columns = {name: column[kept] for name, column in self.columns.items()}
        series = self.series.filter(pa.array(chosen))
        return Slices(series, number[self.row[kept]], self.end[kept], self.length[kept], columns)


def gathered(parts: Iterable[tuple[int, pa.Table]], columns: Sequence[str], keys: pa.Table | None) -> Slices:
    """Rows of `gold.metrics_1m`, `metrics_1h` and `metrics_1d` as slices.

    Args:
        parts: rows, and how many minutes one is.
        columns: that the slices are to have.
        keys: one row a key, of columns of series: those of other keys are left out; None: none are.
    """
    numbers: dict[str, int] = {}
    row, end, length = list[Int64s](), list[Int64s](), list[Int64s]()
    held = {name: list[Any]() for name in columns}
    for minutes, table in parts:
        # As one text: to encode each column by itself takes a fifth longer.
        code, named = codes(pc.binary_join_element_wise(*(_texts(table[name]) for name in _SERIES), _SEPARATOR))
        known = np.array([numbers.setdefault(name, len(numbers)) for name in named.to_pylist()], np.int64)
        row.append(known[code])
        end.append(table[START].cast(pa.int64()).to_numpy() // _MINUTE_US + minutes)
        length.append(np.full(table.num_rows, minutes))
        for name in columns:
            held[name].append(table[name].to_numpy())
    names = [name.split(_SEPARATOR, len(_SERIES) - 1) for name in numbers]
    series = pa.table([pa.array([name[i] for name in names], pa.string()) for i in range(len(_SERIES))], list(_SERIES))
    place = _SERIES.index(PARTITION)
    series = series.set_column(place, PARTITION, series[PARTITION].cast(pa.int32()))
    joined = {name: _joined(held.pop(name)) for name in columns}
    whole = Slices(series, _joined(row), _joined(end), _joined(length), joined)
    if keys is None:
        return whole
    wanted = {*zip(*(keys[name].to_pylist() for name in keys.column_names), strict=True)}
    mine = zip(*(series[name].to_pylist() for name in keys.column_names), strict=True)
    return whole.of(np.array([key in wanted for key in mine], np.bool_))


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    """The column as texts; of numbers, each distinct one is written once."""
    if not pa.types.is_integer(column.type):
        return column
    code, distinct = codes(column)
    return distinct.cast(pa.string()).take(pa.array(code))


def _joined(parts: Sequence[Any]) -> Any:
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


@dataclass(frozen=True)
class Keys:
    """Series put together by key.

    Attributes:
        code: of each series, the number of its key.
        table: one row a key.
    """

    code: Int64s
    table: pa.Table

    @staticmethod
    def of(series: pa.Table, by: tuple[str, ...]) -> Keys:
        """The keys of series."""
        groups = Groups.of(series, by)
        return Keys(groups.codes, series.select(list(by)).take(pa.array(groups.firsts)))


def members(series: pa.Table, of: Selection, metric: str) -> Bools:
    """Which series a window is over."""
    topic = each(series["topic"], of.has_topic)
    row = each(series["row_id"], of.has_row) if of.rows else np.ones(len(topic), np.bool_)
    return topic & row & each(series["metric"], metric.__eq__)


def each(column: pa.ChunkedArray, holds: Callable[[str], bool]) -> Bools:
    """Which of a column's texts, none of them null, something holds for: asked once a distinct one."""
    code, distinct = codes(column)
    return np.array([holds(value) for value in distinct.to_pylist()], np.bool_)[code]


_Tier: TypeAlias = "tuple[Int64s, Int64s, Columns]"
"""Ends in order, keys and columns: one slice an end and key."""
_Tiers: TypeAlias = "dict[int, _Tier]"


@dataclass(frozen=True)
class Moving:
    """The windows of one length over the slices of one selection, for each key.

    Attributes:
        minutes: their length.
        lengths: of the slices that they are put together of.
    """

    slices: Slices
    keys: Keys
    functions: tuple[Function, ...]
    minutes: int
    lengths: tuple[int, ...]

    @property
    def count(self) -> int:
        """How many keys there are."""
        return self.keys.table.num_rows

    @cached_property
    def _aggregates(self) -> dict[str, Aggregate]:
        names = {name for function in self.functions for name in _NEEDS[function]}
        return {name: _aggregate(name) for name in sorted(names)}

    @cached_property
    def _names(self) -> list[str]:
        return [column for name, one in self._aggregates.items() for column, _ in one.columns(name)]

    def over(self, moments: Int64s) -> Columns:
        """What the windows hold that end at these minutes, in order: `(moments, keys)` for each column."""
        tiers = self._tiers(int(moments[0]), int(moments[-1]))
        parts, begin = [], 0
        while begin < len(moments):
            end = int(np.searchsorted(moments, moments[begin] + self.minutes))
            parts.append(self._some(tiers, moments[begin:end].tolist()))
            begin = end
        return {name: np.concatenate([part[name] for part in parts]) for name in self._names}

    def _tiers(self, first: int, last: int) -> _Tiers:
        """The slices that windows hold which end at `first` to `last`, by length."""
        slices, found = self.slices, {}
        for length in self.lengths:
            inside = (slices.end > first - self.minutes) & (slices.end <= last)
            chosen = np.flatnonzero(inside & (slices.length == length))
            key, end = self.keys.code[slices.row[chosen]], slices.end[chosen] - first
            held = {name: slices.columns[name][chosen] for name in self._names}
            number, columns = self._reduced(end * max(self.count, 1) + key, held)
            ends, key = np.divmod(number, max(self.count, 1))
            found[length] = (ends + first, key, columns)
        return found

    def _some(self, tiers: _Tiers, moments: list[int]) -> Columns:
        """What the windows hold that end at these moments, all of which have a minute in common."""
        heads = [self._common(tiers, moments[-1] - self.minutes, moments[0])]
        for before, moment in pairwise(moments):
            heads.append(self._with(tiers, heads[-1], before, moment))
        gone = self._placed(*_between(tiers[1], 0, 0))
        whole = [heads[-1]]
        for at in range(len(moments) - 2, -1, -1):
            gone = self._with(tiers, gone, moments[at] - self.minutes, moments[at + 1] - self.minutes)
            whole.append(self._combined(gone, heads[at]))
        return {name: np.stack([columns[name] for columns in reversed(whole)]) for name in self._names}

    def _with(self, tiers: _Tiers, held: Columns, after: int, until: int) -> Columns:
        """What is held, and the slices of a minute that end behind `after` and up to `until`."""
        key, columns = _between(tiers[1], after, until)
        if not len(key):
            return held
        return self._combined(
            held, self._placed(*(self._reduced(key, columns) if until - after > 1 else (key, columns)))
        )

    def _common(self, tiers: _Tiers, after: int, until: int) -> Columns:
        """All that ends behind `after` and up to `until`."""
        ranges = cover(self.lengths, (after, after), (until, until))
        parts = [_between(tiers[length], low, high) for length, (low, high) in ranges]
        key = np.concatenate([part[0] for part in parts])
        columns = {name: np.concatenate([part[1][name] for part in parts]) for name in self._names}
        return self._placed(*self._reduced(key, columns))

    def _placed(self, key: Int64s, columns: Columns) -> Columns:
        """One entry a key; of those without slices, what changes nothing in whatever it is put together with."""
        out = {}
        for name, column in columns.items():
            whole = np.full(self.count, _NOTHING.get(name, 0), column.dtype)
            whole[key] = column
            out[name] = whole
        return out

    def _reduced(self, number: Int64s, columns: Columns) -> tuple[Int64s, Columns]:
        """One entry a number, in their order."""
        order = np.argsort(number, kind="stable")
        starts = np.flatnonzero(np.diff(number[order], prepend=_LEAST))
        groups = Groups(order, np.diff(starts, append=len(order)))
        return number[groups.firsts] if len(order) else number, groups.reduced(columns, self._combined)

    def _combined(self, one: Columns, other: Columns) -> Columns:
        out: dict[str, Any] = {}
        with np.errstate(over="ignore", invalid="ignore"):  # finite doubles may add up to infinity
            for name, aggregate in self._aggregates.items():
                out |= aggregate.combine(name, one, other)
        return out


def _between(tier: _Tier, after: int, until: int) -> tuple[Int64s, Columns]:
    """The slices that end behind `after` and up to `until`."""
    ends, key, columns = tier
    low, high = np.searchsorted(ends, [after, until], side="right")
    return key[low:high], {name: column[low:high] for name, column in columns.items()}


def value_of(window: Window, held: Columns) -> tuple[Any, Bools]:
    """A window's values, and where there are any."""
    there = held[_COUNT] > 0
    with np.errstate(invalid="ignore", divide="ignore"):
        match window.function:
            case Function.COUNT:
                value = held[_COUNT].astype(np.float64)
            case Function.AVG:
                value = held["sum"] / held[_COUNT]
            case function:
                value = held[str(function)]
    return value, np.ones(there.shape, np.bool_) if window.function.of_nothing else there


def holds_any(held: Columns) -> Bools:
    """Where a window holds anything."""
    found: Bools = held[_COUNT] > 0
    return found


def _aggregate(name: str) -> Aggregate:
    found = METRICS_1M.aggregates[name]
    assert isinstance(found, Aggregate)  # noqa: S101  (callers name no derived column)
    return found
