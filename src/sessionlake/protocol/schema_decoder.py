"""What decodes the payloads of one schema: the part that Avro and Protobuf do each in their own way."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from sessionlake.protocol.columns import Column, JsonType
from sessionlake.protocol.message import MAX_DEPTH, MessageType
from sessionlake.protocol.types import Bools

SET = "_set"
HEADER_FIELDS = ("type", "seq", "ts")
ROW_LEVEL = 3  # in the message's object, in its rows
TYPE_CODES = {
    "snapshot": MessageType.SNAPSHOT,
    "update": MessageType.UPDATE,
    "heartbeat": MessageType.HEARTBEAT,
    "end": MessageType.END,
}


class ValueKind(Enum):
    """What a field's values are, all of them."""

    BOOLEAN = "booleans"
    INTEGER = "integers of at most 64 bits, signed"
    UNSIGNED = "integers of at most 64 bits, unsigned"
    FLOAT = "floats"
    STRING = "strings"
    OTHER = "anything else, or values of several types"


_FITS = {
    JsonType.BOOLEAN: {ValueKind.BOOLEAN},
    JsonType.INTEGER: {ValueKind.INTEGER, ValueKind.UNSIGNED},
    JsonType.NUMBER: {ValueKind.INTEGER, ValueKind.UNSIGNED, ValueKind.FLOAT},
    JsonType.STRING: {ValueKind.STRING},
}


def fits_column(holds: ValueKind, column: Column) -> bool:
    """Whether values are of a declared column's type; whether they are in its range is another question."""
    return holds in _FITS[column.json_type]


@dataclass(frozen=True)
class Layout:
    """What a schema has, where all its messages can be read by column.

    Attributes:
        cells: what the rows' fields of the declared columns hold; a column that the schema lacks is not in it.
        undeclared: whether rows have fields beside.
        row_bytes: a row with an id takes so many bytes at least.
    """

    cells: dict[str, ValueKind]
    undeclared: bool
    row_bytes: int


class SchemaDecoder(Protocol):
    """Decodes payloads of one schema: what the Avro and the Protobuf library each do in their own way.

    Attributes:
        layout: what the schema says of all its messages; None if each has to be looked at by itself.
    """

    layout: Layout | None

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """Each payload as the library's own object; None where it is none."""

    def types(self, objects: Sequence[Any]) -> list[Any]:
        """Name of each message's type, or what stands in its place."""

    def numbers(self, objects: Sequence[Any], name: str) -> tuple[list[int], Bools | None]:
        """`seq` or `ts` of each message, and where it is missing, then any number (None: nowhere)."""

    def lists(self, objects: Sequence[Any], name: str) -> tuple[list[Any], Bools | None]:
        """`rows` or `deleted` of each message, and where it is missing, then empty (None: nowhere)."""

    def ids(self, rows: Sequence[Any]) -> list[str]:
        """`id` of each row."""

    def set_names(self, rows: Sequence[Any]) -> list[Any] | None:
        """`_set` of each row, None where it says nothing (None: nowhere)."""

    def cells(self, rows: Sequence[Any], name: str) -> tuple[list[Any], Bools | None]:
        """A declared column of each row, null where it has no value, and whether it is there (None: everywhere)."""

    def rows_with_unknown_fields(self, rows: Sequence[Any]) -> Sequence[int]:
        """Indexes of the rows that carry fields which the schema does not name."""

    def row_to_json(self, row: Any) -> dict[str, Any]:
        """A row as the JSON object that says the same; values of declared columns are of their own type."""

    def header_fields(self, message: Any) -> dict[str, Any]:
        """Type, seq and ts of a message, as far as it has them."""

    def to_json_object(self, message: Any) -> dict[str, Any]:
        """A message as the JSON object that says the same."""


def message_type_of(symbol: str) -> str:
    """The message type that an enum's symbol names, in any case and with any prefix; else the symbol."""
    lower = symbol.lower()
    last = lower.rpartition("_")[2]
    return lower if lower in TYPE_CODES else last if last in TYPE_CODES else symbol


def apply_set_names(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its `_set`: of exactly the columns that it names, if it names any way, and the id."""
    names = row.get(SET)
    if names is None:
        return {name: value for name, value in row.items() if name != SET}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return row  # no such list: a column like any other
    kept = {"id": row["id"]} if "id" in row else {}
    return kept | {name: row.get(name) for name in names if name not in {"id", SET}}


class TooDeepError(Exception):
    """A value nests deeper than the protocol allows."""


def to_json_value(value: Any, level: int = ROW_LEVEL + 1) -> Any:
    """A value of an undeclared column as JSON has it: bytes as base64, what is no finite number by its name.

    Raises:
        TooDeepError: `level`, where the value itself is, and what it holds come to more than `MAX_DEPTH`.
    """
    if isinstance(value, dict | list) and level > MAX_DEPTH:
        raise TooDeepError
    if isinstance(value, dict):
        return {str(name): to_json_value(item, level + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [to_json_value(item, level + 1) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
