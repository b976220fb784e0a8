"""What the history of a table in a catalog says: when it was vacuumed, what was merged, how long files are to stay."""

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

# Each commit that is looked at is a file to read. A table that was not vacuumed for so many is vacuumed.
_LATEST = 1_000
_MANY = 20_000
_HOUR = timedelta(hours=1)
# Of tables that layers read as they grow: a platform that vacuums by itself knows of no reader that rests.
_MINIMUM_OF_SOURCES = {MESSAGES: timedelta(days=7), CHANGES: timedelta(days=7)}
# Files are written before their commit; and until the next look, others may vacuum by what this one says.
_UNTIL_NEXT = timedelta(hours=3)
# Entries of the log are removed by the platform when they are so old: of what is older, nothing can be read.
_LOG_STAYS = timedelta(days=30)


def last_vacuum(table: DeltaTable) -> Row | None:
    """The last VACUUM, `timestamp` and `operationMetrics`; None if none of the latest commits is one."""
    history = table.history(_LATEST).where("operation = 'VACUUM START'")
    return history.orderBy("version", ascending=False).select("timestamp", "operationMetrics").first()


def minimum_retention(name: str, keep: timedelta) -> timedelta:
    """How long files stay that no version names any more, also while nobody maintains the table; 0 if none are to."""
    return max(keep, _MINIMUM_OF_SOURCES.get(name, keep)) if keep else keep


def file_retention(table: DeltaTable, name: str, kept: HistoryToKeep) -> timedelta:
    """How long files are to stay that no version names any more.

    Where a reader rests, it is a power of two, in hours: so a property that says so changes few times.
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
    """Options by which a stream that begins reads a table's rows in the order of its commits.

    By default a stream begins with the table's present files. They are in no order once some were rewritten, and Spark
    sorts them at every start until the stream has read them. If no commit and no file is gone, reading commit by commit
    avoids both.

    Raises:
        LakeError: it is not so.
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
        f"files of {name} may have been written anew before this reads it for the first time, and its commits cannot "
        "be read one by one any more: it would take in messages in another order"
    )


def _appends(operation: str, mode: str | None) -> bool:
    return operation == "STREAMING UPDATE" or (operation == "WRITE" and mode == "Append")
