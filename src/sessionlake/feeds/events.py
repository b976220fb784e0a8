"""What a feed makes of a message: events of sessions, or the reason why it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sessionlake.feeds.feed import Kind, Presence
from sessionlake.protocol.reasons import Reason

Key = tuple[Any, ...]
"""The values of the key columns of a row."""


@dataclass(frozen=True, slots=True)
class Put:
    """A row with the columns that a message sets. In a row that is new, all others are null.

    Attributes:
        values: By column. The key's columns are among them.
        rescued: Undeclared fields as a JSON object with sorted names; None if there are none.
        expect: Whether the row must have been there before; None for either.
    """

    key: Key
    row_id: str
    values: dict[str, Any]
    rescued: str | None = None
    expect: Presence | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """The row of this key goes, if it is there."""

    key: Key
    row_id: str
    expect: Presence | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What a message is to one session. It covers the interval `(after, seq]` of the session's order.

    Attributes:
        session: The session's id; "" for an ignored message of a chain.
        ts: Event time, milliseconds since 1970.
        seq: Its place in the order; None where the message is not in it.
        after: None for whatever was last.
        is_link: True if `after` must be exactly the last seq.
        chain: What the order is kept for, if not the session.
        restart: True if the order begins again here.
        rows: In the order in which they apply.
        scope: On a snapshot: only rows with these values are replaced. Empty for all.
        sent: What the message says for `check`; None without one.
    """

    session: str
    kind: Kind
    ts: int
    seq: int | None = None
    after: int | None = None
    is_link: bool = False
    chain: str | None = None
    restart: bool = False
    rows: tuple[Put | Delete, ...] = ()
    scope: dict[str, Any] = field(default_factory=dict)
    sent: Any = None


@dataclass(frozen=True, slots=True)
class Decoded:
    """A message that was read.

    Attributes:
        rules: Numbers of the rules that read it, or its parts; empty for a decoder.
        events: One for each session that it concerns; empty if it is ignored.
    """

    rules: tuple[int, ...]
    events: tuple[Event, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message goes to quarantine.

    Attributes:
        path: Where in the message; "" for the message itself.
        why: In words, with the value.
    """

    reason: Reason
    path: str = ""
    why: str = ""
