"""Compares every session table with the ground truth, value by value."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ROWS
from sessionlake_lab.truth import ExpectedTables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SessionKey = tuple[str, int, str]


@dataclass(frozen=True)
class SessionTableVerification:
    """Result of comparing the session tables with the ground truth.

    Attributes:
        exact: Number of sessions whose table equals the ground truth.
        differences: For each session whose table differs, its first difference.
    """

    exact: int
    differences: dict[SessionKey, str]

    @property
    def session_count(self) -> int:
        """Number of compared sessions."""
        return self.exact + len(self.differences)


def verify_session_rows(
    spark: SparkSession, lake: Lake, truth: ExpectedTables, other_topics: Collection[str] = ()
) -> SessionTableVerification:
    """Compares the sessions and columns of `silver.session_rows` with the ground truth.

    Args:
        spark: The Spark session.
        lake: The lake.
        truth: The ground truth.
        other_topics: Topics that the ground truth does not cover; their sessions are left out.
    """
    held: dict[SessionKey, dict[str, dict[str, Any]]] = defaultdict(dict)
    for row in lake.read(spark, ROWS).toArrow().to_pylist():
        if row["topic"] not in other_topics:
            held[row.pop("topic"), row.pop("partition"), row.pop("session_id")][row.pop("row_id")] = row
    exact, differences = 0, {}
    for session in sorted({*truth.session_rows, *held}):
        found = describe_first_difference(truth.session_rows.get(session, {}), held.get(session, {}))
        if found is None:
            exact += 1
        else:
            differences[session] = found
    return SessionTableVerification(exact, differences)


def describe_first_difference(expected: dict[str, dict[str, Any]], actual: dict[str, dict[str, Any]]) -> str | None:
    """Describes the first row and column that differ; None if the tables are equal."""
    for row_id in sorted({*expected, *actual}):
        if row_id not in actual:
            return f"row {row_id!r} is missing"
        if row_id not in expected:
            return f"row {row_id!r} should not be there"
        wanted, got = expected[row_id], actual[row_id]
        for column in wanted:
            if wanted[column] != got.get(column):
                return f"row {row_id!r}, column {column}: expected {wanted[column]!r}, found {got.get(column)!r}"
    return None
