"""Checks Quartz expressions, which say when a job or an alert runs."""

from __future__ import annotations

import re

_MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
_DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]
# Fields of a Quartz expression: name, lowest value, highest value, and names for the values from the lowest on.
_FIELDS: list[tuple[str, int, int, list[str]]] = [
    ("second", 0, 59, []),
    ("minute", 0, 59, []),
    ("hour", 0, 23, []),
    ("day of month", 1, 31, []),
    ("month", 1, 12, _MONTHS),
    ("day of week", 1, 7, _DAYS),
    ("year", 1970, 2099, []),
]
_DAY_OF_MONTH = re.compile(r"L(-\d{1,2})?|LW|\d{1,2}W")
_DAY_OF_WEEK = re.compile(r"L|[1-7]L|[1-7]#[1-5]|[A-Z]{3}L|[A-Z]{3}#[1-5]")


def find_cron_fault(expression: str) -> str | None:
    """Returns what is wrong with a Quartz expression, as a text; None if it is valid."""
    fields = expression.split()
    if len(fields) not in (6, 7):
        return f"cron '{expression}': 6 or 7 fields are needed, found {len(fields)}"
    for (name, low, high, names), text in zip(_FIELDS, fields, strict=False):
        if not all(_is_valid_cron_item(name, item, low, high, names) for item in text.split(",")):
            return f"cron '{expression}': {name} '{text}'"
    if (fields[3] == "?") == (fields[5] == "?"):
        return f"cron '{expression}': exactly one of day of month and day of week must be ?"
    return None


def _is_valid_cron_item(name: str, item: str, low: int, high: int, names: list[str]) -> bool:
    """Returns True if one item of a field of a Quartz expression is valid.

    An item is `*`, `?`, a value, a range, any of these with a step, or a special form of a day field.

    Args:
        name: Name of the field.
        item: The item.
        low: Lowest value of the field.
        high: Highest value of the field.
        names: Names for values, such as JAN, from the lowest value on.
    """
    if item == "?" and name.startswith("day"):
        return True
    if (name == "day of month" and _DAY_OF_MONTH.fullmatch(item)) or (
        name == "day of week" and _DAY_OF_WEEK.fullmatch(item)
    ):
        return True
    span, slash, step = item.partition("/")
    if slash and not (step.isdecimal() and 1 <= int(step) <= high):
        return False
    if span == "*":
        return True
    values = [low + names.index(part) if part in names else part for part in span.split("-")]
    # A range may wrap around, such as the hours 22-2.
    return len(values) <= 2 and all(str(value).isdecimal() and low <= int(value) <= high for value in values)  # noqa: PLR2004 - a range has two ends
