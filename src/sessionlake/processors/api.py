"""The base classes of processors, and the messages and timers that they receive.

All times are milliseconds since 1970. Stream time is the highest Kafka timestamp seen so far in the session's
topic-partition. It is the only clock of processors. So the same messages give the same records, whenever they are
processed and however they are split into batches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

S = TypeVar("S")
Record = Mapping[str, Any]
"""An output row: values by output column. A column that is left out is null.

A `timestamp` is given in milliseconds. A value outside the years 1 to 9999 is moved to the nearest one inside.
"""
NEVER = 2**63 - 1
"""The time of a timer that never fires."""


class Session(Struct, frozen=True):
    """The identity of a session: topic, session id and partition."""

    topic: str
    session_id: str
    partition: int


class Row(Struct, frozen=True):
    """The part of a message that concerns one row of the session's table.

    Attributes:
        id: The row's id.
        values: Values by declared column. In an update only the columns that it sets, in a snapshot all.
        rescued: The undeclared columns as a JSON object; None if there are none.
    """

    id: str
    values: dict[str, Any]
    rescued: str | None = None


class Message(Struct, frozen=True):
    """One applied message, as a processor receives it. Times in milliseconds.

    Attributes:
        offset: The message's Kafka offset.
        type: A `snapshot` replaces the table, an `update` changes rows, a `heartbeat` changes nothing, and an `end` is
            the session's last message.
        seq: The sender's sequence number. None only under class `none`.
        ts: Event time.
        kafka_timestamp: The timestamp in Kafka; -1 if the producer set none.
        stream_time: Stream time at which the message was applied: when it arrived, or under class `window` when it was
            released.
        position: Order of application within the session. It rises from message to message.
        epoch: Kafka offset of the last applied snapshot; -1 before the first.
        rows: The rows that the message sets.
        deleted: Ids of the rows that the message removes.
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
    """Asks for a call of `on_timeout` once stream time has passed `at`. Yield one to set it.

    It fires before the session's first message that is applied later than `at`. It replaces the session's timer of the
    same name. With `at=NEVER` it only removes that timer. A timer set in the past fires right after the current
    message. All timers end with their session.

    Attributes:
        at: Stream time, in ms.
        name: The timer's name. A session has at most one timer of each name.
        expired: True only in the call that reports the session's expiry. The session expires at `at`, without an `end`
            message. Its state is dropped after that call.
    """

    at: int
    name: str = ""
    expired: bool = False


Emitted = Record | Timer
"""What a processor may yield: an output row or a timer."""


class KeyedProcessor(ABC, Generic[S]):
    """Reads another table key by key: all rows of a key in order, with one state per key.

    The configuration names the table, the key and the order. When a row of a key is added or changed, all rows of that
    key are processed again from the first one. The new records replace the earlier ones. So a late row takes its right
    place.

    Attributes:
        state: Type of a key's state.
        output: Columns and their types, as Spark SQL scalar types or `timestamp`. In the table, the key's columns and
            `ordinal` precede them.
    """

    state: type[S]
    output: ClassVar[Mapping[str, str]]

    def initial(self, key: Mapping[str, Any]) -> S:
        """Returns the state before a key's first row. By default it is an instance of `state`.

        Args:
            key: Values of the key's columns, by name.
        """
        del key
        return self.state()

    @abstractmethod
    def on_row(self, state: S, row: Mapping[str, Any]) -> Iterable[Record]:
        """Processes the key's next row, and returns output rows.

        Args:
            state: The key's state, to be changed in place.
            row: Values by column. Times are in UTC.
        """

    def on_end(self, state: S) -> Iterable[Record]:
        """Returns the output rows that depend on all rows of the key, such as a total. By default there are none.

        It is called after the key's last row, and again whenever a later row arrives.
        """
        del state
        return ()


class Processor(ABC, Generic[S]):
    """Processes the messages of sessions, each session with its own state.

    One instance serves many sessions. It is created with the configured options as keyword arguments. Its results must
    depend only on the state and the arguments of each call: no clock, no random numbers, nothing stored in `self`.

    Attributes:
        state: Type of a session's state, a dataclass or msgspec Struct. Methods change it in place.
        output: The columns that the processor adds to its output table, as Spark SQL scalar types or `timestamp`.
        version: Version of the state's type. Raise it with every change that makes stored states unreadable.
    """

    state: type[S]
    output: ClassVar[Mapping[str, str]]
    version: ClassVar[int] = 1

    def initial(self, session: Session) -> S:
        """Returns the state before a session's first message. By default it is an instance of `state`."""
        del session
        return self.state()

    @abstractmethod
    def on_message(self, state: S, message: Message) -> Iterable[Emitted]:
        """Processes the session's next message, and returns output rows and timers.

        Each message comes exactly once, in order of application.
        """

    def on_timeout(self, state: S, timer: Timer) -> Iterable[Emitted]:
        """Processes a timer that fires, or the session's expiry, and returns output rows and timers. By default none.

        New timers must be set for a stream time after `timer.at`.
        """
        del state, timer
        return ()

    def migrate(self, old: Any, version: int) -> S:
        """Converts a state that an earlier version of the class stored to the present type, and returns it.

        Args:
            old: The stored state as plain dictionaries, lists and scalars.
            version: The version of the class that stored the state.

        Raises:
            NotImplementedError: The class does not override this method.
        """
        del old
        raise NotImplementedError(f"{type(self).__name__} has no migrate() for states of version {version}")
