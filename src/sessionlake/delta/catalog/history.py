"""Reads the history of tables in a catalog: the last commit and VACUUM, the commit order, and how long files stay."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from sessionlake.delta.schemas.names import CHANGES, MESSAGES
from sessionlake.delta.storage.commits import DEFINITION_OPERATIONS, NO_COMMIT, TableCommit
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from delta.tables import DeltaTable
    from pyspark.sql import Row

# A VACUUM is searched in this many latest commits, since each commit is a file to read. If none is found, the table is
# vacuumed again.
_LATEST = 1_000
_MANY = 20_000
_HOUR = timedelta(hours=1)
# Minimum retention of tables from which layers stream. A platform that runs VACUUM by itself does not know which
# streams are paused.
_MINIMUM_OF_SOURCES = {MESSAGES: timedelta(days=7), CHANGES: timedelta(days=7)}
# Added to the retention, because files are written before their commit and VACUUM may run until the next update.
_UNTIL_NEXT = timedelta(hours=3)
# The platform removes log entries that are older than this. So older versions cannot be read.
_LOG_STAYS = timedelta(days=30)


def read_last_commit(table: DeltaTable) -> TableCommit:
    """Returns the table's latest commit. It runs one Spark job; `first`, or sorting the history, would run another."""
    found = table.history(1).select("version", "operationMetrics").collect()
    if not found:
        return NO_COMMIT
    row = found[0]
    metrics = dict(row["operationMetrics"])
    written = [metrics.get(f"numTargetRows{how}", "1") for how in ("Inserted", "Updated")]
    if written == ["0", "0"]:
        return TableCommit(row["version"], 0)
    return TableCommit.from_metrics(row["version"], metrics)


def read_last_vacuum_entry(table: DeltaTable) -> Row | None:
    """Returns the columns `timestamp` and `operationMetrics` of the table's last VACUUM, from the table's history.

    Returns None if there is no VACUUM among the latest 1,000 commits.
    """
    history = table.history(_LATEST).where("operation = 'VACUUM START'")
    return history.orderBy("version", ascending=False).select("timestamp", "operationMetrics").first()


def compute_minimum_file_retention(name: str, keep: timedelta) -> timedelta:
    """Returns how long files that a commit removed from a table must stay on the disk, if maintenance never runs.

    This is at least seven days for tables from which layers stream.

    Args:
        name: the table's two-level name.
        keep: the setting `maintain.keep`. If it is 0, so is the result.
    """
    return max(keep, _MINIMUM_OF_SOURCES.get(name, keep)) if keep else keep


def compute_file_retention(table: DeltaTable, name: str, history_to_keep: HistoryToKeep) -> timedelta:
    """Returns how long files must stay on the disk after a commit has removed them from the table.

    It is longer than configured if a stream still has to read older versions. Then it is a power of two in hours, so
    that the table property with this value seldom changes.

    Args:
        table: the table.
        name: the table's two-level name.
        history_to_keep: how much history readers and streams need.
    """
    span = compute_minimum_file_retention(name, history_to_keep.file_span)
    if history_to_keep.first_unread is None:
        return span
    latest = table.history(1).select("version").first()
    if latest is None or latest["version"] < history_to_keep.first_unread:
        return span
    if latest["version"] - history_to_keep.first_unread > _MANY:
        return max(span, _LOG_STAYS)
    since = table.history(latest["version"] - history_to_keep.first_unread + 1)
    row = since.where(f"version = {int(history_to_keep.first_unread)}").select("timestamp").first()
    if row is None:
        return span  # the version's log entry was removed
    hours = math.ceil((datetime.now(UTC) - row["timestamp"].astimezone(UTC) + _UNTIL_NEXT) / _HOUR)
    return max(span, min(_HOUR * (1 << max(0, hours - 1).bit_length()), _LOG_STAYS))


def find_commit_order_read_options(table: DeltaTable, name: str) -> dict[str, int]:
    """Returns options of Delta's source with which a new stream reads a table commit by commit, from the first version.

    Without them, a stream first reads all present files, sorted by time, which is not the commit order after a
    compaction. Spark also sorts them again at every start. Reading by commits needs all commits and their files.

    Args:
        table: the table.
        name: the table's two-level name, for the error.

    Raises:
        LakeError: commits or files were removed, so that the commit order is lost.
    """
    from pyspark.sql import functions as F

    mode = F.col("operationParameters")["mode"].alias("mode")
    done = table.history().groupBy("operation", mode).agg(F.min("version").alias("first")).collect()
    others = {row["operation"] for row in done if not _is_append_only_operation(row["operation"], row["mode"])}
    others = {operation for operation in others if not operation.startswith(DEFINITION_OPERATIONS)}
    since = min(row["first"] for row in done)
    if since == 0 and (others <= {"OPTIMIZE"} or all(operation.startswith("VACUUM") for operation in others)):
        return {"startingVersion": 0}
    raise LakeError(
        f"a new stream cannot read {name} in the order of its commits",
        why="The table's first commits were removed from its history, and its files may have been "
        "rewritten since, so the stream would read messages in another order",
        fix="If the layer has run before, restore its checkpoint from a backup, or run `sessionlake rebuild silver` "
        f"(for a processor `sessionlake rebuild processor:NAME`), which computes its tables from all of {name}",
    )


def _is_append_only_operation(operation: str, mode: str | None) -> bool:
    return operation == "STREAMING UPDATE" or (operation == "WRITE" and mode == "Append")
