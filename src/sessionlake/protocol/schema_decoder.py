"""The interface of the Avro and Protobuf decoders, and conversions that both use."""

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
ROW_LEVEL = 3  # nesting depth of a row: in the list of rows, in the message's object
TYPE_CODES = {
    "snapshot": MessageType.SNAPSHOT,
    "update": MessageType.UPDATE,
    "heartbeat": MessageType.HEARTBEAT,
    "end": MessageType.END,
}


class KindOfFieldValues(Enum):
    """The kind of values that a field of a schema can have."""

    BOOLEAN = "booleans"
    INTEGER = "integers of at most 64 bits, signed"
    UNSIGNED = "integers of at most 64 bits, unsigned"
    FLOAT = "floats"
    STRING = "strings"
    OTHER = "anything else, or values of several types"


_FITS = {
    JsonType.BOOLEAN: {KindOfFieldValues.BOOLEAN},
    JsonType.INTEGER: {KindOfFieldValues.INTEGER, KindOfFieldValues.UNSIGNED},
    JsonType.NUMBER: {KindOfFieldValues.INTEGER, KindOfFieldValues.UNSIGNED, KindOfFieldValues.FLOAT},
    JsonType.STRING: {KindOfFieldValues.STRING},
}


def can_read_values_as_column(value_kind: KindOfFieldValues, column: Column) -> bool:
    """Returns True if a field with values of this kind can be read as the column.

    The range of values is not checked.
    """
    return value_kind in _FITS[column.json_type]


@dataclass(frozen=True)
class ColumnLayout:
    """What is known of the rows of a schema whose messages can be read column by column.

    Attributes:
        cells: The kind of values of each declared column that the schema has, by name.
        undeclared: True if rows have fields that are not declared columns.
        row_bytes: The smallest size in bytes of an encoded row that has an id.
    """

    cells: dict[str, KindOfFieldValues]
    undeclared: bool
    row_bytes: int


class SchemaDecoder(Protocol):
    """Decodes payloads of one schema. There is one implementation for Avro and one for Protobuf.

    Attributes:
        layout: The fields of the schema; None if its messages must be parsed singly.
    """

    layout: ColumnLayout | None

    def decode_payloads(self, bodies: Sequence[bytes]) -> list[Any]:
        """Decodes each payload into an object of the Avro or Protobuf library; None if it cannot be decoded."""

    def read_message_types(self, objects: Sequence[Any]) -> list[Any]:
        """Returns the value of each message's field `type`, which may name no known message type."""

    def read_integer_field(self, objects: Sequence[Any], field_name: str) -> tuple[list[int], Bools | None]:
        """Returns the field `seq` or `ts` of each message, and a boolean for each: True if it lacks the field.

        The number of a message that lacks the field has no meaning. None instead of the booleans: all have it.
        """

    def read_list_field(self, objects: Sequence[Any], field_name: str) -> tuple[list[Any], Bools | None]:
        """Returns the field `rows` or `deleted` of each message, and a boolean for each: True if it lacks the field.

        The list of a message that lacks the field is empty. None instead of the booleans: all have it.
        """

    def read_row_ids(self, rows: Sequence[Any]) -> list[str]:
        """Returns the `id` of each row."""

    def read_names_of_set_columns(self, rows: Sequence[Any]) -> list[Any] | None:
        """Returns the names in the field `_set` of each row, None for a row without it.

        None instead of the list: no row has it.
        """

    def read_column_values(self, rows: Sequence[Any], column_name: str) -> tuple[list[Any], Bools | None]:
        """Returns the value of a declared column in each row, and a boolean for each row: True if it has the column.

        The value is None if the column is null. None instead of the booleans: all rows have it.
        """

    def find_rows_with_unknown_fields(self, rows: Sequence[Any]) -> Sequence[int]:
        """Returns the indices of rows with fields that the schema does not have."""

    def convert_row_to_json(self, row: Any) -> dict[str, Any]:
        """Returns a row as the equivalent JSON object. Values of declared columns are not converted."""

    def read_header_fields(self, message: Any) -> dict[str, Any]:
        """Returns the fields `type`, `seq` and `ts` of a message by name, without fields that it lacks."""

    def convert_message_to_json(self, message: Any) -> dict[str, Any]:
        """Returns a message as the equivalent JSON object."""


def parse_message_type_symbol(symbol: str) -> str:
    """Returns the message type that an enum symbol names, such as `update` for `TYPE_UPDATE`.

    A symbol that names no message type is returned unchanged.
    """
    lower = symbol.lower()
    last = lower.rpartition("_")[2]
    return lower if lower in TYPE_CODES else last if last in TYPE_CODES else symbol


def keep_only_set_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Applies the field `_set` of a row: keeps only the id and the columns that it names, and removes `_set` itself.

    A row whose `_set` is not a list of names is returned unchanged.
    """
    names = row.get(SET)
    if names is None:
        return {name: value for name, value in row.items() if name != SET}
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return row  # not a list of names: `_set` is a column like any other
    kept = {"id": row["id"]} if "id" in row else {}
    return kept | {name: row.get(name) for name in names if name not in {"id", SET}}


class NestedTooDeepError(Exception):
    """A value nests deeper than the protocol allows."""


def convert_to_json_value(value: Any, level: int = ROW_LEVEL + 1) -> Any:
    """Converts a value of an undeclared column to JSON: bytes to base64, NaN and infinities to their names.

    Args:
        value: The value.
        level: The nesting depth of the value in the message.

    Raises:
        TooDeepError: The value nests deeper than the protocol allows.
    """
    if isinstance(value, dict | list) and level > MAX_DEPTH:
        raise NestedTooDeepError
    if isinstance(value, dict):
        return {str(name): convert_to_json_value(item, level + 1) for name, item in value.items()}
    if isinstance(value, list):
        return [convert_to_json_value(item, level + 1) for item in value]
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
