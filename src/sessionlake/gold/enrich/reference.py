"""A reference table: faults in its rows, differences between two states of it, and the time spans that they change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.gold.enrich.asof import (
    OPEN_END,
    convert_span_ends_to_ms,
    convert_span_starts_to_ms,
    convert_times_to_micros,
    find_time_spans_containing,
    number_equal_rows_across_tables,
)
from sessionlake.protocol.columns import parse_arrow_type
from sessionlake.protocol.names import add_internal_prefix
from sessionlake.protocol.types import Bools, Int64s

FROM, TO = "valid_from", "valid_to"
TAKEN_BY, GONE_BY = "_taken_by", "_gone_by"
"""Columns of gold's copy of a reference table: the numbers of the corrections that added and removed a row.

A correction is a set of changes of the reference table that gold applies together.
"""
BEGIN, END = add_internal_prefix("begin"), add_internal_prefix("end")
MOMENT = parse_arrow_type("timestamp")
"""The Arrow type for the Spark SQL type `timestamp`."""


@dataclass(frozen=True)
class ReferenceTable:
    """A declared reference table: it has values for each key, with the span of time in which they are valid.

    Attributes:
        name: its name in the configuration, without schema.
        keys: the key columns and their Spark SQL types.
        columns: the value columns and their Spark SQL types.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]

    @property
    def table_name(self) -> str:
        """The table's name with schema, `reference.<name>`."""
        return f"reference.{self.name}"

    @property
    def applied_table_name(self) -> str:
        """Name of gold's copy of the table, `gold.reference_<name>`."""
        return f"gold.reference_{self.name}"

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(name for name, _ in self.keys)

    @property
    def all_columns(self) -> tuple[tuple[str, str], ...]:
        """The key columns, `valid_from`, `valid_to` and the value columns, with their Spark SQL types."""
        return (*self.keys, (FROM, "timestamp"), (TO, "timestamp"), *self.columns)

    @property
    def column_names(self) -> list[str]:
        """Names of all columns of the reference table: its key, `valid_from`, `valid_to` and its values."""
        return [name for name, _ in self.all_columns]

    def arrow_schema(self) -> pa.Schema:
        """Returns the Arrow schema of the table."""
        return pa.schema([(name, parse_arrow_type(sql)) for name, sql in self.all_columns])

    def number_keys_of_rows(self, *tables: pa.Table) -> list[Int64s]:
        """Returns, for each table, an array with the number of each row's key; -1 where a key column is null.

        Equal keys get equal numbers, also in different tables.

        Args:
            tables: tables with this reference table's key columns.
        """
        return number_equal_rows_across_tables(
            [[table[name] for name in self.key_names] for table in tables], nulls_are_equal=False
        )


def list_columns_of_applied_table(reference: ReferenceTable) -> tuple[tuple[str, str], ...]:
    """Returns the columns of gold's copy of a reference table, and their Spark SQL types."""
    return (*reference.all_columns, (TAKEN_BY, "bigint"), (GONE_BY, "bigint"))


@dataclass(frozen=True)
class ReferenceKeyFault:
    """A key of a reference table whose rows contradict each other or are incomplete.

    Gold ignores changes of this key and continues to use the rows that it applied before.

    Attributes:
        key: values of the key columns.
        reason: what is wrong with the rows, in words.
    """

    key: tuple[object, ...]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.key))}: {self.reason}"


def find_reference_key_faults(reference: ReferenceTable, rows: pa.Table) -> tuple[Bools, list[ReferenceKeyFault]]:
    """Searches the rows of a reference table for faults: null keys, invalid spans, and spans that overlap.

    Returns:
        True for each row whose key has a fault; and the faults, one per key.
    """
    (code,) = reference.number_keys_of_rows(rows)
    known = rows[FROM].is_valid().to_numpy()
    begin, end = convert_times_to_micros(rows[FROM], 0), convert_times_to_micros(rows[TO], OPEN_END)
    order = np.lexsort((end, begin, code))
    overlaps = np.zeros(rows.num_rows, np.bool_)
    following, before = order[1:], order[:-1]
    overlaps[following] = (code[following] == code[before]) & (begin[following] < end[before])
    reasons = (
        (code < 0, "a key is null"),
        (~known, f"{FROM} is null"),
        (known & (end <= begin), f"{TO} is not after {FROM}"),
        (overlaps & known, "two rows hold at the same time"),
    )
    first: dict[int, ReferenceKeyFault] = {}
    for wrong, reason in reasons:
        for place in np.flatnonzero(wrong).tolist():
            number = int(code[place])
            if number not in first:
                key = tuple(rows[name][place].as_py() for name in reference.key_names)
                # Formatted by Arrow, which has no smaller range than the column.
                (moment,) = rows[FROM].slice(place, 1).cast(pa.string()).to_pylist()
                first[number] = ReferenceKeyFault(key, f"{reason} ({FROM} {moment})")
    return np.isin(code, list(first)), list(first.values())


