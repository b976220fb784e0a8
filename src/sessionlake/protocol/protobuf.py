"""Decodes Protobuf payloads. Each is one message of a type that is defined by a descriptor, a serialized schema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import repeat
from operator import attrgetter
from typing import Any

import numpy as np
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as ProtobufMessage
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.payload import Definition
from sessionlake.protocol.protobuf_types import find_message_type_descriptor
from sessionlake.protocol.schema_decoder import (
    HEADER_FIELDS,
    ROW_LEVEL,
    SET,
    ColumnLayout,
    KindOfFieldValues,
    NestedTooDeepError,
    can_read_values_as_column,
    convert_to_json_value,
    keep_only_set_columns,
    parse_message_type_symbol,
)
from sessionlake.protocol.types import Bools

# Errors that protobuf raises for bytes that are not a message of the type. A proto2 string is checked when it is read.
_DECODE_ERRORS = (DecodeError, UnicodeDecodeError)
# The smallest row: number and length of the row, number and length of its id, and one character.
_ROW_BYTES = 5
_GROUP = 3  # the wire type of a group, which Protobuf no longer writes but still reads
_REPEATED = FieldDescriptorProto.LABEL_REPEATED
_VALUE_KINDS = {
    FieldDescriptor.TYPE_BOOL: KindOfFieldValues.BOOLEAN,
    FieldDescriptor.TYPE_STRING: KindOfFieldValues.STRING,
    FieldDescriptor.TYPE_DOUBLE: KindOfFieldValues.FLOAT,
    FieldDescriptor.TYPE_FLOAT: KindOfFieldValues.FLOAT,
    FieldDescriptor.TYPE_UINT64: KindOfFieldValues.UNSIGNED,
    FieldDescriptor.TYPE_FIXED64: KindOfFieldValues.UNSIGNED,
    FieldDescriptor.TYPE_INT32: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_INT64: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_SINT32: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_SINT64: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_SFIXED32: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_SFIXED64: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_UINT32: KindOfFieldValues.INTEGER,
    FieldDescriptor.TYPE_FIXED32: KindOfFieldValues.INTEGER,
}


class ProtobufDecoder:
    """Decodes payloads that are all Protobuf messages of one type.

    Args:
        definition: The schema: serialized descriptors, each after those that it refers to.
        message: Full name of the message type.
        columns: The declared columns.

    Raises:
        UnusableSchemaError: The definition is not a Protobuf descriptor, or does not have the type.
    """

    def __init__(self, definition: Definition, message: str, columns: tuple[Column, ...]) -> None:
        self._plain_names = {"id", *(column.name for column in columns)}
        self._type = find_message_type_descriptor(definition, message)
        self._parse: Callable[[bytes], ProtobufMessage] = GetMessageClass(self._type).FromString
        self._fields = _ProtobufMessageFields(self._type)
        rows = self._type.fields_by_name.get("rows")
        self._row = (
            _ProtobufMessageFields(rows.message_type) if rows is not None and rows.message_type is not None else None
        )
        self.layout = _find_column_layout(self._fields, self._row, columns)

    def decode_payloads(self, bodies: Sequence[bytes]) -> list[Any]:
        """Returns each payload as a Protobuf message; None if it is not a message of the type."""
        found: list[Any] = []
        rest = iter(bodies)
        while len(found) < len(bodies):
            try:
                found.extend(map(self._parse, rest))
            except _DECODE_ERRORS:
                found.append(None)  # `extend` kept the messages before it, and `rest` continues after it
        return found

    def read_message_types(self, objects: Sequence[Any]) -> list[Any]:
        """Returns the name of each message's type; None if it is missing or unknown."""
        found, present = list(map(attrgetter("type"), objects)), self._fields.find_messages_with_field(objects, "type")
        symbols = self._fields.list_message_types_by_number("type")
        names = found if symbols is None else list(map(symbols.get, found))
        if present is None or present.all():
            return names
        return [name if there else None for name, there in zip(names, present.tolist(), strict=True)]

    def read_integer_field(self, objects: Sequence[Any], field_name: str) -> tuple[list[int], Bools | None]:
        """Returns the field `seq` or `ts` of each message, 0 if it is missing, and which lack it (None: none does)."""
        if field_name not in self._fields.holds:
            return [0] * len(objects), np.ones(len(objects), np.bool_)
        present = self._fields.find_messages_with_field(objects, field_name)
        return list(map(attrgetter(field_name), objects)), None if present is None else ~present

    def read_list_field(self, objects: Sequence[Any], field_name: str) -> tuple[list[Any], Bools | None]:
        """Returns the field `rows` or `deleted` of each message, and which lack it (None: none does).

        Either all messages lack it, because their type does, or none.
        """
        if field_name in self._fields.holds:
            return list(map(attrgetter(field_name), objects)), None
        return [()] * len(objects), np.ones(len(objects), np.bool_)

    def read_row_ids(self, rows: Sequence[Any]) -> list[str]:
        """Returns the `id` of each row."""
        return list(map(attrgetter("id"), rows))

    def read_names_of_set_columns(self, rows: Sequence[Any]) -> list[Any] | None:
        """Returns the field `_set` of each row, None if it is empty. None instead of the list: no row has it."""
        found = list(map(attrgetter(SET), rows)) if self._row is not None and SET in self._row.holds else []
        return [names or None for names in found] if any(found) else None

    def read_column_values(self, rows: Sequence[Any], column_name: str) -> tuple[list[Any], Bools | None]:
        """Returns the value of a declared column in each row, and which rows have the column (None: all)."""
        if self._row is None or column_name not in self._row.holds:
            return [None] * len(rows), np.zeros(len(rows), np.bool_)
        values, present = (
            list(map(attrgetter(column_name), rows)),
            self._row.find_messages_with_field(rows, column_name),
        )
        if present is None or present.all():
            return values, None
        return [value if there else None for value, there in zip(values, present.tolist(), strict=True)], present

    def find_rows_with_unknown_fields(self, rows: Sequence[Any]) -> Sequence[int]:
        """Returns the indices of rows with fields that the descriptor does not have."""
        return np.flatnonzero(np.fromiter(map(len, map(UnknownFieldSet, rows)), np.int64, len(rows))).tolist()

    def convert_row_to_json(self, row: Any) -> dict[str, Any]:
        """Returns a row as the equivalent JSON object."""
        fields = {field.name: field for field in row.DESCRIPTOR.fields if field.name in self._plain_names}
        to_json_object = {
            name: _read_field_value(row, field) for name, field in fields.items() if _is_field_set(row, field)
        }
        sent = {
            field.name: _read_field_value(row, field)
            for field, _ in row.ListFields()
            if field.name not in self._plain_names
        }
        named = keep_only_set_columns(
            to_json_object
            | {name: value if name == SET else convert_to_json_value(value) for name, value in sent.items()}
        )
        # `_set` cannot name unknown fields, so all are kept. A declared column may have digits as its name.
        unknown = _convert_unknown_fields_to_dict(UnknownFieldSet(row))
        return named | {
            f"#{name}" if name in self._plain_names else name: convert_to_json_value(value)
            for name, value in unknown.items()
        }

    def read_header_fields(self, message: Any) -> dict[str, Any]:
        """Returns the fields `type`, `seq` and `ts` of a message by name, without fields that it lacks."""
        fields = message.DESCRIPTOR.fields_by_name
        known = [fields[name] for name in HEADER_FIELDS if name in fields]
        header_fields = {
            field.name: _read_field_value(message, field) for field in known if _is_field_set(message, field)
        }
        if isinstance(header_fields.get("type"), str) and fields["type"].enum_type is not None:
            header_fields["type"] = parse_message_type_symbol(header_fields["type"])
        return header_fields

    def convert_message_to_json(self, message: Any) -> dict[str, Any]:
        """Returns a message as the equivalent JSON object."""
        to_json_object, fields = self.read_header_fields(message), message.DESCRIPTOR.fields_by_name
        if "deleted" in fields and _is_field_set(message, fields["deleted"]):
            to_json_object["deleted"] = _read_field_value(message, fields["deleted"])
        if "rows" in fields and _is_field_set(message, fields["rows"]):
            to_json_object["rows"] = self._decode_rows_of_plain_fields(message, fields["rows"])
        return to_json_object

    def _decode_rows_of_plain_fields(self, message: Any, field: FieldDescriptor) -> Any:
        """Returns the rows of a message as JSON objects. If the field is not a list of messages, returns its value."""
        if _is_repeated_field(field) and field.message_type is not None and not _is_map_field(field):
            return [self.convert_row_to_json(row) for row in message.rows]
        return _read_field_value(message, field)


