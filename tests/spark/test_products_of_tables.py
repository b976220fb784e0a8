"""Products of a processor's table, and of each other, in a real lake: kept up, replayed, made anew, verified."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli import gold, processors
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.definition import TableSchema, WriteMode, add_comments
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.operations.pipeline import Layer, run_once
from sessionlake.processors.output import HEAD
from sessionlake.settings.gold import GoldSettings
from sessionlake.settings.model import CaptureSettings, ProcessorSettings, Settings, SilverSettings
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake_lab.truth import KafkaMessage
from support.checkpoints import lose_last_commit
from support.lakes import rows_of, write_bronze, write_rows

MODULE = """
from dataclasses import dataclass
from sessionlake.processors import Processor

@dataclass
class Nothing:
    pass

class Fills(Processor[Nothing]):
    state = Nothing
    output = {"customer": "string", "price": "double", "at": "timestamp"}

    def on_message(self, state, message):
        for row in message.rows:
            yield {"customer": row.values.get("customer"), "price": row.values.get("price"), "at": message.ts}
"""
BY_CUSTOMER = {
    "name": "by_customer",
    "source": "silver.fills",
    "keys": ["customer"],
    "time": "at",
    "bucket": "1 minute",
    "value": "price",
    "order": ["_position", "ordinal"],
    "aggregates": {
        "fills": "count",
        "paid": "sum",
        "spread": "variance",
        "usual": "p50",
        "first": "first",
        "last": "last",
    },
}
# A customer who gets one more is in another row; rows that nobody is in are gone.
BY_FILLS = {
    "name": "by_fills",
    "source": "gold.by_customer",
    "keys": ["fills"],
    "value": "customer",
    "of": "texts",
    "aggregates": {"rows": "count", "customers": "approx_distinct"},
}


Fill = tuple[str | None, float | None, int]  # customer, price, event time


class Fills:
    """A processor's table of fills, and products of it, over a bronze that the test writes."""

    def __init__(self, spark: Any, folder: Path, location: dict[str, Any]) -> None:
        self.spark, self.location, self._offset = spark, location, 0
        self.said: list[str] = []
        self.declare(BY_FILLS, BY_CUSTOMER)
        Lake(self.settings).create_or_update_tables(spark, ["bronze.messages"])
        (folder / "made_fills.py").write_text(MODULE)

    def declare(self, *products: dict[str, Any]) -> None:
        fills = ProcessorSettings(name="fills", target="made_fills:Fills")
        self.settings = Settings(
            **self.location,
            capture=CaptureSettings(columns={"customer": "string", "price": "double"}),
            silver=SilverSettings(shards=2),
            processors=(fills,),
            gold=GoldSettings.model_validate({"products": products}),
        )

    def arrive(self, *fills: Fill) -> None:
        """Messages that the processor makes fills of."""
        found = []
        for customer, price, ts in fills:
            rows = [{"id": "r", "customer": customer, "price": price}]
            kind = "update" if self._offset else "snapshot"
            body = {"type": kind, "seq": self._offset, "ts": ts, "rows": rows}
            found.append(KafkaMessage("capture.a", 0, self._offset, self._offset, b"s", json.dumps(body).encode()))
            self._offset += 1
        write_bronze(self.spark, Lake(self.settings), found)

    def write(self, *fills: Fill) -> None:
        """As if the processor had written them."""
        columns = (*HEAD, ("customer", "string"), ("price", "double"), ("at", "timestamp"))
        definitions = add_comments(columns, defaultdict(str))
        schema = TableSchema(definitions, "Fills", written_by="processors.job", writes=WriteMode.APPEND)
        lake = Lake(self.settings, {"silver.fills": schema})
        lake.create_or_update_tables(self.spark, ["silver.fills"])
        rows = []
        for customer, price, ts in fills:
            at = datetime.fromtimestamp(ts / 1000, UTC)
            place = {"session_id": "s", "_position": self._offset, "ordinal": 0}
            rows.append(place | {"customer": customer, "price": price, "at": at})
            self._offset += 1
        write_rows(self.spark, lake, "silver.fills", rows)

    def run(self) -> None:
        run_once(self.spark, self.settings, Layer.PROCESSOR, threading.Event())

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in columns) for row in rows_of(self.spark, Lake(self.settings), table))

    def verify(self) -> bool:
        found: list[str] = []
        exact = gold.verify_gold_tables(self.spark, self.settings, found.append)
        self.said = [said for said in found if ".by_" in said]
        return exact

    def rebuild(self, table: str) -> None:
        self.said.clear()
        gold.rebuild_gold_tables(self.spark, self.settings, table, self.said.append)

    def spoil(self, table: str, **changed: Any) -> None:
        """Changes the figures of one of the table's rows."""
        lake = Lake(self.settings)
        found = lake.reader(self.spark).read_arrow_table(table)
        others = tuple(name for name in found.column_names if name not in ("customer", "window_start"))
        row = found.slice(0, 1)
        for name, value in changed.items():
            place = row.column_names.index(name)
            row = row.set_column(place, row.field(place), [[value]])
        upsert = Upsert(("customer", "window_start"), others)
        lake.storage.merge_rows(self.spark, table, convert_to_spark_frame(self.spark, row), upsert, Txn("spoilt", 0))


