"""Silences: rows in `bronze.messages` that record that a topic-partition had no message for some time.

Messages move stream time, so the last session of a sensor that sends nothing more would stay open for ever. Bronze
therefore records silences among its messages, and they move stream time too. A replay sees each silence at the same
place between the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sessionlake.errors import LakeError
from sessionlake.protocol.types import TopicPartition


class Silence(msgspec.Struct, frozen=True):
    """A record that a topic-partition had no message for some time.

    Attributes:
        topic: The topic.
        partition: The partition.
        behind: The offset of the last message before the silence.
        until: The stream time at the end of the silence, in ms since the Unix epoch.
        lasted: The length of the silence in ms.
    """

    topic: str
    partition: int
    behind: int
    until: int
    lasted: int

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and partition without messages."""
        return self.topic, self.partition


class _StoredSilences(msgspec.Struct):
    silences: list[Silence]


_decoder = msgspec.json.Decoder(_StoredSilences)


def encode_silences(silences: Iterable[Silence]) -> bytes:
    """Encodes silences as JSON, to be stored as the `value` of one row of `bronze.messages`."""
    return msgspec.json.encode(_StoredSilences([*silences]))


def decode_silences(values: Iterable[bytes]) -> Iterator[Silence]:
    """Yields the silences that `encode_silences` has encoded in values of `bronze.messages`.

    Raises:
        LakeError: A value is not JSON of silences.
    """
    for value in values:
        try:
            yield from _decoder.decode(value).silences
        except msgspec.MsgspecError as error:
            raise LakeError(
                "bronze.messages has a row without a topic that is not a row that bronze writes for a silence: "
                f"{error}",
                why="Another program has written it, and only bronze may write to this table",
                fix="Stop all layers. Find the other program's commit (DESCRIBE HISTORY bronze.messages), and restore "
                "the table to the version before it (RESTORE TABLE). The next start says what bronze must read again",
            ) from None
