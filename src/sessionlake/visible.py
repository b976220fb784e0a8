"""Escapes for text from data, so that it is safe to print: invisible and control characters become visible."""

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
# Letters and marks that have no glyph: fillers, joiners, variation selectors.
_BLANK = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]")
_SHORT = {"\t": "\\t", "\r": "\\r", "\n": "\\n"}
_BMP, _BYTE = 0xFFFF, 0xFF


def escape_invisible(text: str) -> str:
    r"""Returns the text with each invisible or control character replaced by an escape such as `\x1b` or `\u202e`.

    Escaped are control, format, bidirectional and zero-width characters, line and paragraph separators, lone
    surrogates, and private or unassigned code points. Line breaks (`\n`) stay.
    """
    return (
        text if text.isascii() and text.isprintable() else _SUSPECT.sub(lambda found: _escape_if_hidden(found[0]), text)
    )


def to_json_line(value: Any, *, indent: int | None = None) -> str:
    r"""Returns the value as JSON text, in which invisible and control characters are escaped as `\uXXXX`.

    A JSON parser reads the same value from it. The text is one line, unless `indent` is given.
    """
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return (
        text if text.isascii() and "\x7f" not in text else _SUSPECT.sub(lambda found: _escape_for_json(found[0]), text)
    )


def escape_surrogates(text: str) -> str:
    """Returns the text with each lone surrogate replaced by an escape, since UTF-8 cannot encode lone surrogates."""
    return text if text.isascii() else _ENCODABLE.sub(lambda found: _escape_if_hidden(found[0]), text)


class EscapingStream:
    """A text stream that escapes invisible and control characters, then writes the text to the stream `out`."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def write(self, text: str) -> int:
        """Writes the text with escapes. Returns the length of the text without the escapes."""
        self._out.write(escape_invisible(text))
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        """Writes each line with escapes."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def create_escaping_stream(out: TextIO) -> TextIO:
    """Returns a stream that escapes invisible and control characters, and writes to the stream `out`."""
    return cast("TextIO", EscapingStream(out))


@lru_cache(maxsize=4096)
def _escape_if_hidden(character: str) -> str:
    if not _is_hidden(character):
        return character
    code = ord(character)
    if character in _SHORT:
        return _SHORT[character]
    return f"\\x{code:02x}" if code <= _BYTE else f"\\u{code:04x}" if code <= _BMP else f"\\U{code:08x}"


@lru_cache(maxsize=4096)
def _escape_for_json(character: str) -> str:
    if character == "\x7f":  # json.dumps does not escape DEL
        return "\\u007f"
    return json.dumps(character)[1:-1] if _is_hidden(character) else character


def _is_hidden(character: str) -> bool:
    return unicodedata.category(character) in _HIDDEN or _BLANK.match(character) is not None