class _ProtobufMessageFields:
    """The fields of a Protobuf message type, by name: the kind of values, whether they repeat, the descriptors."""

    def __init__(self, descriptor: Descriptor) -> None:
        self.holds = {field.name: _find_kind_of_values(field) for field in descriptor.fields}
        self.repeated = {field.name: _is_repeated_field(field) for field in descriptor.fields}
        self.type: dict[str, FieldDescriptor] = dict(descriptor.fields_by_name)
        self._presence = {field.name for field in descriptor.fields if field.has_presence}

    def find_messages_with_field(self, messages: Sequence[Any], name: str) -> Bools | None:
        """Returns a boolean for each message: True if the field was sent.

        None if fields of its kind do not show that.
        """
        if name not in self._presence or not messages:
            return None
        return np.fromiter(map(type(messages[0]).HasField, messages, repeat(name)), np.bool_, len(messages))

    def list_message_types_by_number(self, name: str) -> dict[int, str] | None:
        """Returns the message type that each number of an enum field names; None if the field is not an enum."""
        enum = self.type[name].enum_type
        return (
            None
            if enum is None
            else {n: parse_message_type_symbol(value.name) for n, value in enum.values_by_number.items()}
        )


def _find_column_layout(
    fields: _ProtobufMessageFields, row_fields: _ProtobufMessageFields | None, columns: tuple[Column, ...]
) -> ColumnLayout | None:
    """Returns the layout for reading messages column by column; None if fields are not as required."""
    if not (
        _are_header_fields_readable(fields)
        and _is_string_list(fields, "deleted")
        and _are_row_fields_readable(fields, row_fields)
    ):
        return None
    cells = {c.name: row_fields.holds[c.name] for c in columns if row_fields and c.name in row_fields.holds}
    if not all(
        can_read_values_as_column(cells[c.name], c) and row_fields and not row_fields.repeated[c.name]
        for c in columns
        if c.name in cells
    ):
        return None
    return ColumnLayout(cells, bool(row_fields and row_fields.holds.keys() - cells.keys() - {"id", SET}), _ROW_BYTES)


