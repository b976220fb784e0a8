"""An enriched table: changes joined with the rows of reference tables that are valid at their event times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.enrich.asof import (
    convert_span_ends_to_ms,
    convert_span_starts_to_ms,
    find_time_spans_containing,
    number_equal_rows_across_tables,
)
from sessionlake.gold.enrich.reference import FROM, TO, ReferenceTable

CHANGE_ID = ("topic", "partition", "offset", "ordinal")
"""The columns that identify a change: its message, and its place among the message's changes (`ordinal`)."""
BATCH = "_batch"
CHANGE_COLUMNS = (
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
"""The columns of a change that every enriched table has before the declared ones. `ts` is event time in ms."""
JOINABLE_COLUMNS = ("topic", "session_id", "row_id")
"""The columns of every change that reference tables can be joined on. Declared columns can be used, too."""
SILVER_NAMES = {"offset": "_offset", "ts": "_ts", "position": "_position"}
"""For columns that have another name in `silver.session_changes`, that name."""


@dataclass(frozen=True)
class ReferenceJoin:
    """The join of an enriched table's changes with one reference table.

    Attributes:
        reference: the reference table.
        name: prefix of the added column `<name>_valid_from`.
        on: the columns of a change that are compared with the key columns of the reference table, in the same order.
        taken_columns: pairs of the name of an added column, and the column of the reference table with its values.
    """

    reference: ReferenceTable
    name: str
    on: tuple[str, ...]
    taken_columns: tuple[tuple[str, str], ...]

    @property
    def valid_from_column(self) -> str:
        """Name of the column with the joined reference row's `valid_from`; null for a change without a valid row."""
        return f"{self.name}_{FROM}"

    @property
    def added_columns(self) -> tuple[tuple[str, str], ...]:
        """The columns that the join adds, and their Spark SQL types."""
        types = dict(self.reference.all_columns)
        return (*((name, types[source]) for name, source in self.taken_columns), (self.valid_from_column, "timestamp"))

    def compute_added_columns(self, changes: pa.Table, reference_rows: pa.Table) -> dict[str, pa.ChunkedArray]:
        """Returns the columns that the join adds, by name, with one value per change; null without a valid row.

        Args:
            changes: changes with `ts` (event time in ms) and the columns in `on`.
            reference_rows: rows of the reference table. The time spans of one key's rows do not overlap.
        """
        known = self._select_joinable_reference_rows(changes, reference_rows)
        keys = [[changes[name] for name in self.on], [known[name] for name in self.reference.key_names]]
        change_codes, version_codes = number_equal_rows_across_tables(keys, nulls_are_equal=False)
        place = find_time_spans_containing(
            change_codes,
            changes["ts"].to_numpy(),
            version_codes,
            convert_span_starts_to_ms(known[FROM]),
            convert_span_ends_to_ms(known[TO]),
        )
        places = pa.array(place, mask=place < 0)
        sources = (*self.taken_columns, (self.valid_from_column, FROM))
        return {name: known[source].take(places) for name, source in sources}

    def _select_joinable_reference_rows(self, changes: pa.Table, reference_rows: pa.Table) -> pa.Table:
        """Returns the rows of the reference table that changes may join, by their first key column."""
        first, on = self.reference.key_names[0], self.on[0]
        return reference_rows.filter(pc.is_in(reference_rows[first], value_set=pc.unique(changes[on])))


@dataclass(frozen=True)
class EnrichedTable:
    """A table of gold with one row for each change, joined with reference tables as of its event time.

    Attributes:
        name: its name in the schema `gold`.
        change_columns: the columns that are copied from the change, and their Spark SQL types.
        joins: the joins with reference tables.
        comment: what a row is, for the table's description.
    """

    name: str
    change_columns: tuple[tuple[str, str], ...]
    joins: tuple[ReferenceJoin, ...]
    comment: str = ""

    @property
    def table_name(self) -> str:
        """The table's name with schema, `gold.<name>`."""
        return f"gold.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns that files are clustered by."""
        return ("topic", "session_id")

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return CHANGE_ID

    @property
    def column_types(self) -> tuple[tuple[str, str], ...]:
        """All columns of the table in order, as pairs of name and Spark SQL type."""
        return (
            *self.change_columns,
            *(column for join in self.joins for column in join.added_columns),
            (BATCH, "bigint"),
        )

    @property
    def result_columns(self) -> tuple[str, ...]:
        """All columns except those in `row_keys` and `_batch`, the silver batch, which a rebuild of silver changes."""
        return tuple(name for name, _ in self.column_types if name not in {*CHANGE_ID, BATCH})

    @property
    def logic_hash(self) -> str:
        """A hash of everything that decides the table's rows. The table is rebuilt if it changes."""
        keys = [
            (join.name, join.reference.name, join.reference.keys, join.on, join.taken_columns) for join in self.joins
        ]
        return sha256(repr((self.column_types, keys)).encode()).hexdigest()[:12]

    @property
    def change_column_names(self) -> list[str]:
        """Names of the columns that are copied from the change, and of the silver batch."""
        return [*(name for name, _ in self.change_columns), BATCH]

    def join_changes_with_references(self, changes: pa.Table, reference_rows: Mapping[str, pa.Table]) -> pa.Table:
        """Returns one enriched row per change, with nulls where no row of a reference table is valid for it.

        Args:
            changes: rows of `silver.session_changes`.
            reference_rows: all versions of the rows of each joined reference table, by name of the reference table.
        """
        values = {name: changes[SILVER_NAMES.get(name, name)] for name in self.change_column_names}
        table = pa.table(values)
        for join in self.joins:
            values |= join.compute_added_columns(table, reference_rows[join.reference.name])
        return pa.table([values[name] for name, _ in self.column_types], [name for name, _ in self.column_types])


def find_joins_with_reference(
    tables: Sequence[EnrichedTable], reference: ReferenceTable
) -> list[tuple[EnrichedTable, ReferenceJoin]]:
    """Returns the joins of enriched tables with one reference table, as pairs of enriched table and join."""
    return [(table, join) for table in tables for join in table.joins if join.reference.name == reference.name]
