"""Compares a processor's table before and after a rebuild, and finds rows that were added, removed or changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sessionlake.delta.storage.values import convert_to_row_dicts
from sessionlake.protocol.names import add_internal_prefix, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH = "_batch"
_BEFORE, _AFTER, _CHANGE = map(add_internal_prefix, ("before", "after", "change"))


@dataclass(frozen=True)
class RowDifference:
    """One row that differs between the table before a rebuild and the table after it.

    Attributes:
        change: `added`, `removed` or `changed`.
        key: The row's key, by column.
        before: Values of the row before, by column, without its key; None if the row was added.
        after: Values of the row after, by column, without its key; None if the row was removed.
    """

    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class TableDifference:
    """How a table after a rebuild differs from the table before. It is true if there is a difference.

    Attributes:
        rows: Number of rows after.
        counts: Number of differing rows, by `added`, `removed` or `changed`. A kind without rows is missing.
        first: The first differing rows, in the order of their keys.
        columns: Columns that only one of the two tables has, or whose types differ. They are left out of the
            comparison.
    """

    rows: int
    counts: dict[str, int]
    first: tuple[RowDifference, ...]
    columns: tuple[str, ...]

    def __bool__(self) -> bool:
        """Returns True if a row or a column differs."""
        return bool(self.counts or self.columns)

    def __str__(self) -> str:
        parts = [f"{count:,} {change}" for change, count in sorted(self.counts.items())]
        parts += [f"column {name} in only one table, or of another type" for name in self.columns]
        return ", ".join(parts) or "no row differs"


def compare_tables(
    before: DataFrame, after: DataFrame, keys: Sequence[str], max_shown_rows: int = 20
) -> TableDifference:
    """Compares two tables row by row, and returns how they differ. The column `_batch` is ignored.

    Args:
        before: The table before a rebuild.
        after: The table after it.
        keys: Columns that identify a row.
        max_shown_rows: Most differing rows in the result.
    """
    from pyspark.sql import functions as F

    apart = {name for name, _ in {*before.dtypes} ^ {*after.dtypes}}
    columns = tuple(sorted(apart - {_BATCH}))
    if apart & {*keys}:  # without common keys, no row of one table corresponds to a row of the other
        rows = after.count()
        return TableDifference(rows, {"added": rows, "removed": before.count()}, (), columns)
    shared = [name for name in after.columns if name not in {*keys, *apart, _BATCH}]

    def select_keys_and_values(rows: DataFrame, struct_column: str) -> DataFrame:
        return rows.select(*map(quote, keys), F.struct(*map(quote, shared)).alias(struct_column))

    # A key may be null, as any column may.
    both = select_keys_and_values(before, _BEFORE).alias("w").join(
        select_keys_and_values(after, _AFTER).alias("n"),
        [F.col(f"w.{quote(key)}").eqNullSafe(F.col(f"n.{quote(key)}")) for key in keys],
        "full",
    )  # fmt: skip
    kind = F.when(F.col(_BEFORE).isNull(), "added").when(F.col(_AFTER).isNull(), "removed").otherwise("changed")
    named = [F.coalesce(f"w.{quote(key)}", f"n.{quote(key)}").alias(key) for key in keys]
    other = both.where(~F.col(_BEFORE).eqNullSafe(F.col(_AFTER))).select(kind.alias(_CHANGE), *named, _BEFORE, _AFTER)
    other = other.localCheckpoint()
    counts = {row[_CHANGE]: row["count"] for row in other.groupBy(_CHANGE).count().collect()}
    first = tuple(
        RowDifference(
            row[_CHANGE],
            {key: row[key] for key in keys},
            row[_BEFORE],
            row[_AFTER],
        )
        for row in convert_to_row_dicts(other.orderBy(*map(quote, keys)).limit(max_shown_rows).toArrow())
    )
    return TableDifference(after.count(), counts, first, columns)
