"""The interface between judging messages and the code that uses the judged messages.

Silver's own processor makes whole columns of rows; a user's processor is called for each message
(`processors.shard`). Both get the same input at the same point, so they see the same messages in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
import pyarrow as pa

from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.protocol.columns import Column
from sessionlake.protocol.types import Payloads, TopicPartition
from sessionlake.silver.fold.emit import JudgedBatch, build_silver_payloads

_JOINED_STATE_MAGIC = b"sessionlake.shard/1\n"


class ShardProcessor(Protocol):
    """Makes what a shard emits from its judged batches. Pure, and picklable because Spark sends it to its workers."""

    def list_next_due_times(self, processor_state: bytes | None) -> Mapping[TopicPartition, int]:
        """Returns, by topic-partition, the stream time (ms) after which a batch must run even if no message arrives.

        Args:
            processor_state: What `process_judged_batch` returned last for the next call; None before its first call.
        """
        ...

    def process_judged_batch(
        self, processor_state: bytes | None, judged: JudgedBatch, malformed: pa.Table
    ) -> tuple[bytes | None, Payloads]:
        """Processes one judged batch of a shard.

        Args:
            processor_state: What the last call returned for the next one; None for the first call.
            judged: The judged batch.
            malformed: The Kafka values that are no valid messages and were not judged.

        Returns:
            The processor's state for the next call (None: nothing to remember), and `(kind, payload)` pairs to emit.
        """
        ...


@dataclass(frozen=True)
class SilverTableProcessor:
    """Silver's own processor: makes rows of silver's tables. It remembers nothing between batches.

    Attributes:
        columns: The declared columns.
        rules: The rules of the topics.
    """

    columns: tuple[Column, ...]
    rules: JudgingRuleLookup

    def list_next_due_times(self, processor_state: bytes | None) -> Mapping[TopicPartition, int]:
        """Returns no times: silver's own processor works only when a batch is judged."""
        del processor_state
        return {}

    def process_judged_batch(
        self, processor_state: bytes | None, judged: JudgedBatch, malformed: pa.Table
    ) -> tuple[bytes | None, Payloads]:
        """Returns no state, and what is emitted: rows for silver's tables, and the report."""
        del processor_state
        return None, build_silver_payloads(judged, malformed, self.columns, self.rules)


def join_shard_state(judging_state: bytes, processor_state: bytes | None) -> bytes:
    """Joins the state of judging and a processor's state into a shard's state.

    `split_shard_state` separates them again.
    """
    return (
        judging_state
        if processor_state is None
        else _JOINED_STATE_MAGIC + msgspec.msgpack.encode((judging_state, processor_state))
    )


def split_shard_state(state: bytes | None) -> tuple[bytes | None, bytes | None]:
    """Splits a shard's state into the state of judging and the processor's state. A missing part is None."""
    if state is None or not state.startswith(_JOINED_STATE_MAGIC):
        return state, None
    return _state_parts_decoder.decode(memoryview(state)[len(_JOINED_STATE_MAGIC) :])


_state_parts_decoder = msgspec.msgpack.Decoder(tuple[bytes, bytes])
