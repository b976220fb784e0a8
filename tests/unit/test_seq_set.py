"""Intervals of seqs against a set of seqs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessionlake.integrity.seq_set import SeqSet

SEQS = st.integers(0, 30)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), SEQS, st.integers(0, 6)),
        st.tuples(st.just("discard"), SEQS, st.just(0)),
        st.tuples(st.just("close"), st.just(0), st.just(0)),
    ),
    max_size=25,
)


def spans_after(steps: list[tuple[str, int, int]]) -> tuple[SeqSet, set[int]]:
    spans, seqs = SeqSet(), set[int]()
    for what, seq, more in steps:
        if what == "add":
            spans.add_seq_range(seq, seq + more)
            seqs |= set(range(seq, seq + more + 1))
        elif what == "discard":
            spans.remove_seq(seq)
            seqs.discard(seq)
        elif spans.gap_count:
            spans.fill_lowest_gap()
            first = next(seq for seq in range(min(seqs), max(seqs)) if seq not in seqs)
            last = next(seq for seq in range(first, max(seqs) + 1) if seq in seqs)
            seqs |= set(range(first, last))
    return spans, seqs


def gaps(seqs: set[int]) -> int:
    return max(sum(seq + 1 not in seqs for seq in seqs) - 1, 0)


@given(STEPS, SEQS, SEQS)
def test_intervals_are_the_set(steps: list[tuple[str, int, int]], one: int, other: int) -> None:
    spans, seqs = spans_after(steps)
    first, last = min(one, other), max(one, other)
    wanted = set(range(first, last + 1))
    assert [seq for seq in range(40) if seq in spans] == sorted(seqs)
    assert spans.gap_count == gaps(seqs)
    assert list(spans.iterate_missing_seqs(first, last)) == sorted(wanted - seqs)
    assert spans.contains_seq_range(first, last) == (wanted <= seqs)
    if one not in seqs:
        assert spans.count_gaps_after_adding_seq(one) == gaps(seqs | {one})
    assert SeqSet(spans.interval_bounds).interval_bounds == spans.interval_bounds
    assert all(b + 1 < a for b, a in zip(spans.interval_bounds[1::2], spans.interval_bounds[2::2], strict=False))
