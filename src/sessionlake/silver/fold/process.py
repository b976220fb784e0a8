"""What is made of a shard's judged batches: the seam between judging and everything that works on judged messages.

The built-in rebuild works on whole columns; a user's processor is called message by message (`processors.shard`).
Both are given the same thing at the same place, so that both see the same messages in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from sessionlake.integrity.rules import RuleBook
from sessionlake.protocol.columns import Column
from sessionlake.protocol.types import Payloads, TopicPartition
from sessionlake.silver.fold.emit import Judged, payloads

_MAGIC = b"sessionlake.shard/1\n"


class ShardProcessor(Protocol):
    """Makes payloads out of a shard's judged batches; pure, and picklable, since Spark ships it to its workers."""

    def due(self, memory: bytes | None) -> Mapping[TopicPartition, int]:
        """The stream time (ms) past which it has something to do, though no message comes, by topic-partition.

        Args:
            memory: what `process` returned last; None at first.
        """
        ...

    def process(self, memory: bytes | None, judged: Judged, malformed: pa.Table) -> tuple[bytes | None, Payloads]:
        """Works on one batch.

        Args:
            malformed: the batch's messages that were not judged, since they are none: rows of a chunk.

        Returns:
            What it wants to remember (None: nothing), and `(kind, payload)` pairs to emit.
        """
        ...


@dataclass(frozen=True)
class Rebuild:
    """The built-in: rows of silver's tables, in columns. What it needs to remember, judging keeps already."""

    columns: tuple[Column, ...]
    rules: RuleBook

    def due(self, memory: bytes | None) -> Mapping[TopicPartition, int]:
        """See `ShardProcessor`."""
        del memory
        return {}

    def process(self, memory: bytes | None, judged: Judged, malformed: pa.Table) -> tuple[bytes | None, Payloads]:
        """See `ShardProcessor`."""
        del memory
        return None, payloads(judged, malformed, self.columns, self.rules)


def join(judging: bytes, memory: bytes | None) -> bytes:
    """A shard's state: what judging keeps and what the processor does; without the latter, the former as it is."""
    return judging if memory is None else _MAGIC + msgspec.msgpack.encode((judging, memory))


def split(state: bytes | None) -> tuple[bytes | None, bytes | None]:
    """A shard's state as the two parts that `join` put together: judging's and the processor's."""
    if state is None or not state.startswith(_MAGIC):
        return state, None
    return _pairs.decode(memoryview(state)[len(_MAGIC) :])


_pairs = msgspec.msgpack.Decoder(tuple[bytes, bytes])
