"""Times that Python's datetime cannot represent: before the year 1 or after the year 9999.

An event time can be any int64 of milliseconds, and Spark's timestamps reach 292,000 years back and forth. In rows as
Python dictionaries, such a time is an `OutOfRangeTime`. `format_time` formats all times for people.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any

from sessionlake.protocol.years import FIRST_MS, LAST_MS

_EPOCH = datetime.fromtimestamp(0, UTC)


class OutOfRangeTime(int):
    """A time before the year 1 or after the year 9999, which Python's datetime cannot represent.

    It is an integer: milliseconds since 1970 (UTC). Comparisons with datetimes work.
    """

    def __str__(self) -> str:
        """Returns the milliseconds as text, and whether that is before the year 1 or after 9999."""
        return f"{int(self)} ms since 1970 ({'before the year 1' if self < FIRST_MS else 'beyond the year 9999'})"

    def __format__(self, spec: str) -> str:
        """Formats the time as `str` does if `spec` is empty or a date pattern such as `%Y`; otherwise as an integer."""
        return str(self) if "%" in spec or not spec else int(self).__format__(spec)

    def isoformat(self) -> str:
        """Returns the same text as `str`, since ISO 8601 has no form for such times."""
        return str(self)

    def __lt__(self, other: Any) -> bool:
        """True if it is earlier than the other time."""
        return int(self) < 0 if isinstance(other, date) else int(self) < int(other)

    def __gt__(self, other: Any) -> bool:
        """True if it is later than the other time."""
        return int(self) >= 0 if isinstance(other, date) else int(self) > int(other)

    def __le__(self, other: Any) -> bool:
        """True if it is earlier than the other time, or an equal `OutOfRangeTime`."""
        return self < other or self == other

    def __ge__(self, other: Any) -> bool:
        """True if it is later than the other time, or an equal `OutOfRangeTime`."""
        return self > other or self == other


def convert_ms_to_time(ms: int) -> datetime | OutOfRangeTime:
    """Converts milliseconds since 1970 to a UTC datetime.

    Before the year 1 or after 9999, returns an `OutOfRangeTime`.
    """
    return _EPOCH + timedelta(milliseconds=ms) if FIRST_MS <= ms <= LAST_MS else OutOfRangeTime(ms)


def find_nearest_datetime(ms: int) -> datetime:
    """Converts milliseconds since 1970 to a UTC datetime.

    Before the year 1 or after 9999, returns Python's first or last one.
    """
    return _EPOCH + timedelta(milliseconds=min(max(ms, FIRST_MS), LAST_MS))


def convert_time_to_ms(time: datetime | OutOfRangeTime) -> int:
    """Converts a time to milliseconds since 1970, rounded down. A time without a zone counts as UTC."""
    if isinstance(time, OutOfRangeTime):
        return int(time)
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)


def format_time(time: datetime | OutOfRangeTime | int, timespec: str = "milliseconds") -> str:
    """Formats a time in UTC, as in `2026-01-02 03:04:05.678Z`.

    A time that datetime cannot represent becomes a number of ms.

    Args:
        time: the time; an integer is in milliseconds since 1970.
        timespec: precision, as for `datetime.isoformat`.
    """
    found = convert_ms_to_time(time) if isinstance(time, int) and not isinstance(time, OutOfRangeTime) else time
    if isinstance(found, OutOfRangeTime):
        return str(found)
    in_utc = found.replace(tzinfo=found.tzinfo or UTC).astimezone(UTC)
    return in_utc.replace(tzinfo=None).isoformat(" ", timespec) + "Z"


def convert_time_to_micros(time: datetime | OutOfRangeTime) -> int:
    """Converts a time to microseconds since 1970. A datetime must have a time zone."""
    return int(time) * 1000 if isinstance(time, OutOfRangeTime) else (time - _EPOCH) // timedelta(microseconds=1)
