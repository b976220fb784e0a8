"""What a table's log tells of its commits, and whether one of them has set the table back. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# What Spark and delta-rs call the number of rows that a commit wrote: a MERGE's, else an append's.
_MERGED = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    ("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
)
LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Setting of a session in which Delta puts the version of the last commit made there. Unset it before a write: it is
absent afterwards if Delta skipped the write because the table has its transaction."""
_APPENDED = (("numOutputRows",), ("num_added_rows",))
_RESTORE = "RESTORE"
_NOWHERE = -2
"""In the place of a version that a RESTORE does not name: nothing is known to be in it."""
# By their first words, what changes no row of those that write no rows.
_OF_FILES = ("OPTIMIZE", "VACUUM", "REORG")
DEFINITION_OPERATIONS = (
    "COMPUTE",
    "CLUSTER",
    "SET",
    "UNSET",
    "ADD",
    "CHANGE",
    "DROP",
    "RENAME",
    "UPGRADE",
    "CREATE TABLE",
)
"""First words of operations that change no file of rows, either."""
_UPKEEP = (*_OF_FILES, *DEFINITION_OPERATIONS)
_ALL_ROWS = {"[]", '["true"]'}


@dataclass(frozen=True)
class Commit:
    """One version of a table, and how many rows its commit wrote."""

    version: int
    rows: int

    @classmethod
    def of(cls, version: int, metrics: Mapping[str, Any]) -> Commit:
        """The commit with these operation metrics."""
        told = next((names for names in (*_MERGED, *_APPENDED) if names[0] in metrics), ())
        return cls(version, sum(int(metrics[name]) for name in told))


NO_COMMIT = Commit(-1, 0)


@dataclass(frozen=True)
class LoggedCommit:
    """What the log tells of a commit.

    Attributes:
        operation: and its parameters, as Delta names them.
        changes: whether it changes rows; None where only the operation can tell.
    """

    version: int
    operation: str
    parameters: Mapping[str, Any]
    changes: bool | None = None

    @property
    def changes_rows(self) -> bool:
        """Whether the table's rows may be other ones behind it."""
        return not self.operation.startswith(_UPKEEP) if self.changes is None else self.changes

    @property
    def replaces_all(self) -> bool:
        """Whether nothing of what was there before it is left."""
        if self.operation == "DELETE":
            return self.parameters.get("predicate", "[]") in _ALL_ROWS
        overwrites = self.parameters.get("mode") == "Overwrite" and not self.parameters.get("predicate")
        return overwrites or self.operation.startswith(("CREATE OR REPLACE", "REPLACE"))

    @property
    def restored_version(self) -> int | None:
        """The version that it goes back to; None if it is no RESTORE."""
        if self.operation != _RESTORE:
            return None
        version = self.parameters.get("version")
        return _NOWHERE if version is None else int(version)


def unrepaired_restore(commits: Sequence[LoggedCommit]) -> str | None:
    """What has set a table back, and is not made good since; None if nothing has.

    A RESTORE to an older version leaves out what was committed behind that one, though Delta goes on passing over the
    transactions that wrote it. It is made good by a RESTORE to the newest of these versions, or by new rows for all.

    Args:
        commits: the table's latest ones, in order: what was before them is taken for whole.
    """
    if not commits:
        return None
    newest = present = commits[0].version - 1
    holds: dict[int, int] = {}
    by = None
    for commit in commits:
        if commit.restored_version is not None:
            present = holds.get(commit.restored_version, commit.restored_version)
            by = f"version {commit.version} restored an older one, without version {newest}"
        elif commit.replaces_all or (commit.changes_rows and present >= newest):
            newest = present = commit.version
        holds[commit.version] = present
    return by if present < newest else None
