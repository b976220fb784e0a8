"""Averages of keys with points older than their tails: computed from all points of the key, which the table holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.gold.fold.outputs import METRIC_KEY
from sessionlake.gold.fold.shard import recompute
from sessionlake.streaming.sharded import FOLDED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BEYOND_DDL = (
    ", ".join(f"{name} string" for name in METRIC_KEY) + ", ts bigint, position bigint, ordinal int, value double"
)
# So many sessions are named to Delta, which then skips files; beyond that most files are touched anyhow.
_NAMED_SESSIONS = 200


def recomputed(beyond: DataFrame, averages: DataFrame, *, window: int, shards: int) -> DataFrame:
    """Rows of both gold tables that follow from the points.

    Args:
        beyond: new points, columns as in `BEYOND_DDL`.
        averages: `gold.rolling_average`, with all points before this batch; a replay may find this batch's there too.
        shards: in how many groups to work; each must fit into memory.

    Returns:
        `kind string, payload binary`, as the fold's.
    """
    from pyspark.sql import functions as F

    named = [row[0] for row in beyond.select("session_id").distinct().limit(_NAMED_SESSIONS + 1).collect()]
    held = averages if len(named) > _NAMED_SESSIONS else averages.where(F.col("session_id").isin(named))
    keys = F.broadcast(beyond.select(*METRIC_KEY).distinct())
    history = held.select(*beyond.columns).join(keys, list(METRIC_KEY), "left_semi")
    points = history.selectExpr("*", "false AS fresh").unionByName(beyond.selectExpr("*", "true AS fresh"))

    def call(table: pa.Table) -> pa.Table:
        found = recompute(table, window)
        return pa.table({"kind": [kind for kind, _ in found], "payload": [payload for _, payload in found]})

    shard = F.pmod(F.xxhash64(*METRIC_KEY), F.lit(shards))
    return points.groupBy(shard.alias("shard")).applyInArrow(call, FOLDED_SCHEMA)
