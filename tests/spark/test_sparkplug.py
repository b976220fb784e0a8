"""A node of Sparkplug B in a lake: its data without data types are read by the types that silver keeps in its state."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sessionlake.cli.query import fetch_query_result
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import QUARANTINE, ROWS
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import Settings, SilverSettings
from spark.test_feeds import arrive, through_silver
from support.feed_lake import capture_of
from support.lakes import rows_of
from support.sparkplug_node import Node
from unit.test_sparkplug_law import as_sent


@pytest.mark.soak
def test_the_table_is_what_the_node_has_said_and_a_rebuild_gives_the_same(spark: Any, tmp_path: Any) -> None:
    capture = capture_of({"name": "plant", "topics": "plant", "uses": "sparkplug"})
    settings = Settings(home=tmp_path, capture=capture, silver=SilverSettings(shards=2))
    node = Node(random.Random(13), typed=False)
    done = 0
    for _ in range(2):  # the second batch reads data by the types of births in the first
        for _ in range(150):
            node.act()
        keys, values = zip(*node.sent[done:], strict=True)
        arrive(spark, settings, *values, first=done, topic="plant", keys=keys)
        through_silver(spark, settings)
        done = len(node.sent)
    lake = Lake(settings)
    columns = [column.name for column in capture.declared_columns]
    rows = {row["row_id"]: {name: row[name] for name in columns} for row in rows_of(spark, lake, ROWS)}
    assert as_sent(rows) == node.rows
    assert not rows_of(spark, lake, QUARANTINE)
    assert verify_silver_tables(spark, settings).is_exact
    names, shown = fetch_query_result(spark, settings, "SELECT metric, number FROM silver.plant WHERE number < 0")
    negative = [row["number"] for row in node.rows.values() if (row["number"] or 0) < 0]
    assert names == ["metric", "number"]
    assert sorted(float(row[1]) for row in shown) == sorted(negative)
    assert negative
