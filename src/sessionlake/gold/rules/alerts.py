"""Alerts, and the rows that bring the log of alerts into line with what the tables say."""

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
"""Topic, session id, partition, row id, and a declared column's value; None for columns that are not in the rule's key.
"""
StreamTimes = Mapping[str, int]
"""Stream time in ms, by topic."""


def key_of_row(by: Collection[str], row: Mapping[str, Any]) -> Key:
    """Returns a row's key. Columns of `KEY` that are not in `by` are None."""
    topic, session, partition, row_id, value = (row[name] if name in by else None for name in KEY)
    return topic, session, partition, row_id, value


class Alert(NamedTuple):
    """A rule starts or stops to hold for a key, at a moment of event time."""

    rule: str
    key: Key
    at_ms: int
    event: str


class Evidence(NamedTuple):
    """Why an alert was raised: the start of its window in ms, and its aggregates by their text in the rule."""

    start_ms: int | None
    values: Mapping[str, float]


class Cause(StrEnum):
    """Why a row is logged."""

    ON_TIME = "on time"
    LATE_DATA = "late data"
    RULE_CHANGE = "new or changed rule"


@dataclass(frozen=True)
class LogChange:
    """An alert to add to the log, or to retract.

    Attributes:
        retracted: True if the log has the alert and should not.
        evidence: None if the alert is retracted.
    """

    alert: Alert
    retracted: bool
    evidence: Evidence | None


def log_difference(truth: Mapping[Alert, Evidence], logged: Iterable[Alert]) -> list[LogChange]:
    """Returns the rows that make the log agree with the true alerts, ordered by time.

    Args:
        truth: all true alerts of some rules, keys and times.
        logged: the log's alerts of the same rules, keys and times.
    """
    known = {*logged}
    out = [LogChange(alert, retracted=True, evidence=None) for alert in known - truth.keys()]
    out += [LogChange(alert, retracted=False, evidence=why) for alert, why in truth.items() if alert not in known]
    return sorted(out, key=lambda one: (one.alert.at_ms, one.alert.rule, one.alert.event, repr(one.alert.key)))


def logged_alerts(rows: Iterable[tuple[Alert, bool]], is_wanted: Callable[[Alert], bool]) -> set[Alert]:
    """Returns the alerts that a log holds: those added more often than retracted, in any order.

    Args:
        rows: alerts, each with True if the row retracts it.
        is_wanted: selects the alerts to return.
    """
    counts: dict[Alert, int] = {}
    for alert, retracted in rows:
        if is_wanted(alert):
            counts[alert] = counts.get(alert, 0) + (-1 if retracted else 1)
    return {alert for alert, count in counts.items() if count > 0}


def stream_time(rule: Rule, topic: str | None, times: StreamTimes) -> int | None:
    """Returns the stream time of a key in ms, or None if no message was read.

    Args:
        topic: None if the key spans all topics that the rule reads.
    """
    if topic is not None:
        return times.get(topic)
    return max((time for name, time in times.items() if rule.reads_topic(name)), default=None)


def is_decidable(rule: Rule, alert: Alert, begins: StreamTimes) -> bool:
    """Returns whether all slices that decide a window rule's alert still exist, including those for the minute before.

    Args:
        begins: by topic, the time in ms from which slices exist, for topics with expired slices.
    """
    begin = stream_time(rule, alert.key[0], begins)
    return begin is None or alert.at_ms > begin + rule.longest_minutes * MINUTE_MS
