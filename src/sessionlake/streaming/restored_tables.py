"""Detects, before a job continues, tables that were restored to an older version, by RESTORE or from a backup."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER
from sessionlake.delta.storage.commits import LoggedCommit, find_unrepaired_restore
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import DataLossError
from sessionlake.ledger.books import VERSIONS, LedgerReader, iterate_rows_as_dicts
from sessionlake.settings.model import Settings
from sessionlake.streaming.losses import RESTORE_OR_MOVE, build_table_repair_hint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Number of latest commits to check per table. Only commits that change rows count, not those of maintenance.
_LATEST = 20
_AT_MOST = 5_000


def refuse_restored_tables(spark: SparkSession | None, lake: Lake, tables: Iterable[str]) -> None:
    """Checks that none of these tables was restored to an older version, by RESTORE or from a backup.

    If the ledger was restored too, bronze's tables are assumed to be restored with it. Then only their versions are
    compared with those in the ledger.

    Raises:
        DataLossError: A table was restored. The error names it.
    """
    reader = lake.reader(spark)
    known = read_versions_left_by_batches(reader)
    existing = (table for table in dict.fromkeys([LEDGER, *tables]) if lake.exists(spark, table))
    entries = _count_ledger_entries_if_known(reader)
    suspects = [
        table
        for table in existing
        if not _consists_of_batch_versions(table, lake.latest_version(spark, table), known, entries)
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
            raise DataLossError(
                f"{table} has lost its latest changes: {why}", fix=_build_repair_hint(lake.settings, table)
            )


def _read_latest_commits(spark: SparkSession | None, lake: Lake, table: str) -> list[LoggedCommit]:
    """Returns the latest commits of a table, oldest first: enough of them to contain several that change rows.

    If the table has too few such commits, returns all that its log has, up to a limit.
    """
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
    """Returns what the operator can do about a table that was restored to an older version, as text."""
    own = next((own for own in settings.processors if own.output_table == table), None)
    if own is not None:
        return f"Run `sessionlake rebuild {own.rebuild_argument}`, which builds it again"
    return build_table_repair_hint(table, f"bring the newer version back (RESTORE TABLE), or {RESTORE_OR_MOVE}")


_Versions = dict[str, list[tuple[datetime, int]]]


def read_versions_left_by_batches(reader: TableReader) -> _Versions:
    """Returns which version of each table each batch left behind, since the table's layer was last rebuilt.

    Returns:
        By table, pairs of commit time and version, from the ledger.
    """
    found: _Versions = {}
    for row in iterate_rows_as_dicts(LedgerReader(reader, VERSIONS).read_entries_since_rebuild()):
        for left in row[VERSIONS] or ():
            found.setdefault(left["table"], []).append((left["committed_at"], left["version"]))
    return found


def _count_ledger_entries_if_known(reader: TableReader) -> int | None:
    """Returns the number of entries in the ledger; None if it is not known because sums replace old entries."""
    books = LedgerReader(reader, "batches")
    return (
        None
        if books.may_ledger_rows_be_sums
        else sum(row["batches"] for row in iterate_rows_as_dicts(books.read_entries()))
    )


def _consists_of_batch_versions(table: str, latest: int, known_versions: _Versions, entries: int | None) -> bool:
    """Returns True if, by the ledger, batches made all recent versions of a table. Then nobody can have restored it.

    Args:
        table: The table.
        latest: The table's latest version.
        known_versions: By table, pairs of commit time and version that batches left behind.
        entries: The number of entries in the ledger; None if sums replace old entries, which name only the last
            version.
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
    """Returns the highest version of a table that a batch left behind; -1 if no batch wrote the table.

    A table that was dropped and recreated counts its versions from 0 again. So batches from before its creation are
    ignored.

    Args:
        spark: The Spark session; None if tables are read without Spark.
        lake: The lake.
        table: The table.
        last: The table's latest version.
        known_versions: By table, pairs of commit time and version that batches left behind.
    """
    left = known_versions.get(table, ())
    if all(version <= last for _, version in left):
        return last if left else -1
    created = lake.storage.created_at(spark, table)
    return max((version for moment, version in left if created is None or moment > created), default=-1)
