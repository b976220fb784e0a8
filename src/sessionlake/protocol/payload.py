"""Payload formats of messages: JSON, or Avro or Protobuf with a schema that the config or the message names.

Avro and Protobuf messages have the same fields as JSON ones: a record (message) with `type` (a string, or an enum whose
symbols may be upper case and prefixed: `UPDATE`, `TYPE_UPDATE`), `seq` and `ts` (integers; `ts` in ms), `rows` (an
array of records with `id` and the columns), and `deleted` (an array of strings). A field that the schema lacks is
absent, and so is a null outside of Avro's rows. Values are not converted: a logical type (a decimal, a timestamp) is
read as the type it is stored in, and NaN or an infinity is not a number.

Columns of a row are set or absent. In an update, an absent column keeps its value:

- Avro: every column that the writer's schema has is set; a null sets it to null.
- Protobuf: every field that is present is set. A field without presence (proto3 without `optional`) always is.
- Both: a row may have an array of strings `_set`, like a Protobuf field mask. Exactly the columns that it names are
  set, to null if they have no value. A `_set` that is null (Avro) or empty (Protobuf) is ignored.

A message with a wire header begins as schema registries define it: a zero byte, the schema's id in four bytes, and for
Protobuf the path of the message type in its file. The registry guarantees that an id always means the same schema. So
silver is a function of bronze although bronze does not have the schemas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Definition = tuple[bytes, ...]
"""A schema, after the schemas that it refers to. Avro: JSON texts. Protobuf: serialized `FileDescriptorProto`s."""


class PayloadFormat(StrEnum):
    """The format of the values of Kafka messages."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class UnusableSchemaError(Exception):
    """A schema with which no message can be read. The text says why."""


class SchemaFinder(Protocol):
    """Finds schemas by their id, in the configuration or in a schema registry."""

    def find_definitions(self, schema_ids: Sequence[int]) -> Mapping[int, Definition]:
        """Returns the schemas with these ids, by id. Unknown ids are left out."""


@dataclass(frozen=True)
class ConfiguredSchemas:
    """Schemas from the configuration.

    Attributes:
        every: The schema of all messages, whatever id is in their headers; None to choose by the id.
        by_id: Pairs of an id and its schema.
    """

    every: Definition | None = None
    by_id: tuple[tuple[int, Definition], ...] = ()

    def find_definitions(self, schema_ids: Sequence[int]) -> Mapping[int, Definition]:
        """Returns the schemas with these ids, by id. Unknown ids are left out."""
        if self.every is not None:
            return dict.fromkeys(schema_ids, self.every)
        known = dict(self.by_id)
        return {schema: known[schema] for schema in schema_ids if schema in known}


@dataclass(frozen=True)
class PayloadFormatAndSchemas:
    """How to read Avro or Protobuf messages.

    Attributes:
        format: Avro or Protobuf.
        schemas: Gives the schemas by their id.
        header: True if each message begins with a wire header.
        message: Full name of the Protobuf message type; None if each message's header names it.
    """

    format: PayloadFormat
    schemas: SchemaFinder
    header: bool = False
    message: str | None = None
