"""What a rule says, as typed expressions: they are evaluated as they are, and never made into SQL text."""

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
    """What is computed of the numbers in a window."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    AVG = "avg"
    FIRST = "first"
    LAST = "last"

    @property
    def of_nothing(self) -> bool:
        """Whether it has a value, zero, where a window holds nothing."""
        return self in (Function.COUNT, Function.SUM)


OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "=": operator.eq,
}
"""Comparisons by how they are written."""


@dataclass(frozen=True)
class Selection:
    """Which topics and rows an expression is about.

    Attributes:
        topics: a regular expression that the topic's whole name matches, see `refuse_expression`.
        rows: ids; empty, all.
    """

    topics: str
    rows: tuple[str, ...] = ()

    def has_topic(self, topic: str) -> bool:
        """Whether the topic is among them."""
        return _is_whole(self.topics, topic)

    def has_row(self, row_id: str) -> bool:
        """Whether the row is among them."""
        return not self.rows or row_id in self.rows


@dataclass(frozen=True)
class Window:
    """An aggregate of numbers over the last minutes."""

    function: Function
    of: Selection
    metric: str
    minutes: int
    label: str = field(compare=False)
    """How the rule writes it."""


Operand: TypeAlias = "Window | float"


@dataclass(frozen=True)
class Compared:
    """Two operands compared; not met where one of them has no value."""

    left: Operand
    compare: str
    right: Operand


@dataclass(frozen=True)
class FieldIs:
    """A number or text that a change set, compared."""

    of: Selection
    column: str
    compare: str
    value: float | str


@dataclass(frozen=True)
class Deleted:
    """A change that deleted its row."""

    of: Selection


@dataclass(frozen=True)
class AllOf:
    """All of them are met."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class AnyOf:
    """One of them is met."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """It is not met."""

    part: Condition


Condition: TypeAlias = "Compared | FieldIs | Deleted | AllOf | AnyOf | Not"


class PatternKind(StrEnum):
    """How two events of a key are to stand to one another."""

    THEN = "then"
    """The second comes, and what came before it is the first."""
    WITHOUT = "without"
    """The second comes, and what came before it is not the first."""
    NOT_FOLLOWED = "not followed by"
    """The first comes, and no second within the time."""


@dataclass(frozen=True)
class Pattern:
    """Two events of one key in time.

    Attributes:
        within_ms: the longest that they may be apart; None: any.
    """

    kind: PatternKind
    first: Condition
    second: Condition
    within_ms: int | None


Tree: TypeAlias = "Condition | Pattern"


def leaves(tree: Tree) -> Iterator[Compared | FieldIs | Deleted]:
    """The comparisons of a tree, from left to right."""
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
    """The distinct windows of a tree, in order."""
    found = (side for leaf in leaves(tree) if isinstance(leaf, Compared) for side in (leaf.left, leaf.right))
    return list(dict.fromkeys(side for side in found if isinstance(side, Window)))


def selection(condition: Condition) -> Selection:
    """Which topics and rows an event's condition is about: all its parts are about the same."""
    leaf = next(leaves(condition))
    if isinstance(leaf, Compared):
        raise TypeError("an event has no windows")
    return leaf.of


def refuse_expression(expression: str) -> None:
    """Returns if it is a regular expression of RE2, which takes time in proportion to what it looks at.

    Raises:
        ValueError: saying what is wrong with it.
    """
    pc.match_substring_regex(pa.scalar(""), expression)
    _is_whole(expression, "")


@lru_cache(maxsize=1 << 16)
def _is_whole(expression: str, text: str) -> bool:
    """Whether the whole text matches."""
    found: bool = pc.match_substring_regex(pa.scalar(text), f"^(?:{expression})$").as_py()
    return found
