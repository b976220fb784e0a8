"""Times that Python's datetime cannot tell: before the year 1 or beyond the year 9999.

Event times are any int64 of milliseconds, and Spark's timestamps reach 292,000 years either way. In rows of
Python such a time is a `FarTime` (see `values`); one function, `time_text`, writes times for people.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sessionlake.protocol.years import FIRST_MS, LAST_MS

_EPOCH = datetime.fromtimestamp(0, UTC)


class FarTime(int):
    """A time in milliseconds since 1970 that no datetime can tell. It is before, or behind, every datetime."""

    def __str__(self) -> str:
        """The milliseconds, and why they are no date."""
        return f"{int(self)} ms since 1970 ({'before the year 1' if self < FIRST_MS else 'beyond the year 9999'})"

    def __format__(self, spec: str) -> str:
        """As text, whatever the pattern of a date."""
        return str(self) if "%" in spec or not spec else int(self).__format__(spec)

    def isoformat(self) -> str:
        """The text: there is no other."""
        return str(self)

    def __lt__(self, other: Any) -> bool:
        """Whether it is earlier than a time."""
        return int(self) < 0 if isinstance(other, date) else int(self) < int(other)

    def __gt__(self, other: Any) -> bool:
        """Whether it is later than a time."""
        return int(self) >= 0 if isinstance(other, date) else int(self) > int(other)

    def __le__(self, other: Any) -> bool:
        """As `<`: it equals no datetime."""
        return self < other or self == other

    def __ge__(self, other: Any) -> bool:
        """As `>`: it equals no datetime."""
        return self > other or self == other


def time_of(ms: int) -> datetime | FarTime:
    """A time in UTC, from milliseconds since the epoch."""
    return _EPOCH + timedelta(milliseconds=ms) if FIRST_MS <= ms <= LAST_MS else FarTime(ms)


def nearest_time(ms: int) -> datetime:
    """A time in UTC, from milliseconds since the epoch; where no datetime can tell it, the nearest that one can."""
    return _EPOCH + timedelta(milliseconds=min(max(ms, FIRST_MS), LAST_MS))


def ms_of(time: datetime | FarTime) -> int:
    """Milliseconds since the epoch, rounded down; a time without a zone is in UTC."""
    if isinstance(time, FarTime):
        return int(time)
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)


def time_text(time: datetime | FarTime | int, timespec: str = "milliseconds") -> str:
    """A time for people, in UTC: `2026-01-02 03:04:05.678Z`; one that is no date as milliseconds, saying so.

    Args:
        time: an integer is milliseconds since the epoch.
        timespec: how exactly, as `datetime.isoformat` takes it.
    """
    found = time_of(time) if isinstance(time, int) and not isinstance(time, FarTime) else time
    if isinstance(found, FarTime):
        return str(found)
    whole = found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    return whole.replace(tzinfo=None).isoformat(" ", timespec) + "Z"


def micros_of(time: datetime | FarTime) -> int:
    """Microseconds since the epoch of a time with a zone."""
    return int(time) * 1000 if isinstance(time, FarTime) else (time - _EPOCH) // timedelta(microseconds=1)
