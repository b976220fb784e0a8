"""The tables that rule evaluation reads, as an interface."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from sessionlake.gold.rules import patterns
from sessionlake.gold.rules.alerts import Alert
from sessionlake.gold.rules.slices import Slices


class SliceQuery(NamedTuple):
    """A request for slices.

    Attributes:
        ends: for each slice length in minutes, ranges of slice ends: after the first minute, up to and including the
            second.
        topics: None for all topics.
        keys: one row per key, with the columns that make the key; None for all keys.
        columns: the columns to read.
    """

    ends: Mapping[int, Sequence[tuple[int, int]]]
    topics: frozenset[str] | None
    keys: pa.Table | None
    columns: tuple[str, ...]


class StoredData(ABC):
    """What the tables hold, including the current batch."""

    @abstractmethod
    def days(self, topics: frozenset[str] | None, keys: pa.Table | None) -> dict[int, int]:
        """Returns the days that have slices, by the minute they start at, with the largest number of series per day.

        Args:
            topics: None for all topics.
            keys: one row per key; None for all keys.
        """

    @abstractmethod
    def slices(self, asked: SliceQuery) -> Slices:
        """Returns the requested slices. The result may contain further slices of the same topics."""

    @abstractmethod
    def matches(self, events: Sequence[str], since_ms: int | None) -> pa.Table:
        """Returns the matches of events, with the columns of `patterns.MATCH`.

        Args:
            events: event ids.
            since_ms: earliest event time; None for all time.
        """

    def matches_of(self, events: Sequence[str], since_ms: int | None, keys: pa.Table) -> pa.Table:
        """Returns the matches that can belong to some keys, given as one row per key.

        An implementation may override it to hold no other matches in memory.
        """
        return patterns.filter_by_keys(self.matches(events, since_ms), keys)

    @abstractmethod
    def log(self, rules: Sequence[str], first_ms: int, last_ms: int) -> Iterable[tuple[Alert, bool]]:
        """Yields the log's rows with times in this range, each with True if the row retracts its alert."""
