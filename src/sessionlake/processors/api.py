"""What a processor is and what it is given. All times are milliseconds since the epoch.

Stream time is the highest Kafka timestamp of the session's topic-partition so far: the only clock there is, so that
the same messages give the same records whenever, and in whatever batches, they are worked on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Struct

S = TypeVar("S")
Record = Mapping[str, Any]
"""Values by output column; one that is absent is null. A `timestamp` is given in milliseconds; of those outside of the
years 1 to 9999 it becomes the nearest inside."""
NEVER = 2**63 - 1
"""The time of a timer that is not to fire."""


class Session(Struct, frozen=True):
    """A session, as its messages name it."""

    topic: str
    session_id: str
    partition: int


class Row(Struct, frozen=True):
    """What a message says of one row.

    Attributes:
        values: by declared column: in an update those that it sets, in a snapshot all.
        rescued: what was not declared, as a JSON object.
    """

    id: str
    values: dict[str, Any]
    rescued: str | None = None


class Message(Struct, frozen=True):
    """One applied message.

    Attributes:
        type: a `snapshot` replaces the table, an `update` changes rows, a `heartbeat` nothing, an `end` is the last.
        seq: None only under class `none`.
        ts: event time.
        kafka_timestamp: as Kafka has it; -1: its producer set none.
        stream_time: when it was applied: its arrival, or, under class `window`, its release.
        position: order of application within the session, rising.
        epoch: offset of the last snapshot; -1 before the first.
        deleted: ids of rows to remove.
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
    """Fires when stream time has passed `at`: before the session's first message that is applied later than that.

    Yielded, it is set, in the place of the session's timer of the same name; at `NEVER` it only takes that one away.
    One that is set in the past fires after the message at hand. Timers end with their session.

    Attributes:
        expired: not a timer that was set: the session has expired, at `at`, without an `end`, and its state goes.
    """

    at: int
    name: str = ""
    expired: bool = False


Emitted = Record | Timer
"""What a processor yields."""


class KeyedProcessor(ABC, Generic[S]):
    """Given a table's rows key by key, in order, each key with its own state: which, the configuration says.

    Its table is what it makes of the rows that the other has: those of a key are gone through once more, from the first
    on, when one comes or changes. So a row that comes late is in its place.

    Attributes:
        state: type of a key's state.
        output: its own columns, as Spark SQL scalar types or `timestamp`; the key's columns and `ordinal` come before.
    """

    state: type[S]
    output: ClassVar[Mapping[str, str]]

    def initial(self, key: Mapping[str, Any]) -> S:
        """The state before a key's first row; by default the type's own."""
        del key
        return self.state()

    @abstractmethod
    def on_row(self, state: S, row: Mapping[str, Any]) -> Iterable[Record]:
        """Works on a key's next row, its values by column; times are in UTC."""

    def on_end(self, state: S) -> Iterable[Record]:
        """Says what follows from all rows that there are; a row that comes later has it said anew."""
        del state
        return ()


class Processor(ABC, Generic[S]):
    """Made once with the configured options as keyword arguments, then given many sessions, each with its own state.

    It must depend on nothing but the state and what it is given: no clock, no chance, nothing kept in `self`.

    Attributes:
        state: type of a session's state, a dataclass or msgspec Struct; methods change it in place.
        output: the output table's own columns, as Spark SQL scalar types or `timestamp`.
        version: of the state's type; raised with every change that old states cannot be read as.
    """

    state: type[S]
    output: ClassVar[Mapping[str, str]]
    version: ClassVar[int] = 1

    def initial(self, session: Session) -> S:
        """The state before a session's first message; by default the type's own."""
        del session
        return self.state()

    @abstractmethod
    def on_message(self, state: S, message: Message) -> Iterable[Emitted]:
        """Works on a session's next message: each once, in order of application."""

    def on_timeout(self, state: S, timer: Timer) -> Iterable[Emitted]:
        """Works on a timer that fires, or on the session's expiry. A timer it sets must be later than this one."""
        del state, timer
        return ()

    def migrate(self, old: Any, version: int) -> S:
        """Makes a state of one that an earlier version wrote.

        Args:
            old: as plain dictionaries, lists and scalars.
            version: that wrote it.
        """
        del old
        raise NotImplementedError(f"{type(self).__name__} has no migrate() for states of version {version}")
