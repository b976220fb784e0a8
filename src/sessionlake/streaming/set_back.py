"""Tables that were brought back to an older version, by RESTORE or from a backup: noticed before a job goes on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER
from sessionlake.delta.storage.commits import LoggedCommit, unrepaired_restore
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import LossError
from sessionlake.ledger.books import VERSIONS, LedgerReader, to_dicts
from sessionlake.settings.model import Settings
from sessionlake.streaming.losses import ELSEWHERE, mended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of each table so many of the latest commits that change rows are looked at, however many of upkeep are between them.
_LATEST = 20
_AT_MOST = 5_000


def refuse_set_back(spark: SparkSession | None, lake: Lake, tables: Iterable[str]) -> None:
    """Returns if none of these tables was brought back to an older version, by RESTORE or from a backup.

    Where the ledger was, too, what nothing else has the rows of was so with it, and is held against the ledger alone.

    Raises:
        LossError: naming one that was.
    """
    reader = lake.reader(spark)
    known = versions_left(reader)
    there = (table for table in dict.fromkeys([LEDGER, *tables]) if lake.exists(spark, table))
    entries = _entries(reader)
    suspects = [table for table in there if not _only_batches(table, lake.latest_version(spark, table), known, entries)]
    found = {table: _latest_commits(spark, lake, table) for table in suspects}
    with_ledger = LEDGER in found and unrepaired_restore(found[LEDGER])
    for table in (table for table in tables if table in found):
        commits = found[table]
        last, left = commits[-1].version, _left_at(spark, lake, table, commits[-1].version, known)
        why = None if with_ledger and table.partition(".")[0] not in {SILVER, GOLD} else unrepaired_restore(commits)
        if last < left:
            why = f"it ends with version {last}, and {LEDGER} has a batch that left it at {left}"
        if why is not None:
            raise LossError(f"{table} was set back: {why}", fix=_forward(lake.settings, table))


def _latest_commits(spark: SparkSession | None, lake: Lake, table: str) -> list[LoggedCommit]:
    """The table's latest commits, back to the oldest that counts of those that change rows."""
    count = 2 * _LATEST
    while True:
        commits = lake.storage.latest_commits(spark, table, count)
        changing = [place for place, commit in enumerate(commits) if commit.changes_rows]
        if len(changing) >= _LATEST:
            return commits[changing[-_LATEST] :]
        if len(commits) < count or count >= _AT_MOST:
            return commits
        count *= 4


def _forward(settings: Settings, table: str) -> str:
    """What to do about a table that was set back."""
    own = next((own for own in settings.processors if own.into == table), None)
    if own is not None:
        return f"`sessionlake rebuild {own.rebuilt_as}` makes it anew"
    return mended(table, f"bring the newer version back (RESTORE TABLE), or {ELSEWHERE}")


_Versions = dict[str, list[tuple[datetime, int]]]


def versions_left(reader: TableReader) -> _Versions:
    """When batches were committed, since their layers were rebuilt, and the version that each left a table at."""
    found: _Versions = {}
    for row in to_dicts(LedgerReader(reader, VERSIONS).current()):
        for left in row[VERSIONS] or ():
            found.setdefault(left["table"], []).append((left["committed_at"], left["version"]))
    return found


def _entries(reader: TableReader) -> int | None:
    """How many entries the ledger has; None where old ones are known as sums alone."""
    books = LedgerReader(reader, "batches")
    return None if books.has_sums else sum(row["batches"] for row in to_dicts(books.entries()))


def _only_batches(table: str, latest: int, known: _Versions, entries: int | None) -> bool:
    """Whether nothing but batches has committed to a table since its first batch, or of late, by the ledger.

    A sum of entries knows the last version alone: what came before that is not known to be theirs.

    Args:
        latest: the table's latest version.
        known: the versions that batches left tables at, as `versions_left` gives them.
        entries: number of entries of the ledger; None if some are known as sums alone.
    """
    if table == LEDGER:  # each entry is one version
        return latest == entries
    versions = sorted({version for _, version in known.get(table, ())})
    if not versions:
        return latest <= 1  # the first version has nothing to go back to
    unbroken = latest == versions[-1] and latest - versions[0] < len(versions)
    return unbroken and (entries is not None or len(versions) >= min(_LATEST, latest))


def _left_at(spark: SparkSession | None, lake: Lake, table: str, last: int, known: _Versions) -> int:
    """The greatest version that a batch left a table at, of which `last` is the latest; -1 if none has.

    A table that was dropped and made anew counts its versions from 0 again: batches of before say nothing of it.
    """
    left = known.get(table, ())
    if all(version <= last for _, version in left):
        return last if left else -1
    created = lake.storage.created_at(spark, table)
    return max((version for moment, version in left if created is None or moment > created), default=-1)
