"""Computes session ids and row ids once for each distinct value. Generated code keeps them in dicts."""

from __future__ import annotations

import re
from typing import Any

from sessionlake.feeds.code import CACHED, UnusualMessageError, build_plain_decimal_regex, is_decimal_sent_as_text
from sessionlake.feeds.message_fields import format_session_id
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.message import MAX_ID_BYTES


class SessionIdCache(dict[Any, str]):
    """A cache of session ids, by the text, or the tuple of texts, of which each is made."""

    def compute_and_cache_session_id(self, session_texts: Any) -> str:
        """Returns the session id made of a text or a tuple, and adds it. Raises UnusualError if it is not valid."""
        session = format_session_id(session_texts if type(session_texts) is tuple else (session_texts,))
        if session is None:
            raise UnusualMessageError
        if len(self) >= CACHED:
            self.clear()
        self[session_texts] = session
        return session


class RowIdCache(dict[tuple[Any, ...], str]):
    """A cache of row ids by key. A key has the values of the key columns; a decimal may be its text as sent.

    Attributes:
        columns: The key columns.
        has_unusual_decimals: True if a decimal was a text in an unusual form, such as with an exponent.
    """

    def __init__(self, columns: tuple[FeedColumn, ...]) -> None:
        super().__init__()
        self.columns = columns
        self.has_unusual_decimals = False
        self._plain = [
            re.compile(build_plain_decimal_regex(column.sql)) if is_decimal_sent_as_text(column) else None
            for column in columns
        ]

    def compute_and_cache_row_id(self, key: tuple[Any, ...]) -> str:
        """Returns the row id of a key, and adds it.

        Raises:
            UnusualError: The id may be too long.
            ValueError: A text is no decimal that fits its column.
        """
        values = list(key)
        for place, (column, plain) in enumerate(zip(self.columns, self._plain, strict=True)):
            if plain is not None and type(text := key[place]) is str:
                values[place] = column.convert(text)
                self.has_unusual_decimals |= plain.fullmatch(text) is None
        row_id = create_row_id(tuple(values))
        if len(row_id) > MAX_ID_BYTES // 4:
            raise UnusualMessageError
        if len(self) >= CACHED:
            self.clear()
        self[key] = row_id
        return row_id
