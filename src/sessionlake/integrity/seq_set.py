"""A set of seqs as intervals, for the seqs that a session has taken: its size grows with the gaps, not the messages."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator


class SeqSet:
    """A set of seqs, stored as ascending intervals. At least one seq is missing between two intervals.

    Args:
        bounds: The first and last seq of each interval, both included: `first, last, first, last, …`.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, bounds: list[int] | None = None) -> None:
        self._firsts: list[int] = (bounds or [])[::2]
        self._lasts: list[int] = (bounds or [])[1::2]

    def __contains__(self, seq: int) -> bool:
        place = bisect_left(self._lasts, seq)
        return place < len(self._lasts) and self._firsts[place] <= seq

    @property
    def interval_bounds(self) -> list[int]:
        """The first and last seq of each interval, alternating: `first, last, first, last, …`."""
        return [seq for pair in zip(self._firsts, self._lasts, strict=True) for seq in pair]

    @property
    def gap_count(self) -> int:
        """The number of gaps between the lowest and the highest seq. A series of missing seqs is one gap."""
        return max(len(self._firsts) - 1, 0)

    def count_gaps_after_adding_seq(self, seq: int) -> int:
        """Returns how many gaps the set would have after adding this seq. The set must not contain it yet.

        A series of missing seqs is one gap.
        """
        place = bisect_left(self._lasts, seq)
        below = place > 0 and self._lasts[place - 1] == seq - 1
        above = place < len(self._firsts) and self._firsts[place] == seq + 1
        return len(self._firsts) - below - above

    def add_seq_range(self, first: int, last_seq: int | None = None) -> None:
        """Adds all seqs from `first` to `last_seq`, both included. If `last_seq` is None, adds only `first`."""
        last_seq = first if last_seq is None else last_seq
        low, high = bisect_left(self._lasts, first - 1), bisect_right(self._firsts, last_seq + 1)
        if low < high:
            first, last_seq = min(first, self._firsts[low]), max(last_seq, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last_seq]

    def remove_seq(self, seq: int) -> None:
        """Removes a seq if the set contains it."""
        place = bisect_left(self._lasts, seq)
        if place == len(self._lasts) or self._firsts[place] > seq:
            return
        first, last = self._firsts[place], self._lasts[place]
        self._firsts[place : place + 1] = [first] * (first < seq) + [seq + 1] * (seq < last)
        self._lasts[place : place + 1] = [seq - 1] * (first < seq) + [last] * (seq < last)

    def fill_lowest_gap(self) -> None:
        """Adds the seqs of the lowest gap to the set. The set must have a gap."""
        del self._firsts[1], self._lasts[0]

    def iterate_missing_seqs(self, first: int, last: int) -> Iterator[int]:
        """Yields the seqs from `first` to `last`, both included, that are not in the set, ascending."""
        seq = first
        for place in range(bisect_left(self._lasts, first), len(self._lasts)):
            yield from range(seq, min(self._firsts[place], last + 1))
            seq = max(seq, self._lasts[place] + 1)
            if seq > last:
                return
        yield from range(seq, last + 1)

    def contains_seq_range(self, first: int, last: int) -> bool:
        """Returns True if the set contains every seq from `first` to `last`, both included."""
        place = bisect_left(self._lasts, first)
        return place < len(self._lasts) and self._firsts[place] <= first and self._lasts[place] >= last
