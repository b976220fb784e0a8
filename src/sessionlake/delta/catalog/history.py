"""Answers from the history of a table in a catalog: last vacuum, commit order, and how long files must stay."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sessionlake.delta.schemas.names import CHANGES, MESSAGES
from sessionlake.delta.storage.commits import DEFINITION_OPERATIONS
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Row

# The history is searched this far for a VACUUM, since each commit is a file to read. Without a hit the table is
# vacuumed.
_LATEST = 1_000
_MANY = 20_000
_HOUR = timedelta(hours=1)
# Minimum retention of tables that layers stream from: a platform that vacuums on its own does not know of paused
# readers.
_MINIMUM_OF_SOURCES = {MESSAGES: timedelta(days=7), CHANGES: timedelta(days=7)}
# Files are written before their commit, and others may vacuum by this retention until it is next computed.
_UNTIL_NEXT = timedelta(hours=3)
# The platform removes log entries at this age. Older versions cannot be read.
_LOG_STAYS = timedelta(days=30)


def last_vacuum(table: DeltaTable) -> Row | None:
    """Returns the last VACUUM (`timestamp` and `operationMetrics`); None if the latest commits have none."""
    history = table.history(_LATEST).where("operation = 'VACUUM START'")
    return history.orderBy("version", ascending=False).select("timestamp", "operationMetrics").first()


def minimum_retention(name: str, keep: timedelta) -> timedelta:
    """Returns how long removed files stay, also while no maintenance runs; 0 if `keep` is 0."""
    return max(keep, _MINIMUM_OF_SOURCES.get(name, keep)) if keep else keep


def file_retention(table: DeltaTable, name: str, kept: HistoryToKeep) -> timedelta:
    """Returns how long files must stay after no version names them.

    For a reader that is behind, the result is a power of two in hours, so that the table property that stores it
    changes rarely.
    """
    span = minimum_retention(name, kept.file_span)
    if kept.first_unread is None:
        return span
    latest = table.history(1).select("version").first()
    if latest is None or latest["version"] < kept.first_unread:
        return span
    if latest["version"] - kept.first_unread > _MANY:
        return max(span, _LOG_STAYS)
    since = table.history(latest["version"] - kept.first_unread + 1)
    row = since.where(f"version = {int(kept.first_unread)}").select("timestamp").first()
    if row is None:
        return span  # the log has it no longer
    hours = math.ceil((datetime.now(UTC) - row["timestamp"].astimezone(UTC) + _UNTIL_NEXT) / _HOUR)
    return max(span, min(_HOUR * (1 << max(0, hours - 1).bit_length()), _LOG_STAYS))


def first_read_options(table: DeltaTable, name: str) -> dict[str, int]:
    """Returns options with which a new stream reads a table's rows in commit order.

    By default a stream first reads the table's present files. After a compaction these have no order, and Spark sorts
    them at every start until the stream has read them. Reading commit by commit avoids both, as long as no commit and
    no file was removed.

    Raises:
        LakeError: commits or files were removed.
    """
    from pyspark.sql import functions as F

    mode = F.col("operationParameters")["mode"].alias("mode")
    done = table.history().groupBy("operation", mode).agg(F.min("version").alias("first")).collect()
    others = {row["operation"] for row in done if not _appends(row["operation"], row["mode"])}
    others = {operation for operation in others if not operation.startswith(DEFINITION_OPERATIONS)}
    since = min(row["first"] for row in done)
    if since == 0 and (others <= {"OPTIMIZE"} or all(operation.startswith("VACUUM") for operation in others)):
        return {"startingVersion": 0}
    raise LakeError(
        f"{name} cannot be read in commit order by a new stream",
        why="Some of its files may have been rewritten, and its first commits were removed. The stream would read "
        "messages in another order",
    )


def _appends(operation: str, mode: str | None) -> bool:
    return operation == "STREAMING UPDATE" or (operation == "WRITE" and mode == "Append")
