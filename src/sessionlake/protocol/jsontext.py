"""Parses JSON as strictly as the protocol requires: finite numbers, no lone surrogates, limited nesting.

The whole text is checked. A field must be valid JSON even if a later field of the same name replaces it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.reasons import Reason

_DIGITS = 4300  # Python's default limit for converting text to an integer, stated explicitly
# A JSON string. A string that is not closed extends to the end of the text.
_STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_LEVELS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as int8: one level down, one level up
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))
# Escapes of complete characters. A \u that is left after removing them is a lone surrogate.
_COMPLETE_ESCAPES = re.compile(
    r"\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}", re.DOTALL
)


class InvalidJsonError(Exception):
    """The text is not JSON that the protocol accepts. `reason` is NOT_JSON or TOO_DEEP."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def parse_json(
    text: str, convert_number: Callable[[str], Any] | None = None, convert_integer: Callable[[str], Any] | None = None
) -> Any:
    """Parses a JSON text. If a field name occurs twice in an object, the last value counts.

    Args:
        text: The JSON text.
        convert_number: Converts the text of a number with a point or an exponent; None makes it a finite double.
        convert_integer: Converts the text of an integer, which has at most 4,300 digits; None makes it an int.

    Raises:
        InvalidJsonError: The text nests deeper than the protocol allows (reason TOO_DEEP), or has another fault
            (NOT_JSON). Faults are also NaN, a number beyond a double, an integer of more than 4,300 digits, and a lone
            surrogate.
    """
    if is_json_nested_too_deep(text):
        raise InvalidJsonError(Reason.TOO_DEEP)
    try:
        loaded = json.loads(
            text,
            parse_constant=_refuse_nan_or_infinity,
            parse_float=convert_number or _parse_finite_float,
            parse_int=_parse_integer
            if convert_integer is None
            else lambda digits: convert_integer(_require_allowed_digit_count(digits)),
        )
    except ValueError:
        raise InvalidJsonError(Reason.NOT_JSON) from None
    if "\\u" in text and "\\u" in _COMPLETE_ESCAPES.sub(" ", text):
        raise InvalidJsonError(Reason.NOT_JSON)
    return loaded


def is_json_nested_too_deep(text: str) -> bool:
    """Returns True if the brackets of a JSON text nest deeper than the protocol allows.

    The text need not be valid JSON.

    This check protects the recursive parser from hostile texts. It takes one pass in C.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    steps = np.frombuffer(_STRINGS.sub("", text).encode().translate(_LEVELS, _OTHERS), np.int8)
    return bool(len(steps)) and int(np.cumsum(steps, dtype=np.int32).max()) > MAX_DEPTH


def _refuse_nan_or_infinity(_: str) -> Any:
    raise ValueError


def _parse_finite_float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _parse_integer(text: str) -> int:
    return int(_require_allowed_digit_count(text))


def _require_allowed_digit_count(text: str) -> str:
    """Returns the text of an integer. Raises a `ValueError` if it has more than 4,300 digits."""
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError
    return text
