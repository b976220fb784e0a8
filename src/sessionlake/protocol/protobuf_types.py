"""Finds message types in Protobuf schemas: by their full name, or by the path that a wire header gives."""

from __future__ import annotations

from functools import lru_cache

from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from sessionlake.protocol.payload import Definition, UnusableSchemaError
from sessionlake.protocol.wire import TypePath


def find_message_type_descriptor(definition: Definition, type_name: str) -> Descriptor:
    """Returns the descriptor of a message type.

    Raises:
        UnusableSchemaError: The definition is not a Protobuf descriptor, or does not have the type.
    """
    try:
        return _create_descriptor_pool(definition).FindMessageTypeByName(type_name)
    except KeyError:
        raise UnusableSchemaError(
            f"there is no message type {type_name!r}; there are {', '.join(list_message_type_names(definition))}"
        ) from None


def list_message_type_names(definition: Definition) -> list[str]:
    """Returns the full names of the schema's message types that are not nested in others."""
    file = _parse_file_descriptor(definition)
    return [f"{file.package}.{message.name}" if file.package else message.name for message in file.message_type]


def find_message_type_name(definition: Definition, type_path: TypePath) -> str | None:
    """Returns the full name of the message type at a path of indices in the schema's file; None if there is none."""
    file = _parse_file_descriptor(definition)
    names, inside = [file.package] if file.package else [], file.message_type
    for number in type_path:
        if number >= len(inside):
            return None
        names.append(inside[number].name)
        inside = inside[number].nested_type
    return ".".join(names)


@lru_cache(maxsize=64)
def _parse_file_descriptor(definition: Definition) -> FileDescriptorProto:
    """Returns the schema's last file, which has the message type.

    Raises an `UnusableSchemaError` if it is not a descriptor.
    """
    try:
        return FileDescriptorProto.FromString(definition[-1])
    except DecodeError as error:
        raise UnusableSchemaError(f"not a Protobuf descriptor: {error}") from None


@lru_cache(maxsize=64)
def _create_descriptor_pool(definition: Definition) -> DescriptorPool:
    """Returns a pool with all files of the schema, from which message types can be created."""
    pool = DescriptorPool()
    try:
        files = [FileDescriptorProto.FromString(text) for text in definition]
        known = {file.name for file in files}
        for name in sorted({name for file in files for name in file.dependency} - known):
            _add_well_known_types_to_pool(pool, name)
        for text in definition:
            pool.AddSerializedFile(text)
    except (DecodeError, TypeError, KeyError, ValueError) as error:
        raise UnusableSchemaError(f"not a Protobuf descriptor: {' '.join(str(error).split())}") from None
    return pool


def _add_well_known_types_to_pool(pool: DescriptorPool, name: str) -> None:
    """Adds one of Google's well-known files, which come with the library, and the files that it imports."""
    from google.protobuf import any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2

    del any_pb2, duration_pb2, field_mask_pb2, struct_pb2, timestamp_pb2, wrappers_pb2  # importing registers them
    file = Default().FindFileByName(name)
    for inner in file.dependencies:
        _add_well_known_types_to_pool(pool, inner.name)
    pool.AddSerializedFile(file.serialized_pb)
