"""A table of changes with what reference tables said at their event times: what it declares, and its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.enrich.asof import as_of, begins, ends, number_combinations
from sessionlake.gold.enrich.reference import FROM, TO, Reference

IDENTITY = ("topic", "partition", "offset", "ordinal")
"""What tells changes apart: a message, and the place in it."""
BATCH = "_batch"
OF_CHANGE = (
    ("topic", "string"),
    ("session_id", "string"),
    ("row_id", "string"),
    ("change", "string"),
    ("partition", "int"),
    ("offset", "bigint"),
    ("ordinal", "int"),
    ("ts", "bigint"),
    ("position", "bigint"),
)
"""What every table has of a change, before the declared columns; `ts` is event time in milliseconds."""
JOINED_ON = ("topic", "session_id", "row_id")
"""Of these, what reference tables can be joined on, beside declared columns."""
SOURCES = {"offset": "_offset", "ts": "_ts", "position": "_position"}
"""Columns that silver calls otherwise."""


@dataclass(frozen=True)
class Join:
    """One reference table that changes are joined with.

    Attributes:
        name: of the column that says which version decided.
        on: of each of its keys, in their order, the column of the change.
        take: the columns that are added, and the reference table's that they come from.
    """

    reference: Reference
    name: str
    on: tuple[str, ...]
    take: tuple[tuple[str, str], ...]

    @property
    def version(self) -> str:
        """The column that says since when the row holds that was found; null if none was."""
        return f"{self.name}_{FROM}"

    @property
    def added(self) -> tuple[tuple[str, str], ...]:
        """The columns that it adds, and their Spark SQL types."""
        types = dict(self.reference.all_columns)
        return (*((name, types[source]) for name, source in self.take), (self.version, "timestamp"))

    def found(self, changes: pa.Table, versions: pa.Table) -> dict[str, pa.ChunkedArray]:
        """The columns that it adds.

        Args:
            changes: `ts` and the columns that are joined on.
            versions: rows of the reference table, those of one key not overlapping.
        """
        known = self._narrowed(changes, versions)
        keys = [[changes[name] for name in self.on], [known[name] for name in self.reference.key_names]]
        mine, theirs = number_combinations(keys, nulls=False)
        place = as_of(mine, changes["ts"].to_numpy(), theirs, begins(known[FROM]), ends(known[TO]))
        taken = pa.array(place, mask=place < 0)
        sources = (*self.take, (self.version, FROM))
        return {name: known[source].take(taken) for name, source in sources}

    def _narrowed(self, changes: pa.Table, versions: pa.Table) -> pa.Table:
        """Less the versions of keys that no change has: what is sorted then goes by the changes."""
        first, on = self.reference.key_names[0], self.on[0]
        return versions.filter(pc.is_in(versions[first], value_set=pc.unique(changes[on])))


@dataclass(frozen=True)
class Enriched:
    """A table of gold: one row for each change.

    Attributes:
        name: of the table, in the schema `gold`.
        own: its columns that a change has, and their Spark SQL types.
    """

    name: str
    own: tuple[tuple[str, str], ...]
    joins: tuple[Join, ...]
    comment: str = ""

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns by which files are found."""
        return ("topic", "session_id")

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that tell its rows apart."""
        return IDENTITY

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Its columns and their Spark SQL types, in order."""
        return (*self.own, *(column for join in self.joins for column in join.added), (BATCH, "bigint"))

    @property
    def results(self) -> tuple[str, ...]:
        """Its columns besides, but for the number of silver's batch, which a rebuild of silver changes."""
        return tuple(name for name, _ in self.columns if name not in {*IDENTITY, BATCH})

    @property
    def logic(self) -> str:
        """Changes with whatever its rows depend on."""
        keys = [(join.name, join.reference.name, join.reference.keys, join.on, join.take) for join in self.joins]
        return sha256(repr((self.columns, keys)).encode()).hexdigest()[:12]

    @property
    def names(self) -> list[str]:
        """Names of the columns that are a change's."""
        return [*(name for name, _ in self.own), BATCH]

    def rows(self, changes: pa.Table, versions: Mapping[str, pa.Table]) -> pa.Table:
        """Its rows for these changes.

        Args:
            changes: as silver has them.
            versions: of each reference table, its rows.
        """
        mine = {name: changes[SOURCES.get(name, name)] for name in self.names}
        table = pa.table(mine)
        for join in self.joins:
            mine |= join.found(table, versions[join.reference.name])
        return pa.table([mine[name] for name, _ in self.columns], [name for name, _ in self.columns])


def joins_of(tables: Sequence[Enriched], reference: Reference) -> list[tuple[Enriched, Join]]:
    """Where a reference table is joined."""
    return [(table, join) for table in tables for join in table.joins if join.reference.name == reference.name]
