"""Stream time: the highest Kafka timestamp of a topic-partition so far, message by message, however it is cut up.

A shard sees some messages of a topic-partition only, and a task some stretch of it. So whoever sees a stretch
whole says what its messages did to the clock, and from where (its `Segments`, sent to every shard), and each message
carries the clock within its stretch. Together that is the clock at every message. Of what it is sent, a shard takes
note where it has messages or sessions, and keeps the topic-partitions of its sessions.

A silence (see `protocol.silence`) moves the clock, too: for all that comes behind its place.

Until a message or a silence says a time (see `protocol.kafka_time`), a topic-partition has none: its clock stands at
`NO_TIME`. The first time that is said counts for what came before it, too; sessions that wait for it are told by
`Clock.begun`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
import pyarrow as pa

from sessionlake.integrity.cursor import NEVER, NO_TIME
from sessionlake.protocol.arrow import running_maximum
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import Int64s, TopicPartition

BEGINNING = -1
"""The offset before the first of a topic-partition."""
_CODEC = "zstd"
_FIELDS = ("lane", "first", "last", "start", "highest")
_SILENT = ("silent", "behind", "until")


class LaneTime(msgspec.Struct, array_like=True):
    """Where a topic-partition stands: its stream time in ms (`NO_TIME`: none yet), and the offset it has come to."""

    topic: str
    partition: int
    time: int
    offset: int

    @property
    def now(self) -> int:
        """Its stream time in ms, `NO_KAFKA_TIME` while it has none."""
        return NO_KAFKA_TIME if self.time == NO_TIME else self.time


class TimesBefore(Protocol):
    """Where stream times before a batch are looked up; picklable, since Spark ships it to its workers."""

    def before(self, names: Sequence[TopicPartition], first: Int64s) -> tuple[Int64s, Int64s]:
        """How far stream time had come before an offset.

        Args:
            names: topic-partitions, each once.
            first: of each, the offset.

        Returns:
            Of each, stream time (ms) after the batches before, and the last offset of these; `NO_TIME` and `BEGINNING`
            where there are none.
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
        start: the time that the first message says, ms; `NO_TIME` if no message of the segment says any.
        highest: the highest time that a message says, ms.
        silent: of each silence, its topic-partition's place in `names`.
        behind: of each, the offset of the last message before it.
        until: of each, the stream time that it came to, ms.
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
    def silences(self) -> list[LaneTime]:
        """Where those topic-partitions stand that were silent, behind each silence."""
        time = np.maximum(self.until, self.before[self.silent])
        names = (self.names[place] for place in self.silent.tolist())
        stands = zip(names, time.tolist(), self.behind.tolist(), strict=True)
        return [LaneTime(topic, partition, at, offset) for (topic, partition), at, offset in stands]


class _Told(msgspec.Struct, array_like=True):
    names: list[TopicPartition]
    count: int
    packed: bytes
    known: bytes
    silences: int
    silent: bytes


_told = msgspec.msgpack.Decoder(_Told)


def encode_segments(segments: Segments) -> bytes:
    """Segments as bytes to send to the shards.

    Where every second offset is missing (transactions, compacted topics) it is a few bytes a segment.
    """
    columns = np.stack([getattr(segments, name) for name in _FIELDS])
    known = np.stack([segments.before, segments.since])
    silent = np.stack([getattr(segments, name) for name in _SILENT])
    packed = [columns.shape[1], _packed(columns), _packed(known), silent.shape[1], _packed(silent)]
    return msgspec.msgpack.encode(_Told(segments.names, *packed))


