"""JSON text, read strictly: what is JSON at all, and how deeply it nests."""

from __future__ import annotations

import json
import math
import re

MAX_DEPTH = 64

_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
_BRACKET_OR_STRING = re.compile(_STRING + r"|([\[{])|([\]}])", re.DOTALL)
_TOKEN = re.compile(rf"[ \t\n\r]*+({_STRING}|[\[\]{{}},:]|[^\s\[\]{{}},:\"]++)", re.DOTALL)
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>\\u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
# One letter a part: s a string, v any other value. What may stand between the brackets:
_INSIDE = {"[": re.compile(r"(?:[sv](?:,[sv])*)?"), "{": re.compile(r"(?:s:[sv](?:,s:[sv])*)?")}
_CLOSES = {"]": "[", "}": "{"}


class NotJsonError(Exception):
    """The text is not JSON as the protocol means it."""


class TooDeepError(Exception):
    """The text is JSON, nested deeper than `MAX_DEPTH` levels."""


def parse(text: str) -> object:
    """The value that a JSON text spells; of a field name given twice, the last counts.

    Raises:
        NotJsonError: also for NaN and Infinity, a number beyond a double, an integer of more than 4,300 digits
            (Python's own limit), and half a surrogate pair.
        TooDeepError: the outermost object or array is level 1.
    """
    try:
        value: object = _DECODER.decode(text)
    except ValueError as error:
        raise NotJsonError(str(error)) from None
    except RecursionError:
        _require_syntax(text)
        _require_whole_surrogates(text)
        raise TooDeepError from None
    _require_whole_surrogates(text)
    if text.count("{") + text.count("[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
        raise TooDeepError
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


def _depth(text: str) -> int:
    """Levels of brackets outside strings, in a text known to be JSON."""
    level = deepest = 0
    for part in _BRACKET_OR_STRING.finditer(text):
        if part[1]:
            level += 1
            deepest = max(deepest, level)
        elif part[2]:
            level -= 1
    return deepest


def _require_syntax(text: str) -> None:
    """Checks a text that nests too deeply for a recursive parser, bracket by bracket from the inside."""
    text = text.rstrip(" \t\n\r")
    outer: list[str] = []
    inside: list[list[str]] = [[]]
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise NotJsonError(f"at character {at}")
        at, word = token.end(), token[1]
        if word in _INSIDE:
            outer.append(word)
            inside.append([])
        elif word in _CLOSES:
            if not outer or outer.pop() != _CLOSES[word] or not _INSIDE[_CLOSES[word]].fullmatch("".join(inside.pop())):
                raise NotJsonError(f"at character {at}")
            inside[-1].append("v")
        else:
            inside[-1].append(_part(word))
    if outer or inside != [["v"]]:
        raise NotJsonError("unbalanced brackets")


def _part(word: str) -> str:
    if word in {",", ":"}:
        return word
    try:
        return "s" if isinstance(_DECODER.decode(word), str) else "v"
    except ValueError as error:
        raise NotJsonError(str(error)) from None
