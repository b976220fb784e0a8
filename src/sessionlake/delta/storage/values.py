"""Converts Arrow values to Python. A time outside datetime's range becomes a `far_times.OutOfRangeTime`."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.types as t

from sessionlake.delta.storage.far_times import OutOfRangeTime, convert_ms_to_time

_DAY_MS = 86_400_000
_PER_MS = {"ms": 1, "us": 1_000, "ns": 1_000_000}


def convert_to_row_dicts(table: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """Converts rows to dictionaries by column name. A time outside datetime's range becomes an `OutOfRangeTime`."""
    names = table.schema.names
    return [
        dict(zip(names, row, strict=True)) for row in zip(*map(convert_to_python_values, table.columns), strict=True)
    ]


def convert_to_python_values(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """Converts a column's values to Python objects. A time outside datetime's range becomes an `OutOfRangeTime`."""
    try:
        values: list[Any] = column.to_pylist()
    except (OverflowError, ValueError):
        return _read_far_times(column)
    return values


def convert_to_python_value(scalar: pa.Scalar) -> Any:
    """Converts an Arrow scalar to a Python object. A time outside datetime's range becomes an `OutOfRangeTime`."""
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        return convert_to_python_values(pa.array([scalar], scalar.type))[0]


def _read_far_times(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    kind = column.type
    if isinstance(column, pa.ChunkedArray):
        return [value for chunk in column.chunks for value in convert_to_python_values(chunk)]
    if t.is_timestamp(kind):
        return [None if at is None else _to_timestamp(at, kind) for at in column.cast(pa.int64()).to_pylist()]
    if t.is_date32(kind):
        return [None if day is None else _to_date(day) for day in column.cast(pa.int32()).to_pylist()]
    if t.is_struct(kind):
        names = [field.name for field in kind]
        parts = zip(*(convert_to_python_values(column.field(i)) for i in range(len(names))), strict=True)
        both = zip(parts, column.is_valid().to_pylist(), strict=True)
        return [dict(zip(names, row, strict=True)) if valid else None for row, valid in both]
    if t.is_map(kind):
        pairs = (scalar.values if scalar.is_valid else None for scalar in column)
        return [
            None if p is None else list(zip(*(convert_to_python_values(p.field(i)) for i in (0, 1)), strict=True))
            for p in pairs
        ]
    if t.is_list(kind) or t.is_large_list(kind) or t.is_fixed_size_list(kind):
        return [convert_to_python_values(scalar.values) if scalar.is_valid else None for scalar in column]
    raise TypeError(f"values of type {kind} cannot be converted to Python")


def _to_timestamp(at: int, kind: pa.TimestampType) -> datetime | OutOfRangeTime:
    ms, rest = (at * 1000, 0) if kind.unit == "s" else divmod(at, _PER_MS[kind.unit])
    found = convert_ms_to_time(ms)
    if isinstance(found, OutOfRangeTime):
        return found
    exact = found + timedelta(microseconds=rest * 1000 // _PER_MS.get(kind.unit, 1))
    return exact if kind.tz else exact.replace(tzinfo=None)


def _to_date(day: int) -> date | OutOfRangeTime:
    found = convert_ms_to_time(day * _DAY_MS)
    return found if isinstance(found, OutOfRangeTime) else found.date()
