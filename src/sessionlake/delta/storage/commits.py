"""Describes commits of a table from its log, and finds restores to an older version that lost commits.

Pure: uses neither Spark nor files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Names of row counts in a MERGE's metrics, as Spark and as delta-rs write them. `_APPENDED` has those of an append.
_MERGED = (
    ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted"),
    ("num_target_rows_inserted", "num_target_rows_updated", "num_target_rows_deleted"),
)
LAST_COMMIT = "spark.databricks.delta.lastCommitVersionInSession"
"""Spark setting in which Delta stores the version of the session's last commit. Unset it before a write.

If it is still unset after the write, Delta has skipped the write, because its transaction was already committed.
"""
_APPENDED = (("numOutputRows",), ("num_added_rows",))
_RESTORE = "RESTORE"
_NOWHERE = -2
"""Stands for the restored version if a RESTORE names none, as it does for a time. Its content is then unknown."""
# First words of operations that rewrite or remove files without changing rows.
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
"""First words of operations that change only a table's definition or properties."""
_UPKEEP = (*_OF_FILES, *DEFINITION_OPERATIONS)
_ALL_ROWS = {"[]", '["true"]'}


@dataclass(frozen=True)
class TableCommit:
    """A commit to a table.

    Attributes:
        version: the table's version after the commit; -1 in `NO_COMMIT`.
        rows: number of rows that the commit inserted, updated or deleted.
    """

    version: int
    rows: int

    @classmethod
    def from_metrics(cls, version: int, metrics: Mapping[str, Any]) -> TableCommit:
        """Returns the commit with this version. Its operation metrics give the number of rows; 0 if they lack it."""
        counts = next((names for names in (*_MERGED, *_APPENDED) if names[0] in metrics), ())
        return cls(version, sum(int(metrics[name]) for name in counts))


NO_COMMIT = TableCommit(-1, 0)


@dataclass(frozen=True)
class LoggedCommit:
    """A commit to a table and its operation, as Delta's log or history describes it.

    Attributes:
        version: the table's version after the commit.
        operation: Delta's name of the operation, such as `MERGE`.
        parameters: the operation's parameters, as Delta names them.
        changes: True if the commit changes rows; None if unknown. Then `changes_rows` judges by the operation.
    """

    version: int
    operation: str
    parameters: Mapping[str, Any]
    changes: bool | None = None

    @property
    def changes_rows(self) -> bool:
        """True if the commit changes rows of the table, or may do so."""
        return not self.operation.startswith(_UPKEEP) if self.changes is None else self.changes

    @property
    def replaces_all_rows(self) -> bool:
        """True if the commit removes all earlier rows of the table."""
        if self.operation == "DELETE":
            return self.parameters.get("predicate", "[]") in _ALL_ROWS
        overwrites = self.parameters.get("mode") == "Overwrite" and not self.parameters.get("predicate")
        return overwrites or self.operation.startswith(("CREATE OR REPLACE", "REPLACE"))

    @property
    def restored_version(self) -> int | None:
        """The version that a RESTORE restores.

        None for other operations, and -2 for a RESTORE that names no version.
        """
        if self.operation != _RESTORE:
            return None
        version = self.parameters.get("version")
        return _NOWHERE if version is None else int(version)


def find_unrepaired_restore(commits: Sequence[LoggedCommit]) -> str | None:
    """Returns a sentence about a RESTORE that dropped commits which are still missing; None if there is none.

    A RESTORE to an older version drops the rows of all later commits. Delta still remembers their transactions and
    skips them, so replays do not write these rows again. Two things repair this: a RESTORE to the newest dropped
    version, and a commit that replaces all rows.

    Args:
        commits: the table's latest commits, oldest first. Commits before them are assumed to be complete.
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
        elif commit.replaces_all_rows or (commit.changes_rows and present >= newest):
            newest = present = commit.version
        content_of[commit.version] = present
    return cause if present < newest else None
