"""A strict JSON parser that limits the nesting depth."""

from __future__ import annotations

import json
import math
import re

MAX_DEPTH = 64

# A string without a closing quote extends to the end of the text.
_BRACKET_OR_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|([\[{])|([\]}])', re.DOTALL)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)


class NotJsonError(Exception):
    """The text is not valid JSON by the protocol's rules."""


class JsonTooDeepError(Exception):
    """Brackets outside strings nest deeper than 64 levels, whether or not the text is JSON."""


def parse_json(text: str) -> object:
    """Parses a JSON text. If a field name occurs twice, the last one counts.

    Raises:
        NotJsonError: The text is not JSON. Also for NaN, Infinity, a number beyond a double, an integer of more than
            4,300 digits (Python's limit), and half of a surrogate pair.
        JsonTooDeepError: The text nests too deep. This is checked first. The outermost object or array is level 1.
    """
    if _is_nested_too_deep(text):
        raise JsonTooDeepError
    try:
        value: object = _DECODER.decode(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    _require_paired_surrogates(text)
    return value


def _parse_finite_number(spelling: str) -> float:
    number = float(spelling)
    if math.isinf(number):
        raise ValueError(f"{spelling} is too large for a double")
    return number


def _refuse_nan_or_infinity(spelling: str) -> float:
    raise ValueError(f"{spelling} is not a JSON number")


_DECODER = json.JSONDecoder(parse_float=_parse_finite_number, parse_constant=_refuse_nan_or_infinity)


def _require_paired_surrogates(text: str) -> None:
    """Raises NotJsonError if a JSON text has half of a surrogate pair.

    The text is checked, not its value, so that a field counts even if a later one of the same name overwrites it.
    """
    if "\\u" in text and any(escape["lone"] for escape in _ESCAPE.finditer(text)):
        raise NotJsonError("half of a surrogate pair")


def _is_nested_too_deep(text: str) -> bool:
    """Returns True if brackets outside strings nest deeper than 64 levels. The text need not be JSON."""
    level = 0
    for part in _BRACKET_OR_STRING.finditer(text):
        if part[1]:
            level += 1
            if level > MAX_DEPTH:
                return True
        elif part[2]:
            level -= 1
    return False
