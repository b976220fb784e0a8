"""Converts dates and times of messages exactly. A value that does not fit is an error."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from decimal import ROUND_FLOOR, Decimal, localcontext
from typing import Any

from sessionlake.feeds.numbers import (
    MOST_DIGITS,
    NUMBER,
    BadValueError,
    convert_number_text,
    parse_number_text,
    require_integer_in_range,
)

_MICROSECONDS = {
    "epoch_s": Decimal(10**6),
    "epoch_ms": Decimal(1000),
    "epoch_us": Decimal(1),
    "epoch_ns": Decimal("0.001"),
}


_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - used for `timestamp_ntz`, which has no zone, and `timestamp` in UTC


_MOST_MINUTES = 100_000
_LONGEST_TIME = 64
"""Most characters of a text that is parsed as a time."""


def parse_iso_date(value: Any) -> date:
    """Converts a text such as `2026-01-31` to a date. Raises ValueError for any other value."""
    if not isinstance(value, str) or not re.fullmatch(r"\d{4}-\d\d-\d\d", value):
        raise BadValueError("it is no date as 2026-01-31")
    try:
        return date.fromisoformat(value)
    except ValueError:
        raise BadValueError("it is no date as 2026-01-31") from None


def require_time_with_zone(value: datetime) -> datetime:
    """Returns a time in UTC. Raises ValueError if it names no time zone."""
    if value.utcoffset() is None:
        raise BadValueError("it names no time zone")
    return value.astimezone(UTC)


def require_time_without_zone(value: datetime) -> datetime:
    """Returns a time that names no time zone. Raises ValueError if it names one."""
    if value.tzinfo is not None:
        raise BadValueError("it names a time zone")
    return value


def convert_days_to_date(value: Any) -> date:
    """Converts a number of days since 1970 to a date. Raises ValueError for any other value."""
    days = require_integer_in_range(value, 2**31)
    try:
        return date(1970, 1, 1) + timedelta(days=days)
    except OverflowError:
        raise BadValueError("it is beyond the years 1 to 9999") from None


def convert_to_timestamp(value: Any, encoding: str, *, has_zone: bool) -> datetime:
    """Converts a time to a datetime: in UTC if `has_zone`, else without a zone. `encoding` is the column's `from`.

    Raises:
        ValueError: The value is no such time.
    """
    found = _parse_iso_time(value, has_zone=has_zone) if encoding == "iso" else _convert_epoch_to_time(value, encoding)
    return found.replace(tzinfo=UTC) if has_zone and found.tzinfo is None else found


def _parse_iso_time(value: Any, *, has_zone: bool) -> datetime:
    """Parses an ISO 8601 text, to UTC if `has_zone`. Raises ValueError if it has a zone but must not, or has none."""
    if not isinstance(value, str) or len(value) > _LONGEST_TIME:
        raise BadValueError("it is no time as 2026-01-31T12:00:00Z")
    try:
        found = datetime.fromisoformat(value)
    except ValueError:
        raise BadValueError("it is no time as 2026-01-31T12:00:00Z") from None
    if has_zone == (found.tzinfo is None):
        raise BadValueError("it names no time zone" if has_zone else "it names a time zone")
    return found.astimezone(UTC) if has_zone else found


def convert_epoch_to_microseconds(value: Any, unit: str) -> int:
    """Converts a number since 1970 to whole microseconds. `unit` is its unit, `epoch_s` to `epoch_ns`.

    Raises:
        ValueError: The value is not a number, or has fractions of a microsecond.
    """
    micros = _convert_epoch_to_exact_microseconds(value, unit)
    if micros != micros.to_integral_value():
        raise BadValueError("it has parts of a microsecond")
    return int(micros)


def _convert_epoch_to_exact_microseconds(value: Any, unit: str) -> Decimal:
    """Converts a number since 1970, whose unit is `unit`, to microseconds with all fractions."""
    value = convert_number_text(value)
    if type(value) is float:
        value = Decimal(repr(value))
    if type(value) not in (int, Decimal):
        raise BadValueError("it is no number")
    if type(value) is Decimal and abs(value.adjusted()) > MOST_DIGITS:
        raise BadValueError("it is beyond the years 1 to 9999")
    with localcontext() as context:
        context.prec = 2 * MOST_DIGITS
        return Decimal(value) * _MICROSECONDS[unit]


def convert_time_to_milliseconds(value: Any, encoding: str, *, from_text: bool = False) -> int:
    """Converts an event time to milliseconds since 1970, rounded down.

    Args:
        value: The time in the message.
        encoding: `iso` for an ISO 8601 text with a time zone. `epoch_s`, `epoch_ms`, `epoch_us` or `epoch_ns` for a
            number.
        from_text: True if the number is written as a text.

    Raises:
        ValueError: The value is not such a time.
    """
    if encoding == "iso":
        return (_parse_iso_time(value, has_zone=True) - _EPOCH.replace(tzinfo=UTC)) // timedelta(milliseconds=1)
    number = parse_number_text(value, NUMBER, Decimal) if from_text else value
    return int(_convert_epoch_to_exact_microseconds(number, encoding).to_integral_value(ROUND_FLOOR)) // 1000


def parse_iso_time_to_milliseconds(value: Any, minute_cache: dict[str, int]) -> int:
    """Converts an ISO 8601 text with a time zone to milliseconds since 1970, rounded down.

    Args:
        value: The time in the message.
        minute_cache: A cache of the milliseconds of each minute, by its text up to the seconds.

    Raises:
        ValueError: The value is not such a time.
    """
    if type(value) is str and len(value) in (24, 27) and value[19] == "." and value[-1] == "Z":
        digits = value[17:19] + value[20:-1]
        minute = minute_cache.get(value[:17])
        if minute is not None and digits < "60" and digits.isdigit() and digits.isascii():
            return minute + int(digits[:5])
    found = convert_time_to_milliseconds(value, "iso")
    if value[-1] == "Z" and value[16:17] == ":" and len(minute_cache) < _MOST_MINUTES:
        minute_cache[value[:17]] = convert_time_to_milliseconds(value[:17] + "00Z", "iso")
    return found


def _convert_epoch_to_time(value: Any, unit: str) -> datetime:
    """Converts a number since 1970, whose unit is `unit`, to a datetime without a zone."""
    try:
        return _EPOCH + timedelta(microseconds=convert_epoch_to_microseconds(value, unit))
    except OverflowError:
        raise BadValueError("it is beyond the years 1 to 9999") from None
