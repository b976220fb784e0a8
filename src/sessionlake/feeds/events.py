"""The result of reading a message by a feed: events of sessions, or the reason why the message goes to quarantine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.feed import EventKind, PresentOrAbsent
from sessionlake.protocol.reasons import Reason

RowKey = tuple[Any, ...]
"""A row's values in the feed's key columns, in the order of `Feed.key`."""


@dataclass(frozen=True, slots=True)
class RowUpsert:
    """Inserts a row, or changes some columns of it. A new row has null in the columns that the message does not set.

    Attributes:
        key: The row's key.
        row_id: The key as text, unique in the session.
        values: Values that the message sets, by column, including the key columns.
        rescued: Undeclared fields as a JSON object with sorted names; None if there are none.
        expect: Whether the table must have the row before, or must not have it; None if either is fine.
    """

    key: RowKey
    row_id: str
    values: dict[str, Any]
    rescued: str | None = None
    expect: PresentOrAbsent | None = None


@dataclass(frozen=True, slots=True)
class RowDelete:
    """Deletes the row with this key. Without such a row, nothing happens.

    Attributes:
        key: The row's key.
        row_id: The key as text, unique in the session.
        expect: Whether the table must have the row before, or must not have it; None if either is fine.
    """

    key: RowKey
    row_id: str
    expect: PresentOrAbsent | None = None


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The effect of a message on one session. It covers the interval `(after, seq]` of the session's order.

    Attributes:
        session: Session id; "" for an ignored message that only advances a chain.
        kind: Snapshot, update, heartbeat, end or ignore.
        ts: Event time in ms since 1970.
        seq: Last seq that the message covers; None if the message has no place in the order.
        after: The seq after which the message follows: above the last seq there is a gap. None: it follows any seq.
        is_link: True if there is also a gap if `after` is below the last seq.
        chain: Name of the chain of sessions that share one sequence of seqs; None if the session has its own.
        restart: True if the order starts again at this event, so that it is never a duplicate or after a gap.
        rows: Changes of rows, in the order in which they apply.
        scope: For a snapshot: values by column. Only rows with these values are replaced; empty replaces all rows.
        sent: The checksum in the message, as `Feed.check` reads it; None if there is none.
    """

    session: str
    kind: EventKind
    ts: int
    seq: int | None = None
    after: int | None = None
    is_link: bool = False
    chain: str | None = None
    restart: bool = False
    rows: tuple[RowUpsert | RowDelete, ...] = ()
    scope: dict[str, Any] = field(default_factory=dict)
    sent: Any = None


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """A message that a feed has read without a fault.

    Attributes:
        rules: Numbers of the rules that read the message or its parts; empty if a decoder class read it.
        events: One event for each session of the message; empty if the message is ignored.
    """

    rules: tuple[int, ...]
    events: tuple[SessionEvent, ...]


@dataclass(frozen=True, slots=True)
class MessageRefusal:
    """The fault for which a message goes to quarantine.

    Attributes:
        reason: The reason, as in `silver.quarantine`.
        path: Path of the faulty value in the message; "" if the fault is in the whole message.
        why: A text that describes the fault and shows the value.
    """

    reason: Reason
    path: str = ""
    why: str = ""
