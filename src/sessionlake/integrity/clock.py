"""Stream time: the highest Kafka timestamp of a topic-partition so far, at each message.

It must not depend on how messages are split among shards and tasks. But a shard sees only some messages of a
topic-partition, and a task packs only some of its offsets. So each task cuts its messages into segments of consecutive
offsets and sends their timestamps (`OffsetSegments`) to every shard. `ShardClock.advance_clock` combines all segments
of a batch into the stream time at each message of the shard. It remembers only topic-partitions that have sessions.

A silence (`protocol.silence`) also moves the clock, for everything after its offset.

A topic-partition has no stream time (`NO_TIME`) until a message or a silence gives one. That first time also counts for
the messages before it: `ShardClock.first_times` has it for each topic-partition that got it with the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.integrity.cursor import NEVER, NO_TIME
from sessionlake.integrity.segment_times import NO_STRETCHES, StreamTimesBeforeSegments
from sessionlake.protocol.arrow import compute_running_maximum
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import Int64s, TopicPartition

BEGINNING = -1
"""The offset before the first one of a topic-partition."""
_CODEC = "zstd"
_FIELDS = ("lane", "first", "last", "start", "highest")
_SILENT = ("silent", "behind", "until")


class PartitionStreamTime(msgspec.Struct, array_like=True):
    """The stream time of a topic-partition in ms (`NO_TIME`: none yet), and the last offset that it includes."""

    topic: str
    partition: int
    time: int
    offset: int

    @property
    def known_stream_time(self) -> int:
        """The stream time in ms, or `NO_KAFKA_TIME` if there is none yet."""
        return NO_KAFKA_TIME if self.time == NO_TIME else self.time


class EarlierStreamTimes(Protocol):
    """Looks up stream times that earlier batches have stored. Picklable, because Spark sends it to its workers."""

    def read_stream_times_before(self, partitions: Sequence[TopicPartition], offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Returns the stream time of each topic-partition before a given offset.

        Args:
            partitions: Topic-partitions, each once.
            offsets: For each topic-partition, the offset before which its stream time is wanted.

        Returns:
            Two arrays with a value for each topic-partition: the stream time (ms) that earlier batches left, and the
            last offset of these batches. `NO_TIME` and `BEGINNING` if there are no earlier batches.
        """
        ...


@dataclass(frozen=True)
class OffsetSegments:
    """Messages with consecutive offsets of a topic-partition, as segments. The arrays can be very long.

    Attributes:
        names: The topic-partitions.
        before: For each topic-partition, its stream time before the batch, ms.
        since: For each topic-partition, the offset at which `before` was its stream time.
        lane: For each segment, the index of its topic-partition in `names`.
        first: First offset of each segment.
        last: Last offset of each segment.
        start: Timestamp of each segment's first message, ms; `NO_TIME` if no message of the segment has one.
        highest: Highest timestamp in each segment, ms.
        silent: For each silence, the index of its topic-partition in `names`.
        behind: For each silence, the offset of the last message before it.
        until: For each silence, the stream time that it moves the clock to, ms.
    """

    names: list[TopicPartition]
    before: Int64s
    since: Int64s
    lane: Int64s
    first: Int64s
    last: Int64s
    start: Int64s
    highest: Int64s
    silent: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    behind: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))
    until: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    @property
    def stream_times_after_silences(self) -> list[PartitionStreamTime]:
        """For each silence, its topic-partition, the stream time after it, and the offset of the message before it."""
        time = np.maximum(self.until, self.before[self.silent])
        names = (self.names[place] for place in self.silent.tolist())
        stands = zip(names, time.tolist(), self.behind.tolist(), strict=True)
        return [PartitionStreamTime(topic, partition, at, offset) for (topic, partition), at, offset in stands]


class _EncodedOffsetSegments(msgspec.Struct, array_like=True):
    names: list[TopicPartition]
    count: int
    packed: bytes
    known: bytes
    silences: int
    silent: bytes


_decoder = msgspec.msgpack.Decoder(_EncodedOffsetSegments)


