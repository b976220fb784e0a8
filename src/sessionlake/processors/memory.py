"""The state that a processor keeps of a shard's sessions between batches.

Each session has its state as bytes, its timers, and its position in the order of messages.

Format `sessionlake.processor/2`: MessagePack. Each session's state is encoded separately, with the version of the class
that wrote it. So only sessions with something to do are decoded, and old states are migrated one by one.
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


class SessionState(msgspec.Struct, array_like=True):
    """The stored state of one session's current life. Times in ms.

    Attributes:
        version: Version of the class that wrote `state`.
        state: The encoded state; empty after the processor was stopped for the session.
        life: Offset of the life's first message, which identifies the life.
        last: Kafka timestamp of the session's last well-formed message.
        position: Position of the last message that the processor received; `offset` is its offset.
        ordinal: Number of the next record after that message.
        ended: Whether its `end` was applied.
        stopped: Offset at which the processor was stopped for the session; None if it was not.
        timers: Stream time by timer name.
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
_sessions = msgspec.msgpack.Decoder(dict[str, SessionState])


@dataclass
class ProcessorMemory:
    """The stored states of a shard's sessions, and when time alone makes one of them due.

    Attributes:
        sessions: By session key (`protocol.arrow.session_key`).
        due: For each topic-partition, the stream time past which one of its sessions must be processed even without a
            message.
    """

    due: dict[TopicPartition, int] = field(default_factory=dict)
    sessions: dict[str, SessionState] = field(default_factory=dict)

    def set_first_times(self, begun: Mapping[TopicPartition, int]) -> None:
        """Sets the timestamp of sessions that had no known time yet.

        Args:
            begun: First known stream time (ms) by topic-partition.
        """
        if begun:
            for key, session in self.sessions.items():
                if session.last == NO_KAFKA_TIME:
                    session.last = begun.get((key.partition("\0")[0], session.partition), session.last)

    @staticmethod
    def due_of(stored: bytes | None) -> dict[TopicPartition, int]:
        """Reads `due` from stored bytes without decoding the sessions."""
        found = () if stored is None else _open(stored).due
        return {(topic, partition): time for topic, partition, time in found}

    @classmethod
    def decode(cls, stored: bytes | None) -> ProcessorMemory:
        """Reads what `encode` wrote.

        Raises:
            LakeError: The format is unknown or the bytes are damaged.
        """
        if stored is None:
            return cls()
        found = _open(stored)
        try:
            sessions = _sessions.decode(found.sessions)
        except msgspec.MsgspecError as error:
            raise LakeError(
                f"processor {found.processor}: its state cannot be read ({error})",
                fix="Run the version of sessionlake that wrote it, or start the processor over under another name",
            ) from None
        return cls(cls.due_of(stored), sessions)

    def encode(self, processor: str, shards: int) -> bytes:
        """Encodes the sessions as MessagePack, with the format, the processor's name and the number of shards."""
        due = [(*lane, time) for lane, time in self.due.items()]
        return msgspec.msgpack.encode(_Stored(FORMAT, processor, shards, due, msgspec.msgpack.encode(self.sessions)))


def without_session(stored: bytes, topic: str, session_id: str) -> bytes:
    """Removes the sessions of a topic with this id, in any partition, from stored bytes."""
    found, memory = _open(stored), ProcessorMemory.decode(stored)
    for key in [*memory.sessions]:
        if split_session_key(key)[::2] == (topic, session_id):
            del memory.sessions[key]
    return memory.encode(found.processor, found.shards)


def due_of(key: str, session: SessionState, session_timeout: int) -> tuple[TopicPartition, int]:
    """Returns a session's topic-partition, and the stream time past which it must be processed. Times in ms."""
    topic = split_session_key(key)[0]
    return (topic, session.partition), min([session.last + 2 * session_timeout, *session.timers.values()])


def next_due(sessions: Mapping[str, SessionState], timeout_of: Callable[[str], int]) -> dict[TopicPartition, int]:
    """Returns, for each topic-partition, the earliest stream time past which one of these sessions must be processed.

    Args:
        timeout_of: Returns the session timeout of a topic, in ms.
    """
    found: dict[TopicPartition, int] = {}
    for key, session in sessions.items():
        lane, time = due_of(key, session, timeout_of(split_session_key(key)[0]))
        found[lane] = min(found.get(lane, time), time)
    return found


def stored_processor_name(stored: bytes) -> str:
    """Reads the name of the processor that wrote a memory."""
    return _open(stored).processor


def stored_shard_count(stored: bytes) -> int:
    """Reads the number of shards that a memory was written for."""
    return _open(stored).shards


def _open(stored: bytes) -> _Stored:
    try:
        found = _envelopes.decode(stored)
    except msgspec.MsgspecError as error:
        kind = "Arrow" if is_chunk(stored) else str(error)
        raise LakeError(
            f"a processor's state cannot be read ({kind})",
            fix="Run the version of sessionlake that wrote it, or start the processor over under another name",
        ) from None
    if found.format != FORMAT:
        raise LakeError(
            f"processor {found.processor}: its state is of format {found.format!r}, this version reads {FORMAT!r}",
            fix="Run the version of sessionlake that wrote it, or start the processor over under another name",
        )
    return found


class StateCodec:
    """Encodes and decodes a processor's session states, in the type that its class declares."""

    def __init__(self, name: str, processor: Processor[Any]) -> None:
        self._name, self._processor = name, processor
        self._decoder = msgspec.msgpack.Decoder(processor.state)
        self._encoder = msgspec.msgpack.Encoder()

    def write(self, state: Any) -> bytes:
        """Encodes a state.

        Raises:
            TypeError: The state is not of the declared type, or has a value that cannot be encoded.
        """
        if not isinstance(state, self._processor.state):
            raise TypeError(f"a state must be a {self._processor.state.__name__}, found {type(state).__name__}")
        return self._encoder.encode(state)

    def read_back(self, state: bytes) -> Any:
        """Decodes what `write` has just encoded.

        Raises:
            TypeError: The state does not fit the declared type.
        """
        try:
            return self._decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise TypeError(f"the state does not fit {self._processor.state.__name__}: {error}") from None

    def read(self, state: bytes, version: int, session: str) -> Any:
        """Decodes a state; migrates one that an older class wrote.

        Raises:
            LakeError: The state cannot be read by this version of the class.
        """
        wanted = self._processor.version
        whose = f"processor {self._name}: the state of session {session!r} is of version {version}"
        if version > wanted:
            raise LakeError(f"{whose}, the class is of version {wanted}", fix="Run the newer class again")
        try:
            if version == wanted:
                return self._decoder.decode(state)
            migrated = self._processor.migrate(msgspec.msgpack.decode(state), version)
            self.write(migrated)
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"
            if version == wanted:
                raise LakeError(
                    f"{whose}, which is the version of the class, but its fields are not those of "
                    f"{self._processor.state.__name__} ({error_text})",
                    fix=f"Raise `version` to {wanted + 1} and write migrate(), or give new fields defaults",
                ) from error
            raise LakeError(
                f"{whose}, the class is of version {wanted} and cannot migrate it ({error_text})",
                fix="Correct migrate(), run the older class, or start the processor over under another name",
            ) from error
        return migrated
