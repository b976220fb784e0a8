"""A feed whose columns have every type, over tables in a catalog."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.definition import Column, TableSchema
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.columns import create_column_of_feed
from sessionlake.settings.model import Settings
from spark.test_feed_types import (  # noqa: F401 - pytest runs what is imported again here
    test_gold_computes_with_decimals_and_joins_decimals_and_dates,
    test_processors_get_python_values_of_each_type,
    test_rows_and_past_tables_equal_a_plain_fold,
    test_with_lost_rows_tables_are_rebuilt_and_a_later_column_is_added,
    typed,
)
from support.typed_feed import VALUES

TABLE = "silver.own"


def test_rows_with_columns_of_every_type_are_merged_by_keys_without_bounds(
    spark: Any, location: dict[str, Any]
) -> None:
    names = {sql: f"c{place}" for place, sql in enumerate(VALUES)}
    types = {"raw": "binary", "flag": "boolean", "day": "date"} | {name: sql for sql, name in names.items()}
    keys = ("raw", "flag", "day")
    columns = tuple(Column(name, sql, "A column") for name, sql in types.items())
    schema = TableSchema(columns, "A row", written_by="x", cluster_by=keys, statistics_columns=keys)
    lake = Lake(Settings(**location), {TABLE: schema})
    lake.create_or_update_tables(spark, [TABLE])
    arrow = pa.schema([(name, create_column_of_feed(name, sql).arrow) for name, sql in types.items()])
    upsert = Upsert(keys, tuple(names.values()), pruned_by=keys)
    for turn in range(2):
        rows = [
            {"raw": bytes([number]), "flag": True, "day": VALUES["date"][number]}
            | {name: VALUES[sql][(number + turn) % len(VALUES[sql])] for sql, name in names.items()}
            for number in range(3)
        ]
        lake.storage.merge_rows(spark, TABLE, pa.Table.from_pylist(rows, arrow), upsert, Txn("merges", turn))
        found = sorted(lake.reader(spark).read_rows(TABLE), key=lambda row: row["raw"])
        assert found == rows
