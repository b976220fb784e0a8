"""The base classes of processors, and the messages and timers that they receive.

All times are milliseconds since the epoch. Stream time is the highest Kafka timestamp seen so far in the session's
topic-partition. Processors have no other clock. So the same messages give the same records, whenever they are processed
and however they are split into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

S = TypeVar("S")
Record = Mapping[str, Any]
"""Values by output column; a column that is left out is null. A `timestamp` is given in milliseconds; a value outside
the years 1 to 9999 is moved to the nearest one inside."""
NEVER = 2**63 - 1
"""The time of a timer that must not fire."""


class Session(Struct, frozen=True):
    """The identity of a session: topic, session id and partition."""

    topic: str
    session_id: str
    partition: int


class Row(Struct, frozen=True):
    """The part of a message that concerns one row.

    Attributes:
        values: By declared column. An update has only the columns that it sets, a snapshot has all.
        rescued: The undeclared columns as a JSON object; None if there are none.
    """

    id: str
    values: dict[str, Any]
    rescued: str | None = None


class Message(Struct, frozen=True):
    """One applied message.

    Attributes:
        type: A `snapshot` replaces the table, an `update` changes rows, a `heartbeat` changes nothing, and an `end` is
            the session's last message.
        seq: None only under class `none`.
        ts: Event time.
        kafka_timestamp: The timestamp in Kafka; -1 if the producer set none.
        stream_time: When the message was applied: on arrival, or, under class `window`, on release.
        position: Order of application within the session. It rises from message to message.
        epoch: Kafka offset of the last applied snapshot; -1 before the first.
        deleted: Ids of the rows to remove.
    """

    topic: str
    session_id: str
    partition: int
    offset: int
    type: Literal["snapshot", "update", "heartbeat", "end"]
    seq: int | None
    ts: int
    kafka_timestamp: int
    stream_time: int
    position: int
    epoch: int
    rows: list[Row] = []
    deleted: list[str] = []


class Timer(Struct, frozen=True):
    """Fires once stream time has passed `at`, before the session's first message that is applied later than that.

    Yield one to set it. It replaces the session's timer of the same name. With `at=NEVER` it only removes that timer. A
    timer set in the past fires right after the current message. All timers end with their session.

    Attributes:
        expired: True only in the call that reports the session's expiry, at `at`, without an `end` message. The
            session's state is dropped after that call.
    """

    at: int
    name: str = ""
    expired: bool = False


Emitted = Record | Timer
"""What a processor may yield: an output row or a timer."""


class KeyedProcessor(ABC, Generic[S]):
    """Reads another table key by key: all rows of a key in order, with one state per key.

    The configuration names the table, the key and the order. When a row of a key is added or changed, all rows of that
    key are processed again from the first one, and the new records replace the old ones. So a late row takes its right
    place.

    Attributes:
        state: Type of a key's state.
        output: The processor's own columns, as Spark SQL scalar types or `timestamp`. The key's columns and `ordinal`
            precede them in the table.
    """

    state: type[S]
    output: ClassVar[Mapping[str, str]]

    def initial(self, key: Mapping[str, Any]) -> S:
        """Returns the state before a key's first row; by default an instance of `state`."""
        del key
        return self.state()

    @abstractmethod
    def on_row(self, state: S, row: Mapping[str, Any]) -> Iterable[Record]:
        """Processes the key's next row, given as values by column. Times are in UTC."""

    def on_end(self, state: S) -> Iterable[Record]:
        """Returns the records that follow from all rows of the key. It is called again whenever a later row arrives."""
        del state
        return ()


class Processor(ABC, Generic[S]):
    """Processes the messages of sessions, each session with its own state.

    One instance, made with the configured options as keyword arguments, serves many sessions. Its results must depend
    only on the state and the arguments of each call: no clock, no random numbers, nothing stored in `self`.

    Attributes:
        state: Type of a session's state, a dataclass or msgspec Struct. Methods change it in place.
        output: The output table's own columns, as Spark SQL scalar types or `timestamp`.
        version: Version of the state's type. Raise it with every change that makes stored states unreadable.
    """

    state: type[S]
    output: ClassVar[Mapping[str, str]]
    version: ClassVar[int] = 1

    def initial(self, session: Session) -> S:
        """Returns the state before a session's first message; by default an instance of `state`."""
        del session
        return self.state()

    @abstractmethod
    def on_message(self, state: S, message: Message) -> Iterable[Emitted]:
        """Processes the session's next message. Each message comes exactly once, in order of application."""

    def on_timeout(self, state: S, timer: Timer) -> Iterable[Emitted]:
        """Processes a timer that fires, or the session's expiry. Timers set here must be later than `timer.at`."""
        del state, timer
        return ()

    def migrate(self, old: Any, version: int) -> S:
        """Converts a state that an earlier version of the class wrote.

        Args:
            old: The stored state as plain dictionaries, lists and scalars.
            version: The version that wrote it.
        """
        del old
        raise NotImplementedError(f"{type(self).__name__} has no migrate() for states of version {version}")
