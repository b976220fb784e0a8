"""Which small files of a table are worth being made into a larger one.

Files are of tiers by their size, and a tier is merged when it has many of them, into files that are mostly of the next.
So a byte is written once more a tier, and not each time that a table grows: see the test of what that comes to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

_BOUNDS = (1 << 20, 16 << 20, 128 << 20)
# How many files of a tier are merged at once; those of the first may be a few kilobytes each.
_ENOUGH = (50, 16, 16)
# Of files that a larger one has come after, fewer: no more will join them, so that they are merged once.
_ENOUGH_CLOSED = 8
LARGEST = 256 << 20
"""Bytes that are merged at once; files from half of it on are left as they are."""


@dataclass(frozen=True)
class LiveFile:
    """A file of a table's present version.

    Attributes:
        path: within the table's folder.
        size: in bytes.
        modified: when it came to the table, in ms since the epoch: a stream's first read goes in this order.
    """

    path: str
    size: int
    modified: int


def crowded(sizes: Sequence[int]) -> int | None:
    """The size below which files should be merged, if there are enough of them of one tier."""
    tiers = [_tier(size) for size in sizes]
    return next((bound for n, bound in enumerate(_BOUNDS) if tiers.count(n) >= _ENOUGH[n]), None)


def crowded_run(files: Sequence[LiveFile]) -> list[LiveFile]:
    """Files that should be merged into one, and stand next to each other in the order in which they came.

    A file that takes their place, as modified when the last of them was, then leaves that order as it is.
    """
    ordered = sorted(files, key=lambda file: (file.modified, file.path))
    for tier, enough in enumerate(_ENOUGH):
        for run in _runs(ordered, tier):
            closed = run[-1] is not ordered[-1] and len(run) >= _ENOUGH_CLOSED
            if closed or sum(_tier(file.size) == tier for file in run) >= enough:
                return _cut(run)
    return []


def _runs(files: Sequence[LiveFile], tier: int) -> Iterator[list[LiveFile]]:
    """The longest runs of files that are of the tier or of smaller ones; what came at once is not parted."""
    together = (list(group) for _, group in groupby(files, key=lambda file: file.modified))
    for small, groups in groupby(together, key=lambda group: all(_tier(file.size) <= tier for file in group)):
        if small:
            yield [file for group in groups for file in group]


def _cut(run: Sequence[LiveFile]) -> list[LiveFile]:
    """As much of it, from its beginning, as fits into one file."""
    taken: list[LiveFile] = []
    for _, group in groupby(run, key=lambda file: file.modified):
        added = [*taken, *group]
        if len(taken) > 1 and sum(file.size for file in added) > LARGEST:
            break
        taken = added
    return taken


def _tier(size: int) -> int:
    return bisect_right(_BOUNDS, size)
