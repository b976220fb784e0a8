"""A lake that reads the feed with columns of every type, with products, rules, joins and processors over them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from sessionlake.delta.commit import replace_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ROWS, RULES
from sessionlake.gold.declared.references import list_declared_references
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.gold.references.writing import write_reference_rows
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.settings.gold import GoldSettings
from sessionlake.settings.model import Settings, SilverSettings
from sessionlake.settings.processors import ProcessorSettings
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from support.lakes import rows_of, write_bronze
from support.typed_feed import TYPES, capture, flat, fold, messages

COUNT = 60
"""Number of messages that arrive at first; `PART` more come later."""
PART = COUNT // 3
NAMES = ("session_id", "row_id", *TYPES)
GOLD: dict[str, Any] = {
    "shards": 2,
    "products": [
        {
            "name": "figures",
            "keys": ["topic", "session_id", "row_id", "metric"],
            "bucket": "10 seconds",
            "aggregates": {kind: kind for kind in ("count", "sum", "min", "max", "mean", "variance", "last", "p50")},
        },
        {
            "name": "exact",
            "value": "wide",
            "keys": ["topic", "session_id", "row_id", "metric"],
            "aggregates": {kind: kind for kind in ("count", "sum", "min", "max", "mean", "first", "last")},
        },
        {
            "name": "paid",
            "value": "total",
            "keys": ["metric"],
            "aggregates": {"n": "count", "total": "sum", "mean": "mean"},
        },
        *(
            {
                "name": f"by_{key}",
                "source": ROWS,
                "keys": [key],
                "value": "total",
                "aggregates": {"rows": "count", "paid": "sum", "least": "min", "most": "max"},
            }
            for key in ("day", "cents", "local", "raw")
        ),
        {
            "name": "by_time",
            "source": ROWS,
            "keys": ["session_id"],
            "time": "moment",
            "bucket": "365 days",
            "value": "cents",
            "of": "texts",
            "aggregates": {"rows": "count", "kinds": "approx_distinct", "last_time": "last_ts"},
        },
    ],
    "references": [
        {
            "name": "days",
            "keys": {"day": "date"},
            "columns": {"rate": "decimal(12,6)", "since": "timestamp_ntz"},
        },
        {"name": "amounts", "keys": {"cents": "decimal(5,2)"}, "columns": {"label": "string"}},
    ],
    "enriched": [
        {
            "name": "joined",
            "join": [
                {"reference": "days", "keys": {"day": "day"}},
                {"reference": "amounts", "keys": {"cents": "cents"}},
            ],
        }
    ],
}
RULE_TEXTS = {
    "paid": "{by: [session_id], when: sum(cents) over 3 min > 10.25}",
    "low": "{by: [session_id], when: cents < 0 then total >= 0.5 within 10 min}",
}
MODULE = """
from dataclasses import dataclass
from decimal import Decimal

from sessionlake.processors import KeyedProcessor, Processor


def spelled(value):
    return [spelled(one) for one in value] if isinstance(value, list) else f"{type(value).__name__} {value}"


def text(values):
    return repr(sorted((name, spelled(value)) for name, value in values.items()))


@dataclass
class Total:
    amount: Decimal = Decimal(0)


class Seen(Processor[Total]):
    state = Total
    output = {"row": "string", "content": "string", "amount": "decimal(38,4)"}

    def on_message(self, state, message):
        for row in message.rows:
            state.amount += row.values.get("total") or 0
            yield {"row": row.id, "content": text(row.values), "amount": state.amount}


class Kept(KeyedProcessor[Total]):
    state = Total
    output = {"row": "string", "day": "date", "raw": "binary"}

    def on_row(self, state, row):
        yield {"row": row["session_id"] + row["row_id"], "day": row["day"], "raw": row["raw"]}
"""


EXECUTED: dict[str, Any] = {}
exec(MODULE, EXECUTED)  # noqa: S102 - the text is our own


class TypedLake:
    """A lake with the feed's messages in three batches. Each batch is merged before the next one comes."""

    def __init__(self, spark: Any, location: dict[str, Any], folder: Path) -> None:
        (folder / "typed_processors.py").write_text(MODULE)
        processors = (
            ProcessorSettings(name="seen", target="typed_processors:Seen"),
            ProcessorSettings(
                name="kept", target="typed_processors:Kept", source=ROWS, key=("cents",), order=("session_id", "row_id")
            ),
        )
        silver = SilverSettings(shards=2, snapshot_interval="20 s")
        gold = GoldSettings.model_validate(GOLD)
        self.spark = spark
        self.settings = Settings(**location, capture=capture(), silver=silver, gold=gold, processors=processors)
        self.messages = messages(3, COUNT + PART, later_from=COUNT)
        self.lake.create_or_update_tables(spark, ["bronze.messages"])
        for first in range(0, COUNT, PART):
            self.arrive(first, first + PART)

    @property
    def lake(self) -> Lake:
        """The lake with the present settings."""
        return Lake(self.settings)

    def arrive(self, first: int, end: int) -> None:
        """Writes messages to bronze, and runs silver and its merges."""
        write_bronze(self.spark, self.lake, self.messages[first:end])
        self.run_silver()

    def run_silver(self) -> None:
        """Runs silver until it has read all messages, and merges its changes."""
        job.start(self.spark, self.settings, once=True).wait()
        TableMerger(self.spark, self.settings).merge_all_pending_batches()

    def run(self, layer: Layer) -> None:
        """Runs a layer until it has read all its input."""
        run_once(self.spark, self.settings, layer, threading.Event())

    def write_rules_and_references(self) -> None:
        """Writes the rules, and a row of each reference table for each value in the rows of silver."""
        lake = Lake(self.settings, build_declared_gold_schemas(self.settings))
        lake.create_or_update_tables(self.spark, [RULES, *self.settings.gold.reference_table_names])
        texts = [{"name": n, "text": text, "enabled": True, "updated_at": None} for n, text in RULE_TEXTS.items()]
        schema = lake.reader(self.spark).read_table_schema(RULES)
        replace_rows(self.spark, lake, RULES, pa.Table.from_pylist(texts, schema))
        start, noon = datetime(2020, 1, 1, tzinfo=UTC), datetime.fromisoformat("2024-01-01T12:00:00.000001")
        none = {"valid_from": start, "valid_to": None}
        days, amounts = (sorted({row[name] for row in self.expected()} - {None}) for name in ("day", "cents"))
        rows = [
            [none | {"day": day, "rate": Decimal("0.000001"), "since": noon} for day in days],
            [none | {"cents": amount, "label": str(amount)} for amount in amounts],
        ]
        for reference, own in zip(list_declared_references(self.settings), rows, strict=True):
            table = pa.Table.from_pylist(own, reference.arrow_schema())
            write_reference_rows(self.spark, lake, reference, table, start)

    def expected(self, count: int = COUNT) -> list[dict[str, Any]]:
        """The rows of all sessions after some messages, as a plain fold gives them."""
        return list(flat(fold(self.messages[:count], self.settings.capture)))

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all sessions as silver has them."""
        return in_order(rows_of(self.spark, self.lake, ROWS))

    def read(self, table: str) -> list[dict[str, Any]]:
        """All rows of a table."""
        return rows_of(self.spark, self.lake, table)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the columns of the feed only, by session and row id."""
    found = [{name: row[name] for name in NAMES} for row in rows]
    return sorted(found, key=lambda row: (row["session_id"], row["row_id"]))
