"""Inserts rows into a reference table, which has one row per key and time span. Overlapped rows are shortened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.enrich.asof import OPEN_END
from sessionlake.gold.enrich.reference import FROM, MOMENT, TO, ReferenceTable, find_reference_key_faults
from sessionlake.protocol.columns import parse_arrow_type
from sessionlake.protocol.types import Row
from sessionlake.protocol.years import FIRST_MS

FIRST_MICROS = FIRST_MS * 1000
"""The earliest time that a timestamp can have, in microseconds since 1970."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class ReferenceRowVersion:
    """A row of a reference table: the values of one key in a span of time.

    Attributes:
        begin: start of the span, in microseconds since 1970.
        end: end of the span, in microseconds since 1970, not included; `OPEN_END` if it has no end.
        values: the values, in the order of the table's value columns.
    """

    begin: int
    end: int
    values: tuple[Any, ...]


@dataclass(frozen=True)
class NewReferenceRow:
    """A row to insert into a reference table.

    Attributes:
        begin: start of its validity, in microseconds since 1970. None means the current time, or for a key's first row
            the earliest possible time.
        end: end of its validity, in microseconds since 1970. None means the start of the key's next row.
        values: the values, in the order of the table's value columns.
    """

    begin: int | None
    end: int | None
    values: tuple[Any, ...]


@dataclass(frozen=True)
class ReferenceUpsert:
    """The changes to make in a reference table so that new rows are inserted.

    Attributes:
        written: rows to write. Each replaces the row with the same key and `valid_from`, if there is one.
        removed: rows to delete.
        refused: by key, the reason why its new rows cannot be inserted. Nothing changes for these keys.
    """

    written: pa.Table
    removed: pa.Table
    refused: Mapping[Key, str]


def insert_reference_rows(
    versions: Sequence[ReferenceRowVersion], new_rows: Iterable[NewReferenceRow], now_micros: int
) -> list[ReferenceRowVersion]:
    """Returns the rows of one key after new rows are inserted, ordered by start. Overlapped rows are shortened.

    A new row without a start changes nothing if its values are already valid at the current time.

    Args:
        versions: the rows of the key before.
        new_rows: the rows to insert.
        now_micros: the current time in microseconds since 1970.

    Raises:
        ValueError: two rows start at the same moment, or a row ends before it starts.
    """
    rows = list(new_rows)
    row_starts = [now_micros if versions else FIRST_MICROS] * len(rows)
    row_starts = [first if row.begin is None else row.begin for row, first in zip(rows, row_starts, strict=True)]
    if len({*row_starts}) < len(row_starts):
        raise ValueError("two rows start at the same moment")
    starts = sorted({*row_starts, *(one.begin for one in versions)})
    for begin, row in sorted(zip(row_starts, rows, strict=True), key=lambda pair: pair[0]):
        until = next((start for start in starts if start > begin), OPEN_END) if row.end is None else row.end
        if until <= begin:
            raise ValueError(f"{TO} is not after {FROM}")
        same = any(one.begin <= begin < one.end and one.values == row.values for one in versions)
        if row.begin is not None or not same:
            versions = [*_remove_time_span(versions, begin, until), ReferenceRowVersion(begin, until, row.values)]
    return sorted(versions, key=lambda one: one.begin)


def _remove_time_span(versions: Iterable[ReferenceRowVersion], begin: int, end: int) -> Iterable[ReferenceRowVersion]:
    """Yields the rows of one key, shortened so that no row is valid from `begin` until just before `end`.

    A row that starts before `begin` and ends after `end` becomes two rows. Times are in microseconds since 1970.
    """
    for one in versions:
        if one.end <= begin or one.begin >= end:
            yield one
            continue
        if one.begin < begin:
            yield ReferenceRowVersion(one.begin, begin, one.values)
        if end < one.end:
            yield ReferenceRowVersion(end, one.end, one.values)


def plan_reference_upsert(
    reference: ReferenceTable, versions: pa.Table, new_rows: pa.Table, now_micros: int
) -> ReferenceUpsert:
    """Returns the changes to make in a reference table so that new rows are inserted.

    Args:
        reference: the reference table.
        versions: the table's current rows.
        new_rows: rows to insert, with the table's columns. For null in `valid_from` or `valid_to` see
            `NewReferenceRow`.
        now_micros: the current time in microseconds since 1970.
    """
    held_keys, given_keys = reference.number_keys_of_rows(versions, new_rows)
    near = versions.filter(pa.array(np.isin(held_keys, given_keys[given_keys >= 0])))
    known, new = _group_rows_by_key(reference, near), _group_rows_by_key(reference, new_rows)
    refused = {key: "a key is null" for key in new if None in key}
    refused |= {
        fault.key: f"the table's own rows of this key have a fault: {fault.reason}"
        for fault in find_reference_key_faults(reference, near)[1]
    }
    written: list[Row] = []
    removed: list[Row] = []
    for key in (key for key in new if key not in refused):
        before = [
            ReferenceRowVersion(row[FROM], OPEN_END if row[TO] is None else row[TO], row["values"])
            for row in known.get(key, [])
        ]
        try:
            after = insert_reference_rows(
                before, (NewReferenceRow(row[FROM], row[TO], row["values"]) for row in new[key]), now_micros
            )
        except ValueError as error:
            refused[key] = str(error)
            continue
        unchanged, remaining = {*before}, {one.begin for one in after}
        written += [_create_reference_row(reference, key, one) for one in after if one not in unchanged]
        removed += [_create_reference_row(reference, key, one) for one in before if one.begin not in remaining]
    return ReferenceUpsert(
        _create_reference_rows(reference, written), _create_reference_rows(reference, removed), refused
    )


def _group_rows_by_key(reference: ReferenceTable, rows: pa.Table) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    names = [name for name, _ in reference.columns]
    for row in _convert_times_to_integers(rows.select(reference.column_names)).to_pylist():
        key = tuple(row[name] for name in reference.key_names)
        values = tuple(_normalize_nan(row[name]) for name in names)
        found.setdefault(key, []).append({FROM: row[FROM], TO: row[TO], "values": values})
    return found


def _normalize_nan(value: Any) -> Any:
    """Returns the value, but the same object for every NaN, so that Python finds tuples with NaN equal."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _create_reference_row(reference: ReferenceTable, key: Key, row_version: ReferenceRowVersion) -> Row:
    values = dict(zip((name for name, _ in reference.columns), row_version.values, strict=True))
    return (
        dict(zip(reference.key_names, key, strict=True))
        | {FROM: row_version.begin, TO: _get_end_or_none(row_version)}
        | values
    )


def _get_end_or_none(version: ReferenceRowVersion) -> int | None:
    return None if version.end == OPEN_END else version.end


def _create_reference_rows(reference: ReferenceTable, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, reference.arrow_schema())


def _convert_times_to_integers(rows: pa.Table) -> pa.Table:
    """Returns rows with timestamps (µs) and dates (days) as integers, as Python's `datetime` has a smaller range."""
    numbers = {pa.date32(): pa.int32(), MOMENT: pa.int64(), parse_arrow_type("timestamp_ntz"): pa.int64()}
    return rows.cast(pa.schema([(f.name, numbers.get(f.type, f.type)) for f in rows.schema]))
