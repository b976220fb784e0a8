"""Creates lakes for the report with delta-rs, and parses the report's page as a browser does."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from math import sin

import pyarrow as pa
from deltalake import write_deltalake

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    EVENTS,
    LEDGER,
    MESSAGES,
    METRICS_1M,
    PROGRESS,
    QUARANTINE,
    RESTATEMENTS,
    SESSIONS,
)
from support.lakes import find_table_folder
from support.ledgers import NOON, PLACES, entries

TIME = pa.timestamp("us", tz="UTC")
PLACE = [("topic", pa.string()), ("session_id", pa.string()), ("partition", pa.int32())]
SERIES = [*PLACE, ("row_id", pa.string()), ("metric", pa.string())]
END = int((NOON + timedelta(minutes=4)).timestamp() * 1000)
"""Last time of the sessions, in ms."""
_POINT = [("ts", pa.int64()), ("position", pa.int64()), ("ordinal", pa.int32())]
SCHEMAS = {
    EVENTS: pa.schema([*PLACE, ("event", pa.string()), ("action", pa.string()), ("_batch", pa.int64())]),
    QUARANTINE: pa.schema([*PLACE, ("reason", pa.string()), ("_batch", pa.int64())]),
    SESSIONS: pa.schema([*PLACE, ("status", pa.string())]),
    PROGRESS: pa.schema([*PLACE, ("messages", pa.int64()), ("last_ts", pa.int64()), ("_batch", pa.int64())]),
    AVERAGES: pa.schema([*SERIES, *_POINT, ("value", pa.float64()), ("average", pa.float64())]),
    RESTATEMENTS: pa.schema(
        [
            ("table", pa.string()),
            *SERIES,
            *_POINT,
            ("revision", pa.int32()),
            ("average_before", pa.float64()),
            ("restated_at", TIME),
        ]
    ),
    METRICS_1M: pa.schema(
        [*SERIES, ("window_start", TIME), ("points", pa.int64())]
        + [(name, pa.float64()) for name in ("min", "average", "max")]
    ),
}


def write(lake: Lake, table: str, rows: Sequence[dict[str, object]]) -> None:
    """Appends rows to a table."""
    write_deltalake(find_table_folder(lake, table), pa.Table.from_pylist(list(rows), SCHEMAS[table]), mode="append")


def fill(lake: Lake, names: Sequence[str], batches: int = 40) -> None:
    """Fills a lake in which topics, sessions, rows, metrics, events, reasons and statuses have these names."""
    ledger = entries(0, 4 * batches)
    write_deltalake(find_table_folder(lake, LEDGER), ledger)
    messages = pa.table({"topic": [name for name in names for _ in range(PLACES)]})
    write_deltalake(find_table_folder(lake, MESSAGES), messages)
    places = [{"topic": name, "session_id": name, "partition": 0} for name in names]
    write(lake, SESSIONS, [place | {"status": place["topic"]} for place in places])
    write(lake, SESSIONS, [place | {"status": "open"} for place in places])
    write(lake, EVENTS, [place | {"event": place["topic"], "action": "dropped", "_batch": 0} for place in places])
    write(lake, EVENTS, [place | {"event": "gap", "action": "isolated", "_batch": 1} for place in places])
    write(lake, QUARANTINE, [place | {"reason": place["topic"], "_batch": 1} for place in places])
    write(lake, PROGRESS, [place | {"messages": 100, "last_ts": END, "_batch": 1} for place in places])
    for place in places:
        series = place | {"row_id": place["topic"], "metric": place["topic"]}
        write(lake, AVERAGES, [series | point(END - 1000 * n, n) for n in range(200)])
        changed = {"table": AVERAGES, "revision": 1, "average_before": 99.0, "restated_at": NOON}
        ts = END - 7000
        write(lake, RESTATEMENTS, [series | changed | {"ts": ts, "position": -7, "ordinal": 0}])
        write(lake, METRICS_1M, [series | minute(datetime.fromtimestamp(END / 1000, UTC), n) for n in range(4)])


def point(ts: int, number: int) -> dict[str, object]:
    value = 100 + sin(number / 9)
    return {"ts": ts, "position": -number, "ordinal": 0, "value": value, "average": value - 0.1}


def minute(end: datetime, number: int) -> dict[str, object]:
    return {"window_start": end - timedelta(minutes=number), "points": 60, "min": 99.0, "average": 100.0, "max": 101.5}


class Seen(HTMLParser):
    """A parsed page.

    Attributes:
        elements: Tags with their attributes.
        texts: Texts with the tag around them.
        headings: Texts of the headings of second and third level.
    """

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._inside: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in {"meta", "link"}:
            self._inside.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._inside.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self._inside[-1] if self._inside else "", data.strip()))

    @property
    def tags(self) -> set[str]:
        return {tag for tag, _ in self.elements}

    @property
    def charts(self) -> list[str]:
        """Labels of the charts."""
        return [attrs["aria-label"] or "" for tag, attrs in self.elements if tag == "svg"]

    def all_text(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]
