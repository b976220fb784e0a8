"""Silver's tables in a real lake, compared with the truth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from sessionlake.config import Settings, milliseconds
from sessionlake.lab.truth import KafkaMessage, Tables
from sessionlake.lake.catalog import Catalog
from sessionlake.lake.folders import Folders
from sessionlake.lake.names import LEDGER
from sessionlake.lake.tables import Lake
from support.folding import capped, closed, cut_of, truth_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Row = dict[str, Any]
# Columns that name a batch, or tell what the truth does not.
_OWN = {"_batch", "_life", "last_kafka_timestamp", "integrity"}


def folder_of(lake: Lake, table: str) -> Path:
    """Where a home has a table: for tests that look at files, or damage them."""
    return Folders(lake.settings).path(table)


def limit(patch: pytest.MonkeyPatch, **limits: int) -> None:
    """Sets limits between the driver's work and the cluster's, wherever the tables are."""
    for storage in (Folders, Catalog):
        patch.setattr(storage, "limits", replace(storage.limits, **limits))


def write_bronze(spark: SparkSession, lake: Lake, messages: list[KafkaMessage]) -> None:
    """Appends messages to `bronze.messages` as one commit of one file."""
    rows = [
        (m.topic, m.partition, m.offset, datetime.fromtimestamp(m.timestamp / 1000, UTC), 0, m.key, m.value, None, None)
        for m in messages
    ]
    schema = lake.read(spark, "bronze.messages").schema
    frame = spark.createDataFrame(rows, schema).coalesce(1)
    lake.storage.save(frame.write.format("delta").mode("append"), "bronze.messages")


def assert_silver_is_the_truth(
    spark: SparkSession, settings: Settings, messages: Iterable[KafkaMessage], *, ledger: bool = True
) -> None:
    """Every table of silver, row for row, and the ledger's account of every message."""
    interval = milliseconds(settings.silver.snapshot_interval)
    truth, lake = truth_of(messages, settings.capture, interval), Lake(settings)
    for table, rows in _expected(truth).items():
        found = comparable(lake.read(spark, table))
        expected = spark.createDataFrame([tuple(row[name] for name in found.columns) for row in rows], found.schema)
        assert_df_equality(found, expected, ignore_row_order=True, ignore_nullable=True)
    if ledger:
        assert_ledger_accounts_for(spark, lake, truth)


def comparable(frame: DataFrame) -> DataFrame:
    """Without bookkeeping, and timestamps as milliseconds."""
    from pyspark.sql import functions as F

    types = dict(frame.dtypes)
    kept = [name for name in frame.columns if name not in _OWN]
    return frame.select(*(F.unix_millis(n).alias(n) if types[n] == "timestamp" else F.col(f"`{n}`") for n in kept))


def assert_ledger_accounts_for(spark: SparkSession, lake: Lake, truth: Tables) -> None:
    """Each batch once, nothing vanished in any, and together as the truth counts."""
    rows = lake.read(spark, LEDGER).where("layer = 'silver'").collect()
    assert len({(row["app_id"], row["batch_id"]) for row in rows}) == len(rows)
    names = ("messages", "applied", "duplicates", "quarantined", "held")
    assert all(row["messages"] == sum(row[name] for name in names[1:]) for row in rows)
    counts = truth.counts.values()
    assert {n: sum(row[n] for row in rows) for n in names} == {n: sum(count[n] for count in counts) for n in names}


def _expected(truth: Tables) -> dict[str, list[Row]]:
    return {
        "silver.session_changes": truth.session_changes,
        "silver.session_rows": [
            {"topic": topic, "session_id": session, "row_id": row_id, **row}
            for (topic, session), table in truth.session_rows.items()
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
