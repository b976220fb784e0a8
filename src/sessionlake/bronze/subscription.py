"""What Spark's Kafka source is asked for, and where a generation of the query stands.

Spark fixes both topics and starting offsets when a checkpoint is new, and keeps every topic-partition that it ever read
in it: one that the subscription lost stops the query, one that it gained is read from its beginning. So whatever else
`ops.topics` and the ledger call for begins a new generation of the checkpoint, with explicit starting offsets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from sessionlake.bronze.offsets import INITIAL, Offsets, read_offsets
from sessionlake.protocol.types import TopicPartition
from sessionlake.streaming.checkpoint import last_committed, last_planned


def pattern(topics: str, excluded: Iterable[str]) -> str:
    """A Java regular expression for whole names that match `topics`, without those excluded."""
    names = "|".join(re.escape(name) for name in sorted(excluded))
    return f"^(?!(?:{names})$)(?:{topics})$" if names else f"^(?:{topics})$"


def starting_offsets(positions: Mapping[TopicPartition, int]) -> str:
    """The option `startingOffsets` of Spark's source: it must name all topic-partitions, and no other."""
    topics: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        topics.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(topics, separators=(",", ":"))


class QueryOffsets:
    """Where a query that does not run stands, by its checkpoint, which is only read.

    Args:
        folder: the generation's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def begun(self) -> bool:
        """Whether the query has ever looked at Kafka: from then on its starting offsets are settled."""
        return (self._folder / INITIAL).is_file()

    @property
    def pending(self) -> int | None:
        """Spark's number of the batch that was planned and may be half done, if there is one."""
        planned = last_planned(self._folder)
        return planned if planned is not None and planned != last_committed(self._folder) else None

    def start(self) -> Offsets:
        """Where the next batch to be done goes on, pending or not."""
        done = last_committed(self._folder)
        return read_offsets(self._folder / (INITIAL if done is None else Path("offsets", str(done))))

    def end(self) -> Offsets:
        """Where the pending batch ends."""
        return read_offsets(self._folder / "offsets" / str(self.pending))

    def goes_on_at(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], *, settled: bool
    ) -> bool:
        """Whether the query, started again, reads on at just these positions.

        Args:
            ends: one past the last offset that may be read of each of the same topic-partitions; of a pending batch.
            settled: whether the batch planned last is in the tables.
        """
        # Spark repeats a pending batch, in the tables or not, before it does anything else: what is in the tables Kafka
        # may hold no longer. It fails if partitions of it are gone, and by `availableNow` also if there are more; and
        # it waits in vain for offsets that a topic made anew, which begins at the same one, has not got to.
        if self.pending is not None:
            end = self.end()
            if settled or end.keys() != positions.keys() or any(end[place] > ends[place] for place in end):
                return False
        # What Spark does not know it reads from offset 0 on, or fails.
        start = self.start()
        return start.keys() <= positions.keys() and all(start.get(place, 0) == at for place, at in positions.items())

    def ended_at(self, positions: Mapping[TopicPartition, int]) -> bool:
        """Whether the pending batch, if there is one, ends at just these positions: nothing else is called for."""
        return self.pending is not None and self.end() == positions
