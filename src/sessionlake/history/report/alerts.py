"""Reads the latest alerts of rules, each as a span of event time: from when it was raised until it was cleared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import attrgetter, ge

from sessionlake.delta.schemas.names import RULE_EVENTS
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError

_KEY = ("topic", "session_id", "partition", "row_id", "value")
_COLUMNS = ("rule", *_KEY, "event", "retracts", "window_end")
_RAISED, _CLEARED, _RETRACTED = "raised", "cleared", "retracted"
# The most lines on the page, and how far back to look if there are too many alerts to read all.
_LINES = 12
_LOOKBACKS = (timedelta(days=365_000), timedelta(days=7), timedelta(hours=6))
_BYTES = 32 << 20


@dataclass(frozen=True)
class AlertsOfRuleAndKey:
    """All alerts that one rule raised for one key.

    Attributes:
        rule: Name of the rule.
        key: The values of the rule's key columns, as texts.
        spans: Start and end of each alert in event time; the end is None if the alert is not cleared.
    """

    rule: str
    key: tuple[str, ...]
    spans: tuple[tuple[datetime, datetime | None], ...]

    @property
    def last_alert_time(self) -> datetime:
        """The event time at which the last alert was cleared, or at which it was raised if it is not cleared."""
        since, until = self.spans[-1]
        return until or since


def read_latest_alerts(reader: TableReader) -> list[AlertsOfRuleAndKey]:
    """Returns the latest alerts of all rules by event time, the newest first; empty if there are too many to read."""
    if not reader.exists(RULE_EVENTS):
        return []
    newest: datetime | None = None
    for reach in _LOOKBACKS:
        since: tuple[Condition, ...] = () if newest is None else (("window_end", ge, newest - reach),)
        try:
            rows = reader.read_arrow_table(RULE_EVENTS, *since, columns=_COLUMNS, max_bytes=_BYTES).to_pylist()
        except TooLargeError:
            newest = newest or max(row["window_end"] for row in reader.read_rows(RULE_EVENTS, columns=("window_end",)))
            continue
        counts: Counter[tuple[object, ...]] = Counter()
        for row in rows:
            retracted = row["event"] == _RETRACTED
            event = row["retracts"] if retracted else row["event"]
            counts[(row["rule"], *(row[name] for name in _KEY), row["window_end"], event)] += -1 if retracted else 1
        found = sorted(_group_alert_events_by_rule_and_key(counts), key=attrgetter("last_alert_time"), reverse=True)
        return found[:_LINES]
    return []


def _group_alert_events_by_rule_and_key(counts: Counter[tuple[object, ...]]) -> Iterator[AlertsOfRuleAndKey]:
    events_by_key: dict[tuple[str, tuple[str, ...]], list[tuple[datetime, str]]] = {}
    for (rule, *key, at, event), count in counts.items():
        if count > 0 and isinstance(at, datetime):
            named = tuple(
                f"partition {part}" if isinstance(part, int) else str(part) for part in key if part is not None
            )
            events_by_key.setdefault((str(rule), named), []).append((at, str(event)))
    for (rule, named), events in events_by_key.items():
        spans: list[tuple[datetime, datetime | None]] = []
        for at, event in sorted(events):
            if event == _RAISED:
                spans.append((at, None))
            elif event == _CLEARED and spans:
                spans[-1] = (spans[-1][0], at)
        if spans:
            yield AlertsOfRuleAndKey(rule, named, tuple(spans))
