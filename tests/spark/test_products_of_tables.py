"""Products of a processor's table, and of each other, in a real lake: kept up, replayed, made anew, verified."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sessionlake.commands import gold
from sessionlake.config import CaptureSettings, ProcessorSettings, Settings, SilverSettings
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold_settings import GoldSettings
from sessionlake.lab.truth import KafkaMessage
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.lake.upsert import Upsert
from sessionlake.pipeline import Layer, run_once
from sessionlake.runtime.frames import as_frame
from support.checkpoints import lose_last_commit
from support.lakes import rows_of, write_bronze

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
            if row.values.get("price") != WITHOUT:
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


class Fills:
    """A processor's table of fills, and products of it, over a bronze that the test writes."""

    def __init__(self, spark: Any, folder: Path, location: dict[str, Any]) -> None:
        self.spark, self._folder, self._location, self._offset = spark, folder, location, 0
        self.said: list[str] = []
        self.declare(BY_FILLS, BY_CUSTOMER)
        Lake(self.settings).ensure(spark, ["bronze.messages"])
        self.deploy("fills_v1", None)

    def declare(self, *products: dict[str, Any], target: str = "fills_v1") -> None:
        fills = ProcessorSettings(name="fills", target=f"{target}:Fills")
        self.settings = Settings(
            **self._location,
            capture=CaptureSettings(columns={"customer": "string", "price": "double"}),
            silver=SilverSettings(shards=2),
            processors=(fills,),
            gold=GoldSettings.model_validate({"products": products}),
        )

    def deploy(self, module: str, without: float | None) -> None:
        (self._folder / f"{module}.py").write_text(MODULE.replace("WITHOUT", repr(without)))

    def arrive(self, *fills: tuple[str | None, float | None, int]) -> None:
        found = []
        for customer, price, ts in fills:
            rows = [{"id": "r", "customer": customer, "price": price}]
            kind = "update" if self._offset else "snapshot"
            body = {"type": kind, "seq": self._offset, "ts": ts, "rows": rows}
            found.append(KafkaMessage("capture.a", 0, self._offset, self._offset, b"s", json.dumps(body).encode()))
            self._offset += 1
        write_bronze(self.spark, Lake(self.settings), found)

    def run(self) -> None:
        run_once(self.spark, self.settings, Layer.PROCESSOR, threading.Event())

    def rows(self, table: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row[name] for name in columns) for row in rows_of(self.spark, Lake(self.settings), table))

    def verify(self) -> bool:
        self.said.clear()
        return gold.verify(self.spark, self.settings, self.said.append)

    def rebuild(self, table: str) -> None:
        self.said.clear()
        gold.rebuild(self.spark, self.settings, table, self.said.append)

    def spoil(self, table: str, **changed: Any) -> None:
        """Changes the figures of one of the table's rows."""
        lake = Lake(self.settings)
        found = lake.reader(self.spark).table(table)
        others = tuple(name for name in found.column_names if name not in ("customer", "window_start"))
        row = found.slice(0, 1)
        for name, value in changed.items():
            place = row.column_names.index(name)
            row = row.set_column(place, row.field(place), [[value]])
        upsert = Upsert(("customer", "window_start"), others)
        lake.storage.merge(self.spark, table, as_frame(self.spark, row), upsert, Txn("spoilt", 0))


@pytest.fixture
def fills(spark: Any, tmp_path: Path, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Fills:
    monkeypatch.chdir(tmp_path)
    return Fills(spark, tmp_path, location)


def test_late_rows_a_replay_and_another_declaration_leave_what_sql_makes_of_the_source(fills: Fills) -> None:
    fills.arrive(("ann", 2.5, 0), ("bob", 1.0, 61_000), (None, 9.0, 0), ("ann", None, 30_000))
    fills.run()
    columns = ("customer", "fills", "paid", "first", "last")
    assert fills.rows("gold.by_customer", *columns) == [("ann", 1, 2.5, 2.5, 2.5), ("bob", 1, 1.0, 1.0, 1.0)]
    assert fills.rows("gold.by_fills", "fills", "rows", "customers") == [(1, 2, 2)]

    fills.arrive(("ann", 7.5, -30_000), ("ann", 4.0, 45_000), ("bob", 3.0, 60_000))
    fills.run()
    whole = [("ann", 1, 7.5, 7.5, 7.5), ("ann", 2, 6.5, 2.5, 4.0), ("bob", 2, 4.0, 3.0, 1.0)]
    assert fills.rows("gold.by_customer", *columns) == whole
    assert fills.rows("gold.by_fills", "fills", "rows", "customers") == [(1, 1, 1), (2, 2, 2)]
    for name in ("by_customer", "by_fills"):
        lose_last_commit(fills.settings.checkpoint(f"processor-{name}"))
    fills.run()
    assert fills.rows("gold.by_customer", *columns) == whole
    assert fills.verify()
    assert [said for said in fills.said if "by_" in said] == [
        "gold.by_customer is exact: 3 rows",
        "gold.by_fills is exact: 2 rows",
    ]

    fills.declare(BY_FILLS, BY_CUSTOMER | {"keys": ["customer", "session_id"], "bucket": None})
    with pytest.raises(LakeError, match=r"made by other logic.*`sessionlake rebuild gold\.by_customer` makes it anew"):
        fills.run()
    fills.rebuild("gold.by_customer")
    assert "gold.by_customer is rebuilt from silver.fills: 2 rows" in fills.said[0]
    assert fills.rows("gold.by_customer", "session_id", "customer", "fills") == [("s", "ann", 3), ("s", "bob", 2)]
    with pytest.raises(UsageError, match=r"is no product of gold: there are .*, gold\.by_customer, gold\.by_fills"):
        fills.rebuild("gold.nothing")


def test_what_is_spoilt_or_yet_to_be_read_is_told_and_a_rebuilt_source_comes_through(fills: Fills) -> None:
    fills.arrive(("ann", 2.5, 0), ("ann", 3.5, 1), ("bob", 1.0, 2))
    fills.run()
    fills.spoil("gold.by_customer", paid=2.0)
    assert not fills.verify()
    [told] = [said for said in fills.said if "by_customer" in said]
    assert "gold.by_customer: 1 of 2 rows differ" in told
    fills.rebuild("gold.by_customer")
    assert "1 changed" in fills.said[0]
    fills.verify()
    assert "gold.by_fills is not compared: gold.by_customer has rows that it has yet to read" in fills.said[-1]
    fills.run()
    assert fills.verify()
    assert fills.said[-1] == "gold.by_fills is exact: 2 rows"
