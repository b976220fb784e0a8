"""Ledgers of layers that have run for a long time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa

from sessionlake.delta.schemas.names import CHANGES, MESSAGES, ROWS, SESSIONS
from sessionlake.ledger.books import SUMS, VERSIONS
from sessionlake.ledger.positions import SCHEMA

LAYERS = ("bronze", "silver", "silver_tables", "gold")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
PLACES = 4
"""Number of partitions of the only topic. Each entry of bronze and silver has ten messages of each partition."""
SPACING = timedelta(milliseconds=250)
"""Time from one entry to the next."""
_PLAIN = [SCHEMA.field(name) for name in SCHEMA.names if name not in {*SUMS, VERSIONS, "until", "format"}]
_MORE = [("source", pa.string()), ("source_from", pa.int64()), ("started_at", pa.timestamp("us", tz="UTC"))]
LEDGER_SCHEMA = pa.schema([*_PLAIN, *_MORE, ("code_version", pa.string()), ("config_hash", pa.string())])


def entries(first: int, end: int) -> pa.Table:
    """Returns the ledger's rows from `first` up to but not including `end`. The layers alternate."""
    return pa.Table.from_pylist([_entry(n) for n in range(first, end)], LEDGER_SCHEMA)


def _entry(number: int) -> dict[str, object]:
    batch, turn = divmod(number, len(LAYERS))
    layer, at = LAYERS[turn], NOON + number * SPACING
    judged = layer in {"bronze", "silver"}
    span = {"topic": "capture.a", "first": batch * 10, "last": batch * 10 + 9, "messages": 10}
    messages = 10 * PLACES
    tables = {"bronze": [MESSAGES], "silver": [CHANGES], "silver_tables": [ROWS, SESSIONS], "gold": []}[layer]
    return {
        "layer": layer,
        "app_id": f"6f1d1f5e-0000-4000-8000-{turn:012}",
        "batch_id": batch,
        "source": MESSAGES,
        "source_from": batch,
        "source_to": batch,
        "offsets": [span | {"partition": n} for n in range(PLACES)] if judged else [],
        "outputs": [{"table": table, "version": batch + 1, "rows": messages} for table in tables],
        "messages": messages,
        "parts": messages,
        "applied": 0 if layer == "silver_tables" else messages,
        **dict.fromkeys(("duplicates", "quarantined", "held", "ignored"), 0),
        "started_at": at - SPACING,
        "committed_at": at,
        "code_version": "0.1.0",
        "config_hash": "0123456789abcdef",
        "decisions": [],
    }
