"""How many batches are merged at once: bounded by their messages and by their changes, whichever come to it first."""

from __future__ import annotations

import pytest

from sessionlake.silver.merge.merger import PendingBatch, select_batches_to_merge


def waiting(*sizes: tuple[int, int]) -> list[PendingBatch]:
    """Batches of so many messages and changes."""
    return [PendingBatch("q", number, *size) for number, size in enumerate(sizes)]


@pytest.mark.parametrize(
    ("sizes", "taken"),
    [
        ([], 0),
        ([(1, 1)] * 3, 3),
        ([(1_000_000, 1)] * 3, 2),
        ([(10_000, 4_000_000)] * 3, 2),  # of hundreds of rows each
        ([(3_000_000, 1), (1, 1)], 1),
        ([(1, 50_000_000), (1, 1)], 1),  # one is always taken
    ],
)
def test_one_merge_takes_in_as_many_batches_as_its_memory_allows_and_at_least_one(sizes, taken):
    batches = waiting(*sizes)
    assert select_batches_to_merge(batches) == batches[:taken]
