"""Extracts the events that products aggregate from a batch's changes, once for all products of the same source."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.topics import FeedTopics
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN, add_missing_change_order_columns
from sessionlake.protocol.arrow import convert_to_contiguous_array, encode_values_as_codes, sort_rows
from sessionlake.protocol.names import add_internal_prefix

PARTITION = "partition"
POINT_KEY = ("topic", "session_id", "row_id", "metric")
"""The columns that identify a series: all values of one metric in one row of a session.

The session's partition is a key in addition.
"""
VALUE_AS_DOUBLE = "value as a double"
"""The column of events that functions without an exact result read, if `value` is a decimal."""
CHANGE_KEY_AND_ORDER = ("topic", "session_id", "row_id", PARTITION, "ts", LIFE, TURN, "ordinal")
"""The columns that are copied from a change to each of its events.

`ts` is event time in ms. The columns after it order changes of equal event time.
"""


def have_session_keys(keys: Collection[str]) -> bool:
    """Returns True if the keys include `topic` and `session_id`, so that they identify a session within a partition."""
    return {"topic", "session_id"} <= {*keys}


@dataclass(frozen=True)
class DeclaredColumns:
    """The columns that the configuration declares for messages, in the order in which changes have them.

    Attributes:
        numbers: Names of the columns of numbers. Column i of these is called `value:<i>` in changes. It is a double,
            and null where the change did not set it.
        texts: Names of the columns of texts. Column i of these is called `text:<i>` in changes. It is null where the
            change did not set it.
        feeds: The topics that each feed reads, by name of the feed.
        decimals: Names of those columns of numbers that are decimals. Column i of these is also called `decimal:<i>` in
            changes, with exact values. It is null where the change did not set it.
    """

    numbers: tuple[str, ...]
    texts: tuple[str, ...] = ()
    feeds: Mapping[str, FeedTopics] = field(default_factory=dict, hash=False)
    decimals: tuple[str, ...] = ()


def build_number_column_name(column_index: int) -> str:
    """Returns the name that column `column_index` of `DeclaredColumns.numbers` has in gold's tables of changes."""
    return f"value:{column_index}"


def build_text_column_name(column_index: int) -> str:
    """Returns the name that column `column_index` of `DeclaredColumns.texts` has in gold's tables of changes."""
    return f"text:{column_index}"


def build_decimal_column_name(column_index: int) -> str:
    """Returns the name that column `column_index` of `DeclaredColumns.decimals` has in gold's tables of changes."""
    return f"decimal:{column_index}"


class EventSource(ABC):
    """A rule that says what counts as an event of a product. Each subclass extracts its events from changes.

    Attributes:
        topics: The topics of the only feed whose changes count; None if changes of all topics count.
    """

    topics: FeedTopics | None = None

    @property
    def only_decimal_column(self) -> str | None:
        """The only declared column whose values are events, as exact decimals. None if all columns' values are."""
        return None

    @property
    def is_numeric(self) -> bool:
        """True if an event's `value` is a number, False if it is a text."""
        return True

    @abstractmethod
    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = CHANGE_KEY_AND_ORDER
    ) -> pa.Table:
        """Returns the events that are in changes, one row per event. No column has nulls.

        The columns are `copied_columns`, the value in `value`, and the name of the declared column that it was set in.

        Args:
            changes: Changes with the columns of `copied_columns` and the declared columns.
            declared: The declared columns.
            copied_columns: Columns to copy from the change to each of its events.
        """


@dataclass(frozen=True)
class Points(EventSource):
    """One event for every number that a change sets.

    The event has the number in `value`, and the name of its column in `metric`.
    """

    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = CHANGE_KEY_AND_ORDER
    ) -> pa.Table:
        fields = [(name, build_number_column_name(i)) for i, name in enumerate(declared.numbers)]
        found = _extract_one_row_per_set_value(changes, fields, "metric", pa.float64(), copied_columns)
        return found.filter(pc.invert(pc.is_nan(found["value"])))


@dataclass(frozen=True)
class Texts(EventSource):
    """One event for every text that a change sets.

    The event has the text in `value`, and the name of its column in `column`.
    """

    is_numeric = False

    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = CHANGE_KEY_AND_ORDER
    ) -> pa.Table:
        fields = [(name, build_text_column_name(i)) for i, name in enumerate(declared.texts)]
        return _extract_one_row_per_set_value(changes, fields, "column", pa.string(), copied_columns)


@dataclass(frozen=True)
class DecimalPoints(EventSource):
    """A source of events: the numbers that changes set in one decimal column, one event for each.

    An event has the exact decimal in `value`, and the name of the column in `metric`.

    Attributes:
        decimal_column: Name of the column.
        type: Spark SQL type of the column. If it changes, products with this source must be computed again.
    """

    decimal_column: str
    type: str

    @property
    def only_decimal_column(self) -> str:
        return self.decimal_column

    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = CHANGE_KEY_AND_ORDER
    ) -> pa.Table:
        name = build_decimal_column_name(declared.decimals.index(self.only_decimal_column))
        kind = changes.schema.field(name).type
        return _extract_one_row_per_set_value(
            changes, [(self.only_decimal_column, name)], "metric", kind, copied_columns
        )


