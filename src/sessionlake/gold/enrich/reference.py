"""A reference table: faults in its rows, differences between two states, and the spans that a difference changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.gold.enrich.asof import OPEN_END, as_of, end_ms, micros, row_codes, start_ms
from sessionlake.protocol.names import internal
from sessionlake.protocol.types import Bools, Int64s

FROM, TO = "valid_from", "valid_to"
TAKEN_BY, GONE_BY = "_taken_by", "_gone_by"
"""Columns of the applied rows: the number of the correction that added a row, and of the one that removed it."""
BEGIN, END = internal("begin"), internal("end")
MOMENT = pa.timestamp("us", "UTC")
"""The Arrow type of a timestamp."""
ARROW = {
    "string": pa.string(), "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(),
    "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": MOMENT,
}  # fmt: skip
"""The Spark SQL types that columns may have, and their Arrow types."""


@dataclass(frozen=True)
class Reference:
    """A slowly changing table: one row for each key and span of time.

    Attributes:
        keys: the key columns and their Spark SQL types.
        columns: the value columns and their Spark SQL types.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"reference.{self.name}"

    @property
    def applied_table(self) -> str:
        """The table with the rows that gold has applied."""
        return f"gold.reference_{self.name}"

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of the key columns."""
        return tuple(name for name, _ in self.keys)

    @property
    def all_columns(self) -> tuple[tuple[str, str], ...]:
        """All columns and their Spark SQL types, in order."""
        return (*self.keys, (FROM, "timestamp"), (TO, "timestamp"), *self.columns)

    @property
    def names(self) -> list[str]:
        """Names of all columns."""
        return [name for name, _ in self.all_columns]

    def schema(self) -> pa.Schema:
        """Returns the columns as an Arrow schema."""
        return pa.schema([(name, ARROW[sql]) for name, sql in self.all_columns])

    def codes(self, *tables: pa.Table) -> list[Int64s]:
        """Returns numbers that identify the rows' keys across tables; -1 where a key column is null."""
        return row_codes([[table[name] for name in self.key_names] for table in tables], nulls=False)


def applied_columns(reference: Reference) -> tuple[tuple[str, str], ...]:
    """Returns the columns of the table of applied rows, and their Spark SQL types."""
    return (*reference.all_columns, (TAKEN_BY, "bigint"), (GONE_BY, "bigint"))


@dataclass(frozen=True)
class Fault:
    """A key whose rows contradict each other or are incomplete. Gold keeps the rows that it applied of it before."""

    key: tuple[object, ...]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.key))}: {self.reason}"


def find_faults(reference: Reference, rows: pa.Table) -> tuple[Bools, list[Fault]]:
    """Returns which rows belong to keys with a fault, and the first fault of each such key, in row order."""
    (code,) = reference.codes(rows)
    known = rows[FROM].is_valid().to_numpy()
    begin, end = micros(rows[FROM], 0), micros(rows[TO], OPEN_END)
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
    first: dict[int, Fault] = {}
    for wrong, reason in reasons:
        for place in np.flatnonzero(wrong).tolist():
            number = int(code[place])
            if number not in first:
                key = tuple(rows[name][place].as_py() for name in reference.key_names)
                # Formatted by Arrow, which has no smaller range than the column.
                (moment,) = rows[FROM].slice(place, 1).cast(pa.string()).to_pylist()
                first[number] = Fault(key, f"{reason} ({FROM} {moment})")
    return np.isin(code, list(first)), list(first.values())


@dataclass(frozen=True)
class Difference:
    """The rows that turn one state of a reference table into another.

    Attributes:
        removed: rows of the first state only.
        added: rows of the second state only.
    """

    removed: pa.Table
    added: pa.Table

    @property
    def rows(self) -> int:
        """The number of rows."""
        return self.removed.num_rows + self.added.num_rows

    def slices(self, reference: Reference, rows: int) -> Iterator[Difference]:
        """Yields the difference in parts of at most `rows` rows.

        Rows of one key stay together, so a part with a single key can be larger.
        """
        removed, added = reference.codes(self.removed, self.added)
        both = np.sort(np.concatenate([removed, added]))
        begin = 0
        while begin < len(both):
            first, last = both[begin], both[min(begin + rows, len(both)) - 1]
            end = int(np.searchsorted(both, last, side="right"))
            if end - begin > rows and last != first:
                end = int(np.searchsorted(both, last))
                last = both[end - 1]
            masks = (pa.array((first <= code) & (code <= last)) for code in (removed, added))
            yield Difference(
                *(side.filter(which) for side, which in zip((self.removed, self.added), masks, strict=True))
            )
            begin = end


def difference(reference: Reference, applied: pa.Table, now: pa.Table) -> tuple[Difference, list[Fault]]:
    """Returns what gold has to apply of a reference table, and the faults of keys that it skips.

    Args:
        applied: the applied rows. Further columns are allowed, and the removed rows then have them too.
        now: the current rows of the table.
    """
    wrong, faults = find_faults(reference, now)
    sound = now.select(reference.names).cast(reference.schema()).filter(pa.array(~wrong))
    if faults:
        skipped, applied_keys = reference.codes(now.filter(pa.array(wrong)), applied)
        compared = applied.filter(pa.array(~np.isin(applied_keys, skipped)))
    else:
        compared = applied
    before = compared.select(reference.names).cast(reference.schema())
    old_rows, new_rows = row_codes([before.columns, sound.columns], nulls=True)
    removed, added = ~np.isin(old_rows, new_rows), ~np.isin(new_rows, old_rows)
    return Difference(compared.filter(pa.array(removed)), sound.filter(pa.array(added))), faults


def changed_spans(reference: Reference, found: Difference) -> pa.Table:
    """Returns the spans of event time, for each key, in which a different row holds after the difference than before.

    Returns:
        The key columns, `BEGIN` and `END` in ms (end not included). Spans of one key do not overlap.
    """
    sides = [side.select(reference.names).cast(reference.schema()) for side in (found.removed, found.added)]
    old, new = reference.codes(*sides)
    values = [[side[FROM], *(side[name] for name, _ in reference.columns)] for side in sides]
    bounds = [(start_ms(side[FROM]), end_ms(side[TO])) for side in sides]
    value_codes = row_codes(values, nulls=True)
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
        place = as_of(code, at, key_codes, begin, until)
        holding.append(np.where(place >= 0, what[np.maximum(place, 0)] if len(what) else -1, -1))
    other = (holding[0] != holding[1]) & (at < OPEN_END)
    keys = pa.concat_tables([side.select(reference.key_names) for side in sides]).take(pa.array(row[other]))
    return keys.append_column(BEGIN, pa.array(at[other])).append_column(END, pa.array(end[other]))


def in_spans(reference: Reference, spans: pa.Table, keys: Sequence[pa.ChunkedArray], ts: Int64s) -> Bools:
    """Returns which rows are in one of the spans, by their keys and times."""
    row_keys, span_keys = row_codes([list(keys), [spans[name] for name in reference.key_names]], nulls=False)
    return as_of(row_keys, ts, span_keys, spans[BEGIN].to_numpy(), spans[END].to_numpy()) >= 0
