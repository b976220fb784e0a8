"""JSON text, read as strictly as the protocol asks: finite numbers, whole characters, bounded nesting.

What is checked here is the text, not the value made of it: a field that a later one of the same name replaces
has to be JSON as well.
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

_DIGITS = 4300  # Python's own bound on converting an integer's text, kept explicit
# A string, also one that is not closed: what follows its quote is text.
_STRINGS = re.compile(r'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_LEVELS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # as int8: one level down, one level up
_OTHERS = bytes(set(range(256)) - set(b"[{]}"))
# Escapes that stand for whole characters; a \u that is left after them is half a surrogate pair.
_COMPLETE_ESCAPES = re.compile(
    r"\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}", re.DOTALL
)


class InvalidJsonError(Exception):
    """The text cannot be used; `reason` is NOT_JSON or TOO_DEEP."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def parse_json(
    text: str, number: Callable[[str], Any] | None = None, integer: Callable[[str], Any] | None = None
) -> Any:
    """The value a JSON text spells; of a field name given twice, the last counts.

    Args:
        number: Reads a number with a point or an exponent, from its text; by default a finite double.
        integer: Reads a whole number of at most 4,300 digits, from its text; by default an int.

    Raises:
        InvalidJsonError: also for NaN, numbers beyond a double, integers of more than 4,300 digits and lone surrogates;
            TOO_DEEP, before anything else is checked, where brackets open more than `MAX_DEPTH` levels.
    """
    if _is_too_deep(text):
        raise InvalidJsonError(Reason.TOO_DEEP)
    try:
        loaded = json.loads(
            text,
            parse_constant=_no_constant,
            parse_float=number or _finite,
            parse_int=_integer if integer is None else lambda digits: integer(_bounded(digits)),
        )
    except ValueError:
        raise InvalidJsonError(Reason.NOT_JSON) from None
    if "\\u" in text and "\\u" in _COMPLETE_ESCAPES.sub(" ", text):
        raise InvalidJsonError(Reason.NOT_JSON)
    return loaded


def _is_too_deep(text: str) -> bool:
    """Whether brackets outside strings open more than `MAX_DEPTH` levels, in a text that need not be JSON.

    One pass in C over the text: the parser must not be asked to nest as deeply as a hostile text can.
    """
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return False
    steps = np.frombuffer(_STRINGS.sub("", text).encode().translate(_LEVELS, _OTHERS), np.int8)
    return bool(len(steps)) and int(np.cumsum(steps, dtype=np.int32).max()) > MAX_DEPTH


def _no_constant(_: str) -> Any:
    raise ValueError


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(text: str) -> int:
    return int(_bounded(text))


def _bounded(text: str) -> str:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError
    return text
