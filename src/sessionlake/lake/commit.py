"""Idempotent commits: a replayed batch finds its own transaction in the table and changes nothing.

Delta remembers, for each application id, the highest transaction version it has seen. Every write of a
micro-batch carries the application id `<streaming query id>:<table>` and the batch id, so a new checkpoint
never collides with an old one, and a batch that died half-way repeats only what it had not yet committed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.lake.direct import append_directly, live_bytes, replace_directly
from sessionlake.lake.faults import fault_point
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.runtime.frames import as_frame

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame, SparkSession

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"
_DELETION_VECTORS = "spark.databricks.delta.merge.deletionVectors.persistent"
# Deletion vectors take eight Spark jobs a MERGE; up to this size, writing the touched files anew costs less.
_REWRITTEN_BYTES = 8 << 20


def append(spark: SparkSession | None, lake: Lake, table: str, rows: DataFrame | pa.Table, txn: Txn) -> None:
    """Appends the rows once, whatever the number of replays.

    Args:
        spark: needed unless a local table takes rows at hand.
        rows: a frame, or few rows at hand, which a local table takes without a Spark job.
    """
    fault_point(f"before:{table}")
    if isinstance(rows, pa.Table) and lake.local:
        append_directly(lake.path(table), rows, txn.on(table), txn.version)
    else:
        _append_frame(lake, table, as_frame(spark, rows), txn)
    fault_point(f"after:{table}")


def _append_frame(lake: Lake, table: str, frame: DataFrame, txn: Txn) -> None:
    writer = frame.write.format("delta").mode("append")
    writer = writer.option("txnAppId", txn.on(table)).option("txnVersion", txn.version)
    if lake.local:
        writer.save(str(lake.path(table)))
    else:
        writer.saveAsTable(lake.identifier(table))


def replace_rows(spark: SparkSession, lake: Lake, table: str, rows: pa.Table) -> None:
    """Replaces all rows of a small table, in one commit."""
    if lake.local:
        replace_directly(lake.path(table), rows)
    else:
        as_frame(spark, rows).write.format("delta").mode("overwrite").saveAsTable(lake.identifier(table))


def merge(
    lake: Lake,
    table: str,
    source: DataFrame,
    on: str | Column,
    clauses: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
    txn: Txn,
) -> None:
    """MERGEs `source` (alias `s`) into the table (alias `t`) once, whatever the number of replays.

    The transaction is set in the session of `source`, which must be the batch's own: no other write may
    run in it meanwhile.

    Args:
        on: the join condition, written over `t` and `s`.
        clauses: adds the WHEN clauses to the builder.
    """
    spark = source.sparkSession
    fault_point(f"before:{table}")
    spark.conf.set(_APP, txn.on(table))
    spark.conf.set(_VERSION, str(txn.version))
    if lake.local:
        spark.conf.set(_DELETION_VECTORS, str(live_bytes(lake.path(table)) > _REWRITTEN_BYTES).lower())
    try:
        clauses(lake.delta(spark, table).alias("t").merge(source.alias("s"), on)).execute()
    finally:
        spark.conf.unset(_APP)
        spark.conf.unset(_VERSION)
    fault_point(f"after:{table}")
