"""Stream time: cut up in any way, the clock at every message is the highest timestamp so far."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.integrity.clock import (
    Clock,
    LaneTime,
    Segment,
    decode_segments,
    encode_segments,
    segments_of,
    stream_times,
)

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
    clock = Clock([])
    found: dict[tuple[int, int], int] = {}
    cut = rnd.randint(0, len(rows))
    for batch in (rows[:cut], rows[cut:]):
        tasks = [[row for row in batch if (row[1] * 7 + row[0]) % 3 == task] for task in range(3)]
        parts = [np.array(task, np.int64).reshape(-1, 3) for task in tasks]
        cuts = [segments_of(part[:, 0], names, part[:, 1], part[:, 2]) for part in parts]
        segments = [segment for told, _ in cuts for segment in decode_segments(encode_segments(told))]
        behind = clock.advance(segments)
        for part, (_, within) in zip(parts, cuts, strict=True):
            lanes = np.array([clock.index(names[lane]) for lane in part[:, 0]], np.int64)
            times = stream_times(lanes, part[:, 1], within, behind)
            found |= {(int(lane), int(offset)): int(t) for (lane, offset), t in zip(part[:, :2], times, strict=True)}
    assert [found[lane, offset] for lane, offset, _ in rows] == expected


def test_a_lane_stands_where_its_last_message_left_it() -> None:
    clock = Clock([LaneTime("t", 0, 50, 3)])
    behind = clock.advance([Segment("t", 0, 4, 6, 40, 45), Segment("t", 1, 0, 0, 7, 7)])
    assert [(lane.time, lane.offset) for lane in clock.lanes] == [(50, 6), (7, 0)]
    assert [(number, segment.first, before) for number, segment, before in behind] == [(0, 4, 50)]
