"""`ops.topics`: the life of every captured topic, one row a generation. Kept by bronze, read by everybody.

A topic that is deleted and created anew begins at Kafka's offset 0 again. `bronze.messages` goes on rising all the
same: a later generation's offsets are Kafka's plus its `offset_shift`, which lies beyond every earlier offset of the
topic. So topic, partition and offset stay a message's identity, and their order is the order of arrival.
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

Jumps = dict[TopicPartition, list[tuple[int, int]]]


class TopicState(StrEnum):
    """How a generation of a topic stands."""

    ACTIVE = "active"
    INACTIVE = "inactive"
    """No message for `kafka.inactive_after`: not subscribed to until one comes."""
    DELETED = "deleted"
    RECREATED = "recreated"
    """Another topic has its name now: the next generation, if the rule took it in."""
    CUT = "cut"
    """Kafka's retention removed messages before they were read; the next generation goes on behind them."""
    FORGOTTEN = "forgotten"
    """Not read any more, by the rule `forget`."""


READ_STATES = frozenset({TopicState.ACTIVE, TopicState.INACTIVE})
"""States in which every further message is going to be read."""


@dataclass(frozen=True)
class PartitionOffsets:
    """One partition of a generation; offsets as in `bronze.messages`.

    Attributes:
        first_offset: the first that there was when it was first seen.
        next_offset: one past the last that bronze has taken in.
        end_offset: one past the last that Kafka was seen to hold.
    """

    partition: int
    first_offset: int
    next_offset: int
    end_offset: int


@dataclass(frozen=True)
class Topic:
    """One row of `ops.topics`.

    Attributes:
        generation: 0, and one more each time that `restart` took the name in anew or `forget` passed it over.
        topic_id: Kafka's own, which no other topic ever has; None where the brokers give none.
        offset_shift: offset in `bronze.messages` less that in Kafka.
        lost: messages known to have been lost unread, None if none are; `next_offset` says from where on.
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
    def free_offset(self) -> int:
        """An offset beyond every one that the generation has, in any partition."""
        return max((max(p.next_offset, p.first_offset) for p in self.partitions), default=self.offset_shift)


def read_topics(spark: SparkSession | None, lake: Lake) -> list[Topic]:
    """All rows of `ops.topics`, by topic and generation; none before bronze has run."""
    return parse_topics(lake.reader(spark).rows(TOPICS))


def parse_topics(rows: Iterable[Mapping[str, Any]]) -> list[Topic]:
    """Rows of the table, as a reader gives them, by topic and generation."""
    topics = []
    for row in rows:
        parts = tuple(PartitionOffsets(**part) for part in row["partitions"])
        topics.append(Topic(**{**row, "state": TopicState(row["state"]), "partitions": parts}))
    return sorted(topics, key=lambda topic: (topic.topic, topic.generation))


def write_topics(spark: SparkSession, lake: Lake, topics: Iterable[Topic], txn: Txn | None = None) -> None:
    """Replaces the table's rows; with a transaction, once."""
    rows = [asdict(row) | {"state": str(row.state)} for row in topics]
    replace_rows(spark, lake, TOPICS, pa.Table.from_pylist(rows, arrow_schema(TOPICS)), txn)


def latest_generations(topics: Iterable[Topic]) -> dict[str, Topic]:
    """Each topic's last generation."""
    return {row.topic: row for row in sorted(topics, key=lambda row: row.generation)}


def offset_jumps(topics: Iterable[Topic]) -> Jumps:
    """Offsets `[left, arrived)` that no message has, since a generation ended and the next began beyond it."""
    ends: dict[TopicPartition, int] = {}
    found: Jumps = defaultdict(list)
    for row in sorted(topics, key=lambda row: row.generation):
        for part in row.partitions:
            place = row.topic, part.partition
            if place in ends and part.first_offset > ends[place]:
                found[place].append((ends[place], part.first_offset))
            ends[place] = max(part.next_offset, part.first_offset)
    return dict(found)
