"""A feed as both readers use it: one entry of `capture.feeds`, validated, with parsed paths and typed columns.

A feed says how the messages of some topics become events of sessions. `settings.feeds` builds it from the
configuration.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any, Protocol

from sessionlake.feeds.numbers import NumberRange
from sessionlake.feeds.paths import FeedPath
from sessionlake.feeds.values import FeedColumn
from sessionlake.protocol.columns import Column, create_column_of_feed
from sessionlake.protocol.payload import PayloadFormat


class EventKind(StrEnum):
    """The effect of a message on its session, as `is` in a rule names it."""

    SNAPSHOT = "snapshot"
    UPDATE = "update"
    HEARTBEAT = "heartbeat"
    END = "end"
    IGNORE = "ignore"


class KafkaKeyFormat(StrEnum):
    """How Kafka keys are encoded."""

    TEXT = "text"
    JSON = "json"
    AVRO = "avro"


class MessageBodyType(StrEnum):
    """The outermost type of a Kafka value, as `when: {body: …}` in a rule names it. A tombstone has no value."""

    ARRAY = "array"
    OBJECT = "object"
    TEXT = "text"
    TOMBSTONE = "tombstone"


class PresentOrAbsent(StrEnum):
    """Whether a message has a value at a path, or a table has a row. A `null` in a message counts as present."""

    PRESENT = "present"
    ABSENT = "absent"


class OrderMethod(Enum):
    """How a message gives the interval `(after, seq]` that it covers in its session's order.

    There is a gap if `after` is above the session's last seq; with LINK, if it is not equal to the last seq.
    """

    ARRIVAL = "arrival"
    """seq is the message's Kafka offset, and after is the last seq, so there is never a gap."""
    STEP = "step"
    """The message gives seq, and after is seq - 1."""
    LINK = "link"
    """The message gives its own seq, and as after the seq of the message before it."""
    RANGE = "range"
    """The message gives the first and the last seq that it covers. after is the first minus 1."""
    RISING = "rising"
    """The message gives a seq that rises in any steps. after is the last seq, so there is never a gap."""
    DECODER = "decoder"
    """The feed's decoder class gives seq and after."""
    NONE = "none"
    """The message has no place in the order: it is never a duplicate, and there is never a gap."""


@dataclass(frozen=True)
class MessageOrderSetting:
    """The paths at which a message gives its interval `(after, seq]`.

    Attributes:
        seq: Path of the seq; None if the Kafka offset is the seq.
        other: With LINK, the path of `after`. With RANGE, the path of the first seq. Otherwise None.
        chain: Path of a text that names a chain: several sessions that share one sequence of seqs. None if each
            session has its own sequence.
        modulo: The number at which the producer's counter starts again at 0; None if it rises for ever.
    """

    kind: OrderMethod
    seq: FeedPath | None = None
    other: FeedPath | None = None
    chain: FeedPath | None = None
    modulo: int | None = None


@dataclass(frozen=True)
class EventTimeSetting:
    """How the event time of a message is read.

    Attributes:
        path: Path of the time in the message; None if the Kafka timestamp is the event time.
        how: `iso` for an ISO 8601 text. `epoch_s`, `epoch_ms`, `epoch_us` or `epoch_ns` for a number since 1970.
        from_text: True if this number is written as a text.
        or_kafka: True if a message without a time at the path, or with null, gets its Kafka timestamp instead of being
            refused.
    """

    path: FeedPath | None = None
    how: str = "epoch_ms"
    from_text: bool = False
    or_kafka: bool = False


@dataclass(frozen=True)
class RuleCondition:
    """One entry of a rule's `when`. A rule reads a message only if all its conditions are met.

    Attributes:
        path: Path of the value to test; None to test the type of the whole Kafka value (`MessageBodyType`).
        wanted: The allowed values, or the allowed types of the Kafka value. A `PresentOrAbsent` only tests whether
            there is a value, and `NumberRange` whether there is a number in a range.
    """

    path: FeedPath | None
    wanted: tuple[Any, ...] | PresentOrAbsent | NumberRange

    @property
    def has_condition_on_message_part(self) -> bool:
        """True if the condition is about a part of a split message, instead of the message."""
        return self.path is not None and self.path.starts_at_element


