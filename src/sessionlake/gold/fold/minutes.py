"""One row a minute of event time, folded batch by batch and equal to a recomputation, bit for bit.

Adding doubles does not commute, so a minute's sum is defined as the sum in event order, oldest first. That makes it
a left fold: points at the end extend it, and a point that comes late needs the points after it again. Those are in
the tail, and of the points older than the tail a summary of the one minute that reaches into it is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from sessionlake.protocol.columns import FIRST_MS, LAST_MS
from sessionlake.protocol.types import Bools, Float64s, Int64s

MINUTE_MS = 60_000
# Minutes outside have no `window_start`.
FIRST_MINUTE, LAST_MINUTE = FIRST_MS // 60_000, LAST_MS // 60_000


def minute_of(ts: Int64s) -> Int64s:
    """Minutes since the epoch of milliseconds since the epoch."""
    return ts // MINUTE_MS


@dataclass(frozen=True)
class Summary:
    """Points taken together, in event order, one entry a group; `first` means nothing where `count` is 0."""

    count: Int64s
    low: Float64s
    high: Float64s
    total: Float64s
    first: Float64s

    @staticmethod
    def nothing(groups: int) -> Summary:
        """The summary of no points, an entry for each of `groups`."""
        zero = np.zeros(groups)
        return Summary(np.zeros(groups, np.int64), zero + np.inf, zero - np.inf, zero, zero.copy())

    def take(self, index: Int64s | Bools) -> Summary:
        """The entries at these places."""
        return Summary(*(getattr(self, f.name)[index] for f in fields(self)))

    def where(self, keep: Bools) -> Summary:
        """These entries, and nothing elsewhere."""
        blank = Summary.nothing(len(keep))
        return Summary(*(np.where(keep, getattr(self, f.name), getattr(blank, f.name)) for f in fields(self)))

    def extend(self, group: Int64s, value: Float64s) -> Summary:
        """Goes on with later points.

        Args:
            group: entry each value belongs to; rises from 0 and leaves none out.
            value: in event order within a group.
        """
        if not len(value):
            return self
        start = np.flatnonzero(np.diff(group, prepend=-1))
        with np.errstate(over="ignore", invalid="ignore"):
            # bincount adds one by one, in order; reduceat would add in pairs.
            entries = np.arange(len(self.count))
            places, addends = np.concatenate([entries, group]), np.concatenate([self.total, value])
            total: Float64s = np.bincount(places, addends).astype(np.float64)
        return Summary(
            self.count + np.bincount(group),
            np.minimum(self.low, np.minimum.reduceat(value, start)),
            np.maximum(self.high, np.maximum.reduceat(value, start)),
            total,
            np.where(self.count > 0, self.first, value[start]),
        )


@dataclass(frozen=True)
class Older:
    """What is known of the points older than each key's tail.

    Attributes:
        some: whether there are, or may be, any.
        ts: none of them is later than this.
        known: whether `minute` is complete.
        minute: those of them that fall into the minute of `ts`.
    """

    some: Bools
    ts: Int64s
    known: Bools
    minute: Summary

    def __len__(self) -> int:
        return len(self.some)

    @staticmethod
    def nothing(keys: int) -> Older:
        """What is known where no point has left the tail yet."""
        return Older(np.zeros(keys, np.bool_), np.zeros(keys, np.int64), np.ones(keys, np.bool_), Summary.nothing(keys))

    @staticmethod
    def forgotten(some: Bools, ts: Int64s) -> Older:
        """For keys whose points, all at or before `ts`, were forgotten where `some` says so."""
        return Older(some, np.where(some, ts, 0), ~some, Summary.nothing(len(some)))

    @staticmethod
    def concat(*parts: Older) -> Older:
        """The entries of several, one behind the other."""
        return Older(
            np.concatenate([p.some for p in parts]),
            np.concatenate([p.ts for p in parts]),
            np.concatenate([p.known for p in parts]),
            Summary(*(np.concatenate([getattr(p.minute, f.name) for p in parts]) for f in fields(Summary))),
        )

    def take(self, index: Int64s | Bools) -> Older:
        """The keys at these places."""
        return Older(self.some[index], self.ts[index], self.known[index], self.minute.take(index))

    def put(self, index: Int64s, changed: Older) -> Older:
        """Replaces the keys at these places."""
        result = self.take(np.arange(len(self)))
        for f in fields(Summary):
            getattr(result.minute, f.name)[index] = getattr(changed.minute, f.name)
        result.some[index], result.ts[index], result.known[index] = changed.some, changed.ts, changed.known
        return result

    def without(self, key: Int64s, minute: Int64s) -> Older:
        """Forgets the minute of the keys that got a point older than the tail in that very minute."""
        known = self.known.copy()
        known[key[minute == minute_of(self.ts[key])]] = False
        return Older(self.some, self.ts, known, self.minute.where(known))


@dataclass(frozen=True)
class Minutes:
    """Rows of `gold.metrics_1m` to write.

    Attributes:
        key: code of the key.
        minute: minutes since the epoch.
        summary: of all points of the minute.
        last: the latest value.
        fresh: whether the minute had no points before.
    """

    key: Int64s
    minute: Int64s
    summary: Summary
    last: Float64s
    fresh: Bools


def touched_minutes(older: Older, key: Int64s, ts: Int64s, value: Float64s, fresh: Bools, skip: Bools) -> Minutes:
    """Minutes that got new points, whole.

    Args:
        older: one entry a key.
        key: of the points of the timeline, sorted by key and event time.
        ts: likewise.
        value: likewise.
        fresh: which points are new.
        skip: keys to leave out.
    """
    minute = minute_of(ts)
    start = np.ones(len(key), np.bool_)
    start[1:] = (key[1:] != key[:-1]) | (minute[1:] != minute[:-1])
    group = np.cumsum(start) - 1
    fresh_points = np.bincount(group, fresh)
    usable = ~skip[key] & (minute >= FIRST_MINUTE) & (minute <= LAST_MINUTE)
    wanted = (fresh_points > 0) & usable[start]
    key_of, minute_of_group = key[start][wanted], minute[start][wanted]
    inside = wanted[group]
    renumbered = (np.cumsum(wanted) - 1)[group[inside]]
    reaches = older.some[key_of] & (minute_of(older.ts[key_of]) == minute_of_group)
    before = older.minute.take(key_of).where(reaches)
    summary = before.extend(renumbered, value[inside])
    ends = np.flatnonzero(np.diff(renumbered, append=len(key_of)))
    is_fresh = (before.count == 0) & (fresh_points[wanted] == np.bincount(renumbered, minlength=len(key_of)))
    return Minutes(key_of, minute_of_group, summary, value[inside][ends], is_fresh)


def sink(older: Older, key: Int64s, ts: Int64s, value: Float64s) -> Older:
    """Takes in the points that leave the tails, sorted by key and event time; they are later than all before."""
    if not len(key):
        return older
    last = np.flatnonzero(np.diff(key, append=-1))
    sunk, newest = key[last], ts[last]
    group = np.repeat(np.arange(len(sunk)), np.diff(last, prepend=-1))
    of_last_minute = minute_of(ts) == minute_of(newest)[group]
    before = older.take(sunk)
    same_minute = before.some & (minute_of(before.ts) == minute_of(newest))
    summary = before.minute.where(same_minute).extend(group[of_last_minute], value[of_last_minute])
    known = before.known | ~same_minute
    after = Older(np.ones(len(sunk), np.bool_), newest, known, summary.where(known))
    return older.put(sunk, after)
