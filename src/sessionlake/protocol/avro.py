"""Decodes Avro payloads. Each must be exactly one datum (Avro's word for an encoded value) in its writer's schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from itertools import repeat
from operator import itemgetter
from typing import Any

import fastavro
import numpy as np
from fastavro.schema import SchemaParseException, UnknownType

from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.payload import Definition, UnusableSchemaError
from sessionlake.protocol.schema_decoder import (
    HEADER_FIELDS,
    SET,
    ColumnLayout,
    KindOfFieldValues,
    can_read_values_as_column,
    convert_to_json_value,
    keep_only_set_columns,
    parse_message_type_symbol,
)
from sessionlake.protocol.types import Bools

Schema = dict[str, Any]
DECODE_ERRORS = (ArithmeticError, EOFError, LookupError, ValueError)
"""Errors that fastavro raises for bytes that are not a datum of the schema."""
_ALL_DIGITS = 2000
"""Precision with which decimals are read, so that none is rounded. The schema's own could be too small."""
_VALUE_KINDS = {
    "boolean": KindOfFieldValues.BOOLEAN,
    "int": KindOfFieldValues.INTEGER,
    "long": KindOfFieldValues.INTEGER,
    "float": KindOfFieldValues.FLOAT,
    "double": KindOfFieldValues.FLOAT,
    "string": KindOfFieldValues.STRING,
    "enum": KindOfFieldValues.STRING,
}


class AvroDecoder:
    """Decodes payloads that were all written with the same Avro schema.

    Args:
        definition: The writer's schema, after the schemas that it refers to.
        columns: The declared columns.

    Raises:
        UnusableSchemaError: The definition is not a usable Avro schema of a message, or a few bytes of data could
            exhaust the reader.
    """

    def __init__(self, definition: Definition, columns: tuple[Column, ...]) -> None:
        self._plain_names = {"id", *(column.name for column in columns)}
        self._schema = _SafeAvroSchema(definition).schema
        fields = _list_record_fields(self._schema)
        self._field_names = frozenset(fields)
        row = _find_record_schema_of_items(fields.get("rows"))
        self._row_field_names = frozenset(_list_record_fields(row)) if row else frozenset[str]()
        self.layout = _find_column_layout(fields, row, columns)

    def decode_payloads(self, bodies: Sequence[bytes]) -> list[Any]:
        """Returns each payload as a dict; None if it is not exactly one datum of the schema."""
        found: list[Any] = []
        streams = list(map(BytesIO, bodies))
        rest = iter(streams)
        while len(found) < len(streams):
            try:
                found.extend(map(fastavro.schemaless_reader, rest, repeat(self._schema)))
            except DECODE_ERRORS:
                found.append(None)  # `extend` kept the data before it, and `rest` continues after it
        ends = np.fromiter(map(BytesIO.tell, streams), np.int64, len(streams))
        sizes = np.fromiter(map(len, bodies), np.int64, len(streams))
        for index in np.flatnonzero(ends != sizes).tolist():
            found[index] = None
        return found

    def read_message_types(self, objects: Sequence[Any]) -> list[Any]:
        """Returns the value of each decoded message's field `type`."""
        return list(map(itemgetter("type"), objects))

    def read_integer_field(self, objects: Sequence[Any], field_name: str) -> tuple[list[int], Bools | None]:
        """Returns the field `seq` or `ts` of each message, 0 if it is missing, and which lack it (None: none does)."""
        found: list[Any] = (
            list(map(itemgetter(field_name), objects)) if field_name in self._field_names else [None] * len(objects)
        )
        if None not in found:
            return found, None
        missing = np.fromiter((item is None for item in found), np.bool_, len(found))
        return [0 if item is None else item for item in found], missing

    def read_list_field(self, objects: Sequence[Any], field_name: str) -> tuple[list[Any], Bools | None]:
        """Returns the field `rows` or `deleted` of each message, and which lack it (None: none does)."""
        found = list(map(itemgetter(field_name), objects)) if field_name in self._field_names else [None] * len(objects)
        if None not in found:
            return found, None
        missing = np.fromiter((item is None for item in found), np.bool_, len(found))
        return [() if item is None else item for item in found], missing

    def read_row_ids(self, rows: Sequence[Any]) -> list[str]:
        """Returns the `id` of each row."""
        return list(map(itemgetter("id"), rows))

    def read_names_of_set_columns(self, rows: Sequence[Any]) -> list[Any] | None:
        """Returns the field `_set` of each row, None if it is null. None instead of the list: no row has it."""
        found = list(map(itemgetter(SET), rows)) if SET in self._row_field_names else []
        return None if found.count(None) == len(found) else found

    def read_column_values(self, rows: Sequence[Any], column_name: str) -> tuple[list[Any], Bools | None]:
        """Returns the value of a declared column in each row, and which rows have the column (None: all)."""
        if column_name in self._row_field_names:
            return list(map(itemgetter(column_name), rows)), None
        return [None] * len(rows), np.zeros(len(rows), np.bool_)

    def find_rows_with_unknown_fields(self, rows: Sequence[Any]) -> Sequence[int]:
        """Returns an empty list: an Avro row has no other fields than its writer's schema."""
        del rows
        return ()

    def convert_row_to_json(self, row: Any) -> dict[str, Any]:
        """Returns a row as the equivalent JSON object."""
        to_json_object = {
            name: value if name in self._plain_names else convert_to_json_value(value) for name, value in row.items()
        }
        return keep_only_set_columns(to_json_object)

    def read_header_fields(self, message: Any) -> dict[str, Any]:
        """Returns the fields `type`, `seq` and `ts` of a message by name, without fields that it lacks."""
        return {name: message[name] for name in HEADER_FIELDS if message.get(name) is not None}

    def convert_message_to_json(self, message: Any) -> dict[str, Any]:
        """Returns a message as the equivalent JSON object."""
        to_json_object = self.read_header_fields(message)
        for name in ("rows", "deleted"):
            if message.get(name) is not None:
                to_json_object[name] = message[name]
        rows = to_json_object.get("rows")
        if isinstance(rows, list):
            to_json_object["rows"] = [self.convert_row_to_json(row) if isinstance(row, dict) else row for row in rows]
        return to_json_object


