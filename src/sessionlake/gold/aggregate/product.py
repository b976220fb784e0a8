"""Products: declared tables of gold that merge each batch of silver's changes into their aggregates.

A product has no state beside its table. The events of a batch are aggregated first. Then the result is merged with the
table's rows of the same keys. A late event merges like any other. Only a product with a lateness rejects late events.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.functions import ORDER, Aggregate, DerivedAggregate
from sessionlake.gold.aggregate.groups import RowGroups
from sessionlake.gold.aggregate.late import are_changes_late, create_late_point_rows
from sessionlake.gold.aggregate.order import add_missing_change_order_columns
from sessionlake.gold.aggregate.sources import (
    PARTITION,
    POINTS,
    VALUE_AS_DOUBLE,
    DeclaredColumns,
    EventSource,
    Rows,
    build_key_column_name,
    have_session_keys,
)
from sessionlake.protocol.columns import parse_arrow_type
from sessionlake.protocol.names import add_internal_prefix, build_ddl
from sessionlake.protocol.types import Int64s
from sessionlake.protocol.years import FIRST_MS, LAST_MS

START = "window_start"
START_FIELD = add_internal_prefix("start")
"""The column of events with the start of their bucket."""
APPEND = "append"
_KEY_TYPES = {START: "timestamp", PARTITION: "int"}
_TIME = pa.timestamp("us", "UTC")
_ARROW = {
    "double": pa.float64(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "string": pa.string(),
    "binary": pa.binary(),
}


@dataclass(frozen=True)
class Product:
    """A declared table of gold: one row per key, and per bucket of event time if it has buckets.

    Attributes:
        name: Name of the table in the schema `gold`.
        keys: Text columns of the events that identify a row.
        aggregates: The results by column name, and the columns that are needed to compute them.
        source: What counts as an event: a value that a change sets, or, with `Rows`, a row of another table.
        bucket_ms: Length of the buckets in ms; None for a single bucket over all time.
        below: A product with shorter buckets. If set, the rows are computed from that product's rows.
        comment: What a row is, for the table's description.
        version: Raise it by hand when a declaration computes something else but reads the same.
        lateness_ms: How long after the end of its bucket, in ms of stream time, an event may still arrive. Later events
            go to `gold.late_points` instead. None if no event is ever too late.
        retention_ms: How long a row stays after the end of its bucket, in ms of its topic's stream time. None if rows
            stay for ever. It does not change the rows themselves, so it is no part of `logic_hash`.
        output: With `update`, rows change as events arrive. With `append`, rows are also appended to a second table
            once they are final (`gold.aggregate.final`).
        shown: The aggregates that are results. None for all whose names do not begin with an underscore.
    """

    name: str
    keys: tuple[str, ...]
    aggregates: Mapping[str, Aggregate | DerivedAggregate]
    source: EventSource = POINTS
    bucket_ms: int | None = None
    below: Product | None = None
    comment: str = ""
    version: int = 1
    lateness_ms: int | None = None
    retention_ms: int | None = field(default=None, compare=False)
    output: str = "update"
    shown: tuple[str, ...] | None = field(default=None, compare=False)

    @property
    def table_name(self) -> str:
        """The table's two-level name, `gold.<name>`."""
        return f"gold.{self.name}"

    @cached_property
    def row_keys(self) -> tuple[str, ...]:
        """The names of the columns that identify a row.

        These are the keys, the partition if the keys name a session, and the start of the bucket.
        """
        own = have_session_keys(self.keys) and not isinstance(self.source, Rows)
        partition = (PARTITION,) if own else ()
        return (*self.keys, *partition) if self.bucket_ms is None else (*self.keys, *partition, START)

    @cached_property
    def column_types(self) -> tuple[tuple[str, str], ...]:
        """All columns of the table in order, as pairs of name and Spark SQL type."""
        keys = tuple((name, _KEY_TYPES.get(name, "string")) for name in self.row_keys)
        return keys + self._aggregate_columns

    @property
    def columns_ddl(self) -> str:
        """All columns of the table as Spark DDL."""
        return build_ddl(self.column_types)

    @property
    def result_columns(self) -> tuple[str, ...]:
        """The names of the result columns, without the columns that are only needed to merge."""
        if self.shown is not None:
            return self.shown
        return tuple(name for name in self.aggregates if not name.startswith("_"))

    @cached_property
    def event_columns_by_key(self) -> dict[str, str]:
        """For each column in `row_keys`, the name of the column of events from which it is read."""
        is_apart = isinstance(self.source, Rows)
        own = {name: build_key_column_name(place) if is_apart else name for place, name in enumerate(self.keys)}
        own |= {PARTITION: PARTITION} if PARTITION in self.row_keys else {}
        return own if self.bucket_ms is None else own | {START: START_FIELD}

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The names of the columns that aggregates read, without `value`, key columns and columns that order events.

        If the product's source is another table (`Rows`), these are columns of that table.
        """
        own = {name for one in self._mergeable_aggregates.values() for name in one.input_columns}
        known = {"value", VALUE_AS_DOUBLE, *(column for _, column, _ in ORDER), *self.event_columns_by_key.values()}
        return tuple(sorted(own - known))

    @property
    def logic_hash(self) -> str:
        """A hash of everything in the declaration that the rows depend on."""
        declaration = (self.version, self.keys, sorted(self.aggregates.items()), self.source, self.bucket_ms)
        lateness = () if self.lateness_ms is None else (self.lateness_ms,)
        output = () if self.output != APPEND else (APPEND,)
        return sha256(
            repr((declaration, self.below and self.below.logic_hash, *lateness, *output)).encode()
        ).hexdigest()[:12]

    @cached_property
    def _aggregate_columns(self) -> tuple[tuple[str, str], ...]:
        return tuple(
            column
            for name, one in self.aggregates.items()
            for column in (((name, one.type),) if isinstance(one, DerivedAggregate) else one.list_state_columns(name))
        )

    @cached_property
    def _mergeable_aggregates(self) -> dict[str, Aggregate]:
        return {name: one for name, one in self.aggregates.items() if isinstance(one, Aggregate)}

    def arrow_schema(self) -> pa.Schema:
        """Returns the Arrow schema of the product's rows."""
        return self._arrow_schema

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        return pa.schema(
            [
                (name, _TIME if sql == "timestamp" else _ARROW.get(sql) or parse_arrow_type(sql))
                for name, sql in self.column_types
            ]
        )

    def aggregate_changes(self, changes: pa.Table, declared: DeclaredColumns) -> pa.Table:
        """Returns the product's rows for these changes alone, before they are merged with the table's rows.

        Args:
            changes: Changes with the columns that `gold.changes.select_changes` selects.
            declared: The declared columns that the changes have.
        """
        if self.below is not None:
            return self.aggregate_shorter_buckets(self.below.aggregate_changes(changes, declared))
        if self.lateness_ms is not None:
            changes = changes.filter(pa.array(~are_changes_late(changes, self.bucket_ms, self.lateness_ms)))
        return self.aggregate_events(self.source.extract_events(changes, declared))

    def select_late_rows(self, changes: pa.Table, declared: DeclaredColumns) -> pa.Table:
        """Returns the rows of `gold.late_points` for those of the changes that are too late for this product.

        Args:
            changes: Changes with the columns that `gold.changes.select_changes` selects.
            declared: The declared columns that the changes have.
        """
        if self.lateness_ms is None:
            return create_late_point_rows(self.table_name, changes.slice(0, 0), self.source, declared)
        late = changes.filter(pa.array(are_changes_late(changes, self.bucket_ms, self.lateness_ms)))
        return create_late_point_rows(self.table_name, late, self.source, declared)

    def aggregate_events(self, events: pa.Table) -> pa.Table:
        """Returns the product's rows for these events alone, before they are merged with the table's rows.

        Args:
            events: Events that the product's source extracted from changes, with `ts` in ms.
        """
        events = add_missing_change_order_columns(events) if "position" in events.column_names else events
        if self.bucket_ms is not None:
            events = _drop_events_with_unstorable_times(events, self.bucket_ms)
            events = events.append_column(START_FIELD, _compute_bucket_starts(events["ts"].to_numpy(), self.bucket_ms))
        events = events.combine_chunks()  # columns are read several times
        begun: dict[str, Any] = {name: events[field] for name, field in self.event_columns_by_key.items()}
        for name, aggregate in self._mergeable_aggregates.items():
            begun |= aggregate.build_state_of_each_event(name, events)
        return self.merge_rows(pa.table(begun))

    def aggregate_source_table_rows(self, key_columns: pa.Table, value_columns: pa.Table) -> pa.Table:
        """Returns the rows of a product whose source is another table (`Rows`), computed from rows of that table.

        The source rows must be all rows of each key and bucket.

        Args:
            key_columns: The key columns of the source rows.
            value_columns: The columns of the same source rows that `Rows.extract_events` reads. They are in a table of
                their own because a key may have the same name.
        """
        columns = {name: value_columns[name] for name in value_columns.column_names} | {
            self.event_columns_by_key[key]: key_columns[key] for key in self.keys
        }
        marks = (*(self.event_columns_by_key[key] for key in self.keys), *self.source_columns)
        return self.aggregate_events(self.source.extract_events(pa.table(columns), DeclaredColumns(()), marks))

    def aggregate_shorter_buckets(self, shorter_bucket_rows: pa.Table) -> pa.Table:
        """Returns the product's rows, computed from rows of the product in `below`, which has shorter buckets.

        Args:
            shorter_bucket_rows: Rows of the product in `below`.
        """
        if self.bucket_ms is None:
            return self.merge_rows(shorter_bucket_rows)
        place = shorter_bucket_rows.column_names.index(START)
        start = _compute_bucket_starts(compute_bucket_starts_ms(shorter_bucket_rows), self.bucket_ms)
        return self.merge_rows(shorter_bucket_rows.set_column(place, START, start))

    def merge_rows(self, new_rows: pa.Table, stored_rows: pa.Table | None = None) -> pa.Table:
        """Merges new rows with each other and with stored rows. Returns one row for each key that occurs in `new_rows`.

        Key columns that are dictionary-encoded in `new_rows` are dictionary-encoded in the result, too.

        Args:
            new_rows: New rows of the product, any number per key.
            stored_rows: Rows of the product's table, at most one per key; None for none. Rows whose key is not in
                `new_rows` are ignored.
        """
        both = (
            new_rows
            if stored_rows is None
            else pa.concat_tables([new_rows, stored_rows.select(new_rows.column_names).cast(new_rows.schema)])
        )
        groups = RowGroups.group_rows(both, self.row_keys)
        firsts = groups.first_row_indices  # rows of `parts` come before those of `stored`
        results: dict[str, Any] = {}
        for name, aggregate in self._mergeable_aggregates.items():
            results |= aggregate.merge_partial_results_by_group(name, both, groups)
        with np.errstate(over="ignore", invalid="ignore"):
            for name, derived in self.aggregates.items():
                if isinstance(derived, DerivedAggregate):
                    results[name] = pa.array(derived.compute_from_results(results), from_pandas=True)
        keys = {name: both[name].take(pa.array(firsts)) for name in self.row_keys}
        schema = pa.schema([both.schema.field(f.name) if f.name in keys else f for f in self.arrow_schema()])
        rows = pa.table([(keys | results)[name] for name, _ in self.column_types], schema=schema)
        return rows if stored_rows is None else rows.filter(pa.array(firsts < new_rows.num_rows))


def _drop_events_with_unstorable_times(events: pa.Table, bucket_ms: int) -> pa.Table:
    """Returns the events without those whose bucket starts outside the range of a timestamp.

    Args:
        events: Events with `ts` in ms.
        bucket_ms: Length of the buckets, in ms.
    """
    ts = events["ts"].to_numpy()
    inside = (ts >= FIRST_MS) & (ts <= LAST_MS)
    return events.filter(pa.array(inside & (np.floor_divide(ts, bucket_ms) * bucket_ms >= FIRST_MS)))


def compute_bucket_starts_ms(rows: pa.Table) -> Int64s:
    """Returns the start of each row's bucket (`window_start`), in ms since 1970."""
    found: Int64s = rows[START].cast(pa.int64()).to_numpy() // 1000
    return found


def _compute_bucket_starts(times_ms: Any, bucket_ms: int) -> pa.Array:
    start: Any = np.floor_divide(times_ms, bucket_ms) * (bucket_ms * 1000)
    return pa.array(start).cast(_TIME)
