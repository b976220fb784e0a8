"""Events of many messages column by column: one list per field. Both readers of feeds append to these lists."""

from __future__ import annotations

from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import compress
from typing import Any

import numpy as np

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, SessionEvent
from sessionlake.feeds.feed import Feed, MessageRule, OrderMethod
from sessionlake.feeds.paths import MISSING

FIELDS_OF_EVENT = (
    "message", "session", "kind", "ts", "seq", "after", "is_link", "restart", "chain", "scope", "sent", "rows",
)  # fmt: skip
"""The lists of `ColumnarEvents` that have a value for each event."""
FIELDS_OF_ROW = ("deletes", "row_id", "rescued", "expect")
"""The lists of `ColumnarEvents`, beside `values`, that have a value for each changed row."""


NO_SCOPE: dict[str, Any] = {}
"""The scope of events that replace or change a whole table. Never changed."""


def list_event_fields_fixed_by_rule(feed: Feed, rule: MessageRule) -> dict[str, Any]:
    """Returns the fields `kind`, `restart` and `is_link` of events, which depend only on the rule."""
    is_link = (rule.order or feed.order).kind is OrderMethod.LINK and not rule.restart
    return {"kind": rule.kind.value, "restart": rule.restart, "is_link": is_link}


@dataclass
class ColumnarEvents:
    """The events of a batch of messages, in the order in which they were added.

    Attributes:
        columns: Names of the feed's columns.
        message: Index in the batch of the message of each event.
        session, kind, ts, seq, after, is_link, restart, chain, scope, sent: Fields of each event, as in `SessionEvent`.
        rows: Number of changed rows of each event.
        deletes: For each changed row, true if it is deleted. This list and the next four have the rows of all events,
            one event after the other.
        row_id, rescued, expect: Fields of each changed row, as in `RowUpsert` and `RowDelete`.
        values: A list per column, with the value of each changed row. `MISSING` if the message does not set it. A
            deleted row has only values of key columns. A decimal may be its text as sent, and a timestamp its
            microseconds since 1970, because Arrow converts these faster.
        refused: Faults of messages that go to quarantine, by the index of the message.
    """

    columns: tuple[str, ...]
    message: list[int] = field(default_factory=list)
    session: list[str] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    ts: list[int] = field(default_factory=list)
    seq: list[int | None] = field(default_factory=list)
    after: list[int | None] = field(default_factory=list)
    is_link: list[bool] = field(default_factory=list)
    restart: list[bool] = field(default_factory=list)
    chain: list[str | None] = field(default_factory=list)
    scope: list[dict[str, Any]] = field(default_factory=list)
    sent: list[Any] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    deletes: list[bool] = field(default_factory=list)
    row_id: list[str] = field(default_factory=list)
    rescued: list[str | None] = field(default_factory=list)
    expect: list[str | None] = field(default_factory=list)
    values: list[list[Any]] = field(default_factory=list)
    refused: dict[int, MessageRefusal] = field(default_factory=dict)

    @classmethod
    def create_empty(cls, feed: Feed) -> ColumnarEvents:
        """Returns empty lists for a feed's columns."""
        return cls(tuple(feed.columns), values=[[] for _ in feed.columns])

    def add_message_result(self, feed: Feed, message_index: int, result: DecodedMessage | MessageRefusal) -> None:
        """Adds the events of a message, or its fault.

        Args:
            feed: The feed that has read the message.
            message_index: Index of the message in the batch.
            result: Result of reading the message.
        """
        if isinstance(result, MessageRefusal):
            self.refused[message_index] = result
            return
        keys = [column.name for column in feed.key]
        for event in result.events:
            self.add_event_without_rows(message_index, event)
            for row in event.rows:
                deletes = isinstance(row, RowDelete)
                said = dict(zip(keys, row.key, strict=True)) if isinstance(row, RowDelete) else row.values
                self.deletes.append(deletes)
                self.row_id.append(row.row_id)
                self.rescued.append(None if isinstance(row, RowDelete) else row.rescued)
                self.expect.append(None if row.expect is None else row.expect.value)
                for name, values in zip(self.columns, self.values, strict=True):
                    values.append(said.get(name, MISSING))

    def add_event_without_rows(self, message_index: int, event: SessionEvent) -> None:
        """Adds the fields of an event, but not its rows. `message_index` is the index of its message."""
        self.message.append(message_index)
        self.rows.append(len(event.rows))
        for name in ("session", "ts", "seq", "after", "is_link", "restart", "chain", "scope", "sent"):
            getattr(self, name).append(getattr(event, name))
        self.kind.append(event.kind.value)

    def append_events(self, other: ColumnarEvents) -> None:
        """Adds all events and rows of other lists, which have the same columns."""
        for name in (*FIELDS_OF_EVENT, *FIELDS_OF_ROW):
            getattr(self, name).extend(getattr(other, name))
        for values, more in zip(self.values, other.values, strict=True):
            values.extend(more)

    def find_message_indices_of_rows(self, row_indices: Sequence[int]) -> set[int]:
        """Returns the indices of the messages to which these rows belong."""
        if not row_indices:
            return set()
        events = np.searchsorted(np.cumsum(self.rows), row_indices, side="right")
        return {self.message[event] for event in events.tolist()}

    def remove_events_of_messages(self, message_indices: AbstractSet[int]) -> None:
        """Removes all events and rows of these messages."""
        if message_indices:
            self.keep_only_events([message not in message_indices for message in self.message])

    def keep_only_events(self, is_kept: Sequence[bool]) -> None:
        """Removes the events, and their rows, for which `is_kept` is false."""
        of_row = [one for one, rows in zip(is_kept, self.rows, strict=True) for _ in range(rows)]
        for name in FIELDS_OF_ROW:
            setattr(self, name, list(compress(getattr(self, name), of_row)))
        self.values = [list(compress(column, of_row)) for column in self.values]
        for name in FIELDS_OF_EVENT:
            setattr(self, name, list(compress(getattr(self, name), is_kept)))
