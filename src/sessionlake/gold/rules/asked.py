"""What the evaluation of rules asks of the tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from sessionlake.gold.rules import patterns
from sessionlake.gold.rules.alerts import Alert
from sessionlake.gold.rules.slices import Slices


class Asked(NamedTuple):
    """Which slices are asked for.

    Attributes:
        ends: by the slices' length, ranges of their ends, in minutes: behind the first, and up to the second.
        topics: None: all.
        keys: one row a key, of those columns that make it; None: all.
        columns: of the slices.
    """

    ends: Mapping[int, Sequence[tuple[int, int]]]
    topics: frozenset[str] | None
    keys: pa.Table | None
    columns: tuple[str, ...]


class Stored(ABC):
    """What the tables hold, the batch in them."""

    @abstractmethod
    def days(self, topics: frozenset[str] | None, keys: pa.Table | None) -> dict[int, int]:
        """The days that have slices, by the minute at which they begin, and how many series each has at most.

        Args:
            topics: see `Asked`.
            keys: likewise.
        """

    @abstractmethod
    def slices(self, asked: Asked) -> Slices:
        """Slices, perhaps with others of the same topics."""

    @abstractmethod
    def matches(self, events: Sequence[str], since_ms: int | None) -> pa.Table:
        """Events by their ids, `patterns.MATCH`; None: of all time."""

    def matches_of(self, events: Sequence[str], since_ms: int | None, keys: pa.Table) -> pa.Table:
        """Those of `matches` that may be of some keys, one a row; others are not kept in memory where that can be."""
        return patterns.narrowed(self.matches(events, since_ms), keys)

    @abstractmethod
    def log(self, rules: Sequence[str], first_ms: int, last_ms: int) -> Iterable[tuple[Alert, bool]]:
        """The rows of the log that are at these times, and whether they take an alert back."""