@dataclass(frozen=True)
class RowMapping:
    """One entry of a rule's `rows`: where rows are in a message, and how each is read.

    A row is read from an *element*: a JSON value in the message, usually an object or an array.

    Attributes:
        source: Path of the element or elements; None if the message itself is the element.
        each: True if the path gives several elements, each of which is a row. False if it gives one.
        values: Each column with the path of its value.
        by_name: Columns whose value is the element's field of the same name. Not those in `values`.
        rescue: True if the element's undeclared fields are stored as JSON text in `_rescued`.
        delete: True if every row is deleted, False if none is. Pairs of column and value: a row is deleted if all
            these columns have these values.
        absent_is_null: True if a column that the message lacks becomes null. False if it keeps its value.
        expect: Whether the table must have the row before the change, or must not have it; None if either is fine.
    """

    source: FeedPath | None
    each: bool
    values: tuple[tuple[FeedColumn, FeedPath], ...] = ()
    by_name: tuple[FeedColumn, ...] = ()
    rescue: bool = False
    delete: bool | tuple[tuple[FeedColumn, Any], ...] = False
    absent_is_null: bool = False
    expect: PresentOrAbsent | None = None


@dataclass(frozen=True)
class MessageRule:
    """One entry of a feed's `messages`: which messages it reads, and what they mean.

    Attributes:
        number: Number of the rule in its feed, from 1. The first rule whose conditions are met reads the message.
        kind: Effect of the message on its session.
        when: Conditions that the message must meet; empty if it reads every message.
        restart: True if the session's order starts again at this snapshot, whatever its last seq was.
        session, time, order: Values for this rule; None if the feed's values apply.
        split: Path whose elements are read as parts, as if each were a message; None if the message is not split.
        checksum: Path of the checksum in these messages; None if the path of the feed's check applies.
        scope: Pairs of a column and the path of its value. A snapshot replaces only rows with these values; empty if it
            replaces all rows.
        rows: Where the rows are in the message.
    """

    number: int
    kind: EventKind
    when: tuple[RuleCondition, ...] = ()
    restart: bool = False
    session: tuple[FeedPath, ...] | None = None
    time: EventTimeSetting | None = None
    order: MessageOrderSetting | None = None
    split: FeedPath | None = None
    checksum: FeedPath | None = None
    scope: tuple[tuple[FeedColumn, FeedPath], ...] = ()
    rows: tuple[RowMapping, ...] = ()


@dataclass(frozen=True)
class RowLimitPerGroup:
    """A limit for the rows of a session's table, such as the 1,000 best bids and asks of an order book.

    Rows with equal values in `per` form a group. Each group keeps its first `rows` rows; the others are deleted.

    Attributes:
        per: Columns that form the groups.
        best: Column by which the rows of a group are sorted, ascending.
        descending: For each column in `per`, in the same order: the values whose groups are sorted in descending order.
        rows: Number of rows that each group keeps.
    """

    per: tuple[str, ...]
    best: str
    descending: tuple[frozenset[Any], ...]
    rows: int

    def sorts_group_descending(self, group_values: Iterable[Any]) -> bool:
        """Returns True if the feed's setting `keep.descending` says that a group is sorted in descending order.

        Args:
            group_values: The value of the group in each column of `per`, in the order of `per`.
        """
        return any(value in values for value, values in zip(group_values, self.descending, strict=True))


class UserCodeLoader(Protocol):
    """Loads a class or function that a feed names, also in a worker. It can be pickled."""

    def __call__(self) -> Any:
        """Returns an instance of the class, or the function. Raises ConfigError if it cannot be loaded."""


@dataclass(frozen=True)
class ChecksumSetting:
    """A checksum that the producer sends, with which the session's table is compared after a message.

    Attributes:
        sent: Path of the checksum in the message; None if only some rules have a path, or if a decoder class gives the
            checksum. A message without one is not checked.
        rows: Number of rows that the function receives of each group of `Feed.keep`, or of the whole table without it.
        load: Returns the function `(groups, checksum) -> bool`, true if the table is right; None if checksums are not
            compared.
    """

    sent: FeedPath | None
    rows: int
    load: UserCodeLoader | None = None


