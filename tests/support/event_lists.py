"""Compares lists of events that were filled in different orders."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sessionlake.feeds.lists import EventLists

EVENT = ("message", "session", "kind", "ts", "seq", "after", "is_link", "restart", "chain", "scope", "sent", "rows")


def in_order(found: EventLists) -> dict[str, Any]:
    """Lists with the events in the order of their messages."""
    parts = asdict(found)
    order = sorted(range(len(found.message)), key=found.message.__getitem__)
    ends = [sum(found.rows[: number + 1]) for number in range(len(found.rows))]
    rows = [row for number in order for row in range(ends[number] - found.rows[number], ends[number])]
    of_rows = {name: [parts[name][row] for row in rows] for name in ("deletes", "row_id", "rescued", "expect")}
    values = [[column[row] for row in rows] for column in found.values]
    events = {name: [parts[name][number] for number in order] for name in parts if name in EVENT}
    return (
        events | of_rows | {"values": values, "refused": {number: one.reason for number, one in found.refused.items()}}
    )
