"""A message that cannot be read is found by halves, wherever it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessionlake.bronze.unreadable import OffsetIntervals, find_first_unreadable_offset
from sessionlake.delta.storage.offset_ranges import subtract_offset_intervals

PLACE = st.tuples(st.sampled_from("ab"), st.integers(0, 2))
RUN = st.tuples(st.integers(0, 40), st.integers(1, 30)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@given(st.dictionaries(PLACE, RUN), st.sets(st.tuples(PLACE, st.integers(0, 70))))
def test_the_first_of_a_partition_s_messages_that_fail_is_found_and_none_where_none_does(ranges, failing):
    def fails(asked: OffsetIntervals) -> bool:
        assert all(ranges[place][0] <= first < end <= ranges[place][1] for place, (first, end) in asked.items())
        return any(place in asked and asked[place][0] <= at < asked[place][1] for place, at in failing)

    inside = {(place, at) for place, at in failing if place in ranges and ranges[place][0] <= at < ranges[place][1]}
    found = find_first_unreadable_offset(fails, ranges)
    if found is None:
        assert not inside
    else:
        assert found[1] == min(at for place, at in inside if place == found[0])


@given(st.dictionaries(PLACE, RUN), st.dictionaries(PLACE, st.lists(RUN, max_size=4)))
def test_parts_without_some_offsets_have_all_others_once(spans, runs):
    spans = {place: (first, end - 1) for place, (first, end) in spans.items()}
    left = {(place, at) for place, (first, last) in spans.items() for at in range(first, last + 1)}
    gone = {(place, at) for place, found in runs.items() for first, end in found for at in range(first, end)}
    kept = [
        (place, at)
        for part in subtract_offset_intervals(spans, runs)
        for place, (first, last) in part.items()
        for at in range(first, last + 1)
    ]
    assert len(kept) == len(set(kept))
    assert {*kept} == left - gone
