"""Inserts rows into a reference table, which has one row per key and time span. Overlapped rows are shortened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.enrich.asof import OPEN_END
from sessionlake.gold.enrich.reference import FROM, MOMENT, TO, ReferenceTable, find_faults
from sessionlake.protocol.columns import parse_arrow_type
from sessionlake.protocol.types import Row
from sessionlake.protocol.years import FIRST_MS

FIRST_MICROS = FIRST_MS * 1000
"""The earliest time that a timestamp can have, in microseconds since 1970."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class RowVersion:
    """The values of a key that are valid from `begin` until just before `end`, both in microseconds since 1970.

    `end` is `OPEN_END` if they are valid without end.
    """

    begin: int
    end: int
    values: tuple[Any, ...]


@dataclass(frozen=True)
class NewRow:
    """A row to insert into a reference table.

    Attributes:
        begin: when it becomes valid, in microseconds since 1970. None: the current time, or for a key's first row the
            earliest possible time.
        end: when it stops to be valid, in microseconds since 1970. None: when the key's next row starts.
    """

    begin: int | None
    end: int | None
    values: tuple[Any, ...]


@dataclass(frozen=True)
class TableUpsert:
    """The changes in a reference table that insert some rows.

    Attributes:
        written: rows to write. Each replaces the row with the same key and `valid_from`, if there is one.
        removed: rows to delete.
        refused: for each key whose rows cannot be inserted, the reason. Nothing changes for these keys.
    """

    written: pa.Table
    removed: pa.Table
    refused: Mapping[Key, str]


def insert_versions(versions: Sequence[RowVersion], new_rows: Iterable[NewRow], now: int) -> list[RowVersion]:
    """Returns the versions of one key after rows are inserted, ordered by start. A version is a row of the table.

    A row without a start changes nothing if its values are already valid at the current time.

    Args:
        versions: the versions of the key before.
        new_rows: the rows to insert.
        now: the current time in microseconds since 1970.

    Raises:
        ValueError: two rows start at the same moment, or a row ends before it starts.
    """
    rows = list(new_rows)
    row_starts = [now if versions else FIRST_MICROS] * len(rows)
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
            versions = [*_cut_out(versions, begin, until), RowVersion(begin, until, row.values)]
    return sorted(versions, key=lambda one: one.begin)


def _cut_out(versions: Iterable[RowVersion], begin: int, end: int) -> Iterable[RowVersion]:
    """Yields the versions without the time from `begin` to `end`, in microseconds since 1970; `end` is not included.

    A version that reaches over both ends of this time becomes two versions.
    """
    for one in versions:
        if one.end <= begin or one.begin >= end:
            yield one
            continue
        if one.begin < begin:
            yield RowVersion(one.begin, begin, one.values)
        if end < one.end:
            yield RowVersion(end, one.end, one.values)


def plan_upsert(reference: ReferenceTable, versions: pa.Table, new_rows: pa.Table, now: int) -> TableUpsert:
    """Returns the changes in a reference table that insert some rows.

    Args:
        versions: the table's current rows.
        new_rows: rows to insert, with the table's columns. Null in `valid_from` or `valid_to` means what None means in
            `NewRow`.
        now: the current time in microseconds since 1970.
    """
    held_keys, given_keys = reference.number_keys(versions, new_rows)
    near = versions.filter(pa.array(np.isin(held_keys, given_keys[given_keys >= 0])))
    known, new = _group_rows_by_key(reference, near), _group_rows_by_key(reference, new_rows)
    refused = {key: "a key is null" for key in new if None in key}
    refused |= {
        fault.key: f"the table's own rows of this key have a fault: {fault.reason}"
        for fault in find_faults(reference, near)[1]
    }
    written: list[Row] = []
    removed: list[Row] = []
    for key in (key for key in new if key not in refused):
        before = [
            RowVersion(row[FROM], OPEN_END if row[TO] is None else row[TO], row["values"]) for row in known.get(key, [])
        ]
        try:
            after = insert_versions(before, (NewRow(row[FROM], row[TO], row["values"]) for row in new[key]), now)
        except ValueError as error:
            refused[key] = str(error)
            continue
        unchanged, remaining = {*before}, {one.begin for one in after}
        written += [_create_row(reference, key, one) for one in after if one not in unchanged]
        removed += [_create_row(reference, key, one) for one in before if one.begin not in remaining]
    return TableUpsert(_create_table(reference, written), _create_table(reference, removed), refused)


def _group_rows_by_key(reference: ReferenceTable, rows: pa.Table) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    names = [name for name, _ in reference.columns]
    for row in _with_integer_times(rows.select(reference.column_names)).to_pylist():
        key = tuple(row[name] for name in reference.key_names)
        values = tuple(_normalize_nan(row[name]) for name in names)
        found.setdefault(key, []).append({FROM: row[FROM], TO: row[TO], "values": values})
    return found


def _normalize_nan(value: Any) -> Any:
    """Returns the value, or one fixed NaN object for any NaN, because Python compares NaN in tuples by identity."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _create_row(reference: ReferenceTable, key: Key, version: RowVersion) -> Row:
    values = dict(zip((name for name, _ in reference.columns), version.values, strict=True))
    return dict(zip(reference.key_names, key, strict=True)) | {FROM: version.begin, TO: _end_or_none(version)} | values


def _end_or_none(version: RowVersion) -> int | None:
    return None if version.end == OPEN_END else version.end


def _create_table(reference: ReferenceTable, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, reference.arrow_schema())


def _with_integer_times(rows: pa.Table) -> pa.Table:
    """Returns rows with timestamps and dates as integers, because Python's `datetime` has a smaller range."""
    numbers = {pa.date32(): pa.int32(), MOMENT: pa.int64(), parse_arrow_type("timestamp_ntz"): pa.int64()}
    return rows.cast(pa.schema([(f.name, numbers.get(f.type, f.type)) for f in rows.schema]))
