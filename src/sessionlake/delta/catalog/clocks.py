"""Measures time with the wall clock and the monotonic clock, since each can mislead alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True)
class ClockReading:
    """One moment, as two clocks show it.

    Attributes:
        wall_time: time on the wall clock, which people can set.
        monotonic_seconds: seconds on the monotonic clock, which nobody can set. It may stop while the machine sleeps.
    """

    wall_time: datetime
    monotonic_seconds: float

    @classmethod
    def read_clocks(cls) -> ClockReading:
        """Returns the present moment on both clocks."""
        return cls(datetime.now(UTC), time.monotonic())

    def compute_longest_time_since(self, before: ClockReading) -> timedelta:
        """Returns the time from `before` to this moment. If the two clocks disagree, the longer time counts."""
        return max(
            self.wall_time - before.wall_time, timedelta(seconds=self.monotonic_seconds - before.monotonic_seconds)
        )

    def compute_shortest_time_since(self, before: ClockReading) -> timedelta:
        """Returns the time from `before` to this moment. If the two clocks disagree, the shorter time counts."""
        return min(
            self.wall_time - before.wall_time, timedelta(seconds=self.monotonic_seconds - before.monotonic_seconds)
        )

    def convert_utc_time(self, utc_time: datetime) -> ClockReading:
        """Returns the moment at an earlier wall-clock time. Assumes that both clocks have run equally fast since."""
        return ClockReading(utc_time, self.monotonic_seconds - (self.wall_time - utc_time).total_seconds())
