"""Compares lists of events that were filled in different orders."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from sessionlake.feeds.feed import Feed
from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.values import FeedColumn

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EVENT = ("message", "session", "kind", "ts", "seq", "after", "is_link", "restart", "chain", "scope", "sent", "rows")


def by_slow_reader(feed: Feed, records: list[KafkaRecord]) -> ColumnarEvents:
    """The events of messages, read one by one by the reader that defines what a feed means."""
    found = ColumnarEvents.create_empty(feed)
    for number, one in enumerate(records):
        found.add_message_result(feed, number, read_record(feed, one))
    return found


def in_order(found: ColumnarEvents, feed: Feed) -> dict[str, Any]:
    """Lists with the events in the order of their messages, and with values in the types of the columns."""
    parts = asdict(found)
    order = sorted(range(len(found.message)), key=found.message.__getitem__)
    ends = [sum(found.rows[: number + 1]) for number in range(len(found.rows))]
    rows = [row for number in order for row in range(ends[number] - found.rows[number], ends[number])]
    of_rows = {name: [parts[name][row] for row in rows] for name in ("deletes", "row_id", "rescued", "expect")}
    values = [
        [typed(cells[row], column) for row in rows]
        for cells, column in zip(found.values, feed.columns.values(), strict=True)
    ]
    events = {name: [parts[name][number] for number in order] for name in parts if name in EVENT}
    return (
        events | of_rows | {"values": values, "refused": {number: one.reason for number, one in found.refused.items()}}
    )


def typed(cell: Any, column: FeedColumn) -> Any:
    """A value in the type of its column: a decimal may be in the lists as text, a timestamp as microseconds."""
    if column.sql.startswith("decimal") and isinstance(cell, str):
        return Decimal(cell)
    if column.sql.startswith("timestamp") and isinstance(cell, int):
        found = EPOCH + timedelta(microseconds=cell)
        return found if column.sql == "timestamp" else found.replace(tzinfo=None)
    return cell
