"""What is kept of a shard's sessions between batches: each one's state as bytes, timers, and place in the order.

Format `sessionlake.processor/2`: MessagePack. A session's state is encoded by itself and carries the version of the
class that wrote it, so that only sessions with something to do are decoded, and old states can be migrated one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sessionlake.errors import LakeError
from sessionlake.processors.api import Processor
from sessionlake.protocol.arrow import split_session_key
from sessionlake.protocol.chunk import is_chunk
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.types import TopicPartition

FORMAT = "sessionlake.processor/2"


class Kept(msgspec.Struct, array_like=True):
    """One session's present life. Times in ms.

    Attributes:
        state: empty after the processor was stopped for the session.
        life: the offset that names it.
        last: own time of its last well-formed message.
        position: of the last message the processor was given, as `offset`; `ordinal` is the next record's.
        ended: whether its `end` was applied.
        stopped: offset at which the processor was stopped for it.
        timers: stream time by name.
    """

    version: int
    state: bytes
    life: int
    partition: int
    last: int
    position: int = -1
    offset: int = -1
    ordinal: int = 0
    ended: bool = False
    stopped: int | None = None
    timers: dict[str, int] = {}


class _Stored(msgspec.Struct):
    format: str
    processor: str
    shards: int
    due: list[tuple[str, int, int]]
    sessions: bytes


_envelopes = msgspec.msgpack.Decoder(_Stored)
_sessions = msgspec.msgpack.Decoder(dict[str, Kept])


@dataclass
class ProcessorMemory:
    """What is kept of a shard's sessions between batches, and when time alone brings one something to do.

    Attributes:
        sessions: by their keys; see `protocol.arrow.session_key`.
        due: for each topic-partition, the stream time past which a session of it has something to do.
    """

    due: dict[TopicPartition, int] = field(default_factory=dict)
    sessions: dict[str, Kept] = field(default_factory=dict)

    def begin_time(self, begun: Mapping[TopicPartition, int]) -> None:
        """Sets the first known time (ms) of topic-partitions in the sessions that have waited for it."""
        if begun:
            for key, kept in self.sessions.items():
                if kept.last == NO_KAFKA_TIME:
                    kept.last = begun.get((key.partition("\0")[0], kept.partition), kept.last)

    @staticmethod
    def due_of(stored: bytes | None) -> dict[TopicPartition, int]:
        """`due`, without decoding the sessions."""
        found = () if stored is None else _open(stored).due
        return {(topic, partition): time for topic, partition, time in found}

    @classmethod
    def decode(cls, stored: bytes | None) -> ProcessorMemory:
        """Reads what `encode` wrote.

        Raises:
            LakeError: it is of a format that this version does not read.
        """
        if stored is None:
            return cls()
        found = _open(stored)
        try:
            sessions = _sessions.decode(found.sessions)
        except msgspec.MsgspecError as error:
            raise LakeError(f"processor {found.processor}: its state cannot be read ({error}): {_REMEDY}") from None
        return cls(cls.due_of(stored), sessions)

    def encode(self, processor: str, shards: int) -> bytes:
        """The shard's sessions as msgpack, with format, processor and number of shards."""
        due = [(*lane, time) for lane, time in self.due.items()]
        return msgspec.msgpack.encode(_Stored(FORMAT, processor, shards, due, msgspec.msgpack.encode(self.sessions)))


def without(stored: bytes, topic: str, session_id: str) -> bytes:
    """A memory without the sessions of a topic that have an id, whatever their partitions."""
    found, memory = _open(stored), ProcessorMemory.decode(stored)
    for key in [*memory.sessions]:
        if split_session_key(key)[::2] == (topic, session_id):
            del memory.sessions[key]
    return memory.encode(found.processor, found.shards)


def due_of(key: str, kept: Kept, session_timeout: int) -> tuple[TopicPartition, int]:
    """A session's topic-partition, and the stream time past which it has something to do. Times in ms."""
    topic = split_session_key(key)[0]
    return (topic, kept.partition), min([kept.last + 2 * session_timeout, *kept.timers.values()])


def next_due(sessions: Mapping[str, Kept], timeout_of: Callable[[str], int]) -> dict[TopicPartition, int]:
    """For each topic-partition, the stream time past which one of these sessions has something to do.

    Args:
        timeout_of: the session timeout of a topic, ms.
    """
    found: dict[TopicPartition, int] = {}
    for key, kept in sessions.items():
        lane, time = due_of(key, kept, timeout_of(split_session_key(key)[0]))
        found[lane] = min(found.get(lane, time), time)
    return found


def processor_of(stored: bytes) -> str:
    """The processor that a memory is of."""
    return _open(stored).processor


def shards_of(stored: bytes) -> int:
    """The number of shards that a memory was made for."""
    return _open(stored).shards


def _open(stored: bytes) -> _Stored:
    try:
        found = _envelopes.decode(stored)
    except msgspec.MsgspecError as error:
        kind = "Arrow" if is_chunk(stored) else str(error)
        raise LakeError(f"a processor's state cannot be read ({kind}): {_REMEDY}") from None
    if found.format != FORMAT:
        raise LakeError(
            f"processor {found.processor}: its state is of format {found.format!r}, this version reads {FORMAT!r}: "
            f"{_REMEDY}"
        )
    return found


_REMEDY = "run the version of sessionlake that wrote it, or start the processor over under another name"


class StateCodec:
    """Reads and writes the state that a processor keeps of a session, in the type that its class declares."""

    def __init__(self, name: str, processor: Processor[Any]) -> None:
        self._name, self._processor = name, processor
        self._decoder = msgspec.msgpack.Decoder(processor.state)
        self._encoder = msgspec.msgpack.Encoder()

    def write(self, state: Any) -> bytes:
        """Encodes a state.

        Raises:
            TypeError: it is not of the declared type, or holds what cannot be encoded.
        """
        if not isinstance(state, self._processor.state):
            raise TypeError(f"a state must be a {self._processor.state.__name__}, found {type(state).__name__}")
        return self._encoder.encode(state)

    def read_back(self, state: bytes) -> Any:
        """Decodes what `write` has just encoded.

        Raises:
            TypeError: it does not fit the declared type.
        """
        try:
            return self._decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise TypeError(f"the state does not fit {self._processor.state.__name__}: {error}") from None

    def read(self, state: bytes, version: int, session: str) -> Any:
        """Decodes a state, migrating what an older class wrote.

        Raises:
            LakeError: naming processor, session and version, and what to do.
        """
        wanted = self._processor.version
        whose = f"processor {self._name}: the state of session {session!r} is of version {version}"
        if version > wanted:
            raise LakeError(f"{whose}, the class is of version {wanted}: run the newer class again")
        try:
            if version == wanted:
                return self._decoder.decode(state)
            migrated = self._processor.migrate(msgspec.msgpack.decode(state), version)
            self.write(migrated)
        except Exception as error:
            said = f"{type(error).__name__}: {error}"
            if version == wanted:
                raise LakeError(
                    f"{whose}, as the class, but cannot be read as {self._processor.state.__name__} ({said}): raise "
                    f"`version` to {wanted + 1} and write migrate(), or give new fields defaults"
                ) from error
            raise LakeError(
                f"{whose}, the class is of version {wanted} and cannot migrate it ({said}): correct migrate(), run the "
                "older class, or start the processor over under another name"
            ) from error
        return migrated