@dataclass(frozen=True)
class ReferenceDifference:
    """The difference between an earlier and a later state of a reference table.

    Attributes:
        removed: rows that only the earlier state has.
        added: rows that only the later state has.
    """

    removed: pa.Table
    added: pa.Table

    @property
    def row_count(self) -> int:
        """The number of removed and added rows."""
        return self.removed.num_rows + self.added.num_rows

    def split_into_parts(self, reference: ReferenceTable, max_rows: int) -> Iterator[ReferenceDifference]:
        """Yields the difference in parts of at most `max_rows` rows.

        All rows of a key are in the same part, so a part with a single key can be larger.

        Args:
            reference: the reference table.
            max_rows: the most rows of a part.
        """
        removed, added = reference.number_keys_of_rows(self.removed, self.added)
        both = np.sort(np.concatenate([removed, added]))
        begin = 0
        while begin < len(both):
            first, last = both[begin], both[min(begin + max_rows, len(both)) - 1]
            end = int(np.searchsorted(both, last, side="right"))
            if end - begin > max_rows and last != first:
                end = int(np.searchsorted(both, last))
                last = both[end - 1]
            masks = (pa.array((first <= code) & (code <= last)) for code in (removed, added))
            yield ReferenceDifference(
                *(side.filter(which) for side, which in zip((self.removed, self.added), masks, strict=True))
            )
            begin = end


def find_reference_difference(
    reference: ReferenceTable, applied: pa.Table, rows: pa.Table
) -> tuple[ReferenceDifference, list[ReferenceKeyFault]]:
    """Compares the rows of a reference table with the rows that gold has applied.

    Args:
        reference: the reference table.
        applied: the rows that gold has applied. If they have further columns, the result's removed rows have them, too.
        rows: the current rows of the reference table.

    Returns:
        The difference that gold must apply, without keys that have a fault; and these faults.
    """
    wrong, faults = find_reference_key_faults(reference, rows)
    sound = rows.select(reference.column_names).cast(reference.arrow_schema()).filter(pa.array(~wrong))
    if faults:
        skipped, applied_keys = reference.number_keys_of_rows(rows.filter(pa.array(wrong)), applied)
        compared = applied.filter(pa.array(~np.isin(applied_keys, skipped)))
    else:
        compared = applied
    before = compared.select(reference.column_names).cast(reference.arrow_schema())
    old_rows, new_rows = number_equal_rows_across_tables([before.columns, sound.columns], nulls_are_equal=True)
    removed, added = ~np.isin(old_rows, new_rows), ~np.isin(new_rows, old_rows)
    return ReferenceDifference(compared.filter(pa.array(removed)), sound.filter(pa.array(added))), faults


def find_changed_time_spans(reference: ReferenceTable, difference: ReferenceDifference) -> pa.Table:
    """Returns the spans of event time in which a difference changes the valid values of a key.

    Returns:
        One row per span: the key columns, and the span's start and end in ms, in the columns `BEGIN` and `END`. The end
        is not part of the span. Spans of one key do not overlap.
    """
    sides = [
        side.select(reference.column_names).cast(reference.arrow_schema())
        for side in (difference.removed, difference.added)
    ]
    old, new = reference.number_keys_of_rows(*sides)
    values = [[side[FROM], *(side[name] for name, _ in reference.columns)] for side in sides]
    bounds = [(convert_span_starts_to_ms(side[FROM]), convert_span_ends_to_ms(side[TO])) for side in sides]
    value_codes = number_equal_rows_across_tables(values, nulls_are_equal=True)
    code = np.concatenate([old, old, new, new])
    at = np.concatenate([bound for pair in bounds for bound in pair])
    row = np.concatenate([np.arange(len(old))] * 2 + [np.arange(len(new)) + len(old)] * 2)
    order = np.lexsort((at, code))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(code[order]) != 0) | (np.diff(at[order]) != 0)
    order = order[first]
    code, at, row = code[order], at[order], row[order]
    end = np.full(len(at), OPEN_END, np.int64)
    end[:-1] = np.where(code[1:] == code[:-1], at[1:], OPEN_END)
    holding = []
    for key_codes, (begin, until), what in zip((old, new), bounds, value_codes, strict=True):
        place = find_time_spans_containing(code, at, key_codes, begin, until)
        holding.append(np.where(place >= 0, what[np.maximum(place, 0)] if len(what) else -1, -1))
    other = (holding[0] != holding[1]) & (at < OPEN_END)
    keys = pa.concat_tables([side.select(reference.key_names) for side in sides]).take(pa.array(row[other]))
    return keys.append_column(BEGIN, pa.array(at[other])).append_column(END, pa.array(end[other]))


def are_rows_in_time_spans(
    reference: ReferenceTable, spans: pa.Table, keys: Sequence[pa.ChunkedArray], ts: Int64s
) -> Bools:
    """Returns True for each row whose key has a span that contains the row's time.

    Args:
        reference: the reference table.
        spans: spans of keys, as `find_changed_time_spans` returns them.
        keys: the key columns of the rows, in the order of the reference table's keys.
        ts: event times of the rows in ms.
    """
    row_keys, span_keys = number_equal_rows_across_tables(
        [list(keys), [spans[name] for name in reference.key_names]], nulls_are_equal=False
    )
    return find_time_spans_containing(row_keys, ts, span_keys, spans[BEGIN].to_numpy(), spans[END].to_numpy()) >= 0
