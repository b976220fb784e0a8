"""Formats numbers, times and names for the report."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime

_MAX_NAME_LENGTH = 48
# A no-break space keeps a unit on the line of its number.
_NBSP = "\u00a0"
_SPANS = ((86_400 * 2, 86_400, "d"), (3600 * 2, 3600, "h"), (60 * 2, 60, "min"), (0, 1, "s"))
_SIZES = ("B", "kB", "MB", "GB", "TB", "PB")
_ONE_DECIMAL_BELOW = 10
_IN_MILLISECONDS_BELOW = 0.1


def format_number(count: int) -> str:
    """Returns the number with commas between groups of three digits."""
    return f"{count:,}"


def format_count_with_noun(count: int, noun: str) -> str:
    """Returns a count with its noun in singular or plural, as in `3 files`."""
    return f"{count:,} {noun}{'' if count == 1 else 'es' if noun.endswith('ch') else 's'}"


def format_percentage(part: int, total: int) -> str:
    """Returns `part / total` in per cent, as in `2.50 %`; `none` if it is 0, and `<0.01 %` if it is almost 0."""
    percent = 100 * part / total if total else 0.0
    return f"<0.01{_NBSP}%" if 0 < percent < 0.01 else f"{percent:.2f}{_NBSP}%" if percent else "none"  # noqa: PLR2004 - the bound is the one in the text


def format_duration(seconds: float) -> str:
    """Returns a duration (in seconds) as a text in ms, s, min, h or d, whichever suits its length."""
    if 0 < seconds < _IN_MILLISECONDS_BELOW:
        return f"{seconds * 1000:.0f}{_NBSP}ms"
    _, unit, name = next(item for item in _SPANS if seconds >= item[0])
    value = seconds / unit
    rough = value >= _ONE_DECIMAL_BELOW or value == round(value)
    return f"{value:.0f}{_NBSP}{name}" if rough else f"{value:.1f}{_NBSP}{name}"


def format_data_size(size: int) -> str:
    """Returns a number of bytes as a text with a decimal unit such as kB or MB."""
    value, place = float(size), 0
    while value >= 1000 and place < len(_SIZES) - 1:  # noqa: PLR2004 - each unit is 1,000 of the last
        value, place = value / 1000, place + 1
    return (
        f"{value:.1f}{_NBSP}{_SIZES[place]}"
        if place and value < _ONE_DECIMAL_BELOW
        else f"{value:.0f}{_NBSP}{_SIZES[place]}"
    )


def format_time(at: datetime | float) -> str:
    """Returns a time (a float is in seconds since 1970) as UTC text, to the second."""
    time = datetime.fromtimestamp(at, UTC) if isinstance(at, float) else at.astimezone(UTC)
    return f"{time:%Y-%m-%d %H:%M:%S}"


def format_name(text: str, longest: int = _MAX_NAME_LENGTH) -> str:
    """Returns a name from the data on one line, cut to `longest` characters, or `(empty)`.

    Invisible characters, and those that change the direction of text, become �.
    """
    seen = "".join(
        "\ufffd" if unicodedata.category(letter)[0] == "C" or letter in "\u2028\u2029" else letter for letter in text
    )
    return (seen if len(seen) <= longest else f"{seen[: longest - 1]}…") or "(empty)"


def format_layer_name(layer: str) -> str:
    """Returns a layer's name in the ledger with spaces instead of underscores."""
    return layer.replace("_", " ")
