"""Stream time: cut up in any way, the clock at every message is the highest timestamp so far."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.integrity.clock import (
    PartitionStreamTime,
    ShardClock,
    decode_offset_segments,
    encode_offset_segments,
    split_messages_into_offset_segments,
)
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds

TIMES = st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 2)), min_size=1, max_size=30)


@given(TIMES, st.randoms(use_true_random=False))
def test_stream_time_is_the_highest_so_far_however_tasks_and_batches_cut_the_messages(
    messages: list[tuple[int, int]], rnd: np.random.Generator
) -> None:
    """Messages are (timestamp, lane); offsets rise in each lane; a batch's messages go to tasks at random."""
    names = [("t", 0), ("t", 1), ("u", 0)]
    offsets, highest, expected = [0, 0, 0], [-9, -9, -9], []
    rows = []
    for timestamp, lane in messages:
        highest[lane] = max(highest[lane], timestamp)
        expected.append(highest[lane])
        rows.append((lane, offsets[lane], timestamp))
        offsets[lane] += 1
    clock, notes = ShardClock([]), StreamTimesAtBatchEnds()
    found: dict[tuple[int, int], int] = {}
    cut = rnd.randint(0, len(rows))
    for batch in (rows[:cut], rows[cut:]):
        tasks = [[row for row in batch if (row[1] * 7 + row[0]) % 3 == task] for task in range(3)]
        parts = [np.array(task, np.int64).reshape(-1, 3) for task in tasks]
        cuts = [split_messages_into_offset_segments(part[:, 0], names, part[:, 1], part[:, 2], notes) for part in parts]
        clock = ShardClock(
            [lane for lane in clock.partition_times if rnd.random() < 0.5]
        )  # of some it has no session any more
        behind = clock.advance_clock([decode_offset_segments(encode_offset_segments(told)) for told, _ in cuts], names)
        for part, (_, within) in zip(parts, cuts, strict=True):
            lanes = np.array([clock.find_partition_index(names[lane]) for lane in part[:, 0]], np.int64)
            times = behind.compute_stream_time_of_each_message(lanes, part[:, 1], within)
            found |= {(int(lane), int(offset)): int(t) for (lane, offset), t in zip(part[:, :2], times, strict=True)}
        notes = notes.add_stream_times(lane for lane in clock.partition_times if lane.offset >= 0)
    assert [found[lane, offset] for lane, offset, _ in rows] == expected


NAMES = [("t", 0), ("t", 1)]
NOTES = StreamTimesAtBatchEnds().add_stream_times([PartitionStreamTime("t", 0, 50, 3)])


def test_a_lane_stands_where_its_last_message_left_it() -> None:
    clock = ShardClock([PartitionStreamTime("t", 0, 50, 3)])
    offsets, times = np.array([6, 4, 5, 0]), np.array([42, 40, 45, 7])
    told, within = split_messages_into_offset_segments(np.array([0, 0, 0, 1]), NAMES, offsets, times, NOTES)
    behind = clock.advance_clock([told], {("t", 1)})
    assert [(lane.time, lane.offset) for lane in clock.partition_times] == [(50, 6), (7, 0)]
    assert within.tolist() == [45, 40, 45, 7]
    assert behind.compute_stream_time_of_each_message(np.array([0, 0, 0, 1]), offsets, within).tolist() == [
        50,
        50,
        50,
        7,
    ]


def test_a_lane_that_is_new_to_a_shard_goes_on_from_what_it_is_reported() -> None:
    clock, here = ShardClock([]), np.zeros(1, np.int64)
    told, within = split_messages_into_offset_segments(here, NAMES[:1], here + 4, here + 42, NOTES)
    behind = clock.advance_clock([decode_offset_segments(encode_offset_segments(told))], {("t", 0)})
    assert (clock.partition_times, clock.previous_offsets) == ([PartitionStreamTime("t", 0, 50, 4)], {("t", 0): 3})
    assert behind.compute_stream_time_of_each_message(here, here + 4, within).tolist() == [50]


def test_a_shard_takes_no_note_of_lanes_that_it_has_neither_sessions_nor_messages_of() -> None:
    clock, pair = ShardClock([PartitionStreamTime("t", 1, 60, 8)]), np.arange(2)
    told, _ = split_messages_into_offset_segments(pair, NAMES, pair + 8, pair + 70, NOTES)
    clock.advance_clock([told], ())
    assert clock.partition_times == [PartitionStreamTime("t", 1, 71, 9)]
    clock.advance_clock(
        [split_messages_into_offset_segments(pair[:1], NAMES[:1], pair[:1] + 9, pair[:1] + 99, NOTES)[0]], ()
    )
    assert (clock.partition_times, clock.previous_offsets) == ([PartitionStreamTime("t", 1, 71, 9)], {("t", 1): 8})


def test_holes_in_the_offsets_cost_a_few_bytes_a_message() -> None:
    """Compacted topics and transactions leave holes, and another task may hold what is in them."""
    count = 20_000
    offsets = np.arange(count) * 2
    times = 1_790_000_000_000 + np.random.default_rng(1).integers(0, 5, count).cumsum()
    told, _ = split_messages_into_offset_segments(
        np.zeros(count, np.int64), [("t", 0)], offsets, times, StreamTimesAtBatchEnds()
    )
    sent = encode_offset_segments(told)
    assert len(told.first) == count
    assert len(sent) < 2 * count
    again = decode_offset_segments(sent)
    assert again.names == told.names
    for name in ("before", "since", "lane", "first", "last", "start", "highest"):
        assert np.array_equal(getattr(again, name), getattr(told, name))


def test_no_messages_do_nothing_to_a_clock() -> None:
    nothing = np.zeros(0, np.int64)
    told, within = split_messages_into_offset_segments(nothing, [], nothing, nothing, StreamTimesAtBatchEnds())
    clock = ShardClock([PartitionStreamTime("t", 0, 50, 3)])
    behind = clock.advance_clock([decode_offset_segments(encode_offset_segments(told))], ())
    assert behind.compute_stream_time_of_each_message(nothing, nothing, within).tolist() == []
    assert clock.partition_times == [PartitionStreamTime("t", 0, 50, 3)]