def build_schema_for_decoding_to_dicts(definition: Definition) -> Schema:
    """Returns a schema for decoding data into dicts and lists. Of the logical types, only decimals are kept.

    Raises:
        UnusableSchemaError: The definition is not a usable Avro schema of a record, or a few bytes of data could
            exhaust the reader.
    """
    return _SafeAvroSchema(definition, is_message=False).schema


def _find_column_layout(
    fields: dict[str, Any], row_schema: Schema | None, columns: tuple[Column, ...]
) -> ColumnLayout | None:
    """Returns the layout for reading messages column by column; None if their schema does not have the required types.

    Args:
        fields: The schema of each field of a message, by name.
        row_schema: The schema of a row; None if the messages have no rows.
        columns: The declared columns.
    """
    if _find_kind_of_values(fields.get("type")) is not KindOfFieldValues.STRING:
        return None
    if any(
        name in fields and _find_kind_of_values(fields[name]) is not KindOfFieldValues.INTEGER for name in ("seq", "ts")
    ):
        return None
    if ("rows" in fields and row_schema is None) or not _is_string_list(fields.get("deleted")):
        return None
    of_row = _list_record_fields(row_schema) if row_schema else {}
    if row_schema and (of_row.get("id") != "string" or not _is_string_list(of_row.get(SET))):
        return None
    cells = {column.name: _find_kind_of_values(of_row[column.name]) for column in columns if column.name in of_row}
    if not all(can_read_values_as_column(cells[column.name], column) for column in columns if column.name in cells):
        return None
    row_bytes = 1 + sum(
        _takes_schema_at_least_one_byte(kind) for kind in of_row.values()
    )  # 1 for a character of the id
    return ColumnLayout(cells, bool(of_row.keys() - cells.keys() - {"id", SET}), row_bytes)


