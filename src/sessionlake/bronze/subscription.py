"""Options for Spark's Kafka source, and the offsets at which a generation of the checkpoint resumes.

Spark fixes the starting offsets when a checkpoint is new, and remembers every topic-partition that it has read. A
topic-partition that leaves the subscription stops the query; a new one is read from its beginning. If `ops.topics` and
the ledger require anything else, bronze begins a new generation of the checkpoint with explicit starting offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sessionlake.bronze.offsets import INITIAL_OFFSETS_FILE, Offsets, read_kafka_offsets_file
from sessionlake.protocol.types import TopicPartition
from sessionlake.streaming.checkpoint import read_last_committed_batch, read_last_planned_batch


def build_topic_pattern(topics: str, excluded: Iterable[str]) -> str:
    """Returns a Java regular expression that matches the topics to subscribe to.

    Args:
        topics: Regular expression for complete topic names.
        excluded: Topic names that the result must not match.
    """
    names = "|".join(re.escape(name) for name in sorted(excluded))
    return f"^(?!(?:{names})$)(?:{topics})$" if names else f"^(?:{topics})$"


def encode_starting_offsets(positions: Mapping[TopicPartition, int]) -> str:
    """Returns the JSON text of the option `startingOffsets` of Spark's Kafka source.

    Args:
        positions: First Kafka offset to read, by topic-partition. Spark requires exactly the subscribed ones.
    """
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


class CheckpointOffsets:
    """Reads the Kafka offsets in the checkpoint of a query that is not running. Changes nothing in it.

    Args:
        folder: Folder of the checkpoint's generation.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def has_started(self) -> bool:
        """True if the query has ever asked Kafka for offsets: its starting offsets are fixed from then on."""
        return (self._folder / INITIAL_OFFSETS_FILE).is_file()

    @property
    def pending_batch(self) -> int | None:
        """Spark's number of the batch that is planned but not finished; None if there is none."""
        planned = read_last_planned_batch(self._folder)
        return planned if planned is not None and planned != read_last_committed_batch(self._folder) else None

    def read_next_batch_start(self) -> Offsets:
        """Returns the Kafka offsets at which the next batch starts, by topic-partition.

        The next batch is one that was planned and not finished, or else the batch that Spark will plan next.
        """
        done = read_last_committed_batch(self._folder)
        return read_kafka_offsets_file(
            self._folder / (INITIAL_OFFSETS_FILE if done is None else Path("offsets", str(done)))
        )

    def read_pending_batch_end(self) -> Offsets:
        """Returns one past the last Kafka offset of the batch that is planned but not finished, by topic-partition.

        There must be such a batch.
        """
        return read_kafka_offsets_file(self._folder / "offsets" / str(self.pending_batch))

    def would_resume_at(
        self,
        positions: Mapping[TopicPartition, int],
        kafka_ends: Mapping[TopicPartition, int],
        *,
        is_last_batch_stored: bool,
    ) -> bool:
        """Returns True if the query, restarted with this checkpoint, would resume at exactly these Kafka offsets.

        Args:
            positions: Kafka offsets that are to be read next, by topic-partition.
            kafka_ends: One past the last Kafka offset that can be read, by topic-partition. Used only if a batch is
                planned but not finished.
            is_last_batch_stored: True if the messages of the last planned batch are in the tables.
        """
        # Spark first repeats a pending batch, even if the tables have it and Kafka has removed its messages. It fails
        # if partitions of that batch are gone, and under `availableNow` also if there are new ones. It waits forever
        # for offsets that a topic which was created again has not reached.
        if self.pending_batch is not None:
            end = self.read_pending_batch_end()
            if (
                is_last_batch_stored
                or end.keys() != positions.keys()
                or any(end[place] > kafka_ends[place] for place in end)
            ):
                return False
        # Spark reads topic-partitions that the checkpoint does not know from offset 0, or fails.
        start = self.read_next_batch_start()
        return start.keys() <= positions.keys() and all(start.get(place, 0) == at for place, at in positions.items())

    def ends_pending_batch_at(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Returns True if a batch is planned but not finished, and it ends at exactly these Kafka offsets.

        Args:
            positions: One past the last Kafka offset, by topic-partition.
        """
        return self.pending_batch is not None and self.read_pending_batch_end() == positions
