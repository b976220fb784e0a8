"""Commits of a table as its log describes them, and a check for restores to an older version. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Names of the row counts in Spark's and delta-rs' metrics of a MERGE, and below of an append.
_MERGED = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    ("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
)
LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Setting in which Delta stores the version of the session's last commit. Unset it before a write.

If it is still unset after the write, Delta skipped the write because the table has its transaction.
"""
_APPENDED = (("numOutputRows",), ("num_added_rows",))
_RESTORE = "RESTORE"
_NOWHERE = -2
"""Stands for the restored version if a RESTORE does not name one: what that version holds is unknown."""
# First words of operations that rewrite or remove files but change no row.
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
"""First words of operations that change only a table's definition."""
_UPKEEP = (*_OF_FILES, *DEFINITION_OPERATIONS)
_ALL_ROWS = {"[]", '["true"]'}


@dataclass(frozen=True)
class Commit:
    """A version of a table, and how many rows its commit wrote."""

    version: int
    rows: int

    @classmethod
    def of(cls, version: int, metrics: Mapping[str, Any]) -> Commit:
        """Returns the commit with these operation metrics."""
        counts = next((names for names in (*_MERGED, *_APPENDED) if names[0] in metrics), ())
        return cls(version, sum(int(metrics[name]) for name in counts))


NO_COMMIT = Commit(-1, 0)


@dataclass(frozen=True)
class LoggedCommit:
    """A commit as the log describes it.

    Attributes:
        operation: Delta's name of the operation.
        parameters: the operation's parameters, as Delta names them.
        changes: whether the commit changes rows; None if the log does not say, and the operation decides.
    """

    version: int
    operation: str
    parameters: Mapping[str, Any]
    changes: bool | None = None

    @property
    def changes_rows(self) -> bool:
        """True if the commit may change rows."""
        return not self.operation.startswith(_UPKEEP) if self.changes is None else self.changes

    @property
    def replaces_all(self) -> bool:
        """True if the commit removes all earlier rows."""
        if self.operation == "DELETE":
            return self.parameters.get("predicate", "[]") in _ALL_ROWS
        overwrites = self.parameters.get("mode") == "Overwrite" and not self.parameters.get("predicate")
        return overwrites or self.operation.startswith(("CREATE OR REPLACE", "REPLACE"))

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE goes back to; None for other operations."""
        if self.operation != _RESTORE:
            return None
        version = self.parameters.get("version")
        return _NOWHERE if version is None else int(version)


def unrepaired_restore(commits: Sequence[LoggedCommit]) -> str | None:
    """Describes a RESTORE to an older version that has lost commits which are still missing; None if there is none.

    A RESTORE to an older version drops the commits after that version. Delta nevertheless still skips the transactions
    that wrote them, so they would never be written again. A RESTORE to the newest of the dropped versions repairs this,
    and so does a commit that replaces all rows.

    Args:
        commits: the table's latest commits, in order. Everything before them counts as complete.
    """
    if not commits:
        return None
    newest = present = commits[0].version - 1
    content_of: dict[int, int] = {}
    cause = None
    for commit in commits:
        if commit.restored_version is not None:
            present = content_of.get(commit.restored_version, commit.restored_version)
            cause = f"version {commit.version} restored an older one, without version {newest}"
        elif commit.replaces_all or (commit.changes_rows and present >= newest):
            newest = present = commit.version
        content_of[commit.version] = present
    return cause if present < newest else None