@dataclass(frozen=True)
class DecoderClassSetting:
    """The decoder class that reads a feed's messages, in place of rules.

    Attributes:
        load: Returns the decoder.
        rescue: True if values of undeclared columns are stored in `_rescued`. False if they are dropped.
    """

    load: UserCodeLoader
    rescue: bool = True


@dataclass(frozen=True)
class Feed:
    """How the messages of some topics are read.

    Attributes:
        name: Name of the feed.
        topics: Pattern that must match the whole name of a topic.
        columns: The declared columns by name, in the order in which they are declared.
        key: The columns that identify a row.
        session: Paths of the texts that form the session id: one text, or a JSON array of several. May be empty with a
            decoder.
        time: How the event time is read.
        order: How the seq is read.
        rules: The rules in order; the first whose conditions are met reads a message. Empty with a decoder.
        unavailable: Values by which the producer says that it did not send a column.
        format: How values of messages are encoded.
        key_format: How Kafka keys are encoded.
        refuse_repeats: True if a message with the same row key twice goes to quarantine.
        keep: Limit for the rows of a session's table; None if it has no limit.
        check: Checksum with which tables are compared; None if there is none.
        hold: Most messages that a session holds back until its first snapshot; 0 if it holds none back.
        fingerprint: Hash of the settings of the feed.
        reads_kafka_headers: False if no path begins at the headers of the Kafka message, so that they need not be read.
        decoder: The decoder class that reads the messages; None if rules do.
    """

    name: str
    topics: re.Pattern[str]
    columns: dict[str, FeedColumn]
    key: tuple[FeedColumn, ...]
    session: tuple[FeedPath, ...]
    time: EventTimeSetting
    order: MessageOrderSetting
    rules: tuple[MessageRule, ...]
    unavailable: tuple[Any, ...] = ()
    format: PayloadFormat = PayloadFormat.JSON
    key_format: KafkaKeyFormat = KafkaKeyFormat.TEXT
    refuse_repeats: bool = False
    keep: RowLimitPerGroup | None = None
    check: ChecksumSetting | None = None
    hold: int = 0
    fingerprint: str = ""
    reads_kafka_headers: bool = True
    decoder: DecoderClassSetting | None = None
    needs_digits: bool = field(default=False)
    """True if a column is `from: digits`. JSON numbers are then read with their digits, as `NumberText`."""

    @property
    def reads_avro_or_protobuf(self) -> bool:
        """True if values or keys are Avro or Protobuf, so that a `PayloadReader` must read them."""
        return self.format is not PayloadFormat.JSON or self.key_format is KafkaKeyFormat.AVRO

    @property
    def has_sessions_sharing_seqs(self) -> bool:
        """True if sessions share counters. A decoder class whose events have a chain says so by `has_chains = True`."""
        if self.decoder is not None:
            return bool(getattr(self.decoder.load(), "has_chains", False))
        return any(
            (rule.order or self.order).chain is not None for rule in self.rules if rule.kind is not EventKind.IGNORE
        )

    @property
    def needs_rows_in_memory(self) -> bool:
        """True if a session's current rows must be in memory while its messages are judged.

        A feed needs them for `keep`, `check`, `scope` and `expect`. A decoder class whose events have a scope or expect
        rows says so with `needs_rows = True`.
        """
        if self.keep is not None or self.check is not None:
            return True
        if self.decoder is not None:
            return bool(getattr(self.decoder.load(), "needs_rows", False))
        return any(rule.scope or any(part.expect for part in rule.rows) for rule in self.rules)

    def find_checksum_path(self, rule: MessageRule) -> FeedPath | None:
        """Returns the path of the checksum in messages that a rule reads; None if they have none."""
        return rule.checksum or (None if self.check is None else self.check.sent)

    def load_decoder_and_check_function(self) -> None:
        """Loads the decoder class and the check function, so that a missing one is found before a message is read.

        Raises:
            ConfigError: One of them cannot be loaded.
        """
        for named in (self.decoder, self.check):
            if named is not None and named.load is not None:
                named.load()

    def list_table_columns(self) -> tuple[Column, ...]:
        """Returns the declared columns as silver's tables store them."""
        return tuple(create_column_of_feed(column.name, column.sql) for column in self.columns.values())