def decode_segments(payload: bytes) -> Segments:
    """Reads what `encode_segments` wrote."""
    told = _told.decode(payload)
    known = _unpacked(told.known, 2, len(told.names))
    silent = _unpacked(told.silent, len(_SILENT), told.silences)
    return Segments(told.names, *known, *_unpacked(told.packed, len(_FIELDS), told.count), *silent)


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
    lane: Int64s,
    names: list[TopicPartition],
    offset: Int64s,
    said: Int64s,
    times: TimesBefore,
    silences: Sequence[Silence] = (),
) -> tuple[Segments, Int64s]:
    """Cuts messages, in any order, into segments.

    Args:
        lane: index into `names` of each message's topic-partition.
        said: the time that each message says, ms; `NO_TIME` where it says none.
        silences: between them, or behind them.

    Returns:
        The segments, and for each message the highest time of its segment up to it. A segment ends before the first
        message that says a time if it has begun with one that says none.
    """
    order = np.lexsort((offset, lane))
    lanes, offsets, at = lane[order], offset[order], said[order]
    starts_anew = (np.diff(lanes, prepend=-1) != 0) | (np.diff(offsets, prepend=0) != 1)
    running = running_maximum(at, np.cumsum(starts_anew))
    timed = running != NO_TIME
    starts_anew[1:] |= timed[1:] & ~timed[:-1]
    starts = np.flatnonzero(starts_anew)
    ends = np.append(starts[1:], len(order))[: len(starts)]
    places = {name: place for place, name in enumerate(names)}
    silent = [places.setdefault(silence.place, len(places)) for silence in silences]
    lowest, begins = np.full(len(places), np.iinfo(np.int64).max), np.flatnonzero(np.diff(lanes, prepend=-1))
    lowest[lanes[begins]] = offsets[begins]
    gone_by = np.array([(silence.behind, silence.until) for silence in silences], np.int64).reshape(-1, 2).T
    np.minimum.at(lowest, silent, gone_by[0] + 1)
    known = times.before([*places], lowest)
    columns = lanes[starts], offsets[starts], offsets[ends - 1], at[starts], running[ends - 1]
    told = Segments([*places], *known, *columns, np.array(silent, np.int64), *gone_by)
    unsorted = np.empty_like(running)
    unsorted[order] = running
    return told, unsorted


@dataclass(frozen=True)
class Behind:
    """What the clock said before stretches of a batch; empty if that is behind what their messages say themselves.

    Attributes:
        lane: of each stretch, as its place in `Clock.lanes`; ascending.
        first: its first offset; ascending in each lane.
        before: stream time before it, ms.
        silences: the same, of the stretches behind silences; each reaches to the end of its lane.
    """

    lane: Int64s
    first: Int64s
    before: Int64s
    silences: Behind | None = None

    def times(self, lane: Int64s, offset: Int64s, within: Int64s) -> Int64s:
        """Stream time at each message of the batch.

        Args:
            within: the highest time of its segment up to it.
        """
        times = np.maximum(within, self._before(lane, offset)) if len(self.first) and len(lane) else within
        return times if self.silences is None else self.silences.times(lane, offset, times)

    def _before(self, lane: Int64s, offset: Int64s) -> Int64s:
        """What the clock said before the stretch that each message is in; `NO_TIME` where it is in none."""
        stretches = len(self.first)
        # Sorted together, a message comes behind the start of its stretch.
        is_message = np.repeat([False, True], [stretches, len(lane)])
        order = np.lexsort((is_message, np.append(self.first, offset), np.append(self.lane, lane)))
        place = np.cumsum(~is_message[order]) - 1
        messages = is_message[order]
        stretch = np.empty(len(lane), np.int64)
        stretch[order[messages] - stretches] = place[messages]
        return np.where((stretch >= 0) & (self.lane[stretch] == lane), self.before[stretch], NO_TIME)


_NONE = np.zeros(0, np.int64)
NOTHING_BEHIND = Behind(_NONE, _NONE, _NONE)


class Beginning(NamedTuple):
    """The first time that is known of a topic-partition, ms, and the first offset for which it was known."""

    time: int
    offset: int


