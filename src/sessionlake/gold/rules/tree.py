"""The parsed form of a rule. Trees are evaluated directly and never turned into SQL text.

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

MINUTE_MS = 60_000


class Function(StrEnum):
    """What is computed from the numbers in a window."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    FIRST = "first"
    LAST = "last"

    @property
    def is_zero_when_empty(self) -> bool:
        """Whether an empty window has the value zero. The other functions then have no value."""
        return self in (Function.COUNT, Function.SUM)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
"""Comparison functions by the sign a rule writes."""


@dataclass(frozen=True)
class Selection:
    """The topics and rows that an expression reads.

    Attributes:
        topics: a regular expression that a topic's whole name must match, valid for `check_expression`.
        rows: row ids; empty for all rows.
    """

    topics: str
    rows: tuple[str, ...] = ()

    def has_topic(self, topic: str) -> bool:
        """Returns whether the topic is selected."""
        return _matches_fully(self.topics, topic)

    def has_row(self, row_id: str) -> bool:
        """Returns whether the row is selected."""
        return not self.rows or row_id in self.rows


@dataclass(frozen=True)
class Window:
    """An aggregate of a column's numbers over the last `minutes` minutes."""

    function: Function
    of: Selection
    metric: str
    minutes: int
    label: str = field(compare=False)
    """The aggregate as the rule writes it."""


Operand: TypeAlias = "Window | float"


@dataclass(frozen=True)
class Compared:
    """A comparison of two operands. It is false if either has no value."""

    left: Operand
    compare: str
    right: Operand


@dataclass(frozen=True)
class FieldIs:
    """A comparison of a number or text that a change set."""

    of: Selection
    column: str
    compare: str
    value: float | str


@dataclass(frozen=True)
class Deleted:
    """True for a change that deleted its row."""

    of: Selection


@dataclass(frozen=True)
class AllOf:
    """True if all parts are true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """True if at least one part is true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """True if the part is false."""

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
    """Two events of one key and their relation in time.

    Attributes:
        within_ms: the largest time between them; None for no limit.
    """

    kind: PatternKind
    first: Condition
    second: Condition
    within_ms: int | None


Tree: TypeAlias = "Condition | Pattern"


def leaves(tree: Tree) -> Iterator[Compared | FieldIs | Deleted]:
    """Yields the comparisons of a tree, from left to right."""
    match tree:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from leaves(part)
        case Not(part):
            yield from leaves(part)
        case Pattern(_, first, second):
            yield from leaves(first)
            yield from leaves(second)
        case _:
            yield tree


def windows(tree: Tree) -> list[Window]:
    """Returns the distinct windows of a tree, in order."""
    found = (side for leaf in leaves(tree) if isinstance(leaf, Compared) for side in (leaf.left, leaf.right))
    return list(dict.fromkeys(side for side in found if isinstance(side, Window)))


def selection(condition: Condition) -> Selection:
    """Returns the topics and rows of an event's condition. All its parts have the same."""
    leaf = next(leaves(condition))
    if isinstance(leaf, Compared):
        raise TypeError("an event has no windows")
    return leaf.of


def check_expression(expression: str) -> None:
    """Checks that a text is a regular expression in RE2 syntax, which matches in linear time.

    Raises:
        ValueError: it is not; the text says what is wrong.
    """
    pc.match_substring_regex(pa.scalar(""), expression)
    _matches_fully(expression, "")


@lru_cache(maxsize=1 << 16)
def _matches_fully(expression: str, text: str) -> bool:
    """Returns whether the expression matches the whole text."""
    found: bool = pc.match_substring_regex(pa.scalar(text), f"^(?:{expression})$").as_py()
    return found
