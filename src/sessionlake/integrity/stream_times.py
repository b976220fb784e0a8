"""Notes of stream time: how far each topic-partition's had come at the offsets where batches ended.

A shard keeps the stream time of its sessions' topic-partitions alone. One that a batch brings to it for the first time
has messages behind it all the same, so who packs the batch looks up what they left. A note is a fact of the messages:
it is never wrong, and the one to go on from is the last before the batch's own messages. So a batch that is made once
more finds what it found the first time, though its own notes are there by then. A silence has the offset of the message
before it, and its note takes that one's place: no message is between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.clock import BEGINNING, LaneTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.protocol.arrow import codes
from sessionlake.protocol.types import Int64s, TopicPartition

SCHEMA = pa.schema(
    [("topic_partition", pa.string()), ("offset", pa.int64()), ("time", pa.int64())],
    metadata={"format": "sessionlake.stream_times/2"},
)
# Recent notes are written anew with every batch: up to so many, or to this share of all.
_RECENT = 4_096
_RECENT_SHARE = 1 / 16
# Of each topic-partition, the notes before and after the last batch that had messages of it.
_KEPT = 2


def _none() -> pa.Table:
    return SCHEMA.empty_table()


@dataclass(frozen=True)
class StreamTimes:
    """Notes at hand, as tables of `SCHEMA`: at least the last two of each topic-partition.

    Attributes:
        settled: most of them.
        recent: those since `settled` was put together; some may be in both.
    """

    settled: pa.Table = field(default_factory=_none)
    recent: pa.Table = field(default_factory=_none)

    def before(self, names: Sequence[TopicPartition], first: Int64s) -> tuple[Int64s, Int64s]:
        """See `integrity.clock.TimesBefore`."""
        time, offset = np.full(len(names), NO_TIME), np.full(len(names), BEGINNING, np.int64)
        wanted = pa.array([_key(*name) for name in names], pa.string())
        for notes in (self.settled, self.recent):
            place = pc.fill_null(pc.index_in(notes["topic_partition"], value_set=wanted), -1).to_numpy()
            found = np.flatnonzero(place >= 0)
            place, at = place[found], notes["offset"].to_numpy()[found]
            found, place, at = (values[at < first[place]] for values in (found, place, at))
            come = notes["time"].to_numpy()[found]
            later = (at > offset[place]) | ((at == offset[place]) & (come > time[place]))  # a silence has no offset
            order = np.lexsort((come, at))
            order = order[later[order]]
            # Of several at one place, the last is the one that stays.
            offset[place[order]], time[place[order]] = at[order], come[order]
        return time, offset

    def noted(self, ends: Iterable[LaneTime]) -> StreamTimes:
        """With notes of where topic-partitions stand after a batch."""
        rows = [(_key(end.topic, end.partition), end.offset, end.time) for end in ends]
        columns = zip(*rows, strict=True) if rows else [()] * len(SCHEMA)
        added = pa.table([pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
        recent = pa.concat_tables([self.recent, added]).combine_chunks()
        if recent.num_rows <= max(_RECENT, self.settled.num_rows * _RECENT_SHARE):
            return StreamTimes(self.settled, recent)
        return StreamTimes(_last_of_each(pa.concat_tables([self.settled, recent])))


def _key(topic: str, partition: int) -> str:
    return f"{topic}\0{partition}"


def _last_of_each(notes: pa.Table) -> pa.Table:
    """The notes that are still needed, each once."""
    code, offset = codes(notes["topic_partition"])[0], notes["offset"].to_numpy()
    order = np.lexsort((notes["time"].to_numpy(), offset, code))
    code, offset = code[order], offset[order]
    distinct = np.append((np.diff(code) != 0) | (np.diff(offset) != 0), True)[: len(order)]
    code, order = code[distinct], order[distinct]
    behind = np.searchsorted(code, code, side="right") - np.arange(len(code))
    return notes.take(pa.array(order[behind <= _KEPT])).combine_chunks()