def encode_offset_segments(segments: OffsetSegments) -> bytes:
    """Encodes segments for `decode_offset_segments`. They are compressed, as missing offsets can make many segments."""
    columns = np.stack([getattr(segments, name) for name in _FIELDS])
    known = np.stack([segments.before, segments.since])
    silent = np.stack([getattr(segments, name) for name in _SILENT])
    packed = [
        columns.shape[1],
        _compress_int_rows(columns),
        _compress_int_rows(known),
        silent.shape[1],
        _compress_int_rows(silent),
    ]
    return msgspec.msgpack.encode(_EncodedOffsetSegments(segments.names, *packed))


def decode_offset_segments(payload: bytes) -> OffsetSegments:
    """Decodes segments that `encode_offset_segments` wrote."""
    segments = _decoder.decode(payload)
    known = _decompress_int_rows(segments.known, 2, len(segments.names))
    silent = _decompress_int_rows(segments.silent, len(_SILENT), segments.silences)
    return OffsetSegments(
        segments.names, *known, *_decompress_int_rows(segments.packed, len(_FIELDS), segments.count), *silent
    )


def _compress_int_rows(rows: Int64s) -> bytes:
    """Compresses rows of integers: differences of neighbours, sorted by the significance of their bytes."""
    steps = np.diff(rows, axis=1, prepend=0)
    planes = np.ascontiguousarray(steps.view(np.uint8).reshape(*steps.shape, 8).transpose(0, 2, 1))
    packed: bytes = pa.compress(planes.tobytes(), codec=_CODEC, asbytes=True)
    return packed


def _decompress_int_rows(packed: bytes, row_count: int, column_count: int) -> Int64s:
    shape = row_count, 8, column_count
    raw = pa.decompress(packed, decompressed_size=int(np.prod(shape)), codec=_CODEC, asbytes=True)
    steps = np.ascontiguousarray(np.frombuffer(raw, np.uint8).reshape(shape).transpose(0, 2, 1)).view(np.int64)
    return np.cumsum(steps.reshape(row_count, column_count), axis=1)


def split_messages_into_offset_segments(
    partition_indices: Int64s,
    partitions: list[TopicPartition],
    message_offsets: Int64s,
    timestamps: Int64s,
    earlier_times: EarlierStreamTimes,
    silences: Sequence[Silence] = (),
) -> tuple[OffsetSegments, Int64s]:
    """Cuts messages into segments of consecutive offsets.

    A segment that starts with messages without a timestamp ends before the first message with one.

    Args:
        partition_indices: For each message, in any order, the index of its topic-partition in `partitions`.
        timestamps: The timestamp of each message, ms; `NO_TIME` where it has none.

    Returns:
        The segments, and for each message the highest timestamp (ms) in its segment up to this message.
    """
    order = np.lexsort((message_offsets, partition_indices))
    lanes, offsets, at = partition_indices[order], message_offsets[order], timestamps[order]
    is_start = (np.diff(lanes, prepend=-1) != 0) | (np.diff(offsets, prepend=0) != 1)
    running = compute_running_maximum(at, np.cumsum(is_start))
    timed = running != NO_TIME
    is_start[1:] |= timed[1:] & ~timed[:-1]
    starts = np.flatnonzero(is_start)
    ends = np.append(starts[1:], len(order))[: len(starts)]
    places = {name: place for place, name in enumerate(partitions)}
    silent = [places.setdefault(silence.topic_partition, len(places)) for silence in silences]
    lowest, begins = np.full(len(places), np.iinfo(np.int64).max), np.flatnonzero(np.diff(lanes, prepend=-1))
    lowest[lanes[begins]] = offsets[begins]
    silence_ends = np.array([(silence.behind, silence.until) for silence in silences], np.int64).reshape(-1, 2).T
    np.minimum.at(lowest, silent, silence_ends[0] + 1)
    known = earlier_times.read_stream_times_before([*places], lowest)
    columns = lanes[starts], offsets[starts], offsets[ends - 1], at[starts], running[ends - 1]
    segments = OffsetSegments([*places], *known, *columns, np.array(silent, np.int64), *silence_ends)
    unsorted = np.empty_like(running)
    unsorted[order] = running
    return segments, unsorted


class FirstStreamTime(NamedTuple):
    """The first stream time of a topic-partition, ms, and the offset of the message or silence that gave it."""

    time: int
    offset: int


