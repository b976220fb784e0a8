"""`ops.topics`: the history of every captured topic, one row per generation. Only bronze writes it.

A topic that is deleted and created again starts at Kafka offset 0. Offsets in `bronze.messages` keep rising: an offset
there is the Kafka offset plus the generation's `offset_shift`. The shift is higher than every earlier offset of the
topic. So topic, partition and offset identify a message, and offsets are in the order of arrival.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import replace_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import TOPICS
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.txn import Txn
from sessionlake.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

UnusedOffsets = dict[TopicPartition, list[tuple[int, int]]]


class TopicState(StrEnum):
    """The state of a topic's generation."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    """The topic had no message for `kafka.inactive_after`. Bronze subscribes to it again when a message arrives."""
    DELETED = "deleted"
    RECREATED = "recreated"
    """A new topic has the deleted topic's name. It is the next generation if the rule for such topics accepted it."""
    CUT = "cut"
    """Kafka's retention removed messages before bronze read them. The next generation starts after these messages."""
    FORGOTTEN = "forgotten"
    """Bronze no longer reads the topic, because the rule `forget` said so."""


READ_STATES = frozenset({TopicState.ACTIVE, TopicState.INACTIVE})
"""States in which bronze will read every further message."""


@dataclass(frozen=True)
class PartitionOffsets:
    """How far bronze has read one partition of a topic's generation. Offsets are numbered as in `bronze.messages`.

    Attributes:
        partition: number of the partition.
        first_offset: the first offset that existed when bronze first saw the partition.
        next_offset: one past the last offset that bronze has read.
        end_offset: one past the last offset that bronze has seen in Kafka.
    """

    partition: int
    first_offset: int
    next_offset: int
    end_offset: int


@dataclass(frozen=True)
class TopicGeneration:
    """One row of `ops.topics`: a generation of a topic.

    Attributes:
        topic: the topic's name.
        generation: number of the generation. It starts at 0. It rises by one each time that the rule `restart` accepts
            a recreated topic or the rule `forget` ignores it.
        state: whether bronze reads the generation, or why it ended.
        topic_id: Kafka's unique id of the topic; None if the brokers give none.
        first_seen: wall-clock time at which bronze first saw the generation.
        last_seen: wall-clock time at which bronze last saw it.
        last_message_at: time of its last message; None if there was none.
        offset_shift: offset in `bronze.messages` minus offset in Kafka.
        partitions: how far bronze has read each partition.
        lost: number of messages that were lost before bronze read them; None if none are known.
    """

    topic: str
    generation: int
    state: TopicState
    topic_id: str | None
    first_seen: datetime
    last_seen: datetime
    last_message_at: datetime | None = None
    offset_shift: int = 0
    partitions: tuple[PartitionOffsets, ...] = ()
    lost: int | None = None

    @property
    def first_free_offset(self) -> int:
        """An offset in `bronze.messages` that is higher than every offset of the generation, in all partitions."""
        return max((max(p.next_offset, p.first_offset) for p in self.partitions), default=self.offset_shift)


def read_topics(spark: SparkSession | None, lake: Lake) -> list[TopicGeneration]:
    """Returns all rows of `ops.topics`, sorted by topic and generation; empty if bronze has never run."""
    return parse_topics_table_rows(lake.reader(spark).read_rows(TOPICS))


def parse_topics_table_rows(rows: Iterable[Mapping[str, Any]]) -> list[TopicGeneration]:
    """Converts rows of `ops.topics` to `TopicGeneration`s, sorted by topic and generation."""
    topics = []
    for row in rows:
        parts = tuple(PartitionOffsets(**part) for part in row["partitions"])
        topics.append(TopicGeneration(**{**row, "state": TopicState(row["state"]), "partitions": parts}))
    return sorted(topics, key=lambda topic: (topic.topic, topic.generation))


def write_topics(spark: SparkSession, lake: Lake, topics: Iterable[TopicGeneration], txn: Txn | None = None) -> None:
    """Replaces all rows of `ops.topics`. If a transaction is given, a replay of it changes nothing."""
    rows = [asdict(row) | {"state": str(row.state)} for row in topics]
    replace_rows(spark, lake, TOPICS, pa.Table.from_pylist(rows, arrow_schema(TOPICS)), txn)


def select_latest_generations(topics: Iterable[TopicGeneration]) -> dict[str, TopicGeneration]:
    """Returns the latest generation of each topic, by topic name: the row with the highest generation number."""
    return {row.topic: row for row in sorted(topics, key=lambda row: row.generation)}


def find_offsets_between_generations(topics: Iterable[TopicGeneration]) -> UnusedOffsets:
    """Returns, by topic-partition, the offsets that no message has, between two generations of the topic.

    Each run of such offsets is a pair `(first, end)`, from one past the last offset of a generation to just before the
    first offset of the next.
    """
    ends: dict[TopicPartition, int] = {}
    found: UnusedOffsets = defaultdict(list)
    for row in sorted(topics, key=lambda row: row.generation):
        for part in row.partitions:
            place = row.topic, part.partition
            if place in ends and part.first_offset > ends[place]:
                found[place].append((ends[place], part.first_offset))
            ends[place] = max(part.next_offset, part.first_offset)
    return dict(found)
