"""What a feed says, ready to be applied: paths parsed, columns typed, rules in order. `settings.feeds` makes it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

from sessionlake.feeds.paths import Path
from sessionlake.feeds.values import FeedColumn


class Kind(StrEnum):
    """What a message is to its session."""

    SNAPSHOT = "snapshot"
    UPDATE = "update"
    HEARTBEAT = "heartbeat"
    END = "end"
    IGNORE = "ignore"


class Body(StrEnum):
    """What a Kafka value is."""

    ARRAY = "array"
    OBJECT = "object"
    TEXT = "text"
    TOMBSTONE = "tombstone"


class Presence(StrEnum):
    """Whether a value is in the message. `null` is present."""

    PRESENT = "present"
    ABSENT = "absent"


class Ordering(Enum):
    """How a message says which interval `(after, seq]` of its session's order it covers."""

    ARRIVAL = "arrival"
    """seq is the Kafka offset; after is whatever was last."""
    STEP = "step"
    """after is seq - 1."""
    LINK = "link"
    """after is the seq of the message before, as this one says."""
    RANGE = "range"
    """after is one below the first seq, as the message says."""
    RISING = "rising"
    """after is whatever was last."""


@dataclass(frozen=True)
class Order:
    """Where a message says its place in the order.

    Attributes:
        other: Of a link the path to `after`, of a range the path to the first seq.
        chain: What one cursor is kept for, if not the session.
        modulo: The counter starts again at 0 after `modulo - 1`.
    """

    kind: Ordering
    seq: Path | None = None
    other: Path | None = None
    chain: Path | None = None
    modulo: int | None = None


@dataclass(frozen=True)
class Time:
    """Where a message says its event time.

    Attributes:
        path: None for the Kafka timestamp.
        how: `iso`, or `epoch_s` to `epoch_ns`.
        from_text: True if the number is in a text.
        or_kafka: True if the Kafka timestamp counts where the path is missing.
    """

    path: Path | None = None
    how: str = "epoch_ms"
    from_text: bool = False
    or_kafka: bool = False


@dataclass(frozen=True)
class Condition:
    """What must hold of a message for a rule to read it.

    Attributes:
        path: None where the condition is about the body.
        wanted: One of these values, a `Presence`, or bodies.
    """

    path: Path | None
    wanted: tuple[Any, ...] | Presence


@dataclass(frozen=True)
class Rows:
    """Where a message has rows, and what becomes of each.

    Attributes:
        source: The path to the element or elements; None for the message itself.
        each: True if every element that the path gives is a row.
        values: Which column takes which path. Empty with `by_name`.
        by_name: The columns that take the element's field with their own name.
        rescue: True if the element's undeclared fields are kept as JSON text.
        delete: True if the row is deleted; else it is if all of these columns have these values. None: never.
        absent_is_null: True if a column that is not in the message becomes null, False if it keeps its value.
        expect: Whether the row must have been there before.
    """

    source: Path | None
    each: bool
    values: tuple[tuple[FeedColumn, Path], ...] = ()
    by_name: tuple[FeedColumn, ...] = ()
    rescue: bool = False
    delete: bool | tuple[tuple[FeedColumn, Any], ...] = False
    absent_is_null: bool = False
    expect: Presence | None = None


@dataclass(frozen=True)
class Rule:
    """How one kind of message is read.

    Attributes:
        number: From 1, in the order of the feed.
        session, time, order: None for the feed's own.
        split: The path whose elements are read part by part.
        scope: The columns whose values say which rows a snapshot replaces.
    """

    number: int
    kind: Kind
    when: tuple[Condition, ...] = ()
    restart: bool = False
    session: tuple[Path, ...] | None = None
    time: Time | None = None
    order: Order | None = None
    split: Path | None = None
    scope: tuple[tuple[FeedColumn, Path], ...] = ()
    rows: tuple[Rows, ...] = ()


@dataclass(frozen=True)
class Keep:
    """The rows that a session's table holds: of each group the first `rows` by a column.

    Attributes:
        per: Columns whose values make a group.
        best: The column that orders a group, ascending unless one of the group's values is in `descending`.
    """

    per: tuple[str, ...]
    best: str
    descending: tuple[str, ...]
    rows: int


@dataclass(frozen=True)
class Check:
    """What a message says about the table after it.

    Attributes:
        sent: The path of what the message says. Where it is missing, nothing is compared.
        function: `module:function`, called with the groups of rows and what was sent.
        rows: How many rows of each group it is given.
    """

    sent: Path
    function: str
    rows: int


@dataclass(frozen=True)
class Feed:
    """How the messages of some topics are read.

    Attributes:
        topics: Pattern of whole topic names.
        columns: By name, in the order in which they are declared.
        key: The columns that identify a row.
        session: The paths of the session; of several, `session_id` is a JSON array of texts.
        unavailable: Values that stand for "not sent".
        refuse_repeats: True if a message must not have the same key twice.
        keep: How many rows a session's table holds; None for all.
        check: What proves the table; None without.
    """

    name: str
    topics: re.Pattern[str]
    columns: dict[str, FeedColumn]
    key: tuple[FeedColumn, ...]
    session: tuple[Path, ...]
    time: Time
    order: Order
    rules: tuple[Rule, ...]
    unavailable: tuple[Any, ...] = ()
    refuse_repeats: bool = False
    keep: Keep | None = None
    check: Check | None = None
    needs_digits: bool = field(default=False)
    """True if a column is `from: digits`: numbers are then read with their text."""
