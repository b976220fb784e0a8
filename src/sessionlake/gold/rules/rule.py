"""A rule: its condition, the columns that make its keys, and the time from which it is evaluated."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, Field, field_validator

from sessionlake.gold.aggregate.sources import PARTITION, DeclaredColumns, have_session_keys
from sessionlake.gold.rules.condition_tree import (
    Compared,
    FeedSelection,
    Function,
    Pattern,
    Selection,
    Tree,
    Window,
    find_comparisons,
    find_windows,
    require_regular_expression,
)
from sessionlake.gold.rules.parse import ConditionNameScope, ConditionParseError, parse_condition
from sessionlake.settings.section import Section

SERIES_KEY = ("topic", "session_id", "row_id")
"""Columns that identify one row of a session's table. A rule without `by` is evaluated for each such row."""
VALUE = "value"
"""Name of the key column with the value of the declared column, for rules with a declared column in `by`."""


def _require_regular_expression(expression: str) -> str:
    require_regular_expression(expression)
    return expression


Topics = Annotated[str, Field(max_length=1_000), AfterValidator(_require_regular_expression)]
"""A regular expression in RE2 syntax, which matches in linear time: a rule edited at run time cannot block gold."""


class RuleSourceSettings(Section):
    """The topics and rows for which a prefix in a condition stands, such as `auth` in `auth.status`."""

    topics: Topics | None = None
    """A regular expression that must match a topic's whole name. None: the topics of the rule."""
    feed: str | None = None
    """Name of a feed: only topics that it reads. None: the feed of the rule."""
    rows: tuple[str, ...] = ()
    """Row ids. Empty: all rows."""


class RuleSettings(Section):
    """A rule as the user writes it in YAML, before its condition is parsed."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]{0,62}$")
    when: str = Field(min_length=1, max_length=10_000)
    by: tuple[str, ...] = Field(SERIES_KEY, min_length=1)
    """The columns that make a key: some of `topic, session_id, row_id`. A pattern may add one declared text column."""
    topics: Topics = r".*"
    feed: str | None = None
    """Name of a feed: only topics that it reads. None: the topics of all feeds."""
    sources: dict[str, RuleSourceSettings] = Field(default_factory=dict)
    since: AwareDatetime | None = None
    """Event time before which the rule raises no alert. None: it is evaluated over all stored history."""
    description: str | None = None

    @field_validator("by")
    @classmethod
    def _sort_key_columns(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len({*value}) < len(value):
            raise ValueError("a column is named twice")
        return tuple(sorted(value, key=lambda name: SERIES_KEY.index(name) if name in SERIES_KEY else len(SERIES_KEY)))


@dataclass(frozen=True)
class Rule:
    """A rule with its parsed condition. It is evaluated for each key, which is a combination of values of `by`.

    Attributes:
        by: the key columns that the rule names: some of topic, session_id and row_id, then possibly a declared column.
        selection: the topics and rows from which columns without a prefix are read.
        tree: the parsed condition or pattern.
        since_ms: event time in ms before which the rule raises no alert; None if it has no limit.
        version: a short hash of everything that decides the rule's alerts.
    """

    name: str
    by: tuple[str, ...]
    selection: Selection
    tree: Tree
    since_ms: int | None
    version: str

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The columns that identify a key: `by`, and `partition` if `by` names both topic and session."""
        return (*self.by, PARTITION) if have_session_keys(self.by) else self.by

    @property
    def distinct_windows(self) -> list[Window]:
        """The distinct aggregates over time in the condition; empty for a pattern."""
        return find_windows(self.tree)

    @property
    def longest_window_minutes(self) -> int:
        """Length of the longest window in the condition, in minutes. A rule with a pattern has none."""
        return max(window.minutes for window in self.distinct_windows)

    @property
    def declared_key_column(self) -> str | None:
        """The declared column in the rule's key; None if the key has none."""
        return next((name for name in self.by if name not in SERIES_KEY), None)

    @property
    def all_selections(self) -> set[Selection]:
        """The topics and rows that the condition reads: a selection for each prefix in it, such as `x` of `x.price`."""
        return {
            side.of
            for leaf in find_comparisons(self.tree)
            for side in ((leaf.left, leaf.right) if isinstance(leaf, Compared) else (leaf,))
            if not isinstance(side, float)
        }

    def reads_topic(self, topic: str) -> bool:
        """Returns True if the condition reads the topic."""
        return any(of.includes_topic(topic) for of in self.all_selections)


def compile_rule(settings: RuleSettings, declared: DeclaredColumns) -> Rule:
    """Parses the condition of a rule, and checks that it fits the rule's key. Returns the rule.

    Args:
        settings: the rule as the user wrote it. All feeds that it names must be in `declared`.
        declared: the columns and feeds that the rule may use.

    Raises:
        ConditionParseError: the condition cannot be parsed, or does not fit the key.
    """
    selection = _create_selection(settings.topics, settings.feed, (), declared)
    sources = {
        name: _create_selection(
            one.topics if one.topics is not None else settings.topics, one.feed or settings.feed, one.rows, declared
        )
        for name, one in settings.sources.items()
    }
    tree = parse_condition(settings.when, ConditionNameScope(declared, selection, sources))
    _require_key_fits_condition(settings.by, tree, declared)
    since = None if settings.since is None else int(settings.since.timestamp() * 1000)
    content = (settings.by, selection, tree, since, [window.label for window in find_windows(tree)])
    return Rule(settings.name, settings.by, selection, tree, since, sha256(repr(content).encode()).hexdigest()[:12])


def _create_selection(topics: str, feed: str | None, rows: tuple[str, ...], declared: DeclaredColumns) -> Selection:
    if feed is None:
        return Selection(topics, rows)
    return FeedSelection(topics, rows, feed=declared.feeds[feed])


def _require_key_fits_condition(by: tuple[str, ...], tree: Tree, declared: DeclaredColumns) -> None:
    columns = [name for name in by if name not in SERIES_KEY]
    if not isinstance(tree, Pattern):
        if columns:
            raise ConditionParseError(
                0, f"a rule with aggregates can only be keyed by {', '.join(SERIES_KEY)}; found {', '.join(columns)}"
            )
        ordered = [one.label for one in find_windows(tree) if one.function in (Function.FIRST, Function.LAST)]
        if ordered and by != SERIES_KEY:
            keys = ", ".join(SERIES_KEY)
            raise ConditionParseError(0, f"{ordered[0]}: first and last need a rule with one series per key, by {keys}")
    elif len(columns) > 1 or any(name not in declared.texts for name in columns):
        available = ", ".join(declared.texts) or "none"
        raise ConditionParseError(
            0,
            f"beyond {', '.join(SERIES_KEY)}, a key may have one text column ({available}); found {', '.join(columns)}",
        )
