"""Stream time: the highest Kafka timestamp of a topic-partition so far, message by message, however it is cut up.

A shard sees some messages of a topic-partition only, and a task some stretch of it. So whoever sees a stretch
whole says what its messages did to the clock, and from where (its `Segments`, sent to every shard), and each message
carries the clock within its stretch. Together that is the clock at every message. Of what it is sent, a shard takes
note where it has messages or sessions, and keeps the topic-partitions of its sessions.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.integrity.cursor import NO_TIME
from sessionlake.protocol.types import Int64s, TopicPartition

BEGINNING = -1
"""The offset before the first of a topic-partition."""
_CODEC = "zstd"
_FIELDS = ("lane", "first", "last", "start", "highest")


class LaneTime(msgspec.Struct, array_like=True):
    """Where a topic-partition stands: its stream time in ms, and the offset it has come to."""

    topic: str
    partition: int
    time: int
    offset: int


class TimesBefore(Protocol):
    """Where stream times before a batch are looked up; picklable, since Spark ships it to its workers."""

    def before(self, names: Sequence[TopicPartition], first: Int64s) -> tuple[Int64s, Int64s]:
        """How far stream time had come before an offset.

        Args:
            names: topic-partitions, each once.
            first: of each, the offset.

        Returns:
            Of each, the highest Kafka timestamp (ms) of the batches before, and the last offset of these; `NO_TIME`
            and `BEGINNING` where there are none.
        """
        ...


@dataclass(frozen=True)
class Segments:
    """Runs of consecutive offsets, each of one topic-partition; column-wise, for there can be as many as messages.

    Attributes:
        names: the topic-partitions.
        before: of each, stream time in ms before the batch.
        since: of each, the offset that `before` is of.
        lane: of each segment, as its place in `names`.
        first: offset.
        last: offset.
        start: Kafka timestamp of the first message, ms.
        highest: Kafka timestamp of any message, ms.
    """

    names: list[TopicPartition]
    before: Int64s
    since: Int64s
    lane: Int64s
    first: Int64s
    last: Int64s
    start: Int64s
    highest: Int64s


class _Told(msgspec.Struct, array_like=True):
    names: list[TopicPartition]
    count: int
    packed: bytes
    known: bytes


_told = msgspec.msgpack.Decoder(_Told)


def encode_segments(segments: Segments) -> bytes:
    """Segments as bytes to send to the shards.

    Where every second offset is missing (transactions, compacted topics) it is a few bytes a segment.
    """
    columns = np.stack([getattr(segments, name) for name in _FIELDS])
    known = np.stack([segments.before, segments.since])
    return msgspec.msgpack.encode(_Told(segments.names, columns.shape[1], _packed(columns), _packed(known)))


def decode_segments(payload: bytes) -> Segments:
    """Reads what `encode_segments` wrote."""
    told = _told.decode(payload)
    known = _unpacked(told.known, 2, len(told.names))
    return Segments(told.names, *known, *_unpacked(told.packed, len(_FIELDS), told.count))


def _packed(columns: Int64s) -> bytes:
    """Rows of numbers: differences, bytes of like weight side by side, compressed."""
    steps = np.diff(columns, axis=1, prepend=0)
    planes = np.ascontiguousarray(steps.view(np.uint8).reshape(*steps.shape, 8).transpose(0, 2, 1))
    packed: bytes = pa.compress(planes.tobytes(), codec=_CODEC, asbytes=True)
    return packed


def _unpacked(packed: bytes, rows: int, count: int) -> Int64s:
    shape = rows, 8, count
    raw = pa.decompress(packed, decompressed_size=int(np.prod(shape)), codec=_CODEC, asbytes=True)
    steps = np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(shape).transpose(0, 2, 1)).view(np.int64)
    return np.cumsum(steps.reshape(rows, count), axis=1)


def segments_of(
    lane: Int64s, names: list[TopicPartition], offset: Int64s, kafka_ts: Int64s, times: TimesBefore
) -> tuple[Segments, Int64s]:
    """Cuts messages, in any order, into segments.

    Args:
        lane: index into `names` of each message's topic-partition.

    Returns:
        The segments, and for each message the highest timestamp of its segment up to it.
    """
    order = np.lexsort((offset, lane))
    lanes, offsets, at = lane[order], offset[order], kafka_ts[order]
    starts = np.flatnonzero((np.diff(lanes, prepend=-1) != 0) | (np.diff(offsets, prepend=0) != 1))
    ends = np.append(starts[1:], len(order))[: len(starts)]
    running = running_maximum(at, np.repeat(np.arange(len(starts)), ends - starts))
    lowest, begins = np.zeros(len(names), np.int64), np.flatnonzero(np.diff(lanes, prepend=-1))
    lowest[lanes[begins]] = offsets[begins]
    known = times.before(names, lowest)
    told = Segments(names, *known, lanes[starts], offsets[starts], offsets[ends - 1], at[starts], running[ends - 1])
    unsorted = np.empty_like(running)
    unsorted[order] = running
    return told, unsorted


def running_maximum(values: Int64s, group: Int64s) -> Int64s:
    """Highest value so far within each group; groups are ascending."""
    if not ((values[1:] < values[:-1]) & (group[1:] == group[:-1])).any():
        return values
    distinct, rank = np.unique(values, return_inverse=True)
    highest = np.maximum.accumulate(group * len(distinct) + rank.reshape(-1)) - group * len(distinct)
    return distinct[highest]


@dataclass(frozen=True)
class Behind:
    """A batch's segments by topic-partition and offset, and the clock before each; empty if no segment is behind it.

    Attributes:
        lane: of each segment, as its place in `Clock.lanes`.
        first: offset.
        before: stream time before the segment, ms.
    """

    lane: Int64s
    first: Int64s
    before: Int64s

    def times(self, lane: Int64s, offset: Int64s, within: Int64s) -> Int64s:
        """Stream time at each message of the batch.

        Args:
            within: the highest timestamp of its segment up to it.
        """
        segments = len(self.first)
        if not segments or not len(lane):
            return within
        # Sorted together, a message comes behind the start of its segment.
        is_message = np.repeat([False, True], [segments, len(lane)])
        order = np.lexsort((is_message, np.append(self.first, offset), np.append(self.lane, lane)))
        place = np.cumsum(~is_message[order]) - 1
        messages = is_message[order]
        segment = np.empty(len(lane), np.int64)
        segment[order[messages] - segments] = place[messages]
        return np.maximum(within, self.before[segment])


NOTHING_BEHIND = Behind(*(np.zeros(0, np.int64) for _ in range(3)))


@dataclass
class Clock:
    """Stream times of a shard's topic-partitions.

    Attributes:
        lanes: where each stands; cursors refer to their place in this list.
        since: of those that the batch has messages of, the offset that they stood at before it.
    """

    lanes: list[LaneTime]
    since: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index = {(lane.topic, lane.partition): number for number, lane in enumerate(self.lanes)}

    def index(self, lane: TopicPartition) -> int:
        """The lane of a topic-partition: its place in `lanes`."""
        return self._index[lane]

    def add(self, lane: LaneTime) -> int:
        """The place of a topic-partition, which is put behind the others if it is not there yet."""
        place = self._index.setdefault((lane.topic, lane.partition), len(self.lanes))
        if place == len(self.lanes):
            self.lanes.append(lane)
        return place

    @property
    def now(self) -> dict[TopicPartition, int]:
        """Stream time of every topic-partition."""
        return {(lane.topic, lane.partition): lane.time for lane in self.lanes}

    @property
    def times(self) -> Int64s:
        """Stream time of every lane."""
        return np.array([lane.time for lane in self.lanes], np.int64)

    @property
    def offsets(self) -> Int64s:
        """Last offset of every lane."""
        return np.array([lane.offset for lane in self.lanes], np.int64)

    def advance(self, told: Sequence[Segments], here: Collection[TopicPartition]) -> Behind:
        """Moves the lanes on over a batch's segments.

        Args:
            here: the topic-partitions that the shard has messages of: these, and those that it has already, are its.
        """
        mine = [self._of_mine(segments, here) for segments in told]
        lane, first, last, start, highest = np.concatenate([np.zeros((len(_FIELDS), 0), np.int64), *mine], axis=1)
        if not len(lane):
            return NOTHING_BEHIND
        order = np.lexsort((first, lane))
        lane, first, last, start, highest = (values[order] for values in (lane, first, last, start, highest))
        begins = np.flatnonzero(np.diff(lane, prepend=-1))
        ends = np.append(begins[1:], len(lane)) - 1
        stands = [self.lanes[place] for place in lane[begins].tolist()]
        # What the clock said after each segment, then what it said before: after the one in front of it.
        highest[begins] = np.maximum(highest[begins], [item.time for item in stands])
        after = running_maximum(highest, lane)
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[begins] = [item.time for item in stands]
        for item, time, offset in zip(stands, after[ends].tolist(), last[ends].tolist(), strict=True):
            item.time, item.offset = time, max(item.offset, offset)
        return Behind(lane, first, before) if (before > start).any() else NOTHING_BEHIND

    def _of_mine(self, told: Segments, here: Collection[TopicPartition]) -> Int64s:
        """The segments that concern the shard, as rows `_FIELDS`; their lanes are there, and stand as before the batch.

        What is known further on counts: what the shard has kept, or what it is told.
        """
        places = np.full(len(told.names), -1, np.int64)
        for number, name in enumerate(told.names):
            if name in self._index or name in here:
                place = places[number] = self.add(LaneTime(*name, NO_TIME, BEGINNING))
                lane, since = self.lanes[place], int(told.since[number])
                if since > lane.offset:
                    lane.time, lane.offset = int(told.before[number]), since
                self.since[name] = lane.offset
        kept = places[told.lane] >= 0
        columns = [places[told.lane], told.first, told.last, told.start, told.highest]
        return np.stack([values[kept] for values in columns])
