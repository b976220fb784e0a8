"""Rows of the log of alerts, and the data of a batch from which they are computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.rules.alerts import (
    KEY,
    Alert,
    AlertLogCause,
    AlertLogChange,
    StreamTimes,
    find_stream_time_of_rule,
)
from sessionlake.gold.rules.rule import Rule

NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class RuleBatchData:
    """The data of one gold batch that can change alerts.

    Attributes:
        times_before: stream time of each topic before the batch, in ms.
        times_after: stream time of each topic after the batch, in ms.
        touched_buckets: the one-minute buckets with new points: topic, session_id, partition, row_id, metric, `end` in
            minutes since 1970, and `ts`, the earliest event time in ms that the batch added to the bucket.
        matches: the batch's changes that are events of patterns, with the columns of `patterns.MATCH`.
        bucket_starts: for topics with expired buckets, the event time in ms from which buckets exist. Alerts that
            depend on expired buckets are not changed in the log.
    """

    times_before: StreamTimes
    times_after: StreamTimes
    touched_buckets: pa.Table
    matches: pa.Table
    bucket_starts: StreamTimes = field(default_factory=dict)


class AlertLogRow(NamedTuple):
    """A row to write to the log of alerts, and its cause.

    Attributes:
        change: the alert that the row adds or retracts.
        late: True if stream time had already passed the alert's time before this batch.
        late_ts: earliest event time in ms of the late events that caused the row; None if no late event did.
    """

    change: AlertLogChange
    rule: Rule
    late: bool
    cause: AlertLogCause
    late_ts: int | None


def create_alert_log_row(
    change: AlertLogChange, rule: Rule, batch: RuleBatchData, late_ts: Callable[[], int | None] | None
) -> AlertLogRow:
    """Returns the log row for an alert to add or retract, with its cause.

    Args:
        late_ts: returns the event time (ms) of the late event that changed the alert, or None if there is none.
            None instead of the function if the rule is new, so that no late event can be the cause.
    """
    passed = find_stream_time_of_rule(rule, change.alert.key[0], batch.times_before)
    # A retracted alert of an older version is late, whatever topics the new version reads.
    late = (late_ts is None and change.retracted) or (passed is not None and change.alert.at_ms <= passed)
    if not late:
        return AlertLogRow(change, rule, late, AlertLogCause.ON_TIME, None)
    if late_ts is None:
        return AlertLogRow(change, rule, late, AlertLogCause.RULE_CHANGE, None)
    return AlertLogRow(change, rule, late, AlertLogCause.LATE_DATA, late_ts())


def find_first_event_time(rows: pa.Table, alert: Alert) -> int | None:
    """Returns the earliest event time (`ts`, ms) of the rows with an alert's key; None if no row has the key."""
    for name, value in zip(KEY, alert.key, strict=True):
        if value is not None:
            rows = rows.filter(pc.equal(rows[name], value))
    found: int | None = pc.min(rows["ts"]).as_py()
    return found
