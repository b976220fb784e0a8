"""What sets a table back is told by the log of its commits: a RESTORE to an older version, until that is made good."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.delta.storage.commits import LoggedCommit, find_unrepaired_restore

APPEND: tuple[str, dict[str, Any]] = ("WRITE", {"mode": "Append"})
OVERWRITE: tuple[str, dict[str, Any]] = ("WRITE", {"mode": "Overwrite"})
REPLACE: tuple[str, dict[str, Any]] = ("CREATE OR REPLACE TABLE AS SELECT", {})
DELETE_ALL: tuple[str, dict[str, Any]] = ("DELETE", {"predicate": "[]"})
DELETE_SOME: tuple[str, dict[str, Any]] = ("DELETE", {"predicate": '["(a = 1)"]'})
MERGE: tuple[str, dict[str, Any]] = ("MERGE", {"predicate": '["(a = b)"]'})
OPTIMIZE: tuple[str, dict[str, Any]] = ("OPTIMIZE", {})
PROPERTY: tuple[str, dict[str, Any]] = ("SET TBLPROPERTIES", {})


def restore(version: int | None) -> tuple[str, dict[str, Any]]:
    return ("RESTORE", {"version": None if version is None else str(version), "timestamp": None})


@pytest.mark.parametrize(
    ("operations", "newest"),
    [
        ([], None),
        ([APPEND, MERGE, OPTIMIZE, PROPERTY, DELETE_SOME], None),
        ([APPEND, MERGE, restore(10)], 11),
        ([APPEND, MERGE, restore(11)], None),
        ([APPEND, OPTIMIZE, restore(10)], None),
        ([APPEND, MERGE, restore(3)], 11),
        ([APPEND, MERGE, restore(None)], 11),
        ([restore(8)], 9),
        ([restore(9)], None),
        ([APPEND, MERGE, restore(10), APPEND], 11),
        ([APPEND, MERGE, restore(10), OPTIMIZE, PROPERTY], 11),
        ([APPEND, MERGE, restore(10), DELETE_SOME, restore(13)], 11),
        ([APPEND, MERGE, restore(10), restore(11)], None),
        ([APPEND, MERGE, restore(10), APPEND, restore(11), APPEND], None),
        ([APPEND, MERGE, restore(10), OVERWRITE], None),
        ([APPEND, MERGE, restore(10), REPLACE, APPEND], None),
        ([APPEND, MERGE, restore(10), DELETE_ALL], None),
    ],
)
def test_a_table_is_set_back_until_the_newest_version_is_restored_or_all_rows_are_new(
    operations: list[tuple[str, dict[str, Any]]], newest: int | None
) -> None:
    told = find_unrepaired_restore([LoggedCommit(10 + i, *operation) for i, operation in enumerate(operations)])
    assert (told is None) == (newest is None)
    assert told is None or told.endswith(f"without version {newest}")


def test_what_files_say_counts_more_than_the_operation() -> None:
    merged_files = LoggedCommit(11, *APPEND, changes=False)
    assert find_unrepaired_restore([LoggedCommit(10, *APPEND), merged_files, LoggedCommit(12, *restore(10))]) is None
