"""Alerts of rules, and the comparison of the alerts in the log with those that follow from gold's tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sessionlake.gold.rules.condition_tree import MINUTE_MS
from sessionlake.gold.rules.rule import Rule

RAISED, CLEARED, RETRACTED = "raised", "cleared", "retracted"
KEY = ("topic", "session_id", "partition", "row_id", "value")
Key = tuple[str | None, str | None, int | None, str | None, str | None]
"""Values of a rule's key, in the order of `KEY`: topic, session id, partition, row id, and value of a declared column.

Columns that the rule's key does not have are None.
"""
StreamTimes = Mapping[str, int]
"""Stream time of each topic: the highest event time that gold has read from it, in ms."""


def read_rule_key_of_row(key_columns: Collection[str], row: Mapping[str, Any]) -> Key:
    """Returns the key of a rule to which a row belongs: the values of `KEY`'s columns, with None for unused columns.

    Args:
        key_columns: the columns that the rule has as its key. The row must have all of them.
        row: the row's values by column name.
    """
    topic, session, partition, row_id, value = (row[name] if name in key_columns else None for name in KEY)
    return topic, session, partition, row_id, value


class Alert(NamedTuple):
    """The fact that a rule becomes true or false for a key.

    Attributes:
        rule: name of the rule.
        key: the key for which the rule changes.
        at_ms: event time in ms at which the rule becomes true or false.
        event: `raised` if the rule becomes true, `cleared` if it becomes false.
    """

    rule: str
    key: Key
    at_ms: int
    event: str


class AlertEvidence(NamedTuple):
    """The data that led to an alert.

    Attributes:
        start_ms: start in ms of the event time that the rule looks at for this alert; None if it has no limit.
        values: the rule's aggregates at the time of the alert, by their text in the rule; empty for patterns.
    """

    start_ms: int | None
    values: Mapping[str, float]


class AlertLogCause(StrEnum):
    """Why a row is written to the log of alerts."""

    ON_TIME = "on time"
    LATE_DATA = "late data"
    RULE_CHANGE = "new or changed rule"


@dataclass(frozen=True)
class AlertLogChange:
    """An alert to add to the log of alerts, or to retract there.

    Attributes:
        alert: the alert.
        retracted: True if the log has the alert but the tables no longer support it; False if the log lacks it.
        evidence: the data that led to the alert; None if the alert is retracted.
    """

    alert: Alert
    retracted: bool
    evidence: AlertEvidence | None


def compute_alert_log_changes(expected: Mapping[Alert, AlertEvidence], logged: Iterable[Alert]) -> list[AlertLogChange]:
    """Returns the changes of the log that give it exactly the alerts in `expected`, ordered by event time.

    Args:
        expected: the alerts that follow from gold's tables, each with its evidence, for some rules, keys and times.
        logged: the alerts that the log has now, for the same rules, keys and times.
    """
    known = {*logged}
    out = [AlertLogChange(alert, retracted=True, evidence=None) for alert in known - expected.keys()]
    new = ((alert, why) for alert, why in expected.items() if alert not in known)
    out += [AlertLogChange(alert, retracted=False, evidence=why) for alert, why in new]
    return sorted(out, key=lambda one: (one.alert.at_ms, one.alert.rule, one.alert.event, repr(one.alert.key)))


def find_logged_alerts(log_rows: Iterable[tuple[Alert, bool]], is_wanted: Callable[[Alert], bool]) -> set[Alert]:
    """Returns the alerts that are currently in the log: those that are added more often than retracted.

    Args:
        log_rows: rows of the log in any order: an alert, and True if the row retracts it.
        is_wanted: function that returns True for the alerts to return.
    """
    counts: dict[Alert, int] = {}
    for alert, retracted in log_rows:
        if is_wanted(alert):
            counts[alert] = counts.get(alert, 0) + (-1 if retracted else 1)
    return {alert for alert, count in counts.items() if count > 0}


def find_stream_time_of_rule(rule: Rule, topic: str | None, times: StreamTimes) -> int | None:
    """Returns the stream time in ms up to which a rule can be evaluated for a key; None if there is none yet.

    Args:
        rule: the rule.
        topic: the key's topic, whose stream time is returned. None if the rule's keys have no topic. Then the highest
            stream time of all topics that the rule reads is returned.
        times: stream time of each topic, in ms.
    """
    if topic is not None:
        return times.get(topic)
    return max((time for name, time in times.items() if rule.reads_topic(name)), default=None)


def are_buckets_of_alert_stored(rule: Rule, alert: Alert, first_complete_times: StreamTimes) -> bool:
    """Returns True if gold still has all buckets that decide whether a rule with time windows has an alert.

    A bucket has the aggregates of one series over a minute, hour or day. The decision needs the buckets in the windows
    that end at the alert's time and one minute before it.

    Args:
        rule: the rule.
        alert: the alert.
        first_complete_times: for topics with expired buckets, the event time in ms from which all buckets exist.
    """
    begin = find_stream_time_of_rule(rule, alert.key[0], first_complete_times)
    return begin is None or alert.at_ms > begin + rule.longest_window_minutes * MINUTE_MS
