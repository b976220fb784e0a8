"""Alerts, as what history bears of them and as what the log says; the difference is what has to be logged."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.tree import MINUTE_MS

RAISED, CLEARED, RETRACTED = "raised", "cleared", "retracted"
KEY = ("topic", "session_id", "partition", "row_id", "value")
Key = tuple[str | None, str | None, int | None, str | None, str | None]
"""Topic, session, its partition, row, and a column's value; None for what the rule's keys do not have."""
StreamTimes = Mapping[str, int]
"""Of topics, in ms."""


def key_in(by: Collection[str], row: Mapping[str, Any]) -> Key:
    """The key of a row: of the columns of `KEY` those that make it."""
    topic, session, partition, row_id, value = (row[name] if name in by else None for name in KEY)
    return topic, session, partition, row_id, value


class Alert(NamedTuple):
    """That a rule begins or ceases to hold for a key, at a moment of event time."""

    rule: str
    key: Key
    at_ms: int
    event: str


class Grounds(NamedTuple):
    """What an alert rests on: where its window begins, and the aggregates by how the rule writes them."""

    start_ms: int | None
    values: Mapping[str, float]


class Cause(StrEnum):
    """Why an event is logged."""

    ON_TIME = "on time"
    LATE_DATA = "late data"
    OTHER_RULE = "new or changed rule"


@dataclass(frozen=True)
class Logged:
    """One row for the log.

    Attributes:
        retracted: whether the alert is taken back.
        grounds: None where it is.
    """

    alert: Alert
    retracted: bool
    grounds: Grounds | None


def difference(truth: Mapping[Alert, Grounds], held: Iterable[Alert]) -> list[Logged]:
    """What makes the log bear what history does, in order of time.

    Args:
        truth: all alerts of some rules, keys and times.
        held: those that the log has, of the same.
    """
    known = {*held}
    out = [Logged(alert, retracted=True, grounds=None) for alert in known - truth.keys()]
    out += [Logged(alert, retracted=False, grounds=grounds) for alert, grounds in truth.items() if alert not in known]
    return sorted(out, key=lambda one: (one.alert.at_ms, one.alert.rule, one.alert.event, repr(one.alert.key)))


def net(rows: Iterable[tuple[Alert, bool]], wanted: Callable[[Alert], bool]) -> set[Alert]:
    """The alerts that a log holds, in whatever order its rows come: those raised more often than retracted.

    Args:
        rows: alerts, and whether a row takes them back.
    """
    counts: dict[Alert, int] = {}
    for alert, retracted in rows:
        if wanted(alert):
            counts[alert] = counts.get(alert, 0) + (-1 if retracted else 1)
    return {alert for alert, count in counts.items() if count > 0}


def stream_time(rule: Rule, topic: str | None, times: StreamTimes) -> int | None:
    """Stream time of a key, or None where nothing was read.

    Args:
        topic: None: the key is across topics.
    """
    if topic is not None:
        return times.get(topic)
    return max((time for name, time in times.items() if rule.reads(name)), default=None)


def can_tell(rule: Rule, alert: Alert, begins: StreamTimes) -> bool:
    """Whether all is there that decides if a rule of windows says this: what it held a minute before, too.

    Args:
        begins: where the slices of topics begin of which some are gone.
    """
    begin = stream_time(rule, alert.key[0], begins)
    return begin is None or alert.at_ms > begin + rule.longest * MINUTE_MS