@dataclass
class ShardClock:
    """The stream times of a shard's topic-partitions.

    Attributes:
        partition_times: Stream time and offset of each topic-partition; its index is its *lane*, which cursors store.
        previous_offsets: For each topic-partition with messages in the batch, its last offset before the batch.
        first_times: For each lane whose stream time became known with the batch, that first time.
    """

    partition_times: list[PartitionStreamTime]
    previous_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    first_times: dict[int, FirstStreamTime] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._index = {(lane.topic, lane.partition): number for number, lane in enumerate(self.partition_times)}

    def find_partition_index(self, topic_partition: TopicPartition) -> int:
        """Returns the index of a topic-partition in `partition_times`. The topic-partition must be in it."""
        return self._index[topic_partition]

    def add_partition_if_new(self, partition_time: PartitionStreamTime) -> int:
        """Returns the index of a topic-partition in `partition_times`. Appends it if it is new."""
        place = self._index.setdefault((partition_time.topic, partition_time.partition), len(self.partition_times))
        if place == len(self.partition_times):
            self.partition_times.append(partition_time)
        return place

    @property
    def stream_times_by_partition(self) -> dict[TopicPartition, int]:
        """The stream time (ms) by topic-partition; `NO_KAFKA_TIME` for one that has none."""
        return {(lane.topic, lane.partition): lane.known_stream_time for lane in self.partition_times}

    @property
    def partition_stream_times(self) -> Int64s:
        """The stream time (ms) of each topic-partition in `partition_times`; `NO_KAFKA_TIME` for one that has none."""
        return np.array([lane.known_stream_time for lane in self.partition_times], np.int64)

    @property
    def first_stream_times_by_partition(self) -> dict[TopicPartition, int]:
        """The first stream time (ms) of each topic-partition that had none before the batch, by topic-partition."""
        known = ((self.partition_times[place], first.time) for place, first in self.first_times.items())
        return {(lane.topic, lane.partition): time for lane, time in known}

    @property
    def first_offsets_with_stream_time(self) -> Int64s:
        """For each topic-partition, the first offset of the batch at which stream time is known; `NEVER` if none."""
        found = np.array([NEVER if lane.time == NO_TIME else BEGINNING for lane in self.partition_times], np.int64)
        found[[*self.first_times]] = [known.offset for known in self.first_times.values()]
        return found

    @property
    def may_have_messages_without_stream_time(self) -> bool:
        """True if the batch may have messages that arrived before their topic-partition had a stream time."""
        return bool(self.first_times) or any(lane.time == NO_TIME for lane in self.partition_times)

    def replace_unknown_stream_times(self, partition_indices: Int64s, stream_times: Int64s) -> Int64s:
        """Returns the stream times with `NO_TIME` replaced: by the partition's first time, else by `NO_KAFKA_TIME`.

        Args:
            partition_indices: The lane of each message: the index of its topic-partition in `partition_times`.
            stream_times: Stream time at each message's arrival, ms; `NO_TIME` where it was not known.
        """
        if not self.may_have_messages_without_stream_time:
            return stream_times
        first = np.full(len(self.partition_times), NO_KAFKA_TIME, np.int64)
        first[[*self.first_times]] = [known.time for known in self.first_times.values()]
        return np.where(stream_times == NO_TIME, first[partition_indices], stream_times)

    @property
    def last_partition_offsets(self) -> Int64s:
        """The last offset of each topic-partition in `partition_times`."""
        return np.array([lane.offset for lane in self.partition_times], np.int64)

    def advance_clock(
        self, batch_segments: Sequence[OffsetSegments], partitions: Collection[TopicPartition]
    ) -> StreamTimesBeforeSegments:
        """Advances the clock by a batch's segments and silences. Returns the stream times for the batch's messages.

        Args:
            batch_segments: The segments sent by all tasks.
            partitions: The topic-partitions of the shard's messages. Others count only if they have a lane.
        """
        waiting = {place for place, lane in enumerate(self.partition_times) if lane.time == NO_TIME}
        parts = [self._select_segments_of_partitions(segments, partitions) for segments in batch_segments]
        mine, silent = zip(*parts, strict=True) if parts else ((), ())
        segments = np.concatenate([np.zeros((len(_FIELDS), 0), np.int64), *mine], axis=1)
        silences = np.concatenate([np.zeros((len(_SILENT), 0), np.int64), *silent], axis=1)
        self._set_first_stream_times(waiting, segments, silences)
        stretches = self._advance_clock_by_segments(segments)
        silent_stretches = self._advance_clock_by_silences(silences)
        return stretches if silent_stretches is None else replace(stretches, silences=silent_stretches)

    def _set_first_stream_times(self, untimed_before: Collection[int], segments: Int64s, silences: Int64s) -> None:
        """Sets `first_times` for topic-partitions whose first stream time is from this or an earlier batch."""
        known = (place for place in untimed_before if self.partition_times[place].time != NO_TIME)
        self.first_times = {place: FirstStreamTime(self.partition_times[place].time, BEGINNING) for place in known}
        untimed = {place for place, lane in enumerate(self.partition_times) if lane.time == NO_TIME}
        if not untimed:
            return
        timed = segments[:, segments[4] != NO_TIME]
        timestamps = zip(timed[0].tolist(), timed[1].tolist(), timed[3].tolist(), strict=True)
        silent = ((lane, behind + 1, until) for lane, behind, until in silences.T.tolist())
        # A silence with an offset comes before the message with the same offset.
        found = [(lane, offset, 1, time) for lane, offset, time in timestamps if lane in untimed]
        found += [(lane, offset, 0, time) for lane, offset, time in silent if lane in untimed]
        for lane, offset, _, time in sorted(found):
            self.first_times.setdefault(lane, FirstStreamTime(time, offset))

    def _advance_clock_by_segments(self, segments: Int64s) -> StreamTimesBeforeSegments:
        lane, first, last, start, highest = segments
        if not len(lane):
            return NO_STRETCHES
        order = np.lexsort((first, lane))
        lane, first, last, start, highest = (values[order] for values in (lane, first, last, start, highest))
        begins = np.flatnonzero(np.diff(lane, prepend=-1))
        ends = np.append(begins[1:], len(lane)) - 1
        stands = [self.partition_times[place] for place in lane[begins].tolist()]
        # `after` is the stream time after each segment, `before` the one after the segment in front of it.
        highest[begins] = np.maximum(highest[begins], [item.time for item in stands])
        after = compute_running_maximum(highest, lane)
        before = np.empty_like(after)
        before[1:] = after[:-1]
        before[begins] = [item.time for item in stands]
        for item, time, offset in zip(stands, after[ends].tolist(), last[ends].tolist(), strict=True):
            item.time, item.offset = time, max(item.offset, offset)
        return StreamTimesBeforeSegments(lane, first, before) if (before > start).any() else NO_STRETCHES

    def _advance_clock_by_silences(self, silences: Int64s) -> StreamTimesBeforeSegments | None:
        """Advances the clock by silences. Returns the stream times after them; None if there are no silences."""
        if not silences.shape[1]:
            return None
        silences = silences[:, np.lexsort((silences[1], silences[0]))]
        lane, behind, until = silences[0], silences[1], compute_running_maximum(silences[2], silences[0])
        for place, time in zip(lane.tolist(), until.tolist(), strict=True):
            self.partition_times[place].time = max(self.partition_times[place].time, time)
        return StreamTimesBeforeSegments(lane, behind + 1, until)

    def _select_segments_of_partitions(
        self, segments: OffsetSegments, partitions: Collection[TopicPartition]
    ) -> tuple[Int64s, Int64s]:
        """Returns those segments and silences that are of the shard's topic-partitions, as arrays with a row per field.

        Adds these topic-partitions to the clock, with their latest known stream time before the batch.
        """
        places = np.full(len(segments.names), -1, np.int64)
        for number, name in enumerate(segments.names):
            if name in self._index or name in partitions:
                place = places[number] = self.add_partition_if_new(PartitionStreamTime(*name, NO_TIME, BEGINNING))
                lane, since = self.partition_times[place], int(segments.since[number])
                if since > lane.offset:
                    lane.time, lane.offset = int(segments.before[number]), since
                self.previous_offsets[name] = lane.offset
        columns, silences = ([getattr(segments, name) for name in names] for names in (_FIELDS, _SILENT))
        return _replace_partition_indices(places, columns), _replace_partition_indices(places, silences)


def _replace_partition_indices(new_indices: Int64s, rows: Sequence[Int64s]) -> Int64s:
    """Returns `rows` as a matrix with new indices in the first row. Columns whose new index is -1 are dropped."""
    place = new_indices[rows[0]]
    return np.stack([place, *rows[1:]])[:, place >= 0]
