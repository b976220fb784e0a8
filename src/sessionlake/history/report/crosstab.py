"""Tables of counts by topic and category, limited to what fits on a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log1p
from typing import Any

_TOPICS = 20


@dataclass(frozen=True)
class CountsByTopicAndCategory:
    """A table of counts with a row for each topic and a column for each category, the largest and most frequent first.

    Attributes:
        categories: The categories, one per column.
        topics: The topics that are shown, each with its count for each category.
        sums: For each category, the sum over all topics.
        others: Number of topics that are not shown, and for each category the sum over these topics.
    """

    categories: tuple[str, ...]
    topics: tuple[tuple[str, tuple[int, ...]], ...]
    sums: tuple[int, ...]
    others: tuple[int, tuple[int, ...]]

    @property
    def total(self) -> int:
        """The sum of all counts."""
        return sum(self.sums)

    def compute_color_strength_of_count(self, count: int) -> int:
        """Returns how strongly a count is coloured: from 0 to 100, on a logarithmic scale up to the largest count."""
        most = max((count for _, counts in self.topics for count in counts), default=0)
        return round(100 * log1p(count) / log1p(most)) if most else 0

    @staticmethod
    def compute_percent_of_row(count: int, row_counts: Sequence[int]) -> float:
        """Returns a count in per cent of the sum of its row; 0 if the sum is 0.

        Args:
            count: The count.
            row_counts: All counts of the row.
        """
        total = sum(row_counts)
        return round(100 * count / total, 3) if total else 0.0


def arrange_counts_by_topic_and_category(
    counts: Mapping[tuple[Any, ...], int], categories: Sequence[str] = ()
) -> CountsByTopicAndCategory:
    """Returns a table of counts with topics as rows and categories as columns.

    Args:
        counts: Counts by `(topic, category)`.
        categories: The categories that come first, in this order, even if they have no counts.
    """
    by_topic: dict[str, Counter[str]] = {}
    by_category: Counter[str] = Counter()
    for (topic, category), count in counts.items():
        by_topic.setdefault(str(topic), Counter())[str(category)] += count
        by_category[str(category)] += count
    others = sorted(by_category.keys() - set(categories), key=lambda category: (-by_category[category], category))
    order = (*map(str, categories), *others)
    names = sorted(by_topic, key=lambda topic: (-by_topic[topic].total(), topic))
    rows = [(name, tuple(by_topic[name][category] for category in order)) for name in names]
    rest = [row for _, row in rows[_TOPICS:]]
    return CountsByTopicAndCategory(
        categories=order,
        topics=tuple(rows[:_TOPICS]),
        sums=tuple(by_category[category] for category in order),
        others=(len(rest), tuple(sum(column) for column in zip(*rest, strict=True))),
    )
