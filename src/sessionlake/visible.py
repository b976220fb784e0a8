"""Text from data, made safe to show: characters that nobody sees, or that a terminal obeys, become escapes."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import lru_cache
from typing import Any, TextIO, cast

_SUSPECT = re.compile(r"[^\n\x20-\x7e]")
_ENCODABLE = re.compile(r"[\ud800-\udfff]")
# Control, format (bidirectional, zero-width, BOM), surrogate, private, unassigned; line and paragraph separators.
_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
# Letters and marks that are drawn as nothing: fillers, joiners, variation selectors.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_SHORT = {"\t": "\\t", "\r": "\\r", "\n": "\\n"}
_BMP, _BYTE = 0xFFFF, 0xFF


def visible(text: str) -> str:
    r"""The text with an escape, as `\x1b` or `\u202e`, for each character that is not seen as itself.

    These are all control, format and bidirectional characters, zero-width ones, separators of lines and paragraphs,
    lone surrogates, private and unassigned ones. Line breaks stay.
    """
    return text if text.isascii() and text.isprintable() else _SUSPECT.sub(lambda found: _shown(found[0]), text)


def json_line(value: Any, *, indent: int | None = None) -> str:
    r"""The value as JSON in which what `visible` shows is escaped, as `\u009b`: a parser reads the same."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return text if text.isascii() and "\x7f" not in text else _SUSPECT.sub(lambda found: _escaped(found[0]), text)


def encodable(text: str) -> str:
    """The text as it is, but for lone surrogates, which no file can hold: they become escapes."""
    return text if text.isascii() else _ENCODABLE.sub(lambda found: _shown(found[0]), text)


class VisibleStream:
    """A text stream to which whatever is written goes through `visible`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        """Writes the text; returns its length as it was given."""
        self._out.write(visible(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Writes texts one after the other."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def visible_stream(out: TextIO) -> TextIO:
    """The stream through `visible`, for those who expect a text stream."""
    return cast("TextIO", VisibleStream(out))


@lru_cache(maxsize=4096)
def _shown(character: str) -> str:
    if not _is_hidden(character):
        return character
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code <= _BYTE else f"\\u{code:04x}" if code <= _BMP else f"\\U{code:08x}"


@lru_cache(maxsize=4096)
def _escaped(character: str) -> str:
    if character == "\x7f":  # to JSON it is a letter
        return "\\u007f"
    return json.dumps(character)[1:-1] if _is_hidden(character) else character


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN or _BLANK.match(character) is not None
