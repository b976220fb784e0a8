"""Rows put into a reference table: each holds from its moment on, and what held there before is cut."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sessionlake.gold.enrich.asof import OPEN
from sessionlake.gold.enrich.reference import FROM, MOMENT, TO, Reference, faulty
from sessionlake.protocol.types import Row
from sessionlake.protocol.years import FIRST_MS

FIRST_MICROS = FIRST_MS * 1000
"""The first moment that a timestamp can tell."""
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Version:
    """What holds of a key from `begin` until `end` (not included), in microseconds; `OPEN`: until further notice."""

    begin: int
    end: int
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Given:
    """A row that is to be put in.

    Attributes:
        begin: None: from now on, or, as the first of its key, since ever.
        end: None: until the next row of its key begins.
    """

    begin: int | None
    end: int | None
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Upserted:
    """What changes in a reference table.

    Attributes:
        written: rows that are added, or take the place of those with the same key and `valid_from`.
        removed: rows that are not there any more.
        refused: the keys whose rows cannot be put in, and why: of them nothing changes.
    """

    written: pa.Table
    removed: pa.Table
    refused: Mapping[Key, str]


def put(held: Sequence[Version], given: Iterable[Given], now: int) -> list[Version]:
    """The versions of one key with further rows put in, in order.

    A row that says neither since when nor what is other than what holds now, changes nothing.

    Raises:
        ValueError: two rows begin at once, or one ends before it begins.
    """
    rows = list(given)
    begun = [now if held else FIRST_MICROS] * len(rows)
    begun = [first if row.begin is None else row.begin for row, first in zip(rows, begun, strict=True)]
    if len({*begun}) < len(begun):
        raise ValueError("two rows begin at the same moment")
    starts = sorted({*begun, *(one.begin for one in held)})
    for begin, row in sorted(zip(begun, rows, strict=True), key=lambda pair: pair[0]):
        until = next((start for start in starts if start > begin), OPEN) if row.end is None else row.end
        if until <= begin:
            raise ValueError(f"{TO} is not behind {FROM}")
        same = any(one.begin <= begin < one.end and one.values == row.values for one in held)
        if row.begin is not None or not same:
            held = [*_cut(held, begin, until), Version(begin, until, row.values)]
    return sorted(held, key=lambda one: one.begin)


def _cut(held: Iterable[Version], begin: int, end: int) -> Iterable[Version]:
    """What is left of versions outside of a span."""
    for one in held:
        if one.end <= begin or one.begin >= end:
            yield one
            continue
        if one.begin < begin:
            yield Version(one.begin, begin, one.values)
        if end < one.end:
            yield Version(end, one.end, one.values)


def upserted(reference: Reference, held: pa.Table, given: pa.Table, now: int) -> Upserted:
    """What changes in a reference table if rows are put in.

    Args:
        held: its rows.
        given: with its columns, `valid_from` and `valid_to` perhaps null: see `Given`.
        now: in microseconds.
    """
    mine, theirs = reference.codes(held, given)
    near = held.filter(pa.array(np.isin(mine, theirs[theirs >= 0])))
    known, new = _by_key(reference, near), _by_key(reference, given)
    refused = {key: "a key is null" for key in new if None in key}
    refused |= {fault.key: f"of what the table has of it, {fault.reason}" for fault in faulty(reference, near)[1]}
    written: list[Row] = []
    removed: list[Row] = []
    for key in (key for key in new if key not in refused):
        before = [Version(row[FROM], OPEN if row[TO] is None else row[TO], row["values"]) for row in known.get(key, [])]
        try:
            after = put(before, (Given(row[FROM], row[TO], row["values"]) for row in new[key]), now)
        except ValueError as error:
            refused[key] = str(error)
            continue
        there, left = {*before}, {one.begin for one in after}
        written += [_row(reference, key, one) for one in after if one not in there]
        removed += [_row(reference, key, one) for one in before if one.begin not in left]
    return Upserted(_table(reference, written), _table(reference, removed), refused)


def _by_key(reference: Reference, rows: pa.Table) -> dict[Key, list[Row]]:
    found: dict[Key, list[Row]] = {}
    names = [name for name, _ in reference.columns]
    for row in _numbered(rows.select(reference.names)).to_pylist():
        key = tuple(row[name] for name in reference.key_names)
        values = tuple(_one_nan(row[name]) for name in names)
        found.setdefault(key, []).append({FROM: row[FROM], TO: row[TO], "values": values})
    return found


def _one_nan(value: Any) -> Any:
    """The value; of NaN always the same object, by which Python compares it within a tuple."""
    return math.nan if isinstance(value, float) and math.isnan(value) else value


def _row(reference: Reference, key: Key, one: Version) -> Row:
    values = dict(zip((name for name, _ in reference.columns), one.values, strict=True))
    return dict(zip(reference.key_names, key, strict=True)) | {FROM: one.begin, TO: _end(one)} | values


def _end(one: Version) -> int | None:
    return None if one.end == OPEN else one.end


def _table(reference: Reference, rows: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(rows, reference.schema())


def _numbered(rows: pa.Table) -> pa.Table:
    """Its rows with times and dates as numbers: Python's reach less far."""
    numbers = {pa.date32(): pa.int32(), MOMENT: pa.int64()}
    return rows.cast(pa.schema([(f.name, numbers.get(f.type, f.type)) for f in rows.schema]))
