"""Measures time with the wall clock and the monotonic clock, since each can mislead alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta


@dataclass(frozen=True)
class ClockReading:
    """A moment on two clocks.

    Attributes:
        wall_time: time on the wall clock, which people can set.
        monotonic_seconds: seconds on the monotonic clock, which nobody can set but which may stop while the machine
            sleeps.
    """

    wall_time: datetime
    monotonic_seconds: float

    @classmethod
    def read_clocks(cls) -> ClockReading:
        """Returns the present moment on both clocks."""
        return cls(datetime.now(UTC), time.monotonic())

    def longest_time_since(self, before: ClockReading) -> timedelta:
        """Returns the time since `before`, by the clock that shows the longer time."""
        return max(
            self.wall_time - before.wall_time, timedelta(seconds=self.monotonic_seconds - before.monotonic_seconds)
        )

    def shortest_time_since(self, before: ClockReading) -> timedelta:
        """Returns the time since `before`, by the clock that shows the shorter time."""
        return min(
            self.wall_time - before.wall_time, timedelta(seconds=self.monotonic_seconds - before.monotonic_seconds)
        )

    def from_utc_time(self, utc_time: datetime) -> ClockReading:
        """Converts a wall-clock time to a moment, assuming that both clocks have run equally fast since then."""
        return ClockReading(utc_time, self.monotonic_seconds - (self.wall_time - utc_time).total_seconds())
