"""Offsets without a message are counted once each, however many runs name them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.ledger.absent import count_offsets_in_intervals, find_missing_offset_intervals

RUN = st.tuples(st.integers(0, 30), st.integers(1, 10)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.lists(RUN, max_size=8), RUN)
def test_runs_that_overlap_and_stick_out_count_each_offset_of_the_range_once(runs, within):
    first, end = within
    expected = {offset for a, b in runs for offset in range(a, b)} & {*range(first, end)}
    assert count_offsets_in_intervals(runs, first, end) == len(expected)


@given(st.sets(st.integers(5, 24)))
def test_runs_between_messages_are_all_other_offsets_of_the_range(offsets):
    runs = find_missing_offset_intervals(np.array(sorted(offsets), np.int64), 5, 25)
    assert [offset for a, b in runs for offset in range(a, b)] == [n for n in range(5, 25) if n not in offsets]
    assert all(b < a for (_, b), (a, _) in pairwise(runs))
