"""Points: what gold computes from. One point is one value that a change set in one metric of one row."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from sessionlake.protocol.types import Bools, Float64s, Int64s

UNKNOWN = -1
_SORTED_BY_DIGITS = np.iinfo(np.uint16).max
"""Numbers up to this numpy sorts digit by digit, in a third of the time."""


@dataclass(frozen=True)
class Points:
    """Points as columns of one length.

    Attributes:
        key: code of the key (topic, session, row, metric), from 0.
        ts: event time, milliseconds since the epoch; ties are ordered by position, then ordinal.
        revision: how often the point's published average has changed; `UNKNOWN` where the table alone knows.
    """

    key: Int64s
    ts: Int64s
    position: Int64s
    ordinal: Int64s
    value: Float64s
    revision: Int64s

    def __len__(self) -> int:
        return len(self.key)

    def take(self, index: Int64s | Bools) -> Points:
        """The points at these places."""
        return Points(*(getattr(self, f.name)[index] for f in fields(self)))

    def order(self) -> Int64s:
        """The places of all, sorted by key, event time, position and ordinal; equal ones as they are."""
        few = self.key.max(initial=0) <= _SORTED_BY_DIGITS
        key = self.key.astype(np.uint16) if few else self.key
        order = np.lexsort((self.ts, key))
        sorted_key, ts = key[order], self.ts[order]
        if ((sorted_key[1:] != sorted_key[:-1]) | (ts[1:] != ts[:-1])).all():  # most often
            return order
        return np.lexsort((self.ordinal, self.position, self.ts, key))

    def under(self, key: Int64s) -> Points:
        """These points, with their keys numbered anew."""
        return replace(self, key=key)

    @staticmethod
    def concat(*parts: Points) -> Points:
        """All points, in the order given."""
        return Points(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Points)))

    @staticmethod
    def empty() -> Points:
        """No points."""
        none = np.empty(0, np.int64)
        return Points(none, none, none, none, np.empty(0), none)

    @staticmethod
    def new(key: Int64s, ts: Int64s, position: Int64s, ordinal: Int64s, value: Float64s) -> Points:
        """Points that were never published. Adding zero turns -0.0 into 0.0, whose sign would depend on the order."""
        return Points(key, ts, position, ordinal, value + 0.0, np.zeros(len(key), np.int64))

    def without(self, others: Points) -> Points:
        """These points less those whose key and place in time are among the others."""
        both = Points.concat(others, self)
        order = both.order()  # of two that are the same, the one of the others first
        s = both.take(order)
        same = np.zeros(len(both), np.bool_)
        same[1:] = (
            (s.key[1:] == s.key[:-1])
            & (s.ts[1:] == s.ts[:-1])
            & (s.position[1:] == s.position[:-1])
            & (s.ordinal[1:] == s.ordinal[:-1])
        )
        return s.take((order >= len(others)) & ~same)
