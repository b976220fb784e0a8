"""Rewords the error texts of pydantic about wrong settings."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}
"""The name of a bound in pydantic's details, and its words."""
_UNITS = (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1)))


def describe_wrong_setting_value(error: ErrorDetails) -> str:
    """Returns in plain words what is wrong with a setting, without its key and value."""
    if error["type"] in _BOUNDS:
        name, words = _BOUNDS[error["type"]]
        return f"must be {words} {_format_minimum_or_maximum(str(error['ctx'][name]))}"
    if error["type"] == "missing":
        return "the key is missing"
    return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be", 1)


def _format_minimum_or_maximum(bound: str) -> str:
    """Returns a minimum or maximum as a setting is written, as in `1 hour`.

    Args:
        bound: The limit as pydantic prints it, as in `datetime.timedelta(seconds=3600)`.
    """
    parts = {unit: int(number) for unit, number in re.findall(r"(\w+)=(\d+)", bound)}
    if not parts:
        return bound
    duration = timedelta(**parts)
    for unit, size in _UNITS:
        if duration >= size and not duration % size:
            number = duration // size
            return f"{number} {unit}{'' if number == 1 else 's'}"
    return f"{duration.total_seconds():g} seconds"
