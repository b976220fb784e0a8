"""A rule: what it says, over which keys, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field, field_validator

from sessionlake.gold.aggregate.sources import PARTITION, Declared, names_sessions
from sessionlake.gold.rules.parse import ParseError, Scope, parse
from sessionlake.gold.rules.tree import (
    Compared,
    Function,
    Pattern,
    Selection,
    Tree,
    Window,
    leaves,
    refuse_expression,
    windows,
)
from sessionlake.settings.capture import Section

SERIES = ("topic", "session_id", "row_id")
VALUE = "value"
"""The column that holds the value of a declared one, where that is a part of a key."""


def _topics(expression: str) -> str:
    refuse_expression(expression)
    return expression


Topics = Annotated[str, Field(max_length=1_000), AfterValidator(_topics)]
"""A regular expression of RE2: rules are edited while gold runs, and none of them may hold it up."""


class SourceSettings(Section):
    """What a name in front of a column stands for."""

    topics: Topics | None = None
    """The whole name of a topic matches it; unless set, the rule's."""
    rows: tuple[str, ...] = ()
    """Ids of rows; unless set, all."""


class RuleSettings(Section):
    """A rule as it is written."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    when: str = Field(min_length=1, max_length=10_000)
    by: tuple[str, ...] = Field(SERIES, min_length=1)
    """What makes a key: of `topic, session_id, row_id`; for events also one declared column of texts."""
    topics: Topics = r".*"
    sources: dict[str, SourceSettings] = Field(default_factory=dict)
    since: AwareDatetime | None = None
    """Event time before which it says nothing; unless set, it is held against all that is stored."""
    description: str | None = None

    @field_validator("by")
    @classmethod
    def _once(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len({*value}) < len(value):
            raise ValueError("a column is named twice")
        return tuple(sorted(value, key=lambda name: SERIES.index(name) if name in SERIES else len(SERIES)))


@dataclass(frozen=True)
class Rule:
    """A rule that can be evaluated.

    Attributes:
        by: columns that make a key, as the rule names them, in the order of `SERIES`; a declared one comes last.
        own: topics that it is about.
        since_ms: event time before which it says nothing.
        version: a short hash of all that decides what it says.
    """

    name: str
    by: tuple[str, ...]
    own: Selection
    tree: Tree
    since_ms: int | None
    version: str

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that tell its keys apart: `by`, and the session's partition if it has topic and session."""
        return (*self.by, PARTITION) if names_sessions(self.by) else self.by

    @property
    def windows(self) -> list[Window]:
        """The aggregates of a condition; none of a pattern."""
        return windows(self.tree)

    @property
    def longest(self) -> int:
        """Minutes of its longest window."""
        return max(window.minutes for window in self.windows)

    @property
    def column(self) -> str | None:
        """The declared column that is a part of its key."""
        return next((name for name in self.by if name not in SERIES), None)

    @property
    def selections(self) -> set[Selection]:
        """What it reads."""
        return {
            side.of
            for leaf in leaves(self.tree)
            for side in ((leaf.left, leaf.right) if isinstance(leaf, Compared) else (leaf,))
            if not isinstance(side, float)
        }

    def reads(self, topic: str) -> bool:
        """Whether it reads the topic."""
        return any(of.has_topic(topic) for of in self.selections)


def rule_of(settings: RuleSettings, declared: Declared) -> Rule:
    """The rule that was written.

    Raises:
        ParseError: its condition cannot be read, or does not fit its key.
    """
    own = Selection(settings.topics)
    sources = {
        name: Selection(one.topics if one.topics is not None else own.topics, one.rows)
        for name, one in settings.sources.items()
    }
    tree = parse(settings.when, Scope(declared, own, sources))
    _refuse_unfit(settings.by, tree, declared)
    since = None if settings.since is None else int(settings.since.timestamp() * 1000)
    said = (settings.by, own, tree, since, [window.label for window in windows(tree)])
    return Rule(settings.name, settings.by, own, tree, since, sha256(repr(said).encode()).hexdigest()[:12])


def _refuse_unfit(by: tuple[str, ...], tree: Tree, declared: Declared) -> None:
    columns = [name for name in by if name not in SERIES]
    if not isinstance(tree, Pattern):
        if columns:
            raise ParseError(0, f"keys of aggregates are {', '.join(SERIES)}; found {', '.join(columns)}")
        ordered = [one.label for one in windows(tree) if one.function in (Function.FIRST, Function.LAST)]
        if ordered and by != SERIES:
            raise ParseError(0, f"{ordered[0]}: first and last are those of one series, by {', '.join(SERIES)}")
    elif len(columns) > 1 or any(name not in declared.texts for name in columns):
        there = ", ".join(declared.texts) or "none"
        raise ParseError(0, f"besides {', '.join(SERIES)}, a key may have one column of texts ({there}); found "
                            f"{', '.join(columns)}")  # fmt: skip
