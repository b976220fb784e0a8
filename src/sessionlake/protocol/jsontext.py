"""JSON text, read as strictly as the protocol asks: finite numbers, whole characters, bounded nesting.

What is checked here is the text, not the value made of it: a field that a later one of the same name replaces
has to be JSON as well.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.reasons import Reason

_DIGITS = 4300  # Python's own bound on converting an integer's text, kept explicit
_STRING = r'"(?:[^"\\]++|\\.)*+"'
_BRACKETS = re.compile(rf"{_STRING}|([\[{{])|([\]}}])", re.DOTALL)
_PIECES = re.compile(rf"{_STRING}|[\[\]{{}}]|[^\[\]{{}}\"]++|\"", re.DOTALL)
_OPENING, _CLOSING = frozenset("[{"), frozenset("]}")
# Escapes that stand for whole characters; a \u that is left after them is half a surrogate pair.
_WHOLE = re.compile(
    r"\\[^u]|\\u(?![dD][89a-fA-F])|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}", re.DOTALL
)


class NoJsonError(Exception):
    """The text cannot be used; `reason` is NOT_JSON or TOO_DEEP."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


def load(text: str) -> Any:
    """The value a JSON text spells; of a field name given twice, the last counts.

    Raises:
        NoJsonError: also for NaN, numbers beyond a double, integers of more than 4,300 digits and lone surrogates;
            TOO_DEEP for what is JSON but nests deeper than `MAX_DEPTH`, the outermost value being level 1.
    """
    try:
        loaded = _loads(text)
    except ValueError:
        raise NoJsonError(Reason.NOT_JSON) from None
    except RecursionError:
        loaded = None
        if not _is_json(text):
            raise NoJsonError(Reason.NOT_JSON) from None
    if "\\u" in text and "\\u" in _WHOLE.sub(" ", text):
        raise NoJsonError(Reason.NOT_JSON)
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise NoJsonError(Reason.TOO_DEEP)
    return loaded


def _loads(text: str) -> Any:
    return json.loads(text, parse_constant=_no_constant, parse_float=_finite, parse_int=_integer)


def _no_constant(_: str) -> Any:
    raise ValueError


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _integer(text: str) -> int:
    if len(text.lstrip("-")) > _DIGITS:
        raise ValueError
    return int(text)


def _depth(text: str) -> int:
    level = deepest = 0
    for found in _BRACKETS.finditer(text):
        if found[1]:
            level += 1
            deepest = max(deepest, level)
        elif found[2]:
            level -= 1
    return deepest


def _is_json(text: str) -> bool:
    """Whether a text that nests too deeply to be read in one go is JSON: what was read inside stands as null."""
    outer: list[list[str]] = [[]]
    try:
        for piece in _PIECES.findall(text):
            if piece in _OPENING:
                outer.append([piece])
            elif piece in _CLOSING and len(outer) > 1:
                _loads("".join(outer.pop()) + piece)
                outer[-1].append("null")
            else:
                outer[-1].append(piece)
        if len(outer) == 1:
            _loads("".join(outer[0]))
    except ValueError:
        return False
    return len(outer) == 1