@dataclass
class Clock:
    """Stream times of a shard's topic-partitions.

    Attributes:
        lanes: where each stands; cursors refer to their place in this list.
        since: of those that the batch has messages of, the offset that they stood at before it.
        begun: of those whose time has become known with the batch, by their place in `lanes`, what began it.
    """

    lanes: list[LaneTime]
    since: dict[TopicPartition, int] = field(default_factory=dict)
    begun: dict[int, Beginning] = field(default_factory=dict)

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
        """Stream time of every topic-partition, `NO_KAFKA_TIME` while it has none."""
        return {(lane.topic, lane.partition): lane.now for lane in self.lanes}

    @property
    def times(self) -> Int64s:
        """Stream time of every lane, `NO_KAFKA_TIME` while it has none."""
        return np.array([lane.now for lane in self.lanes], np.int64)

    @property
    def begun_times(self) -> dict[TopicPartition, int]:
        """Of the topic-partitions in `begun`, the first known time, ms."""
        begun = ((self.lanes[place], first.time) for place, first in self.begun.items())
        return {(lane.topic, lane.partition): time for lane, time in begun}

    @property
    def first_timed(self) -> Int64s:
        """For every lane, the first offset of the batch at which its time was known; `NEVER` if it still is not."""
        found = np.array([NEVER if lane.time == NO_TIME else BEGINNING for lane in self.lanes], np.int64)
        found[[*self.begun]] = [begun.offset for begun in self.begun.values()]
        return found

    @property
    def has_untimed(self) -> bool:
        """Whether the batch may have messages from before their topic-partition's time was known."""
        return bool(self.begun) or any(lane.time == NO_TIME for lane in self.lanes)

    def with_first_time(self, lane: Int64s, now: Int64s) -> Int64s:
        """Stream times in which messages from before the first known time have that: `NO_KAFKA_TIME` if none is known.

        Args:
            lane: of each message.
            now: stream time when it came, ms; `NO_TIME` where none was known.
        """
        if not self.has_untimed:
            return now
        first = np.full(len(self.lanes), NO_KAFKA_TIME, np.int64)
        first[[*self.begun]] = [begun.time for begun in self.begun.values()]
        return np.where(now == NO_TIME, first[lane], now)

    @property
    def offsets(self) -> Int64s:
        """Last offset of every lane."""
        return np.array([lane.offset for lane in self.lanes], np.int64)

    def advance(self, told: Sequence[Segments], here: Collection[TopicPartition]) -> Behind:
        """Moves the lanes on over a batch's segments.

        Args:
            here: the topic-partitions that the shard has messages of: these, and those that it has already, are its.
        """
        waiting = {place for place, lane in enumerate(self.lanes) if lane.time == NO_TIME}
        mine, silent = zip(*(self._of_mine(segments, here) for segments in told), strict=True) if told else ((), ())
        segments = np.concatenate([np.zeros((len(_FIELDS), 0), np.int64), *mine], axis=1)
        silences = np.concatenate([np.zeros((len(_SILENT), 0), np.int64), *silent], axis=1)
        self._begin(waiting, segments, silences)
        behind = self._pass_over(segments)
        passed = self._pass_silences(silences)
        return behind if passed is None else replace(behind, silences=passed)

    def _begin(self, waiting: Collection[int], segments: Int64s, silences: Int64s) -> None:
        """Notes which lanes get their first time: from what was before the batch, a silence, or a message of it."""
        known = (place for place in waiting if self.lanes[place].time != NO_TIME)
        self.begun = {place: Beginning(self.lanes[place].time, BEGINNING) for place in known}
        untimed = {place for place, lane in enumerate(self.lanes) if lane.time == NO_TIME}
        if not untimed:
            return
        timed = segments[:, segments[4] != NO_TIME]
        said = zip(timed[0].tolist(), timed[1].tolist(), timed[3].tolist(), strict=True)
        silent = ((lane, behind + 1, until) for lane, behind, until in silences.T.tolist())
        # A silence before an offset comes before the message that has it.
        found = [(lane, offset, 1, time) for lane, offset, time in said if lane in untimed]
        found += [(lane, offset, 0, time) for lane, offset, time in silent if lane in untimed]
        for lane, offset, _, time in sorted(found):
            self.begun.setdefault(lane, Beginning(time, offset))

    def _pass_over(self, segments: Int64s) -> Behind:
        lane, first, last, start, highest = segments
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

    def _pass_silences(self, silences: Int64s) -> Behind | None:
        """Moves the lanes on over silences; gives what the clock says behind each, None if there are none."""
        if not silences.shape[1]:
            return None
        silences = silences[:, np.lexsort((silences[1], silences[0]))]
        lane, behind, until = silences[0], silences[1], running_maximum(silences[2], silences[0])
        for place, time in zip(lane.tolist(), until.tolist(), strict=True):
            self.lanes[place].time = max(self.lanes[place].time, time)
        return Behind(lane, behind + 1, until)

    def _of_mine(self, told: Segments, here: Collection[TopicPartition]) -> tuple[Int64s, Int64s]:
        """What concerns the shard, as rows `_FIELDS` and `_SILENT`; the lanes are there, and stand as before the batch.

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
        return _at(places, [getattr(told, name) for name in _FIELDS]), _at(places, [getattr(told, n) for n in _SILENT])


def _at(places: Int64s, columns: Sequence[Int64s]) -> Int64s:
    """Rows of which the first column is a topic-partition's place among names, as they are here; not those without."""
    place = places[columns[0]]
    return np.stack([place, *columns[1:]])[:, place >= 0]
