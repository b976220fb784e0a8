"""Declared columns: a name and one of the scalar Spark SQL types that a JSON value maps to exactly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

import pyarrow as pa

from sessionlake.protocol.names import check_columns

RESCUED = "_rescued"
ID = "id"
"""The field of a row in the messages that identifies it. A declared column of this name holds it, as text."""
BUILT_IN_COLUMNS = frozenset(
    {"topic", "session_id", "row_id", "change", "partition", "ordinal", "kafka_timestamp"}
    | {"_set", "_epoch", "_seq", "_ts", "_offset", "_position", "_life", "_applied_at", "_applied_by", "_batch"}
    | {"snapshot_at", "reason", "position", RESCUED}
)
"""Columns that the tables of silver have beside the declared ones."""
_INSTEAD = ", or leave it out: a field of the messages that is not declared is kept in _rescued"


class JsonType(Enum):
    """JSON type that a value must be of to fit a column, in the words of messages to operators."""

    BOOLEAN = "true or false"
    INTEGER = "an integer in range"
    NUMBER = "a number"
    STRING = "a string"


@dataclass(frozen=True)
class Column:
    """One declared column.

    Attributes:
        name: as in the messages and in the tables.
        sql: the Spark SQL type, normalised (`bigint`, not `long`).
        json_type: what a JSON value must be to fit.
        arrow: the Arrow type it is carried in.
        bits: width of an integer type, 0 otherwise.
    """

    name: str
    sql: str
    json_type: JsonType
    arrow: pa.DataType
    bits: int = 0

    @property
    def numeric(self) -> bool:
        """Whether averages of it make sense."""
        return self.json_type in (JsonType.INTEGER, JsonType.NUMBER)


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
_ALIASES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float"}


def parse_columns(columns: Mapping[str, str]) -> tuple[Column, ...]:
    """Parses `{name: Spark SQL type}`.

    Raises:
        ValueError: naming the column and what is allowed.
    """
    if not columns:
        raise ValueError("at least one column must be declared, as in {price: double}")
    check_columns(columns, BUILT_IN_COLUMNS, "silver", _INSTEAD)
    return tuple(_parse(name, sql) for name, sql in columns.items())


def _parse(name: str, sql: str) -> Column:
    normal = sql.strip().lower()
    normal = _ALIASES.get(normal, normal)
    if normal not in _TYPES:
        raise ValueError(f"column {name!r}: type {sql!r} is not one of {', '.join(_TYPES)}")
    if name == ID and normal != "string":
        raise ValueError(
            f"column {ID!r}: type {sql!r}, but it holds what identifies a row in the messages, which is a text. "
            "Declare it as string, or leave it out: every table has that text in the column row_id"
        )
    kind, arrow, bits = _TYPES[normal]
    return Column(name, normal, kind, arrow, bits)


def repeated_names(names: Iterable[str]) -> list[str]:
    """The names that are there more than once."""
    seen = list(names)
    return sorted({name for name in seen if seen.count(name) > 1})
