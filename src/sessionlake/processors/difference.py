"""What another version of a processor makes of the same history: rows added, removed and changed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sessionlake.delta.storage.values import rows_of
from sessionlake.protocol.names import internal, quote

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_BATCH = "_batch"
_BEFORE, _AFTER, _CHANGE = map(internal, ("before", "after", "change"))


@dataclass(frozen=True)
class Differing:
    """A row that is in one of two tables, or other in the second.

    Attributes:
        change: `added`, `removed` or `changed`.
        key: what tells the row apart, by column.
        before: its other columns in the first table; None where it is not there.
        after: likewise in the second.
    """

    change: str
    key: dict[str, Any]
    before: dict[str, Any] | None
    after: dict[str, Any] | None


@dataclass(frozen=True)
class Difference:
    """How a table differs from another.

    Attributes:
        rows: of the second table.
        counts: rows that differ, by kind of change.
        first: the first of these, by their keys.
        columns: names that only one of the tables has, or has of that type; rows are compared by the others.
    """

    rows: int
    counts: dict[str, int]
    first: tuple[Differing, ...]
    columns: tuple[str, ...]

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.counts or self.columns)

    def __str__(self) -> str:
        said = [f"{count:,} {change}" for change, count in sorted(self.counts.items())]
        said += [f"column {name} in one of them alone, or of another type" for name in self.columns]
        return ", ".join(said) or "no row differs"


def difference(before: DataFrame, after: DataFrame, keys: Sequence[str], at_most: int = 20) -> Difference:
    """Compares two tables row by row; batch numbers apart.

    Args:
        keys: columns that tell rows apart.
        at_most: how many rows that differ are brought along.
    """
    from pyspark.sql import functions as F

    apart = {name for name, _ in {*before.dtypes} ^ {*after.dtypes}}
    columns = tuple(sorted(apart - {_BATCH}))
    if apart & {*keys}:  # nothing tells which rows are the same
        rows = after.count()
        return Difference(rows, {"added": rows, "removed": before.count()}, (), columns)
    shared = [name for name in after.columns if name not in {*keys, *apart, _BATCH}]

    def side(rows: DataFrame, name: str) -> DataFrame:
        return rows.select(*map(quote, keys), F.struct(*map(quote, shared)).alias(name))

    # A key may be null, as any column may.
    both = side(before, _BEFORE).alias("w").join(
        side(after, _AFTER).alias("n"), [F.col(f"w.{quote(key)}").eqNullSafe(F.col(f"n.{quote(key)}")) for key in keys],
        "full",
    )  # fmt: skip
    kind = F.when(F.col(_BEFORE).isNull(), "added").when(F.col(_AFTER).isNull(), "removed").otherwise("changed")
    named = [F.coalesce(f"w.{quote(key)}", f"n.{quote(key)}").alias(key) for key in keys]
    other = both.where(~F.col(_BEFORE).eqNullSafe(F.col(_AFTER))).select(kind.alias(_CHANGE), *named, _BEFORE, _AFTER)
    other = other.localCheckpoint()
    counts = {row[_CHANGE]: row["count"] for row in other.groupBy(_CHANGE).count().collect()}
    first = tuple(
        Differing(
            row[_CHANGE],
            {key: row[key] for key in keys},
            row[_BEFORE],
            row[_AFTER],
        )
        for row in rows_of(other.orderBy(*map(quote, keys)).limit(at_most).toArrow())
    )
    return Difference(after.count(), counts, first, columns)
