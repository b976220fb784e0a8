"""What a batch has in `bronze.messages`, counted in the table."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.bronze.batch_ranges import read_stored_ranges_of_batch
from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.entries import OffsetRange
from sessionlake.settings.model import Settings
from support.lakes import find_table_folder

pytestmark = pytest.mark.spark


def test_counting_a_batch_reads_no_file_without_it(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [MESSAGES])
    for batch, rows in enumerate([["'a' topic, id offset"], ["'a' topic, id + 5 offset", "'b' topic, id offset"]]):
        for part, row in enumerate(rows):
            read = spark.range(5).selectExpr(*row.split(", "), "0 partition").coalesce(1)
            append_rows(spark, lake, MESSAGES, read, Txn(f"q{part}", batch))
    earlier = lake.read(spark, MESSAGES).where("topic = 'a' AND offset < 5").selectExpr("_metadata.file_path")
    (gone,) = {row["file_path"] for row in earlier.collect()}
    next(file for file in find_table_folder(lake, MESSAGES).rglob("*.parquet") if gone.endswith(file.name)).unlink()
    planned = {("a", 0): (5, 12), ("b", 0): (1, 3), ("c", 0): (0, 2)}
    # Each range ends at the last message that the table holds of it.
    assert read_stored_ranges_of_batch(spark, lake, planned) == (
        OffsetRange("a", 0, 5, 9, 5),
        OffsetRange("b", 0, 1, 2, 2),
    )
    assert read_stored_ranges_of_batch(spark, lake, {}) == ()