@pytest.fixture
def fills(spark: Any, tmp_path: Path, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Fills:
    monkeypatch.chdir(tmp_path)
    return Fills(spark, tmp_path, location)


COLUMNS = ("customer", "fills", "paid", "first", "last")
FIRST = [("ann", 2.5, 0), ("bob", 1.0, 61_000), (None, 9.0, 0), ("ann", None, 30_000)]
LATE = [("ann", 7.5, -30_000), ("ann", 4.0, 45_000), ("bob", 3.0, 60_000)]
WHOLE = [("ann", 1, 7.5, 7.5, 7.5), ("ann", 2, 6.5, 2.5, 4.0), ("bob", 2, 4.0, 3.0, 1.0)]


@pytest.mark.soak
def test_rows_that_come_late_and_rows_that_are_replaced_leave_what_sql_makes_of_the_source(fills: Fills) -> None:
    fills.settings = fills.settings.model_copy(update={"processors": fills.settings.processors[1:]})
    fills.write(*FIRST)
    fills.run()
    assert fills.rows("gold.by_customer", *COLUMNS) == [("ann", 1, 2.5, 2.5, 2.5), ("bob", 1, 1.0, 1.0, 1.0)]
    assert fills.rows("gold.by_fills", "fills", "rows", "customers") == [(1, 2, 2)]
    fills.write(*LATE)
    fills.run()
    assert fills.rows("gold.by_customer", *COLUMNS) == WHOLE
    assert fills.rows("gold.by_fills", "fills", "rows", "customers") == [(1, 1, 1), (2, 2, 2)]
    assert fills.verify()
    assert fills.said == ["gold.by_customer is exact: 3 rows", "gold.by_fills is exact: 2 rows"]


@pytest.mark.soak
def test_a_replay_changes_nothing_and_another_declaration_is_refused_until_it_is_made_again(fills: Fills) -> None:
    fills.arrive(*FIRST)
    fills.run()
    fills.arrive(*LATE)
    fills.run()
    for name in ("by_customer", "by_fills"):
        lose_last_commit(fills.settings.checkpoint_path(f"processor-{name}"))
    fills.run()
    assert fills.rows("gold.by_customer", *COLUMNS) == WHOLE
    assert fills.verify()

    fills.declare(BY_CUSTOMER | {"keys": ["customer", "session_id"], "bucket": None})
    with pytest.raises(
        LakeError, match=r"with another declaration.*`sessionlake rebuild gold\.by_customer`, which computes it again"
    ):
        fills.run()
    assert fills.verify()
    assert "not compared: it is incomplete. Run `sessionlake rebuild gold.by_customer`" in fills.said[-1]
    fills.rebuild("gold.by_customer")
    assert "gold.by_customer is rebuilt from silver.fills: 2 rows" in fills.said[0]
    assert fills.rows("gold.by_customer", "session_id", "customer", "fills") == [("s", "ann", 3), ("s", "bob", 2)]
    fills.arrive(("cy", 1.0, 0))
    fills.run()
    assert fills.verify()
    assert fills.said == ["gold.by_customer is exact: 3 rows"]
    with pytest.raises(UsageError, match=r"gold\.none is not a table of gold\. Name one of .*, gold\.by_customer"):
        fills.rebuild("gold.none")


@pytest.mark.soak
def test_a_figure_that_is_spoilt_is_reported_and_what_is_made_again_comes_through_to_what_is_made_of_it(
    fills: Fills,
) -> None:
    fills.arrive(("ann", 2.5, 0), ("ann", 3.5, 1), ("bob", 1.0, 2))
    fills.run()
    fills.spoil("gold.by_customer", paid=2.0, fills=7)
    assert not fills.verify()
    assert "gold.by_customer: 1 of 2 rows differ; the first difference" in fills.said[0]
    assert "gold.by_fills is not compared: gold.by_customer has rows that it has not read yet" in fills.said[1]
    fills.rebuild("gold.by_customer")
    assert "1 changed" in fills.said[0]
    fills.run()
    assert fills.verify()
    assert fills.said == ["gold.by_customer is exact: 2 rows", "gold.by_fills is exact: 2 rows"]


@pytest.mark.soak
def test_one_of_another_source_begins_again_and_merged_files_are_nothing_to_read(fills: Fills) -> None:
    fills.arrive(*FIRST)
    fills.run()
    fills.arrive(*LATE)
    fills.run()
    fills.spark.sql(f"OPTIMIZE {Lake(fills.settings).to_sql_identifier('silver.fills')}")
    other = {"name": "by_fills", "source": "silver.fills", "keys": ["customer"], "aggregates": {"rows": "count"}}
    fills.declare(BY_CUSTOMER, other)
    fills.rebuild("gold.by_fills")
    fills.run()
    assert fills.rows("gold.by_fills", "customer", "rows") == [("ann", 4), ("bob", 2)]
    assert fills.verify()
    assert fills.said == ["gold.by_customer is exact: 3 rows", "gold.by_fills is exact: 2 rows"]
    processors.rebuild_processor(fills.spark, fills.settings, "fills", OutputFormat.TABLE, fills.said.append)
    told = "gold.by_customer was made of the former rows: run `sessionlake rebuild gold.by_customer` to update it"
    assert told in fills.said


@pytest.mark.soak
def test_rows_of_a_reference_table_are_counted_and_counted_otherwise_as_it_changes(fills: Fills) -> None:
    sites = {"name": "sites", "keys": {"site": "string"}, "columns": {"country": "string"}}
    by_country = {"name": "by_country", "source": "reference.sites", "keys": ["country"], "aggregates": {"n": "count"}}
    given = GoldSettings.model_validate({"products": [by_country], "references": [sites]})
    fills.settings = Settings(**fills.location, gold=given)
    lake = Lake(fills.settings, build_declared_gold_schemas(fills.settings))
    lake.create_or_update_tables(fills.spark, ["reference.sites"])
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [{"site": site, "country": country, "valid_from": begin} for site, country in ("an", "bn", "cd")]
    write_rows(fills.spark, lake, "reference.sites", rows)
    fills.run()
    assert fills.rows("gold.by_country", "country", "n") == [("d", 1), ("n", 2)]
    moved = lake.reader(fills.spark).read_arrow_table("reference.sites").slice(0, 1)
    moved = moved.set_column(moved.column_names.index("country"), "country", [["d"]])
    upsert = Upsert(("site",), tuple(name for name in moved.column_names if name != "site"))
    lake.storage.merge_rows(
        fills.spark, "reference.sites", convert_to_spark_frame(fills.spark, moved), upsert, Txn("moved", 0)
    )
    fills.run()
    assert fills.rows("gold.by_country", "country", "n") == [("d", 2), ("n", 1)]
    assert fills.verify()
