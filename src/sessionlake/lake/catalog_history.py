"""What the history of a table in a catalog says: when it was vacuumed, how old a version is, and what was merged."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Row

# Each commit that is looked at is a file to read. A table that was not vacuumed for so many is vacuumed.
_LATEST = 1_000
_MERGES = "OPTIMIZE"
# Operations that leave every row, and each file in which it came, where they are.
_KEEP = {
    _MERGES, "CREATE TABLE", "CREATE OR REPLACE TABLE", "WRITE", "STREAMING UPDATE", "SET TBLPROPERTIES",
    "UNSET TBLPROPERTIES", "ADD COLUMNS", "CLUSTER BY", "COMPUTE STATS", "ANALYZE", "UPGRADE PROTOCOL",
}  # fmt: skip


def last_vacuum(table: DeltaTable) -> Row | None:
    """The last VACUUM, `timestamp` and `operationMetrics`; None if none of the latest commits is one."""
    history = table.history(_LATEST).where("operation = 'VACUUM START'")
    return history.orderBy("version", ascending=False).select("timestamp", "operationMetrics").first()


def age_of(table: DeltaTable, version: int) -> timedelta:
    """How old a version is; 0 if the log has it no longer."""
    latest = table.history(1).select("version").first()
    if latest is None or latest["version"] < version:
        return timedelta(0)
    since = table.history(latest["version"] - version + 1)
    row = since.where(f"version = {int(version)}").select("timestamp").first()
    return timedelta(0) if row is None else datetime.now(UTC) - row["timestamp"].astimezone(UTC)


def first_read(table: DeltaTable, name: str) -> dict[str, int]:
    """Options by which a stream that begins reads a table's rows in the order of its commits.

    A stream begins with the files that there are: once some were merged, by whomever, in no order of rows. Then it
    reads commit by commit instead, if every one is there, and no row was changed or removed since.

    Raises:
        LakeError: it is not so.
    """
    done = {row["operation"]: row["first"] for row in table.history().groupBy("operation").agg({"version": "min"})
            .withColumnRenamed("min(version)", "first").collect()}  # fmt: skip
    if _MERGES not in done:
        return {}
    if done.keys() <= _KEEP and min(done.values()) == 0:
        return {"startingVersion": 0}
    raise LakeError(
        f"files of {name} were merged before this reads it for the first time, and its commits cannot be read one by "
        "one any more: it would take in messages in another order"
    )
