"""What `run --once` says about a layer: sums of the entries that the run has added to the ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.cli.once import read_ledger_entries_of_layer, summarize_ledger_entries
from sessionlake.delta.schemas.names import LEDGER
from support.tables import Tables

BEGUN = datetime(2026, 1, 1, 12, tzinfo=UTC)


def entry(layer: str, after_s: float, outputs: dict[str, int], **counts: Any) -> dict[str, Any]:
    wrote = [{"table": table, "version": 1, "rows": rows} for table, rows in outputs.items()]
    none = dict.fromkeys(("messages", "applied", "duplicates", "quarantined", "held", "ignored"), 0) | {"parts": None}
    return none | counts | {"layer": layer, "committed_at": BEGUN + timedelta(seconds=after_s), "outputs": wrote}


ENTRIES = [
    entry("silver", -1, {"silver.session_changes": 7}, messages=7, applied=7),
    entry("bronze", 1, {"bronze.messages": 1_000}, messages=1_000, parts=None),
    entry("silver", 0, {"silver.session_changes": 900}, messages=990, applied=900, duplicates=3, quarantined=87),
    entry("silver", 2, {"silver.session_changes": 4}, messages=10, applied=4, held=6),
    entry("silver_tables", 3, {"silver.session_rows": 50, "silver.sessions": 2}, messages=1_000),
    entry("gold", 4, {"gold.metrics_1m": 8, "gold.metrics_1h": 0}, messages=904, applied=904),
    entry("processor-busy", 5, {"silver.busy": 1}, messages=1, applied=1),
]


def said(layer: str, entries: list[dict[str, Any]] = ENTRIES) -> str:
    reader = Tables({LEDGER: pa.Table.from_pylist(entries)})
    return str(summarize_ledger_entries(layer, read_ledger_entries_of_layer(reader, layer, BEGUN)))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ("bronze", "bronze: 1,000 messages; 1,000 rows into 1 table"),
        (
            "silver",
            "silver: 1,000 messages: 904 applied, 3 duplicates, 87 quarantined, 6 held back; 956 rows into 3 tables",
        ),
        ("gold", "gold: 904 changes; 8 rows into 1 table"),
        ("processor-busy", "processor-busy: 1 message: 1 applied, 0 quarantined; 1 row into 1 table"),
        ("processor-idle", "processor-idle: nothing new"),
    ],
)
def test_a_layer_says_what_it_has_done_since_the_run_began(layer: str, words: str):
    assert said(layer) == words


def test_messages_of_several_parts_are_reported_with_their_parts():
    entries = [entry("silver", 1, {}, messages=1, parts=5, applied=4, ignored=1)]
    assert (
        said("silver", entries)
        == "silver: 1 message with 5 parts: 4 applied, 0 quarantined, 1 ignored; 0 rows into 0 tables"
    )


def test_a_lake_without_a_ledger_has_nothing_new():
    assert (
        str(summarize_ledger_entries("gold", read_ledger_entries_of_layer(Tables({}), "gold", BEGUN)))
        == "gold: nothing new"
    )
