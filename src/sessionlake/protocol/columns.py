"""Declared columns: each has a name and a Spark SQL type to which the values in messages are converted exactly."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from sessionlake.protocol.names import require_allowed_column_names

RESCUED = "_rescued"
ID = "id"
"""The field of a row in messages that has the row's id. If a column of this name is declared, it has the id, too."""
BUILT_IN_COLUMNS = frozenset(
    {"topic", "session_id", "row_id", "change", "partition", "ordinal", "kafka_timestamp"}
    | {"_set", "_epoch", "_seq", "_ts", "_offset", "_position", "_life", "_applied_at", "_applied_by", "_batch"}
    | {"snapshot_at", "reason", "position", "_time", RESCUED}
)
"""Columns that silver's tables and views have in addition to the declared ones."""
_OMIT_HINT = ", or leave it out: fields that are not declared are kept in _rescued"


class JsonType(Enum):
    """The JSON type that a column's values must have. The enum's values are texts for operators."""

    BOOLEAN = "true or false"
    INTEGER = "an integer in range"
    NUMBER = "a number"
    STRING = "a string"
    FEED = "what the feed of the topic reads"
    """The types that only feeds read: decimal, date, timestamp, timestamp_ntz, binary and arrays."""


@dataclass(frozen=True)
class Column:
    """One declared column.

    Attributes:
        name: The column's name in messages and tables.
        sql: The column's Spark SQL type in its normal form (`bigint`, not `long`).
        json_type: The JSON type that the column's values must have in messages.
        arrow: The column's Arrow type.
        bits: Size of an integer type in bits; 0 for other types.
    """

    name: str
    sql: str
    json_type: JsonType
    arrow: pa.DataType
    bits: int = 0

    @property
    def is_numeric(self) -> bool:
        """True if the column has numbers, so that averages make sense. They take a decimal as the nearest double."""
        return self.json_type in (JsonType.INTEGER, JsonType.NUMBER) or pa.types.is_decimal(self.arrow)


_TYPES: dict[str, tuple[JsonType, pa.DataType, int]] = {
    "boolean": (JsonType.BOOLEAN, pa.bool_(), 0),
    "tinyint": (JsonType.INTEGER, pa.int8(), 8),
    "smallint": (JsonType.INTEGER, pa.int16(), 16),
    "int": (JsonType.INTEGER, pa.int32(), 32),
    "bigint": (JsonType.INTEGER, pa.int64(), 64),
    "float": (JsonType.NUMBER, pa.float32(), 0),
    "double": (JsonType.NUMBER, pa.float64(), 0),
    "string": (JsonType.STRING, pa.string(), 0),
}
TYPE_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}
"""Other names that Spark has for these types."""
INTEGER_BITS = {sql: bits for sql, (_, _, bits) in _TYPES.items() if bits}
"""Width of each integer type."""


def parse_columns(columns: Mapping[str, str]) -> tuple[Column, ...]:
    """Returns the declared columns, given the Spark SQL type of each by column name.

    Raises:
        ValueError: A name or type is not allowed; the text names the column and what is allowed.
    """
    if not columns:
        raise ValueError("at least one column must be declared, as in {price: double}")
    require_allowed_column_names(columns, BUILT_IN_COLUMNS, "silver", _OMIT_HINT)
    return tuple(_parse_column(name, sql) for name, sql in columns.items())


def _parse_column(name: str, sql_type: str, *, is_of_feed: bool = False) -> Column:
    """Returns a declared column. Raises a `ValueError` if its type is not allowed.

    Args:
        name: The column's name.
        sql_type: The column's Spark SQL type, in any case or an alias.
        is_of_feed: True if a feed declares it. Then a column `id` need not be a string.
    """
    normal = sql_type.strip().lower()
    normal = TYPE_ALIASES.get(normal, normal)
    if normal not in _TYPES:
        raise ValueError(f"column {name!r}: type {sql_type!r} is not one of {', '.join(_TYPES)}")
    if name == ID and normal != "string" and not is_of_feed:
        raise ValueError(
            f"column {ID!r}: type {sql_type!r}, but the field {ID!r} of the messages is a text that identifies a row. "
            "Declare it as string, or leave it out: every table has this text in the column row_id"
        )
    kind, arrow, bits = _TYPES[normal]
    return Column(name, normal, kind, arrow, bits)


_WITHOUT_BOUNDS = {"boolean", "binary"}
_DECIMAL = re.compile(r"decimal\(([1-9]\d?),(\d\d?)\)")
_MOST_DIGITS = 38
_FEED_TYPES: dict[str, pa.DataType] = {
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "binary": pa.binary(),
}
_PYTHON = {
    **dict.fromkeys(INTEGER_BITS, "int"),
    "boolean": "bool", "float": "float", "double": "float", "string": "str", "date": "date", "timestamp": "datetime",
    "timestamp_ntz": "datetime", "binary": "bytes",
}  # fmt: skip


def create_column_of_feed(name: str, sql: str) -> Column:
    """Returns a column that a feed declares.

    Args:
        name: The column's name.
        sql: The column's Spark SQL type in its normal form, such as `decimal(10,2)`. A `variant` is stored as JSON
            text, so its column is a `string`.
    """
    sql = "string" if sql == "variant" else sql.replace("array<variant>", "array<string>")
    if sql in _TYPES:
        return _parse_column(name, sql, is_of_feed=True)
    return Column(name, sql, JsonType.FEED, parse_arrow_type(sql))


def parse_arrow_type(sql_type: str) -> pa.DataType:
    """Returns the Arrow type of a Spark SQL type in its normal form, such as `decimal(10,2)` or `array<date>`."""
    if sql_type in _TYPES:
        return _TYPES[sql_type][1]
    if sql_type.startswith("array<"):
        return pa.list_(parse_arrow_type(_parse_array_element_type(sql_type)))
    if is_decimal_type(sql_type):
        precision, scale = map(int, sql_type.removeprefix("decimal(").removesuffix(")").split(","))
        return pa.decimal128(precision, scale)
    return _FEED_TYPES[sql_type]


def format_python_type(sql_type: str) -> str:
    """Returns the Python type of values of a Spark SQL type, as source text such as `Decimal` or `list[str | None]`."""
    if sql_type.startswith("array<"):
        return f"list[{format_python_type(_parse_array_element_type(sql_type))} | None]"
    return "Decimal" if is_decimal_type(sql_type) else _PYTHON[sql_type]


def is_decimal_type(sql_type: str) -> bool:
    """True if the Spark SQL type is `decimal(p,s)` in its normal form, with at most 38 digits."""
    found = _DECIMAL.fullmatch(sql_type)
    return found is not None and int(found[2]) <= int(found[1]) <= _MOST_DIGITS


def has_type_min_max_statistics(sql_type: str) -> bool:
    """True if Delta stores minimum and maximum for columns of this Spark SQL type. It clusters only by such columns."""
    return sql_type not in _WITHOUT_BOUNDS and not sql_type.startswith(("array<", "map<", "struct<"))


def _parse_array_element_type(sql_type: str) -> str:
    """Returns the type of an array's elements: `date` for `array<date>`."""
    return sql_type.removeprefix("array<").removesuffix(">")


def find_repeated_names(names: Iterable[str]) -> list[str]:
    """Returns the names that occur more than once, sorted."""
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})
