"""Checksums that a feed describes in its settings, without a function: a CRC32 over values of the table's best rows."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

from sessionlake.feeds.numbers import INTEGER, convert_number_text

_MODULO = 2**32
Groups = Mapping[tuple[Any, ...], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Crc32Checksum:
    """A CRC32 over the text that values of the best rows give, joined in an order that the sender documents.

    Attributes:
        groups: The groups of `Feed.keep`, by their value in its only column `per`, in the order in which they are read.
            The values have the column's type.
        columns: The columns whose values are read of each row, in order.
        interleaved: True if the first row of each group comes first, then the second row of each, and so on. False if
            all rows of the first group come first.
        between_values: Text between the values of a row.
        between_rows: Text between rows.
        between_groups: Text between groups, also if a group has no rows. None if a group follows as a row does.
        digits_only: True if points and the zeros before the first other digit are left out of each value.
    """

    groups: tuple[Any, ...]
    columns: tuple[str, ...]
    interleaved: bool = False
    between_values: str = ""
    between_rows: str = ""
    between_groups: str | None = None
    digits_only: bool = False

    def get_checksum_function(self) -> Callable[[Groups, Any], bool]:
        """Returns the function `(groups, checksum) -> bool` that is true if the rows have the checksum."""
        return self.matches_sent_checksum

    def matches_sent_checksum(self, row_groups: Groups, sent_checksum: Any) -> bool:
        """Returns True if the rows have this checksum.

        Args:
            row_groups: The best rows of each group, by the values that its rows have in common.
            sent_checksum: The checksum as a whole number, signed or unsigned, also as text. Anything else fits no rows.
        """
        number = _parse_sent_checksum(sent_checksum)
        if number is None or not -_MODULO // 2 <= number < _MODULO:
            return False
        text = self.build_checksum_text(row_groups)
        return text is not None and zlib.crc32(text.encode()) == number % _MODULO

    def build_checksum_text(self, row_groups: Groups) -> str | None:
        """Returns the text over which the checksum is computed; None if one of its values is null."""
        found = [row_groups.get((name,), ()) for name in self.groups]
        if any(row[name] is None for rows in found for row in rows for name in self.columns):
            return None
        texts = [[self._build_text_of_row(row) for row in rows] for rows in found]
        if self.interleaved:
            in_turn = chain.from_iterable(zip_longest(*texts))
            return self.between_rows.join(text for text in in_turn if text is not None)
        if self.between_groups is None:
            return self.between_rows.join(chain.from_iterable(texts))
        return self.between_groups.join(self.between_rows.join(rows) for rows in texts)

    def _build_text_of_row(self, row: Mapping[str, Any]) -> str:
        values = [str(row[name]) for name in self.columns]
        if self.digits_only:
            values = [value.replace(".", "").lstrip("0") for value in values]
        return self.between_values.join(values)


def _parse_sent_checksum(sent_checksum: Any) -> int | None:
    value = convert_number_text(sent_checksum)
    if isinstance(value, str) and len(value) <= len(str(-_MODULO)) and INTEGER.fullmatch(value):
        value = int(value)
    return value if type(value) is int else None
