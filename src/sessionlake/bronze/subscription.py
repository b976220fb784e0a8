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

from sessionlake.bronze.offsets import INITIAL_OFFSETS_FILE, Offsets, read_offsets
from sessionlake.protocol.types import TopicPartition
from sessionlake.streaming.checkpoint import read_last_committed_batch, read_last_planned_batch


def build_topic_pattern(topics: str, excluded: Iterable[str]) -> str:
    """Returns a Java regular expression that matches the topics to subscribe to.

    Args:
        topics: Regular expression for complete topic names.
        excluded: Names that it must not match.
    """
    names = "|".join(re.escape(name) for name in sorted(excluded))
    return f"^(?!(?:{names})$)(?:{topics})$" if names else f"^(?:{topics})$"


def encode_starting_offsets(positions: Mapping[TopicPartition, int]) -> str:
    """Returns the option `startingOffsets` of Spark's source as JSON.

    Args:
        positions: First Kafka offset to read, by topic-partition. Spark requires exactly the subscribed ones.
    """
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


class QueryOffsets:
    """The offsets in the checkpoint of a query that is not running. The checkpoint is only read.

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

    def read_start(self) -> Offsets:
        """Returns the offsets at which the next batch starts, whether it is planned already or not."""
        done = read_last_committed_batch(self._folder)
        return read_offsets(self._folder / (INITIAL_OFFSETS_FILE if done is None else Path("offsets", str(done))))

    def read_end(self) -> Offsets:
        """Returns the offsets at which the pending batch ends, each one past its last. A batch must be pending."""
        return read_offsets(self._folder / "offsets" / str(self.pending_batch))

    def can_resume_at(
        self,
        positions: Mapping[TopicPartition, int],
        kafka_ends: Mapping[TopicPartition, int],
        *,
        is_last_batch_stored: bool,
    ) -> bool:
        """Returns True if a restarted query would resume at exactly these positions.

        Args:
            positions: Kafka offsets that are to be read next, by topic-partition.
            kafka_ends: One past the last Kafka offset that can be read, by topic-partition. Used only if a batch is
                pending: planned but not finished.
            is_last_batch_stored: True if the messages of the last planned batch are in the tables.
        """
        # Spark first repeats a pending batch, even if the tables have it and Kafka has removed its messages. It fails
        # if partitions of that batch are gone, and under `availableNow` also if there are new ones. It waits forever
        # for offsets that a topic which was created again has not reached.
        if self.pending_batch is not None:
            end = self.read_end()
            if (
                is_last_batch_stored
                or end.keys() != positions.keys()
                or any(end[place] > kafka_ends[place] for place in end)
            ):
                return False
        # Spark reads topic-partitions that the checkpoint does not know from offset 0, or fails.
        start = self.read_start()
        return start.keys() <= positions.keys() and all(start.get(place, 0) == at for place, at in positions.items())

    def has_ended_at(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Returns True if there is a pending batch and it ends at exactly these positions."""
        return self.pending_batch is not None and self.read_end() == positions
