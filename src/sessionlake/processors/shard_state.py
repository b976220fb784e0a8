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
    """What a processor keeps of one session's current life between batches. Times in ms.

    Attributes:
        version: Version of the class that wrote `state`.
        state: The encoded state. Empty after the processor was stopped for the session.
        life: Offset of the life's first message, which identifies the life.
        partition: Partition of the session's last message.
        last: Kafka timestamp of the session's last well-formed message.
        position: Position of the last message that the processor received; -1 if it has received none.
        offset: Kafka offset of that message; -1 if the processor has received none.
        ordinal: Number of the next record after that message.
        ended: True if the session's `end` was applied.
        stopped: Offset of the message at which the processor was stopped for the session. None if it was not stopped.
        timers: Stream time at which each timer is set, by timer name.
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


class _StoredProcessorState(msgspec.Struct):
    format: str
    processor: str
    shards: int
    due: list[tuple[str, int, int]]
    sessions: bytes


_envelopes = msgspec.msgpack.Decoder(_StoredProcessorState)
_sessions = msgspec.msgpack.Decoder(dict[str, SessionState])


@dataclass
class ProcessorShardState:
    """The states that a processor keeps of a shard's sessions, and when sessions are due.

    A session is due when stream time alone, without a message, makes a timer fire or its life end.

    Attributes:
        due: By topic-partition, the stream time in ms after which the first of its sessions is due.
        sessions: The sessions' states, by session key (`protocol.arrow.session_key`).
    """

    due: dict[TopicPartition, int] = field(default_factory=dict)
    sessions: dict[str, SessionState] = field(default_factory=dict)

    def fill_in_unknown_kafka_times(self, first_times: Mapping[TopicPartition, int]) -> None:
        """Sets `last` of the sessions that have no known Kafka timestamp yet.

        Args:
            first_times: For each topic-partition that now has its first stream time: this time in ms.
        """
        if first_times:
            for key, session in self.sessions.items():
                if session.last == NO_KAFKA_TIME:
                    session.last = first_times.get((key.partition("\0")[0], session.partition), session.last)

    @staticmethod
    def read_due_times(stored: bytes | None) -> dict[TopicPartition, int]:
        """Returns, for each topic-partition, the stream time (ms) after which the first of its sessions is due.

        It is read from an encoded memory without decoding the sessions. None gives an empty result.
        """
        found = () if stored is None else _decode_stored_processor_state(stored).due
        return {(topic, partition): time for topic, partition, time in found}

    @classmethod
    def decode_processor_state(cls, stored: bytes | None) -> ProcessorShardState:
        """Decodes a memory that `encode_processor_state` wrote. None gives an empty memory.

        Raises:
            LakeError: The format is unknown or the bytes are damaged.
        """
        if stored is None:
            return cls()
        found = _decode_stored_processor_state(stored)
        try:
            sessions = _sessions.decode(found.sessions)
        except msgspec.MsgspecError as error:
            raise LakeError(
                f"processor {found.processor}: its stored state cannot be read ({error})",
                fix="Run the version of sessionlake that wrote it, or start the processor over under another name",
            ) from None
        return cls(cls.read_due_times(stored), sessions)

    def encode_processor_state(self, processor: str, shards: int) -> bytes:
        """Returns the memory as MessagePack, with the format's name, the processor's name and the number of shards."""
        due = [(*lane, time) for lane, time in self.due.items()]
        return msgspec.msgpack.encode(
            _StoredProcessorState(FORMAT, processor, shards, due, msgspec.msgpack.encode(self.sessions))
        )


def remove_session_from_processor_state(encoded_state: bytes, topic: str, session_id: str) -> bytes:
    """Returns an encoded memory without the sessions that have this topic and session id, in any partition."""
    found, memory = (
        _decode_stored_processor_state(encoded_state),
        ProcessorShardState.decode_processor_state(encoded_state),
    )
    for key in [*memory.sessions]:
        if split_session_key(key)[::2] == (topic, session_id):
            del memory.sessions[key]
    return memory.encode_processor_state(found.processor, found.shards)


def compute_due_time_of_session(key: str, session: SessionState, session_timeout: int) -> tuple[TopicPartition, int]:
    """Returns a session's topic-partition, and the stream time in ms after which the session is due.

    A session is due when stream time alone makes a timer fire or its life end.

    Args:
        key: The session key.
        session: The session's state.
        session_timeout: The session timeout, in ms.
    """
    topic = split_session_key(key)[0]
    return (topic, session.partition), min([session.last + 2 * session_timeout, *session.timers.values()])


def find_next_due_time_by_partition(
    sessions: Mapping[str, SessionState], find_timeout: Callable[[str], int]
) -> dict[TopicPartition, int]:
    """Returns, by topic-partition, the earliest stream time in ms after which one of its sessions is due.

    Args:
        sessions: The sessions' states, by session key.
        find_timeout: Returns the session timeout of a topic, in ms.
    """
    found: dict[TopicPartition, int] = {}
    for key, session in sessions.items():
        lane, time = compute_due_time_of_session(key, session, find_timeout(split_session_key(key)[0]))
        found[lane] = min(found.get(lane, time), time)
    return found


def read_stored_processor_name(encoded_state: bytes) -> str:
    """Returns the name of the processor that wrote an encoded `ProcessorShardState`."""
    return _decode_stored_processor_state(encoded_state).processor


def read_stored_shard_count(encoded_state: bytes) -> int:
    """Returns the number of shards for which an encoded `ProcessorShardState` was written."""
    return _decode_stored_processor_state(encoded_state).shards


def _decode_stored_processor_state(encoded_state: bytes) -> _StoredProcessorState:
    try:
        found = _envelopes.decode(encoded_state)
    except msgspec.MsgspecError as error:
        kind = "Arrow" if is_chunk(encoded_state) else str(error)
        raise LakeError(
            f"the stored state of a processor cannot be read ({kind})",
            fix="Run the version of sessionlake that wrote it, or start the processor over under another name",
        ) from None
    if found.format != FORMAT:
        raise LakeError(
            f"processor {found.processor}: its stored state has the format {found.format!r}, but this "
            f"version of sessionlake reads {FORMAT!r}",
            fix="Run the version of sessionlake that wrote it, or start the processor over under another name",
        )
    return found


class SessionStateCodec:
    """Encodes and decodes states of sessions in the type that the processor's class declares."""

    def __init__(self, name: str, processor: Processor[Any]) -> None:
        self._name, self._processor = name, processor
        self._decoder = msgspec.msgpack.Decoder(processor.state)
        self._encoder = msgspec.msgpack.Encoder()

    def encode_state(self, state: Any) -> bytes:
        """Returns a session's state as MessagePack.

        Raises:
            TypeError: The state is not of the declared type, or has a value that cannot be encoded.
        """
        if not isinstance(state, self._processor.state):
            raise TypeError(f"a state must be a {self._processor.state.__name__}, found {type(state).__name__}")
        return self._encoder.encode(state)

    def decode_state_of_current_version(self, state: bytes) -> Any:
        """Decodes a state that the present version of the class has just encoded.

        Raises:
            TypeError: The state does not fit the declared type.
        """
        try:
            return self._decoder.decode(state)
        except msgspec.MsgspecError as error:
            raise TypeError(f"the state does not fit {self._processor.state.__name__}: {error}") from None

    def decode_and_migrate_state(self, state: bytes, version: int, session_id: str) -> Any:
        """Returns a stored state as an instance of the declared type. A state of an earlier version is migrated.

        Args:
            state: The encoded state.
            version: Version of the class that wrote the state.
            session_id: The session's id, for the error.

        Raises:
            LakeError: The state cannot be read by this version of the class.
        """
        wanted = self._processor.version
        whose = f"processor {self._name}: the state of session {session_id!r} is of version {version}"
        if version > wanted:
            raise LakeError(
                f"{whose}, which is newer than the class: it is of version {wanted}",
                why="An older class cannot read the state of a newer one",
                fix=f"Use version {version} of the class, or a newer one",
            )
        try:
            if version == wanted:
                return self._decoder.decode(state)
            migrated = self._processor.migrate(msgspec.msgpack.decode(state), version)
            self.encode_state(migrated)
        except Exception as error:
            error_text = f"{type(error).__name__}: {error}"
            if version == wanted:
                raise LakeError(
                    f"{whose}, which is the version of the class, but its fields are not those of "
                    f"{self._processor.state.__name__} ({error_text})",
                    fix=f"Raise the class's `version` to {wanted + 1} and write `migrate`, or give new fields "
                    "default values",
                ) from error
            raise LakeError(
                f"{whose}, the class is of version {wanted} and cannot migrate it ({error_text})",
                fix="Correct the class's `migrate`, use the older version of the class, or start the "
                "processor over under another name",
            ) from error
        return migrated