def _are_header_fields_readable(fields: _ProtobufMessageFields) -> bool:
    """Returns True if the fields `type`, `seq` and `ts` have types that can be read column by column."""
    if "type" not in fields.holds or any(fields.repeated.get(name) for name in HEADER_FIELDS):
        return False
    if fields.type["type"].enum_type is None and fields.holds["type"] is not KindOfFieldValues.STRING:
        return False
    numbers = {fields.holds[name] for name in ("seq", "ts") if name in fields.holds}
    return numbers <= {KindOfFieldValues.INTEGER, KindOfFieldValues.UNSIGNED}


def _are_row_fields_readable(fields: _ProtobufMessageFields, row: _ProtobufMessageFields | None) -> bool:
    """Returns True if the field `rows` is a list of messages with a text `id`, or does not exist."""
    if row is None:
        return "rows" not in fields.holds
    if not fields.repeated["rows"] or _is_map_field(fields.type["rows"]):
        return False
    return row.holds.get("id") is KindOfFieldValues.STRING and not row.repeated["id"] and _is_string_list(row, SET)


def _is_string_list(fields: _ProtobufMessageFields, name: str) -> bool:
    """Returns True if the field is a repeated string, or if there is no such field."""
    return name not in fields.holds or (fields.holds[name] is KindOfFieldValues.STRING and fields.repeated[name])


def _find_kind_of_values(field: FieldDescriptor) -> KindOfFieldValues:
    return _VALUE_KINDS.get(field.type, KindOfFieldValues.OTHER)


def _is_repeated_field(field: FieldDescriptor) -> bool:
    return field.name in _list_names_of_repeated_fields(field.containing_type)


@lru_cache(maxsize=256)
def _list_names_of_repeated_fields(descriptor: Descriptor) -> frozenset[str]:
    # The descriptor's attribute for this has different names in the supported versions.
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    return frozenset(field.name for field in proto.field if field.label == _REPEATED)


def _is_map_field(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _is_field_set(message: Any, field: FieldDescriptor) -> bool:
    """Returns True if a field was sent, or if its kind does not show that."""
    return bool(not field.has_presence or message.HasField(field.name))


def _read_field_value(message: Any, field: FieldDescriptor) -> Any:
    """Returns a field's value for JSON: lists, dicts and simple values, with the names of enum values."""
    value = getattr(message, field.name)
    if _is_map_field(field):
        of_value = field.message_type.fields_by_name["value"]
        return {_format_map_key(key): _convert_value_to_json_type(value[key], of_value) for key in value}
    return (
        [_convert_value_to_json_type(item, field) for item in value]
        if _is_repeated_field(field)
        else _convert_value_to_json_type(value, field)
    )


def _convert_value_to_json_type(value: Any, field: FieldDescriptor) -> Any:
    """Returns one value of a field for JSON: a message becomes a dict, and an enum number its name."""
    if field.message_type is not None:
        named = {inner.name: _read_field_value(value, inner) for inner, _ in value.ListFields()}
        return named | _convert_unknown_fields_to_dict(UnknownFieldSet(value))
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    return value


def _convert_unknown_fields_to_dict(unknown_fields: UnknownFieldSet, level: int = ROW_LEVEL + 1) -> dict[str, Any]:
    """Returns the values of fields that the descriptor does not have, by field number.

    A value is an unsigned integer, bytes, or for a group a dict. A field that occurs repeatedly has a list of values.

    Args:
        unknown_fields: The unknown fields of a message.
        level: The nesting depth of these fields in the message.

    Raises:
        TooDeepError: Groups nest deeper than the protocol allows.
    """
    if level > MAX_DEPTH:
        raise NestedTooDeepError
    found: dict[str, list[Any]] = {}
    for field in unknown_fields:
        value = _convert_unknown_fields_to_dict(field.data, level + 1) if field.wire_type == _GROUP else field.data
        found.setdefault(str(field.field_number), []).append(value)
    return {number: values[0] if len(values) == 1 else values for number, values in found.items()}


def _format_map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
