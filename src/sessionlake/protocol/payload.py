"""What carries the messages: JSON, or Avro or Protobuf by a schema that is named in the config or in the message.

Avro and Protobuf carry what JSON carries, under the same names: a record (message) with `type` (a string, or an
enum whose symbols may be upper case and prefixed: `UPDATE`, `TYPE_UPDATE`), `seq` and `ts` (integers; `ts` in
milliseconds), `rows` (an array of records with `id` and the columns), and `deleted` (an array of strings). What a
schema lacks is absent, and so is a null outside of Avro's rows. A value is what its own type says, never another: a
logical type (a decimal, a timestamp) is what it is stored as, and NaN or an infinity is no number.

Which columns of a row are set, and which are absent and so keep their value in an update:

- Avro: every column that the writer's schema has is set, a null to null.
- Protobuf: every field that is present is set; a field without presence (proto3 without `optional`) always is.
- Either: a row may say so itself, in an array of strings `_set`, as a Protobuf field mask does: exactly the columns
  that it names are set, those without a value to null. Null (Avro) or empty (Protobuf), it says nothing.

With a wire header, a message begins as schema registries have it: a zero byte, the schema's id as four bytes, and for
Protobuf the path to the message type among those of its file. An id means one schema for ever: that is the
registry's contract, and what makes silver a function of bronze although the schemas are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

Definition = tuple[bytes, ...]
"""A schema: what it refers to first, itself last. Avro: JSON texts. Protobuf: serialized `FileDescriptorProto`s."""


class PayloadFormat(StrEnum):
    """How a message is written."""

    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class UnusableSchemaError(Exception):
    """A schema that no message can be read with; the text says why."""


class Schemas(Protocol):
    """Where schemas come from."""

    def definitions(self, ids: Sequence[int]) -> Mapping[int, Definition]:
        """The definitions of these schema ids; one that is unknown is absent."""


@dataclass(frozen=True)
class ConfiguredSchemas:
    """Schemas that the config names: one for every message, or one for each id."""

    every: Definition | None = None
    by_id: tuple[tuple[int, Definition], ...] = ()

    def definitions(self, ids: Sequence[int]) -> Mapping[int, Definition]:
        """The definitions of these schema ids; one that is unknown is absent."""
        if self.every is not None:
            return dict.fromkeys(ids, self.every)
        known = dict(self.by_id)
        return {schema: known[schema] for schema in ids if schema in known}


@dataclass(frozen=True)
class Payload:
    """How messages that are not JSON are read.

    Attributes:
        header: whether each begins with a wire header.
        message: full name of the Protobuf message type; None: each header says which of its schema's types it is.
    """

    format: PayloadFormat
    schemas: Schemas
    header: bool = False
    message: str | None = None
