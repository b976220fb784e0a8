"""The interface through which rules read gold's tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from sessionlake.gold.rules import patterns
from sessionlake.gold.rules.alerts import Alert
from sessionlake.gold.rules.metric_buckets import MetricBuckets


class BucketQuery(NamedTuple):
    """A request for buckets. A bucket has the aggregates of one series over a minute, hour or day.

    Attributes:
        ends: for each bucket length in minutes, ranges `(low, high)`. A range stands for buckets that end after minute
            `low`, up to and including minute `high`, counted since 1970.
        topics: the topics to read; None for all topics.
        keys: the keys to read, one row per key, with the rule's key columns; None for all keys.
        columns: names of the aggregates to read.
    """

    ends: Mapping[int, Sequence[tuple[int, int]]]
    topics: frozenset[str] | None
    keys: pa.Table | None
    columns: tuple[str, ...]


class RuleInputs(ABC):
    """Interface that reads the data of rules from gold's tables: buckets, matches of patterns, and logged alerts.

    The rows of the current batch are included.
    """

    @abstractmethod
    def count_series_per_day(self, topics: frozenset[str] | None, keys: pa.Table | None) -> dict[int, int]:
        """Returns the number of series with buckets on each day, by the day's start in minutes since 1970.

        Days without buckets are left out. The number may include some series of other keys.

        Args:
            topics: the topics to count; None for all topics.
            keys: the keys to count, one row per key; None for all keys.
        """

    @abstractmethod
    def read_buckets(self, query: BucketQuery) -> MetricBuckets:
        """Returns the requested buckets. The result may contain further buckets of the same topics."""

    @abstractmethod
    def read_pattern_matches(self, event_ids: Sequence[str], since_ms: int | None) -> pa.Table:
        """Returns the stored matches of events of patterns, with the columns of `patterns.MATCH`.

        Args:
            event_ids: ids of the events.
            since_ms: earliest event time of a match, in ms; None for no limit.
        """

    def read_pattern_matches_of_keys(self, event_ids: Sequence[str], since_ms: int | None, keys: pa.Table) -> pa.Table:
        """Returns the stored matches that can belong to some keys.

        An implementation may override this so that it never has the matches of all keys in memory.

        Args:
            event_ids: ids of the events.
            since_ms: earliest event time of a match, in ms; None for no limit.
            keys: one row per key.
        """
        return patterns.filter_matches_by_keys(self.read_pattern_matches(event_ids, since_ms), keys)

    @abstractmethod
    def read_alert_log(self, rule_names: Sequence[str], first_ms: int, last_ms: int) -> Iterable[tuple[Alert, bool]]:
        """Yields rows of the log of alerts: the alert, and True if the row retracts it.

        Args:
            rule_names: names of the rules.
            first_ms: earliest event time of an alert, in ms.
            last_ms: latest event time of an alert, in ms, included.
        """
