"""The parsed form of a rule's condition. Gold evaluates it directly and never turns it into SQL text.

Rule versions and event ids are hashes of these classes' `repr`: renaming a class or a field changes stored ids.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.topics import FeedTopics

MINUTE_MS = 60_000


class Function(StrEnum):
    """A function that a rule computes from the numbers in a time window."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    FIRST = "first"
    LAST = "last"

    @property
    def is_zero_without_points(self) -> bool:
        """True if an empty window has the value zero; False if it has no value."""
        return self in (Function.COUNT, Function.SUM)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
"""The comparison function for each sign that a rule can have, such as `<=`."""


@dataclass(frozen=True)
class Selection:
    """The topics and rows that a part of a condition reads.

    Attributes:
        topics: a regular expression in RE2 syntax that a topic's whole name must match.
        rows: row ids; empty for all rows.
    """

    topics: str
    rows: tuple[str, ...] = ()

    def includes_topic(self, topic: str) -> bool:
        """Returns True if the topic is selected."""
        return _matches_fully(self.topics, topic)

    def includes_row(self, row_id: str) -> bool:
        """Returns True if the row is selected."""
        return not self.rows or row_id in self.rows


@dataclass(frozen=True)
class FeedSelection(Selection):
    """A selection that is restricted to the topics of one feed.

    Attributes:
        feed: the topics that the feed reads.
    """

    feed: FeedTopics = field(kw_only=True)

    def includes_topic(self, topic: str) -> bool:
        return super().includes_topic(topic) and self.feed.includes_topic(topic)


@dataclass(frozen=True)
class Window:
    """An aggregate of a column's numbers over the last `minutes` minutes, such as `max(price) over 5 min`.

    Attributes:
        of: the topics and rows from which the numbers are read.
        metric: the declared column with the numbers.
    """

    function: Function
    of: Selection
    metric: str
    minutes: int
    label: str = field(compare=False)
    """The aggregate as the rule writes it."""


Operand: TypeAlias = "Window | float"


@dataclass(frozen=True)
class Compared:
    """A comparison of a window's value, as in `max(price) over 5 min > 10`. It is false if a window has no value.

    Attributes:
        left: a window or a number.
        compare: the sign, a key of `OPERATORS`.
        right: a window or a number.
    """

    left: Operand
    compare: str
    right: Operand


@dataclass(frozen=True)
class FieldIs:
    """A comparison of the value that a change set in a column with a constant, as in `status = 'open'`.

    Attributes:
        of: the topics and rows whose changes can meet the comparison.
        column: the declared column.
        compare: the sign, a key of `OPERATORS`.
        value: the constant.
    """

    of: Selection
    column: str
    compare: str
    value: float | str


@dataclass(frozen=True)
class Deleted:
    """The condition that a change deleted its row, in the topics and rows that `of` selects."""

    of: Selection


@dataclass(frozen=True)
class AllOf:
    """A condition that is true if all of its parts are true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """A condition that is true if at least one of its parts is true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """A condition that is true if its part is false."""

    part: Condition


Condition: TypeAlias = "Compared | FieldIs | Deleted | AllOf | AnyOf | Not"


class PatternKind(StrEnum):
    """How the two events of a pattern relate in time."""

    THEN = "then"
    """The second event occurs, and the event right before it is the first."""
    WITHOUT = "without"
    """The second event occurs, and the event right before it is not the first."""
    NOT_FOLLOWED = "not followed by"
    """The first event occurs, and the second does not occur within the time."""


@dataclass(frozen=True)
class Pattern:
    """Two events with the same key, and how they relate in time.

    Attributes:
        kind: the relation.
        first: the condition of the first event.
        second: the condition of the second event.
        within_ms: the longest time between the two events, in ms; None for no limit.
    """

    kind: PatternKind
    first: Condition
    second: Condition
    within_ms: int | None


Tree: TypeAlias = "Condition | Pattern"


def find_comparisons(tree: Tree) -> Iterator[Compared | FieldIs | Deleted]:
    """Yields the comparisons of which a condition or pattern consists, from left to right."""
    match tree:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from find_comparisons(part)
        case Not(part):
            yield from find_comparisons(part)
        case Pattern(_, first, second):
            yield from find_comparisons(first)
            yield from find_comparisons(second)
        case _:
            yield tree


def find_windows(tree: Tree) -> list[Window]:
    """Returns the distinct windows in a condition, in the order of its text; empty for a pattern."""
    found = (side for leaf in find_comparisons(tree) if isinstance(leaf, Compared) for side in (leaf.left, leaf.right))
    return list(dict.fromkeys(side for side in found if isinstance(side, Window)))


def find_selection(condition: Condition) -> Selection:
    """Returns the topics and rows that the condition of an event reads. All of its parts read the same."""
    leaf = next(find_comparisons(condition))
    if isinstance(leaf, Compared):
        raise TypeError("an event has no windows")
    return leaf.of


def require_regular_expression(expression: str) -> None:
    """Checks that a text is a regular expression in RE2 syntax, which matches in linear time.

    Raises:
        ValueError: the text is not such an expression. The error says what is wrong.
    """
    pc.match_substring_regex(pa.scalar(""), expression)
    _matches_fully(expression, "")


@lru_cache(maxsize=1 << 16)
def _matches_fully(expression: str, text: str) -> bool:
    """Returns True if the regular expression matches the whole text."""
    found: bool = pc.match_substring_regex(pa.scalar(text), f"^(?:{expression})$").as_py()
    return found
