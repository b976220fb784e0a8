"""Silences: how far time went on in a topic-partition though no message came.

Stream time is what the messages say, so a sensor that says nothing more would leave its last session open for ever.
Bronze therefore writes down, as facts beside its messages, that a topic-partition was silent, and for how long. From
there on stream time is what they say, too: in every replay, at the same place between the same messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from sessionlake.errors import LakeError
from sessionlake.protocol.types import TopicPartition


class Silence(msgspec.Struct, frozen=True):
    """A topic-partition brought no message behind an offset, until stream time had come to a moment.

    Attributes:
        behind: offset of its last message.
        until: stream time, ms since the epoch.
        lasted: how long it had been silent by then, ms.
    """

    topic: str
    partition: int
    behind: int
    until: int
    lasted: int

    @property
    def place(self) -> TopicPartition:
        """Its topic-partition."""
        return self.topic, self.partition


class _Value(msgspec.Struct):
    silences: list[Silence]


_decoder = msgspec.json.Decoder(_Value)


def encode(silences: Iterable[Silence]) -> bytes:
    """Silences as the `value` of one row of `bronze.messages`: JSON."""
    return msgspec.json.encode(_Value([*silences]))


def decode(values: Iterable[bytes]) -> Iterator[Silence]:
    """Reads what `encode` wrote.

    Raises:
        LakeError: a value is nothing of the kind.
    """
    for value in values:
        try:
            yield from _decoder.decode(value).silences
        except msgspec.MsgspecError as error:
            raise LakeError(
                f"bronze.messages has a row without a topic that tells of no silence ({error}): nobody but bronze may "
                "write there; restore the table (Delta's time travel: RESTORE TABLE)"
            ) from None
