"""Detects, before a job continues, tables that were restored to an older version, by RESTORE or from a backup."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER
from sessionlake.delta.storage.commits import LoggedCommit, find_unrepaired_restore
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import LossError
from sessionlake.ledger.books import VERSIONS, LedgerReader, to_dicts
from sessionlake.settings.model import Settings
from sessionlake.streaming.losses import RESTORE_OR_MOVE, build_repair_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Number of latest commits to check per table. Only commits that change rows count, not those of maintenance.
_LATEST = 20
_AT_MOST = 5_000


def refuse_restored_tables(spark: SparkSession | None, lake: Lake, tables: Iterable[str]) -> None:
    """Checks that none of these tables was restored to an older version, by RESTORE or from a backup.

    If the ledger was restored too, bronze's tables are assumed to be restored with it. They are then compared only with
    the ledger.

    Raises:
        LossError: A table was restored. The error names it.
    """
    reader = lake.reader(spark)
    known = read_versions_after_batches(reader)
    existing = (table for table in dict.fromkeys([LEDGER, *tables]) if lake.exists(spark, table))
    entries = _count_entries(reader)
    suspects = [
        table for table in existing if not _has_only_batches(table, lake.latest_version(spark, table), known, entries)
    ]
    found = {table: _read_latest_commits(spark, lake, table) for table in suspects}
    with_ledger = LEDGER in found and find_unrepaired_restore(found[LEDGER])
    for table in (table for table in tables if table in found):
        commits = found[table]
        last, left = commits[-1].version, _find_last_batch_version(spark, lake, table, commits[-1].version, known)
        why = (
            None if with_ledger and table.partition(".")[0] not in {SILVER, GOLD} else find_unrepaired_restore(commits)
        )
        if last < left:
            why = f"it ends with version {last}, and {LEDGER} has a batch that left it at {left}"
        if why is not None:
            raise LossError(f"{table} has lost its latest changes: {why}", fix=_build_repair_hint(lake.settings, table))


def _read_latest_commits(spark: SparkSession | None, lake: Lake, table: str) -> list[LoggedCommit]:
    """Returns the latest commits of a table, with at least the last `_LATEST` that change rows if there are so many."""
    count = 2 * _LATEST
    while True:
        commits = lake.storage.latest_commits(spark, table, count)
        changing = [place for place, commit in enumerate(commits) if commit.changes_rows]
        if len(changing) >= _LATEST:
            return commits[changing[-_LATEST] :]
        if len(commits) < count or count >= _AT_MOST:
            return commits
        count *= 4


def _build_repair_hint(settings: Settings, table: str) -> str:
    """Returns advice about a table that was restored to an older version, as text."""
    own = next((own for own in settings.processors if own.output_table == table), None)
    if own is not None:
        return f"Run `sessionlake rebuild {own.rebuild_argument}`, which builds it again"
    return build_repair_hint(table, f"bring the newer version back (RESTORE TABLE), or {RESTORE_OR_MOVE}")


_Versions = dict[str, list[tuple[datetime, int]]]


def read_versions_after_batches(reader: TableReader) -> _Versions:
    """Returns the versions that batches left in each table since its layer was rebuilt, each with its commit time.

    Returns:
        By table, pairs of commit time and version, from the ledger.
    """
    found: _Versions = {}
    for row in to_dicts(LedgerReader(reader, VERSIONS).read_entries_since_rebuild()):
        for left in row[VERSIONS] or ():
            found.setdefault(left["table"], []).append((left["committed_at"], left["version"]))
    return found


def _count_entries(reader: TableReader) -> int | None:
    """Returns the number of entries in the ledger; None if old entries were replaced by sums."""
    books = LedgerReader(reader, "batches")
    return None if books.may_yield_sums else sum(row["batches"] for row in to_dicts(books.read_entries()))


def _has_only_batches(table: str, latest: int, known_versions: _Versions, entries: int | None) -> bool:
    """Returns True if the ledger explains all recent commits of a table as commits of batches.

    The sum that replaces old entries contains only their last version. So earlier commits cannot be attributed to
    batches.

    Args:
        table: The table.
        latest: The table's latest version.
        known_versions: Versions that batches left, as `read_versions_after_batches` returns them.
        entries: The number of entries in the ledger; None if old entries were replaced by sums.
    """
    if table == LEDGER:  # each entry is one version
        return latest == entries
    versions = sorted({version for _, version in known_versions.get(table, ())})
    if not versions:
        return latest <= 1  # there is no older version to restore
    unbroken = latest == versions[-1] and latest - versions[0] < len(versions)
    return unbroken and (entries is not None or len(versions) >= min(_LATEST, latest))


def _find_last_batch_version(
    spark: SparkSession | None, lake: Lake, table: str, last: int, known_versions: _Versions
) -> int:
    """Returns the highest version that a batch left in a table; -1 if no batch did.

    A table that was dropped and recreated counts its versions from 0 again. So batches from before its creation are
    ignored.

    Args:
        spark: The Spark session; None if tables are read without Spark.
        lake: The lake.
        table: The table.
        last: The table's latest version.
        known_versions: Versions that batches left, as `read_versions_after_batches` returns them.
    """
    left = known_versions.get(table, ())
    if all(version <= last for _, version in left):
        return last if left else -1
    created = lake.storage.created_at(spark, table)
    return max((version for moment, version in left if created is None or moment > created), default=-1)
