"""Which files are merged: few are left, in their order, and no byte is written again and again."""

from __future__ import annotations

import random

import pytest

from sessionlake.delta.folders.compaction import (
    LARGEST,
    CompactionFile,
    compute_optimize_size_limit,
    find_small_files_to_compact,
)

KB, MB = 1 << 10, 1 << 20


def files(*sizes: int) -> list[CompactionFile]:
    return [CompactionFile(f"{n:06}", size, n) for n, size in enumerate(sizes)]


def test_fifty_small_files_are_merged_and_forty_nine_are_not():
    assert find_small_files_to_compact(files(*[9 * KB] * 49)) == []
    assert find_small_files_to_compact(files(*[9 * KB] * 50)) == files(*[9 * KB] * 50)
    assert compute_optimize_size_limit([9 * KB] * 49) is None
    assert compute_optimize_size_limit([9 * KB] * 50) == MB


def test_what_came_at_once_is_not_parted_and_what_is_large_parts_what_is_small():
    together = [CompactionFile(f"{n:06}", 6 * MB, n // 2) for n in range(100)]
    assert len(find_small_files_to_compact(together)) == 42  # 252 MB: the next two would make it more than 256
    parted = files(*[KB] * 8, 200 * MB, *[KB] * 49)
    assert find_small_files_to_compact(parted) == parted[:8]  # none can join them any more
    assert find_small_files_to_compact(parted[1:]) == []


def test_the_largest_files_are_left_as_they_are():
    assert find_small_files_to_compact(files(*[LARGEST // 2] * 500)) == []


@pytest.mark.parametrize("seed", range(4))
def test_however_many_commits_a_table_has_few_files_are_left_in_order_and_bytes_are_written_a_few_times(seed):
    rng = random.Random(seed)
    live: list[CompactionFile] = []
    appended = rewritten = 0
    for n in range(30_000):
        size = rng.randrange(5 * KB, 60 * KB) if rng.random() < 0.999 else rng.randrange(1 * MB, 60 * MB)
        live.append(CompactionFile(f"{n:06}", size, n))
        appended += size
        while n % 60 == 0 and (run := find_small_files_to_compact(live)):
            merged = CompactionFile(run[-1].path, sum(file.size for file in run), run[-1].modified)
            at = live.index(run[0])
            assert live[at : at + len(run)] == run  # neighbours, so that what replaces them stands where they stood
            live[at : at + len(run)] = [merged]
            rewritten += merged.size
    assert [file.modified for file in live] == sorted(file.modified for file in live)
    large = sum(file.size >= LARGEST // 2 for file in live)
    assert len(live) - large < 150
    assert rewritten < 2.5 * appended
