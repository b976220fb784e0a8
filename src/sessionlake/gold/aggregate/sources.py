"""What the events of a product are: made of a batch's changes, once for all products."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN, with_order
from sessionlake.protocol.arrow import one, sort_rows
from sessionlake.protocol.names import internal

PARTITION = "partition"
POINT_KEY = ("topic", "session_id", "row_id", "metric")
"""What tells series of numbers apart, beside the session's partition."""
MARKS = ("topic", "session_id", "row_id", PARTITION, "ts", LIFE, TURN, "ordinal")
"""What every event has of its change; `ts` is event time in milliseconds, what follows orders changes of one time."""


def names_sessions(keys: Collection[str]) -> bool:
    """Whether keys tell sessions apart; then a session's partition does, too."""
    return {"topic", "session_id"} <= {*keys}


@dataclass(frozen=True)
class Declared:
    """The declared columns of a capture, in the order in which changes have them.

    Attributes:
        numbers: those that are numbers; in changes `value:<i>`, a double, null where the change did not set it.
        texts: those that are texts; in changes `text:<i>`, likewise.
    """

    numbers: tuple[str, ...]
    texts: tuple[str, ...] = ()


def value_field(index: int) -> str:
    """Name of the column that holds number `index`."""
    return f"value:{index}"


def text_field(index: int) -> str:
    """Name of the column that holds text `index`."""
    return f"text:{index}"


class Source(ABC):
    """What an event is.

    Attributes:
        numbers: whether its value is a number.
    """

    numbers = True

    @abstractmethod
    def events(self, changes: pa.Table, declared: Declared, marks: Sequence[str] = MARKS) -> pa.Table:
        """The events of changes, none of their columns null.

        Args:
            changes: `marks` and the declared columns.
            marks: columns that every event has of its change.
        """


@dataclass(frozen=True)
class Points(Source):
    """A number that a change set: `metric`, the column's name, and `value`."""

    def events(self, changes: pa.Table, declared: Declared, marks: Sequence[str] = MARKS) -> pa.Table:
        fields = [(name, value_field(i)) for i, name in enumerate(declared.numbers)]
        found = _set_to(changes, fields, "metric", pa.float64(), marks)
        return found.filter(pc.invert(pc.is_nan(found["value"])))


@dataclass(frozen=True)
class Texts(Source):
    """A text that a change set: `column`, its name, and `value`."""

    numbers = False

    def events(self, changes: pa.Table, declared: Declared, marks: Sequence[str] = MARKS) -> pa.Table:
        fields = [(name, text_field(i)) for i, name in enumerate(declared.texts)]
        return _set_to(changes, fields, "column", pa.string(), marks)


@dataclass(frozen=True)
class Rows(Source):
    """A row of a table, for products that are made of all rows of a key each time: its columns that are named.

    Attributes:
        table: its two-level name.
        time: the column that has the event time: a timestamp, or milliseconds.
        value: the column that is `value` to aggregates.
        order: columns by which rows of one time are ordered; of those alike in all, the greater value is the later.
        numbers: whether `value` is a number; else it is told apart as a text.
    """

    table: str
    time: str | None = None
    value: str | None = None
    order: tuple[str, ...] = ()
    numbers: bool = True

    def events(self, changes: pa.Table, declared: Declared, marks: Sequence[str] = ()) -> pa.Table:
        """The rows in which no named column is null or NaN, with the place of each in order, as `TURN`.

        Args:
            changes: rows with the columns of `marks`, and those of `ts` (ms), `value` (a double, or a text) and
                `order_field` that are named.
            declared: not needed.
            marks: further columns that aggregates read, and the keys, as `key_field` names them.
        """
        del declared
        names = [*marks, *(["ts"] if self.time else []), *(["value"] if self.value else [])]
        orders = [order_field(i) for i in range(len(self.order))]
        rows = changes.select([*names, *orders])
        there = np.ones(rows.num_rows, np.bool_)
        for column in map(rows.column, names):
            there &= column.is_valid().to_numpy()
            if pa.types.is_floating(column.type):
                there &= ~pc.fill_null(pc.is_nan(column), fill_value=True).to_numpy()
        rows = rows.filter(pa.array(there))
        places = [name for name in ("ts", *orders, "value", *marks) if name in rows.column_names]
        rows = sort_rows(rows, places).select(names)
        rows = rows.append_column(LIFE, pa.array(np.full(rows.num_rows, NO_LIFE)))
        rows = rows.append_column(TURN, pa.array(np.arange(rows.num_rows)))
        if not self.time:
            rows = rows.append_column("ts", pa.array(np.zeros(rows.num_rows, np.int64)))
        return rows.append_column("ordinal", pa.array(np.zeros(rows.num_rows, np.int32)))


def order_field(index: int) -> str:
    """Name of the column that holds column `index` of the order of a table's rows."""
    return internal(f"order:{index}")


def key_field(index: int) -> str:
    """Name of the column that holds key `index` of a table's rows, apart from what aggregates read."""
    return internal(f"key:{index}")


def _set_to(
    changes: pa.Table, fields: Iterable[tuple[str, str]], called: str, value: pa.DataType, marks: Sequence[str]
) -> pa.Table:
    """A row for each value that a change set: the changes' marks, the column's name, and the value."""
    changes = with_order(changes)
    names, nothing = [*marks, called, "value"], changes.slice(0, 0)
    none = [*(nothing[mark] for mark in marks), pa.array([], pa.string()), pa.array([], value)]
    parts = [pa.table(none, names)]
    for name, field in fields:
        part = changes.filter(changes[field].is_valid())
        named = pa.array([name]).take(pa.array(np.zeros(part.num_rows, np.int32)))
        parts.append(pa.table([*(part[mark] for mark in marks), named, one(part[field]).cast(value)], names))
    return pa.concat_tables(parts)


POINTS = Points()
TEXTS = Texts()
