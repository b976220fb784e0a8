"""A reference table: what is wrong in it, how two states of it differ, and which spans of which keys that touches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.gold.enrich.asof import OPEN, as_of, begins, ends, micros, number_combinations
from sessionlake.protocol.names import internal
from sessionlake.protocol.types import Bools, Int64s

FROM, TO = "valid_from", "valid_to"
TAKEN_BY, GONE_BY = "_taken_by", "_gone_by"
"""Of what gold has taken of it: the correction that brought a row, and the one that took it away."""
BEGIN, END = internal("begin"), internal("end")
MOMENT = pa.timestamp("us", "UTC")
"""The type of a time."""
ARROW = {
    "string": pa.string(), "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(),
    "bigint": pa.int64(), "float": pa.float32(), "double": pa.float64(), "date": pa.date32(), "timestamp": MOMENT,
}  # fmt: skip
"""The types that its columns may have."""


@dataclass(frozen=True)
class Reference:
    """A slowly changing table: a row for each key and each span of time.

    Attributes:
        keys: the columns that tell what a row is about, and their Spark SQL types.
        columns: what it says of that, likewise.
    """

    name: str
    keys: tuple[tuple[str, str], ...]
    columns: tuple[tuple[str, str], ...]

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"reference.{self.name}"

    @property
    def taken(self) -> str:
        """The table with what gold has taken of it."""
        return f"gold.reference_{self.name}"

    @property
    def key_names(self) -> tuple[str, ...]:
        """Names of its keys."""
        return tuple(name for name, _ in self.keys)

    @property
    def all_columns(self) -> tuple[tuple[str, str], ...]:
        """Its columns and their Spark SQL types, in order."""
        return (*self.keys, (FROM, "timestamp"), (TO, "timestamp"), *self.columns)

    @property
    def names(self) -> list[str]:
        """Names of its columns."""
        return [name for name, _ in self.all_columns]

    def schema(self) -> pa.Schema:
        """Its columns as Arrow's."""
        return pa.schema([(name, ARROW[sql]) for name, sql in self.all_columns])

    def codes(self, *tables: pa.Table) -> list[Int64s]:
        """Numbers of the rows' keys, the same for equal ones; -1 where one is null."""
        return number_combinations([[table[name] for name in self.key_names] for table in tables], nulls=False)


def taken_columns(reference: Reference) -> tuple[tuple[str, str], ...]:
    """Columns of the table that has what gold has taken, and their Spark SQL types."""
    return (*reference.all_columns, (TAKEN_BY, "bigint"), (GONE_BY, "bigint"))


@dataclass(frozen=True)
class Fault:
    """A key whose rows say no clear thing: what was taken of it before stays."""

    key: tuple[object, ...]
    reason: str

    def __str__(self) -> str:
        return f"{', '.join(map(repr, self.key))}: {self.reason}"


def faulty(reference: Reference, rows: pa.Table) -> tuple[Bools, list[Fault]]:
    """Which rows are of keys with a fault, and the first fault of each such key, in order of rows."""
    (code,) = reference.codes(rows)
    known = rows[FROM].is_valid().to_numpy()
    begin, end = micros(rows[FROM], 0), micros(rows[TO], OPEN)
    order = np.lexsort((end, begin, code))
    overlaps = np.zeros(rows.num_rows, np.bool_)
    following, before = order[1:], order[:-1]
    overlaps[following] = (code[following] == code[before]) & (begin[following] < end[before])
    reasons = (
        (code < 0, "a key is null"),
        (~known, f"{FROM} is null"),
        (known & (end <= begin), f"{TO} is not behind {FROM}"),
        (overlaps & known, "two rows hold at the same time"),
    )
    first: dict[int, Fault] = {}
    for wrong, reason in reasons:
        for place in np.flatnonzero(wrong).tolist():
            number = int(code[place])
            if number not in first:
                key = tuple(rows[name][place].as_py() for name in reference.key_names)
                # By Arrow: a moment that Python has no datetime for is told, too.
                (moment,) = rows[FROM].slice(place, 1).cast(pa.string()).to_pylist()
                first[number] = Fault(key, f"{reason} ({FROM} {moment})")
    return np.isin(code, list(first)), list(first.values())


