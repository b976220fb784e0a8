"""Base class of all configuration sections, and the types of values that they share, such as durations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from difflib import get_close_matches
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict

from sessionlake.protocol.backtracking import find_reason_of_slow_regex_matching

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]+)")
_UNIT_MS = {"millisecond": 1, "ms": 1, "second": 1000, "s": 1000, "minute": 60_000, "m": 60_000, "min": 60_000,
            "hour": 3_600_000, "h": 3_600_000, "day": 86_400_000, "d": 86_400_000, "week": 604_800_000}  # fmt: skip


def _parse_duration(value: object) -> timedelta:
    """Parses a text with one number and one unit, such as `10 minutes`, `1 hour` or `500 ms`.

    Raises:
        ValueError: The value is no such text.
    """
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    unit = match["unit"] if match else ""
    factor = _UNIT_MS.get(unit) or _UNIT_MS.get(unit.removesuffix("s"))
    if match is None or factor is None:
        raise ValueError(
            "this is not a duration; write a number and a unit (ms, seconds, minutes, hours, days, "
            "weeks), as in '10 minutes'"
        )
    return timedelta(milliseconds=float(match["number"]) * factor)


def _validate_regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"this is not a regular expression: {error}") from None
    if why := find_reason_of_slow_regex_matching(value):
        raise ValueError(
            "this regular expression could take hours to match a topic name of up to 249 characters: "
            f"{why}; simplify it"
        )
    return value


Duration = Annotated[timedelta, BeforeValidator(_parse_duration)]
Regex = Annotated[str, AfterValidator(_validate_regex)]


def milliseconds(duration: timedelta) -> int:
    """Returns a duration in whole milliseconds."""
    return duration // timedelta(milliseconds=1)


class Integrity(StrEnum):
    """An integrity class: how strictly silver checks the order and completeness of a session's messages."""

    NONE = "none"
    ONCE = "once"
    ORDER = "order"
    WINDOW = "window"
    STRICT = "strict"


class OnViolation(StrEnum):
    """What silver does when a session violates its integrity class: stop, isolate the session, or only record it."""

    FAIL = "fail"
    ISOLATE = "isolate"
    RECORD = "record"


class Section(BaseModel):
    """Base class of a section of the configuration. It cannot be changed, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def describe_unknown_key(key: int | str, known: Sequence[str]) -> str:
    """Returns the end of an error text about an unknown key: the most similar known key, if any, and all known keys."""
    similar = get_close_matches(str(key), known, 1)
    meant = f", did you mean {similar[0]}?" if similar else ";"
    return f"{meant} known here: {', '.join(known)}"
