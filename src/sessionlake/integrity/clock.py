"""Stream time: the highest Kafka timestamp of a topic-partition so far, message by message, however it is cut up.

A shard sees some messages of a topic-partition only, and a task some stretch of it. So whoever sees a stretch
whole says what its messages did to the clock (a `Segment`, sent to every shard), and each message carries the
clock within its stretch. Together with the clock before the batch that is the clock at every message.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Lane = tuple[str, int]
"""Topic and partition."""


class Segment(msgspec.Struct, array_like=True, frozen=True):
    """Consecutive offsets of one topic-partition: the Kafka timestamp of the first, and the highest of all, in ms."""

    topic: str
    partition: int
    first: int
    last: int
    start: int
    highest: int


class LaneTime(msgspec.Struct, array_like=True):
    """Where a topic-partition stands: its stream time in ms, and the offset it has come to."""

    topic: str
    partition: int
    time: int
    offset: int


_segments = msgspec.msgpack.Decoder(list[Segment])


def encode_segments(segments: Sequence[Segment]) -> bytes:
    """Segments as bytes to send to the shards."""
    return msgspec.msgpack.encode(segments)


def decode_segments(payload: bytes) -> list[Segment]:
    """Reads what `encode_segments` wrote."""
    return _segments.decode(payload)


def segments_of(lane: Int64s, names: Sequence[Lane], offset: Int64s, kafka_ts: Int64s) -> tuple[list[Segment], Int64s]:
    """Cuts messages, in any order, into segments.

    Args:
        lane: index into `names` of each message's topic-partition.

    Returns:
        The segments, and for each message the highest timestamp of its segment up to it.
    """
    if not len(lane):
        return [], kafka_ts
    order = np.lexsort((offset, lane))
    lanes, offsets, times = lane[order], offset[order], kafka_ts[order]
    starts = np.flatnonzero(np.append(True, (np.diff(lanes) != 0) | (np.diff(offsets) != 1)))
    ends = np.append(starts[1:], len(order))
    running = running_maximum(times, np.repeat(np.arange(len(starts)), ends - starts))
    segments = [
        Segment(*names[lane_], first, last, start, highest)  # type: ignore[call-arg]
        for lane_, first, last, start, highest in zip(
            lanes[starts].tolist(),
            offsets[starts].tolist(),
            offsets[ends - 1].tolist(),
            times[starts].tolist(),
            running[ends - 1].tolist(),
            strict=True,
        )
    ]
    unsorted = np.empty_like(running)
    unsorted[order] = running
    return segments, unsorted


def running_maximum(values: Int64s, group: Int64s) -> Int64s:
    """Highest value so far within each group; groups are ascending."""
    if not ((values[1:] < values[:-1]) & (group[1:] == group[:-1])).any():
        return values
    distinct, rank = np.unique(values, return_inverse=True)
    highest = np.maximum.accumulate(group * len(distinct) + rank.reshape(-1)) - group * len(distinct)
    return distinct[highest]


@dataclass
class Clock:
    """Stream times of a shard's topic-partitions.

    Attributes:
        lanes: where each stands; cursors refer to their place in this list, which only grows.
    """

    lanes: list[LaneTime]

    def __post_init__(self) -> None:
        self._index = {(lane.topic, lane.partition): number for number, lane in enumerate(self.lanes)}

    def index(self, lane: Lane) -> int:
        """Place of a topic-partition in `lanes`."""
        return self._index[lane]

    @property
    def times(self) -> Int64s:
        """Stream time of every lane."""
        return np.array([lane.time for lane in self.lanes], np.int64)

    @property
    def offsets(self) -> Int64s:
        """Last offset of every lane."""
        return np.array([lane.offset for lane in self.lanes], np.int64)

    def advance(self, segments: Iterable[Segment]) -> list[tuple[int, Segment, int]]:
        """Moves the lanes on over a batch's segments.

        Returns:
            The segments that began behind the clock: lane, segment, and what the clock said before it.
        """
        behind = []
        for segment in sorted(segments, key=lambda s: s.first):
            key = segment.topic, segment.partition
            if key not in self._index:
                self._index[key] = len(self.lanes)
                self.lanes.append(LaneTime(*key, segment.start, segment.first))
            number = self._index[key]
            lane = self.lanes[number]
            if lane.time > segment.start:
                behind.append((number, segment, lane.time))
            lane.time, lane.offset = max(lane.time, segment.highest), max(lane.offset, segment.last)
        return behind


def stream_times(lane: Int64s, offset: Int64s, within: Int64s, behind: Iterable[tuple[int, Segment, int]]) -> Int64s:
    """Stream time at each message.

    Args:
        within: the highest timestamp of its segment up to it.
        behind: what `Clock.advance` gave for the batch.
    """
    times = within.copy()
    for number, segment, before in behind:
        mine = (lane == number) & (offset >= segment.first) & (offset <= segment.last)
        times[mine] = np.maximum(times[mine], before)
    return times
