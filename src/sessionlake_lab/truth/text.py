"""JSON text, read strictly: what is JSON at all, and how deeply it nests."""

from __future__ import annotations

import json
import math
import re

MAX_DEPTH = 64

# A string without its end holds the rest of the text.
_BRACKET_OR_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)


class NotJsonError(Exception):
    """The text is not JSON as the protocol means it."""


class TooDeepError(Exception):
    """Brackets outside strings open more than `MAX_DEPTH` levels, whether or not the text is JSON."""


def parse(text: str) -> object:
    """The value that a JSON text spells; of a field name given twice, the last counts.

    Raises:
        NotJsonError: also for NaN and Infinity, a number beyond a double, an integer of more than 4,300 digits
            (Python's own limit), and half a surrogate pair.
        TooDeepError: checked first; the outermost object or array is level 1.
    """
    if _is_too_deep(text):
        raise TooDeepError
    try:
        value: object = _DECODER.decode(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    _require_whole_surrogates(text)
    return value


def _finite(spelling: str) -> float:
    number = float(spelling)
    if math.isinf(number):
        raise ValueError(f"{spelling} is beyond a double")
    return number


def _no_constant(spelling: str) -> float:
    raise ValueError(f"{spelling} is no JSON number")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_no_constant)


def _require_whole_surrogates(text: str) -> None:
    """Looks at the text, not at the value: an overwritten duplicate field counts too."""
    if "\\u" in text and any(escape["lone"] for escape in _ESCAPE.finditer(text)):
        raise NotJsonError("half a surrogate pair")


def _is_too_deep(text: str) -> bool:
    """Whether a bracket outside strings opens level `MAX_DEPTH` + 1; the text need not be JSON."""
    level = 0
    for part in _BRACKET_OR_STRING.finditer(text):
        if part[1]:
            level += 1
            if level > MAX_DEPTH:
                return True
        elif part[2]:
            level -= 1
    return False
