"""Idempotent commits: a replayed batch finds its own transaction in the table and changes nothing.

Delta remembers, for each application id, the highest transaction version it has seen. Every write of a
micro-batch carries the application id `<streaming query id>:<table>` and the batch id, so a new checkpoint
never collides with an old one, and a batch that died half-way repeats only what it had not yet committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sessionlake.lake.faults import fault_point
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import DataFrame

_APP = "spark.databricks.delta.write.txnAppId"
_VERSION = "spark.databricks.delta.write.txnVersion"


@dataclass(frozen=True)
class Txn:
    """One batch of one query: what makes its writes recognisable."""

    app_id: str
    version: int

    def on(self, table: str) -> str:
        """Application id of this query's writes to one table."""
        return f"{self.app_id}:{table}"


def append(lake: Lake, table: str, frame: DataFrame, txn: Txn) -> None:
    """Appends the frame once, whatever the number of replays."""
    fault_point(f"before:{table}")
    writer = frame.write.format("delta").mode("append")
    writer = writer.option("txnAppId", txn.on(table)).option("txnVersion", txn.version)
    if lake.local:
        writer.save(str(lake.path(table)))
    else:
        writer.saveAsTable(lake.identifier(table))
    fault_point(f"after:{table}")


def merge(
    lake: Lake,
    table: str,
    source: DataFrame,
    on: str,
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
    try:
        clauses(lake.delta(spark, table).alias("t").merge(source.alias("s"), on)).execute()
    finally:
        spark.conf.unset(_APP)
        spark.conf.unset(_VERSION)
    fault_point(f"after:{table}")