def _list_union_branches(type_schema: Any) -> list[Any]:
    """Returns the schemas of which a value may be one, without null: those in a union, else the schema itself."""
    if isinstance(type_schema, dict) and type_schema["type"] == "union":
        return [type_schema[i] for i in range(len(type_schema) - 1) if type_schema[i] != "null"]
    return [] if type_schema is None else [type_schema]


def _find_avro_type_name(schema: Any) -> str:
    """Returns the name of a schema's Avro type, such as `record` or `long`."""
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _find_kind_of_values(schema: Any) -> KindOfFieldValues:
    """Returns the kind of values of a schema; `OTHER` if they can have several kinds."""
    found = {
        _VALUE_KINDS.get(_find_avro_type_name(branch), KindOfFieldValues.OTHER)
        for branch in _list_union_branches(schema)
    }
    return found.pop() if len(found) == 1 else KindOfFieldValues.OTHER


def _find_record_schema_of_items(schema: Any) -> Schema | None:
    """Returns the record schema of an array's items; None if it is no array of records. The array may be nullable."""
    branches = _list_union_branches(schema)
    if (
        len(branches) == 1
        and _find_avro_type_name(branches[0]) == "array"
        and _find_avro_type_name(branches[0]["items"]) == "record"
    ):
        return dict(branches[0]["items"])
    return None


def _is_string_list(schema: Any) -> bool:
    """Returns True if the schema is None or an array of strings. The array may be nullable."""
    branches = _list_union_branches(schema)
    return schema is None or (len(branches) == 1 and branches[0] == {"type": "array", "items": "string"})


def _canonicalize_symbols(schema: Any) -> Any:
    """Returns a field's schema with enum symbols replaced by message types, such as `TYPE_UPDATE` by `update`."""
    if not isinstance(schema, dict):
        return schema
    if schema["type"] == "union":
        return {name: _canonicalize_symbols(branch) for name, branch in schema.items()}
    if schema["type"] == "enum":
        return schema | {"symbols": {i: parse_message_type_symbol(symbol) for i, symbol in schema["symbols"].items()}}
    return schema


def _takes_schema_at_least_one_byte(schema: Any) -> bool:
    """Returns True if every value of the schema takes at least one byte."""
    return isinstance(schema, dict | str) and _find_avro_type_name(schema) not in {"null", "fixed", "record"}


def _list_record_fields(record: Schema) -> dict[str, Any]:
    """Returns the schema of each field of a record, by field name."""
    return {field["name"]: field["type"] for field in record["fields"]}