@dataclass(frozen=True)
class FeedEvents(EventSource):
    """The events of another source, restricted to the topics of one feed.

    Attributes:
        source: The source whose events are restricted.
        topics: The topics of the feed.
    """

    source: EventSource
    topics: FeedTopics

    @property
    def only_decimal_column(self) -> str | None:
        return self.source.only_decimal_column

    @property
    def is_numeric(self) -> bool:
        return self.source.is_numeric

    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = CHANGE_KEY_AND_ORDER
    ) -> pa.Table:
        return self.source.extract_events(select_changes_of_feed(changes, self.topics), declared, copied_columns)


def select_changes_of_feed(changes: pa.Table, topics: FeedTopics | None) -> pa.Table:
    """Returns the changes in topics that a feed reads; all changes if `topics` is None."""
    if topics is None:
        return changes
    code, names = encode_values_as_codes(changes["topic"])
    is_included = np.array([topics.includes_topic(topic) for topic in names.to_pylist()], np.bool_)
    return changes.filter(pa.array(is_included[code]))


@dataclass(frozen=True)
class Rows(EventSource):
    """One event for every row of another table, for products that recompute a key from all its rows each time.

    Attributes:
        table: Two-level name of the table.
        time: Column with the event time, a timestamp or milliseconds. None for no event time.
        value: Column that aggregates read as `value`. None for no value.
        order: Columns that order rows of equal time. Rows that are equal in all of them are ordered by value.
        numbers: True if `value` is a number, False if it is treated as a text.
    """

    table: str
    time: str | None = None
    value: str | None = None
    order: tuple[str, ...] = ()
    numbers: bool = True

    @property
    def is_numeric(self) -> bool:
        return self.numbers

    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = ()
    ) -> pa.Table:
        """Returns the source table's rows without those in which a used column is null or NaN.

        The column `order:turn` numbers the rows in their order.

        Args:
            changes: Rows with the columns of `copied_columns`. Also with `ts` (ms), `value` (a double or a text) and
                the columns that order rows, each only if this source has it.
            declared: Not used.
            copied_columns: Further columns that aggregates read, and the keys with the names from
                `build_key_column_name`.
        """
        del declared
        names = [*copied_columns, *(["ts"] if self.time else []), *(["value"] if self.value else [])]
        orders = [build_order_column_name(i) for i in range(len(self.order))]
        rows = changes.select([*names, *orders])
        there = np.ones(rows.num_rows, np.bool_)
        for column in map(rows.column, names):
            there &= column.is_valid().to_numpy()
            if pa.types.is_floating(column.type):
                there &= ~pc.fill_null(pc.is_nan(column), fill_value=True).to_numpy()
        rows = rows.filter(pa.array(there))
        places = [name for name in ("ts", *orders, "value", *copied_columns) if name in rows.column_names]
        rows = sort_rows(rows, places).select(names)
        rows = rows.append_column(LIFE, pa.array(np.full(rows.num_rows, NO_LIFE)))
        rows = rows.append_column(TURN, pa.array(np.arange(rows.num_rows)))
        if not self.time:
            rows = rows.append_column("ts", pa.array(np.zeros(rows.num_rows, np.int64)))
        return rows.append_column("ordinal", pa.array(np.zeros(rows.num_rows, np.int32)))


@dataclass(frozen=True)
class DecimalRows(Rows):
    """One event for every row of another table, for products that aggregate its decimal column `value` exactly.

    The event has the exact decimal in `value`, and the nearest double in `VALUE_AS_DOUBLE`.

    Attributes:
        type: Spark SQL type of the column. A product's logic depends on it.
    """

    type: str = ""

    def extract_events(
        self, changes: pa.Table, declared: DeclaredColumns, copied_columns: Sequence[str] = ()
    ) -> pa.Table:
        """Returns the rows as `Rows.extract_events` does, with the column `VALUE_AS_DOUBLE`."""
        return super().extract_events(changes, declared, (*copied_columns, VALUE_AS_DOUBLE))


def build_order_column_name(column_index: int) -> str:
    """Returns the name that the order column at this index of `Rows.order` has in the frame of events."""
    return add_internal_prefix(f"order:{column_index}")


def build_key_column_name(column_index: int) -> str:
    """Returns the name that key column `column_index` of a product has in tables of events.

    The name differs from the names of all columns that aggregates read.
    """
    return add_internal_prefix(f"key:{column_index}")


def _extract_one_row_per_set_value(
    changes: pa.Table,
    column_names: Iterable[tuple[str, str]],
    name_column: str,
    value_type: pa.DataType,
    copied_columns: Sequence[str],
) -> pa.Table:
    """Returns one row for each value that a change sets, with the value in `value`.

    Args:
        changes: Changes with the columns of `copied_columns` and the declared columns.
        column_names: Pairs of a declared column's name and the name that it has in `changes`.
        name_column: Name of the result's column that holds the declared column's name.
        value_type: Arrow type of the values.
        copied_columns: Columns to copy from the change.
    """
    changes = add_missing_change_order_columns(changes)
    names, nothing = [*copied_columns, name_column, "value"], changes.slice(0, 0)
    none = [*(nothing[mark] for mark in copied_columns), pa.array([], pa.string()), pa.array([], value_type)]
    parts = [pa.table(none, names)]
    for name, called in column_names:
        part = changes.filter(changes[called].is_valid())
        named = pa.array([name]).take(pa.array(np.zeros(part.num_rows, np.int32)))
        parts.append(
            pa.table(
                [
                    *(part[mark] for mark in copied_columns),
                    named,
                    convert_to_contiguous_array(part[called]).cast(value_type),
                ],
                names,
            )
        )
    return pa.concat_tables(parts)


POINTS = Points()
TEXTS = Texts()