@dataclass(frozen=True)
class Difference:
    """Rows by which one state of a reference table becomes another."""

    gone: pa.Table
    new: pa.Table

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.gone.num_rows + self.new.num_rows

    def slices(self, reference: Reference, rows: int) -> Iterator[Difference]:
        """In parts of whole keys: of so many rows at most, or of one key."""
        gone, new = reference.codes(self.gone, self.new)
        both = np.sort(np.concatenate([gone, new]))
        begin = 0
        while begin < len(both):
            first, last = both[begin], both[min(begin + rows, len(both)) - 1]
            end = int(np.searchsorted(both, last, side="right"))
            if end - begin > rows and last != first:
                end = int(np.searchsorted(both, last))
                last = both[end - 1]
            mine = (pa.array((first <= code) & (code <= last)) for code in (gone, new))
            yield Difference(*(side.filter(which) for side, which in zip((self.gone, self.new), mine, strict=True)))
            begin = end


def difference(reference: Reference, taken: pa.Table, now: pa.Table) -> tuple[Difference, list[Fault]]:
    """What is to be taken of a reference table.

    Args:
        taken: its rows as gold has taken them; may have further columns, which what is gone then has, too.
        now: its rows. Those of keys with a fault are passed over.
    """
    wrong, faults = faulty(reference, now)
    sound = now.select(reference.names).cast(reference.schema()).filter(pa.array(~wrong))
    if faults:
        resting, mine = reference.codes(now.filter(pa.array(wrong)), taken)
        compared = taken.filter(pa.array(~np.isin(mine, resting)))
    else:
        compared = taken
    before = compared.select(reference.names).cast(reference.schema())
    held, wanted = number_combinations([before.columns, sound.columns], nulls=True)
    gone, new = ~np.isin(held, wanted), ~np.isin(wanted, held)
    return Difference(compared.filter(pa.array(gone)), sound.filter(pa.array(new))), faults


def touched_spans(reference: Reference, found: Difference) -> pa.Table:
    """The spans of time of each key in which something else holds after the difference than before.

    Returns:
        The keys, and `BEGIN` and `END` (not included), in ms; the spans of one key do not overlap.
    """
    sides = [side.select(reference.names).cast(reference.schema()) for side in (found.gone, found.new)]
    old, new = reference.codes(*sides)
    said = [[side[FROM], *(side[name] for name, _ in reference.columns)] for side in sides]
    bounds = [(begins(side[FROM]), ends(side[TO])) for side in sides]
    says = number_combinations(said, nulls=True)
    code = np.concatenate([old, old, new, new])
    at = np.concatenate([bound for pair in bounds for bound in pair])
    row = np.concatenate([np.arange(len(old))] * 2 + [np.arange(len(new)) + len(old)] * 2)
    order = np.lexsort((at, code))
    first = np.ones(len(order), np.bool_)
    first[1:] = (np.diff(code[order]) != 0) | (np.diff(at[order]) != 0)
    order = order[first]
    code, at, row = code[order], at[order], row[order]
    end = np.full(len(at), OPEN, np.int64)
    end[:-1] = np.where(code[1:] == code[:-1], at[1:], OPEN)
    told = []
    for mine, (begin, until), what in zip((old, new), bounds, says, strict=True):
        place = as_of(code, at, mine, begin, until)
        told.append(np.where(place >= 0, what[np.maximum(place, 0)] if len(what) else -1, -1))
    other = (told[0] != told[1]) & (at < OPEN)
    keys = pa.concat_tables([side.select(reference.key_names) for side in sides]).take(pa.array(row[other]))
    return keys.append_column(BEGIN, pa.array(at[other])).append_column(END, pa.array(end[other]))


def within_spans(reference: Reference, spans: pa.Table, keys: Sequence[pa.ChunkedArray], ts: Int64s) -> Bools:
    """Which rows lie in one of the spans."""
    mine, known = number_combinations([list(keys), [spans[name] for name in reference.key_names]], nulls=False)
    return as_of(mine, ts, known, spans[BEGIN].to_numpy(), spans[END].to_numpy()) >= 0
