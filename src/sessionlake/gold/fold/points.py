"""Points, from which gold computes averages. A point is one number that a change set in one metric of one row.

A series is the points over which a table averages, for example all points of one metric in one row of a session.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.order import NO_LIFE
from sessionlake.gold.fold.series import SEQ_ORDER
from sessionlake.gold.fold.unscaled_decimals import UnscaledDecimals
from sessionlake.protocol.types import Bools, Float64s, Int64s

UNKNOWN = -1
_SORTED_BY_DIGITS = np.iinfo(np.uint16).max
"""Numpy sorts keys up to this number by radix, in a third of the time."""


@dataclass(frozen=True)
class PointSeqOrder:
    """For each point, the numbers that order points of equal event time in topics of class `once`.

    They are compared before the position. In other classes than `once` they are equal for all points of a series.

    Attributes:
        session: For series across sessions a hash of the session id, else 0.
        life: In class `once` the first offset of the session's life, else -1.
        seq: In class `once` the seq, else 0.
    """

    session: Int64s
    life: Int64s
    seq: Int64s

    def select_points(self, index: Int64s | Bools) -> PointSeqOrder:
        """Returns session, life and seq of some points.

        Args:
            index: Indices of the points, or True for each of them.
        """
        return PointSeqOrder(self.session[index], self.life[index], self.seq[index])

    def to_columns(self) -> dict[str, pa.Array]:
        """Returns session, life and seq as columns of a table of averages, by name.

        They are null for points of other classes than `once`.
        """
        none = self.life == NO_LIFE
        return {
            name: pa.array(part, mask=none) for name, part in zip(SEQ_ORDER, self.arrays_in_sort_order, strict=True)
        }

    @property
    def arrays_in_sort_order(self) -> tuple[Int64s, Int64s, Int64s]:
        """The arrays `session`, `life` and `seq`, in the order in which they are compared."""
        return self.session, self.life, self.seq

    @staticmethod
    def from_table(rows: pa.Table) -> PointSeqOrder | None:
        """Reads session, life and seq from rows. Returns None if no row is of class `once`.

        Args:
            rows: Rows with the columns `_session`, `_life` and `_seq`. A missing column counts as null.
        """
        if "_life" not in rows.column_names or rows["_life"].null_count == rows.num_rows:
            return None
        found = {name: rows[name] if name in rows.column_names else pa.nulls(rows.num_rows) for name in SEQ_ORDER}
        filled = zip(found.values(), (0, NO_LIFE, 0), strict=True)
        return PointSeqOrder(
            *(_convert_to_int64s(pc.fill_null(column.cast(pa.int64()), none)) for column, none in filled)
        )

    @staticmethod
    def concat_points(*parts: PointSeqOrder) -> PointSeqOrder:
        """Concatenates several of these objects, in this order."""
        return PointSeqOrder(
            *(np.concatenate(part) for part in zip(*(one.arrays_in_sort_order for one in parts), strict=True))
        )

    @staticmethod
    def create_nulls(count: int) -> PointSeqOrder:
        """Returns session, life and seq of `count` points that are not of class `once`."""
        zeros = np.zeros(count, np.int64)
        return PointSeqOrder(zeros, np.full(count, NO_LIFE), zeros)


@dataclass(frozen=True)
class PointSet:
    """Points as columns of equal length. Points of equal event time are ordered by `by_seq`, position, then ordinal.

    Attributes:
        key: Code of the point's series, from 0.
        ts: Event time in ms.
        position: The position of the point's change. For series across sessions it is the message's partition and
            offset, combined by `combine_partition_and_offset`.
        ordinal: Number of the change within its message.
        value: The number that was set.
        revision: How often the point's published average has changed; -1 if it must be read from the table.
        by_seq: The numbers that order points of class `once`. None if no point is of this class.
        units: The exact values of decimal columns. None if no point is of a decimal column.
    """

    key: Int64s
    ts: Int64s
    position: Int64s
    ordinal: Int64s
    value: Float64s
    revision: Int64s
    by_seq: PointSeqOrder | None = None
    units: UnscaledDecimals | None = None

    def __len__(self) -> int:
        return len(self.key)

    def select_points(self, index: Int64s | Bools) -> PointSet:
        """Returns some of the points.

        Args:
            index: Indices of the points, or True for each of them.
        """
        by_seq = None if self.by_seq is None else self.by_seq.select_points(index)
        units = None if self.units is None else self.units.select_points(index)
        return replace(self, **{name: getattr(self, name)[index] for name in COLUMNS}, by_seq=by_seq, units=units)

    def compute_sorted_indices(self) -> Int64s:
        """Returns the indices of all points, sorted by series, then event time, then order within equal event time.

        The sort is stable.
        """
        few = self.key.max(initial=0) <= _SORTED_BY_DIGITS
        key = self.key.astype(np.uint16) if few else self.key
        order = np.lexsort((self.ts, key))
        sorted_key, ts = key[order], self.ts[order]
        if ((sorted_key[1:] != sorted_key[:-1]) | (ts[1:] != ts[:-1])).all():  # the usual case
            return order
        by_seq = () if self.by_seq is None else (self.by_seq.seq, self.by_seq.life, self.by_seq.session)
        return np.lexsort((self.ordinal, self.position, *by_seq, self.ts, key))

    def replace_by_exact_averages(self, averages: Float64s, index: Int64s, sizes: Int64s) -> Float64s:
        """Returns averages in which those over decimals are replaced by the doubles nearest to the exact averages.

        Args:
            averages: The averages over the doubles nearest to the values.
            index: For each average, the index of its last point.
            sizes: For each average, its number of points, which are consecutive.
        """
        return averages if self.units is None else self.units.replace_by_exact_averages(averages, index, sizes)

    def with_series_codes(self, series_codes: Int64s) -> PointSet:
        """Returns the same points with new codes of their series."""
        return replace(self, key=series_codes)

    @staticmethod
    def concat_points(*parts: PointSet) -> PointSet:
        """Concatenates several sets of points, in this order."""
        by_seq, units = None, None
        if any(p.by_seq is not None for p in parts):
            by_seq = PointSeqOrder.concat_points(*(p.by_seq or PointSeqOrder.create_nulls(len(p)) for p in parts))
        if any(p.units is not None for p in parts):
            units = UnscaledDecimals.concat_points(*(p.units or UnscaledDecimals.create_nulls(len(p)) for p in parts))
        columns = {name: np.concatenate([getattr(p, name) for p in parts]) for name in COLUMNS}
        return PointSet(**columns, by_seq=by_seq, units=units)

    @staticmethod
    def create_empty() -> PointSet:
        """Returns an empty set of points."""
        none = np.empty(0, np.int64)
        return PointSet(none, none, none, none, np.empty(0), none)

    @staticmethod
    def create_unpublished_points(
        key: Int64s,
        ts: Int64s,
        position: Int64s,
        ordinal: Int64s,
        value: Float64s,
        by_seq: PointSeqOrder | None = None,
        units: UnscaledDecimals | None = None,
    ) -> PointSet:
        """Returns points with revision 0, whose averages have never been published.

        The arguments are the attributes of the points. A value of -0.0 becomes 0.0, because the sign of a zero would
        otherwise depend on the order of the points.
        """
        return PointSet(key, ts, position, ordinal, value + 0.0, np.zeros(len(key), np.int64), by_seq, units)

    def without_points(self, dropped_points: PointSet) -> PointSet:
        """Returns the points that are not in `dropped_points`, sorted.

        Two points are the same if series, event time, position and ordinal are equal.
        """
        both = PointSet.concat_points(dropped_points, self)
        order = both.compute_sorted_indices()  # of two equal points, the one from `dropped_points` comes first
        s = both.select_points(order)
        same = np.zeros(len(both), np.bool_)
        same[1:] = (
            (s.key[1:] == s.key[:-1])
            & (s.ts[1:] == s.ts[:-1])
            & (s.position[1:] == s.position[:-1])
            & (s.ordinal[1:] == s.ordinal[:-1])
        )
        return s.select_points((order >= len(dropped_points)) & ~same)


@dataclass(frozen=True)
class OlderPoints:
    """For each series, what the state knows about points that are older than the series' tail, its newest points.

    Attributes:
        some: True if the table may have older points of the series.
        ts: An upper bound of the older points' event times, in ms; 0 if there are none.
    """

    some: Bools
    ts: Int64s

    def __len__(self) -> int:
        return len(self.some)

    @staticmethod
    def create_without_older_points(series_count: int) -> OlderPoints:
        """Returns the values for `series_count` series that have no older points: their tails have all points."""
        return OlderPoints(np.zeros(series_count, np.bool_), np.zeros(series_count, np.int64))

    @staticmethod
    def create_with_forgotten_points(were_forgotten: Bools, ts: Int64s) -> OlderPoints:
        """Returns the values for series whose points up to time `ts` (ms) were dropped, where `were_forgotten`."""
        return OlderPoints(were_forgotten, np.where(were_forgotten, ts, 0))

    @staticmethod
    def concat_series(*parts: OlderPoints) -> OlderPoints:
        """Concatenates the values of several sets of series, in this order."""
        return OlderPoints(np.concatenate([p.some for p in parts]), np.concatenate([p.ts for p in parts]))

    def select_series(self, index: Int64s | Bools) -> OlderPoints:
        """Returns the values of some series.

        Args:
            index: Indices of the series, or True for each of them.
        """
        return OlderPoints(self.some[index], self.ts[index])

    def replace_series(self, index: Int64s, changed: OlderPoints) -> OlderPoints:
        """Returns a copy with new values for some series.

        Args:
            index: Indices of the series.
            changed: The new values of these series.
        """
        result = OlderPoints(self.some.copy(), self.ts.copy())
        result.some[index], result.ts[index] = changed.some, changed.ts
        return result

    def add_dropped_points(self, series_codes: Int64s, ts: Int64s) -> OlderPoints:
        """Returns a copy that counts further points as older points, because the tails no longer have them.

        These points must be later than all older points of their series.

        Args:
            series_codes: Series of each point, sorted by series and event time.
            ts: Event time of each point, in ms.
        """
        last = np.flatnonzero(np.diff(series_codes, append=-1))
        return self.replace_series(series_codes[last], OlderPoints(np.ones(len(last), np.bool_), ts[last]))


COLUMNS = tuple(f.name for f in fields(PointSet) if f.name not in ("by_seq", "units"))


def _convert_to_int64s(column: Any) -> Int64s:
    return np.asarray(column).astype(np.int64)
