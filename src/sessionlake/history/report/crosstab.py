"""Tables of counts by topic and kind, limited to what fits on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log1p
from typing import Any

_TOPICS = 20


@dataclass(frozen=True)
class Crosstab:
    """Counts by topic (rows, the largest first) and kind (columns, the most frequent first).

    Attributes:
        kinds: The columns.
        topics: The shown topics, each with its counts.
        sums: Sum of each column over all topics.
        others: Number of topics that are not shown, and the sums of their columns.
    """

    kinds: tuple[str, ...]
    topics: tuple[tuple[str, tuple[int, ...]], ...]
    sums: tuple[int, ...]
    others: tuple[int, tuple[int, ...]]

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return sum(self.sums)

    def weight(self, count: int) -> int:
        """Returns how strongly to colour a count, in per cent of the largest, on a logarithmic scale."""
        most = max((count for _, counts in self.topics for count in counts), default=0)
        return round(100 * log1p(count) / log1p(most)) if most else 0

    @staticmethod
    def share(count: int, counts: Sequence[int]) -> float:
        """Returns a count's share of its row in per cent."""
        total = sum(counts)
        return round(100 * count / total, 3) if total else 0.0


def crosstab(counts: Mapping[tuple[Any, ...], int], kinds: Sequence[str] = ()) -> Crosstab:
    """Returns a table of counts.

    Args:
        counts: Counts by `(topic, kind)`.
        kinds: The first columns, in this order, even if they have no counts.
    """
    by_topic: dict[str, Counter[str]] = {}
    by_kind: Counter[str] = Counter()
    for (topic, kind), count in counts.items():
        by_topic.setdefault(str(topic), Counter())[str(kind)] += count
        by_kind[str(kind)] += count
    others = sorted(by_kind.keys() - set(kinds), key=lambda kind: (-by_kind[kind], kind))
    order = (*map(str, kinds), *others)
    names = sorted(by_topic, key=lambda topic: (-by_topic[topic].total(), topic))
    rows = [(name, tuple(by_topic[name][kind] for kind in order)) for name in names]
    rest = [row for _, row in rows[_TOPICS:]]
    return Crosstab(
        kinds=order,
        topics=tuple(rows[:_TOPICS]),
        sums=tuple(by_kind[kind] for kind in order),
        others=(len(rest), tuple(sum(column) for column in zip(*rest, strict=True))),
    )
