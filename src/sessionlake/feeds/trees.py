"""Converts Protobuf messages to trees of dicts, lists and plain values, as JSON would have them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from sessionlake.feeds.decoder import PayloadError
from sessionlake.feeds.numbers import replace_non_finite_by_text
from sessionlake.protocol.reasons import Reason

_REPEATED = FieldDescriptorProto.LABEL_REPEATED
_TYPES = {
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "float": FieldDescriptorProto.TYPE_FLOAT,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "uint64": FieldDescriptorProto.TYPE_UINT64,
    "int32": FieldDescriptorProto.TYPE_INT32,
    "uint32": FieldDescriptorProto.TYPE_UINT32,
    "bool": FieldDescriptorProto.TYPE_BOOL,
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
}


def build_protobuf_message_class(name: str, schema: str) -> Any:
    """Returns the Python class of a Protobuf message type.

    Args:
        name: Name of the type.
        schema: All types, one a line: `Point: x 1 double, tags 2 repeated string, next 3 Point`.
    """
    file = FileDescriptorProto(name=f"{name}.proto", package=f"sessionlake.{name.lower()}", syntax="proto2")
    for line in filter(None, map(str.strip, schema.splitlines())):
        own, _, fields = line.partition(":")
        message = file.message_type.add(name=own)
        for text in fields.split(","):
            _add_field_to_message_type(message, file.package, text.split())
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.{name}"))


def _add_field_to_message_type(message: Any, package: str, declaration: list[str]) -> None:
    """Adds a field to a Protobuf message type. `declaration` are its name, number, label if there is one, and type."""
    name, number, *labels, kind = declaration
    label = _REPEATED if labels else FieldDescriptorProto.LABEL_OPTIONAL
    field = message.field.add(name=name, number=int(number), label=label)
    if kind in _TYPES:
        field.type = _TYPES[kind]
    else:
        field.type, field.type_name = FieldDescriptorProto.TYPE_MESSAGE, f".{package}.{kind}"


def parse_protobuf_as_dict(message_class: Any, value: bytes) -> dict[str, Any]:
    """Parses a Protobuf message of a class, and returns it as a dict. NaN and infinities become texts.

    Raises:
        PayloadError: The bytes are not a message of this type.
    """
    try:
        found: dict[str, Any] = replace_non_finite_by_text(
            convert_protobuf_message_to_dict(message_class.FromString(value))
        )
    except (DecodeError, UnicodeDecodeError):
        raise PayloadError(Reason.NOT_PROTOBUF) from None
    return found


def convert_protobuf_message_to_dict(message: Any) -> dict[str, Any]:
    """Returns a Protobuf message as a dict by field names.

    A field that is not set is left out. A field that does not show whether it is set always has a value, as have lists
    and maps. Enum values are their names, or numbers without a name. Bytes remain bytes.

    Raises:
        UnicodeDecodeError: A text is not UTF-8.
    """
    return dict(_read_present_fields(message))


def _read_present_fields(message: Any) -> Iterator[tuple[str, Any]]:
    """Yields the name of each field, and its value in the tree."""
    for name, field, is_list, is_map in _list_fields_with_list_and_map_flags(message.DESCRIPTOR):
        if is_map:
            of_value = field.message_type.fields_by_name["value"]
            found = getattr(message, name)
            yield name, {_format_map_key(key): _convert_field_value(found[key], of_value) for key in found}
        elif is_list:
            yield name, [_convert_field_value(item, field) for item in getattr(message, name)]
        elif not field.has_presence or message.HasField(name):
            yield name, _convert_field_value(getattr(message, name), field)


@lru_cache(maxsize=1024)
def _list_fields_with_list_and_map_flags(descriptor: Descriptor) -> tuple[tuple[str, FieldDescriptor, bool, bool], ...]:
    """Returns each field with its name, and whether it is a list or a map."""
    proto = DescriptorProto()
    descriptor.CopyToProto(proto)
    lists = {field.name for field in proto.field if field.label == _REPEATED}
    return tuple(
        (field.name, field, field.name in lists, field.message_type is not None and _is_map_entry(field.message_type))
        for field in descriptor.fields
    )


def _is_map_entry(descriptor: Descriptor) -> bool:
    return bool(descriptor.GetOptions().map_entry)


def _convert_field_value(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return convert_protobuf_message_to_dict(value)
    if field.enum_type is not None:
        symbol = field.enum_type.values_by_number.get(value)
        return value if symbol is None else symbol.name
    return value


def _format_map_key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)