class _SafeAvroSchema:
    """A writer's schema, changed so that fastavro can read any data with it safely.

    All names are resolved. Unless `is_message` is False, logical types are removed, and symbols of the field `type` are
    in lower case.

    Symbols and unions become dicts by number, because Python reads a negative index of a list from its end. Two kinds
    of schemas are refused. In a recursive record, data could nest to any depth. In an array whose items take no bytes,
    a few bytes could declare any number of items.
    """

    def __init__(self, definition: Definition, *, is_message: bool = True) -> None:
        self._is_message = is_message
        named: dict[str, Any] = {}
        try:
            parsed = [fastavro.parse_schema(json.loads(text), named, _write_hint=False) for text in definition]
        except (SchemaParseException, UnknownType, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnusableSchemaError(f"not an Avro schema: {error}") from None
        except RecursionError:
            raise UnusableSchemaError("not an Avro schema: it is nested too deeply") from None
        self._named = named
        self._done: dict[str, Schema] = {}
        self._height: dict[str, int] = {}
        self._min_record_bytes: dict[str, int] = {}
        self._in_progress: list[str] = []
        self._deepest = 0
        message = self._prepare_schema(parsed[-1], 1)
        if _find_avro_type_name(message) != "record":
            raise UnusableSchemaError(
                f"the schema is of type {_find_avro_type_name(message)}, but a message must be a record"
            )
        for field in message["fields"]:
            if is_message and field["name"] == "type":
                field["type"] = _canonicalize_symbols(field["type"])
        self.schema = message | {"__fastavro_parsed": True, "__named_schemas": {}}

    def _prepare_schema(self, schema: Any, level: int) -> Any:
        """Returns the prepared form of a schema at a nesting level.

        Raises an `UnusableSchemaError` if it must be refused.
        """
        self._require_allowed_nesting(level)
        if isinstance(schema, list):
            return {"type": "union", **{i: self._prepare_schema(branch, level) for i, branch in enumerate(schema)}}
        if isinstance(schema, str):
            return self._prepare_named_type(schema, level) if schema in self._named else schema
        kind = schema["type"]
        if kind in {"record", "error", "enum", "fixed"}:
            return self._prepare_named_type(schema["name"], level)
        if kind == "array":
            items = self._prepare_schema(schema["items"], level + 1)
            if self._compute_min_bytes_of_value(items) == 0:
                raise UnusableSchemaError(
                    "it has an array of items that take no bytes, so that data could hold any number of them"
                )
            return {"type": "array", "items": items}
        if kind == "map":
            return {"type": "map", "values": self._prepare_schema(schema["values"], level + 1)}
        decimal = self._prepare_decimal_type(schema) if kind == "bytes" else {}
        return {"type": "bytes", **decimal} if decimal else self._prepare_schema(kind, level)

    def _prepare_decimal_type(self, schema: Schema) -> Schema:
        """Returns the entries of a schema that make it a decimal; empty for other types, and if `is_message` is set."""
        if self._is_message or schema.get("logicalType") != "decimal":
            return {}
        return {"logicalType": "decimal", "precision": _ALL_DIGITS, "scale": schema.get("scale", 0)}

    def _prepare_named_type(self, name: str, level: int) -> Schema:
        """Returns the prepared schema of a named type. Raises UnusableSchemaError if it contains itself."""
        if name in self._in_progress:
            raise UnusableSchemaError(f"{name} contains itself, so that data could nest to any depth")
        if name not in self._done:
            before, self._deepest = self._deepest, level
            self._in_progress.append(name)
            self._done[name] = self._prepare_type_definition(name, self._named[name], level)
            self._in_progress.pop()
            self._height[name], self._deepest = self._deepest - level, max(before, self._deepest)
        self._require_allowed_nesting(level + self._height[name])
        return self._done[name]

    def _require_allowed_nesting(self, level: int) -> None:
        """Raises an `UnusableSchemaError` if a nesting level is too deep."""
        if level > MAX_DEPTH:
            raise UnusableSchemaError(f"the schema nests deeper than {MAX_DEPTH}")
        self._deepest = max(self._deepest, level)

    def _prepare_type_definition(self, name: str, definition: Schema, level: int) -> Schema:
        """Returns the prepared form of the enum, fixed or record with this name."""
        if definition["type"] == "enum":
            return {"type": "enum", "name": name, "symbols": dict(enumerate(definition["symbols"]))}
        if definition["type"] == "fixed":
            return {"type": "fixed", "name": name, "size": definition["size"], **self._prepare_decimal_type(definition)}
        fields = [
            {"name": field["name"], "type": self._prepare_schema(field["type"], level + 1)}
            for field in definition["fields"]
        ]
        return {"type": "record", "name": name, "fields": fields}

    def _compute_min_bytes_of_value(self, schema: Any) -> int:
        """Returns 1 if every value takes at least one byte, else 0."""
        kind = _find_avro_type_name(schema)
        if kind == "record":
            name = schema["name"]
            if name not in self._min_record_bytes:
                self._min_record_bytes[name] = max(
                    (self._compute_min_bytes_of_value(field["type"]) for field in schema["fields"]), default=0
                )
            return self._min_record_bytes[name]
        return 0 if kind == "null" or (kind == "fixed" and schema["size"] == 0) else 1
