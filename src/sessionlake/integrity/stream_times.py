"""Notes of stream time: what each topic-partition's stream time was at the offsets where batches ended.

A shard remembers stream time only for topic-partitions that have sessions in it. A batch can bring it messages of
another topic-partition, whose earlier messages count for stream time too. So the task that packs the batch looks up the
note that the earlier messages left.

A note follows from the messages, so it never becomes wrong. The note to use is the last one before the batch's own
messages. So a batch that is repeated uses the same note as the first time, even if the batch has written notes since.
A silence has the offset of the message before it, and its note replaces the note of that message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.clock import BEGINNING, PartitionStreamTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.protocol.arrow import encode_values_as_codes
from sessionlake.protocol.types import Int64s, TopicPartition

NOTES_SCHEMA = pa.schema(
    [("topic_partition", pa.string()), ("offset", pa.int64()), ("time", pa.int64())],
    metadata={"format": "sessionlake.stream_times/2"},
)
# Recent notes are rewritten with every batch, so there are at most this many, or this share of the settled notes.
_MAX_RECENT_NOTES = 4_096
_RECENT_SHARE = 1 / 16
# Number of notes kept per topic-partition: from before and after the last batch that had messages of it.
_NOTES_PER_PARTITION = 2


def _create_empty_stream_time_table() -> pa.Table:
    return NOTES_SCHEMA.empty_table()


@dataclass(frozen=True)
class StreamTimesAtBatchEnds:
    """Notes of stream time: each says what a topic-partition's stream time was at an offset.

    At least the last two of each.

    The tables have the columns `topic_partition`, `offset` and `time` (ms).

    Attributes:
        settled: Most of the notes; rewritten only when there are too many recent ones.
        recent: The notes written since then. A note can be in both tables.
    """

    settled: pa.Table = field(default_factory=_create_empty_stream_time_table)
    recent: pa.Table = field(default_factory=_create_empty_stream_time_table)

    def read_stream_times_before(self, partitions: Sequence[TopicPartition], offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the stream time of each topic-partition before a given offset, from its last note before that offset.

        Args:
            partitions: Topic-partitions, each once.
            offsets: For each topic-partition, the offset before which its stream time is wanted.

        Returns:
            For each topic-partition, stream time (ms) and offset of the note; `NO_TIME` and `BEGINNING` without one.
        """
        time, offset = np.full(len(partitions), NO_TIME), np.full(len(partitions), BEGINNING, np.int64)
        wanted = pa.array([_build_partition_key(*name) for name in partitions], pa.string())
        for notes in (self.settled, self.recent):
            place = pc.fill_null(pc.index_in(notes["topic_partition"], value_set=wanted), -1).to_numpy()
            found = np.flatnonzero(place >= 0)
            place, at = place[found], notes["offset"].to_numpy()[found]
            found, place, at = (values[at < offsets[place]] for values in (found, place, at))
            come = notes["time"].to_numpy()[found]
            # The note of a silence has the offset of the message before it, so two notes can have the same offset.
            later = (at > offset[place]) | ((at == offset[place]) & (come > time[place]))
            order = np.lexsort((come, at))
            order = order[later[order]]
            # If several notes go to one place, the last assignment counts.
            offset[place[order]], time[place[order]] = at[order], come[order]
        return time, offset

    def add_stream_times(self, partition_times: Iterable[PartitionStreamTime]) -> StreamTimesAtBatchEnds:
        """Returns the notes with new ones added.

        Args:
            partition_times: The stream time and last offset of each topic-partition after a batch.
        """
        rows = [(_build_partition_key(end.topic, end.partition), end.offset, end.time) for end in partition_times]
        columns = zip(*rows, strict=True) if rows else [()] * len(NOTES_SCHEMA)
        added = pa.table([pa.array(c, f.type) for c, f in zip(columns, NOTES_SCHEMA, strict=True)], schema=NOTES_SCHEMA)
        recent = pa.concat_tables([self.recent, added]).combine_chunks()
        if recent.num_rows <= max(_MAX_RECENT_NOTES, self.settled.num_rows * _RECENT_SHARE):
            return StreamTimesAtBatchEnds(self.settled, recent)
        return StreamTimesAtBatchEnds(_select_last_two_stream_times(pa.concat_tables([self.settled, recent])))


def _build_partition_key(topic: str, partition: int) -> str:
    return f"{topic}\0{partition}"


def _select_last_two_stream_times(notes: pa.Table) -> pa.Table:
    """Returns the last two notes of each topic-partition.

    Of notes with the same offset, only the one with the latest time.
    """
    code, offset = encode_values_as_codes(notes["topic_partition"])[0], notes["offset"].to_numpy()
    order = np.lexsort((notes["time"].to_numpy(), offset, code))
    code, offset = code[order], offset[order]
    distinct = np.append((np.diff(code) != 0) | (np.diff(offset) != 0), True)[: len(order)]
    code, order = code[distinct], order[distinct]
    behind = np.searchsorted(code, code, side="right") - np.arange(len(code))
    return notes.take(pa.array(order[behind <= _NOTES_PER_PARTITION])).combine_chunks()
