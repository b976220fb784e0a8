"""Writes test data into a lake, and compares silver's tables with the ground truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import pytest
from chispa import assert_df_equality

from sessionlake.delta.catalog.storage import CatalogStorage
from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, MESSAGES, ROWS, SILVER
from sessionlake.delta.storage.reading import Condition
from sessionlake.delta.storage.txn import Txn
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.names import quote
from sessionlake.protocol.silence import Silence, encode_silences
from sessionlake.settings.model import Settings
from sessionlake.settings.section import milliseconds
from sessionlake.spark.frames import convert_to_spark_frame
from sessionlake_lab.truth import ExpectedTables
from support.folding import capped, closed, cut_of, read_at, truth_of
from support.streams import Fact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
# Columns that name a batch, or that the ground truth does not have.
_OWN = {"_batch", "_life", "last_kafka_timestamp", "integrity"}


def find_table_folder(lake: Lake, table: str) -> Path:
    """Returns the folder of a table in a home, for tests that read or damage files."""
    return FolderStorage(lake.settings).path(table)


def limit(patch: pytest.MonkeyPatch, **limits: int) -> None:
    """Sets the limits that decide what runs in the driver and what on the cluster."""
    for storage in (FolderStorage, CatalogStorage):
        patch.setattr(storage, "limits", replace(storage.limits, **limits))


def write_bronze(spark: SparkSession, lake: Lake, facts: Iterable[Fact]) -> None:
    """Appends messages and silences to `bronze.messages`, as one commit with one file."""
    rows: list[Row] = [
        {"value": encode_silences([m])}
        if isinstance(m, Silence)
        else {"topic": m.topic, "partition": m.partition, "offset": m.offset, "key": m.key, "value": m.value}
        | {"timestamp": m.timestamp * 1000, "timestamp_type": 0, "ingested_at": read_at(m)}
        for m in facts
    ]
    write_rows(spark, lake, MESSAGES, rows)


def write_rows(spark: SparkSession, lake: Lake, table: str, rows: list[Row]) -> None:
    """Appends rows to a table, as one commit with one file."""
    content = pa.Table.from_pylist(rows, lake.reader(spark).read_table_schema(table))
    one = convert_to_spark_frame(spark, content).coalesce(1) if lake.storage.needs_spark else content
    lake.storage.append_rows(spark, table, one, Txn(f"test-{uuid4()}", 0))


def rows_of(spark: SparkSession, lake: Lake, table: str, *conditions: Condition) -> list[Row]:
    """Returns a table's rows, or none if it does not exist. In folders it reads without Spark, which is faster."""
    return list(lake.reader(spark).read_rows(table, *conditions))


def assert_silver_is_the_truth(
    spark: SparkSession,
    settings: Settings,
    messages: Iterable[Fact],
    *,
    ledger: bool = True,
    cut: Collection[str] = (),
) -> None:
    """Checks every row of silver's tables, and that the ledger accounts for every message.

    Args:
        spark: The session.
        settings: Settings of the lake.
        messages: Messages and silences that silver has read.
        ledger: False skips the check of the ledger.
        cut: Tables of which retention may have removed rows.
    """
    interval = milliseconds(settings.silver.snapshot_interval)
    truth, lake = truth_of(messages, settings.capture, interval), Lake(settings)
    for table, rows in _expected(truth).items():
        found = comparable(spark, lake, table)
        expected = pa.Table.from_pylist(
            [{name: row[name] for name in found.column_names} for row in rows], found.schema
        )
        if table == ROWS:  # also as Spark reads it
            names = [f"c{place}" for place in range(found.num_columns)]  # Spark reads dots as paths
            by_spark = lake.read(spark, table).select(*map(quote, found.column_names)).toDF(*names)
            wanted = spark.createDataFrame(expected.rename_columns(names))
            assert_df_equality(by_spark, wanted, ignore_row_order=True, ignore_nullable=True, ignore_metadata=True)
        lacking = Counter(in_order(expected)) - Counter(in_order(found))
        assert Counter(in_order(found)) - Counter(in_order(expected)) == Counter(), table
        assert table in cut or not lacking, table
    if ledger:
        assert_ledger_accounts_for(spark, lake, truth)


def comparable(spark: SparkSession, lake: Lake, table: str) -> pa.Table:
    """Returns a table without bookkeeping columns, with timestamps in milliseconds."""
    found = lake.reader(spark).read_arrow_table(table)
    kept = found.drop_columns([name for name in found.column_names if name in _OWN])
    for place, field in enumerate(kept.schema):
        if pa.types.is_timestamp(field.type):
            moments = kept[field.name].cast(pa.timestamp("ms", field.type.tz), safe=False).cast(pa.int64())
            kept = kept.set_column(place, field.name, moments)
    return kept


def in_order(table: pa.Table) -> list[str]:
    """Returns the rows as sorted texts."""
    return sorted(map(repr, table.to_pylist()))


def assert_ledger_accounts_for(spark: SparkSession, lake: Lake, truth: ExpectedTables) -> None:
    """Checks that each batch is in the ledger once, that no message is missing, and that the sums equal the truth."""
    rows = rows_of(spark, lake, LEDGER, ("layer", eq, SILVER))
    assert len({(row["app_id"], row["batch_id"]) for row in rows}) == len(rows)
    names = ("messages", "applied", "duplicates", "quarantined", "held")
    assert all(row["messages"] == sum(row[name] for name in names[1:]) for row in rows)
    counts = truth.counts.values()
    assert {n: sum(row[n] for row in rows) for n in names} == {n: sum(count[n] for count in counts) for n in names}


def _expected(truth: ExpectedTables) -> dict[str, list[Row]]:
    return {
        "silver.session_changes": truth.session_changes,
        "silver.session_rows": [
            {**dict(zip(SESSION, session, strict=True)), "row_id": row_id, **row}
            for session, table in truth.session_rows.items()
            for row_id, row in table.items()
        ],
        "silver.session_cuts": [cut_of(row) for row in truth.session_cuts],
        "silver.session_snapshots": [
            {**cut_of(found), "row_id": row_id, **row}
            for found in truth.session_snapshots
            for row_id, row in found["rows"].items()
        ],
        "silver.session_snapshot_index": [
            {**cut_of(found), "rows": len(found["rows"])} for found in truth.session_snapshots
        ],
        "silver.sessions": [closed(row) for row in truth.sessions.values()],
        "silver.quarantine": [{**row, "kafka_timestamp": row["timestamp"]} for row in truth.quarantine],
        "silver.integrity_events": [
            {**row, "expected_seq": capped(row["expected_seq"])} for row in truth.integrity_events
        ],
    }
