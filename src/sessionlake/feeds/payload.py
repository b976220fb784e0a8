"""Reads Avro and Protobuf payloads for feeds, as trees of dicts, lists and plain values that paths look into.

Decimals are exact, bytes remain bytes, and enum values are their names. Other logical types of Avro, such as
timestamps, are read as the numbers in which they are stored. NaN and infinities become texts, which fit no number.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO
from typing import Any

from sessionlake.feeds.decoder import PayloadError
from sessionlake.feeds.numbers import replace_non_finite_by_text
from sessionlake.protocol.payload import Definition, PayloadFormat, PayloadFormatAndSchemas, UnusableSchemaError
from sessionlake.protocol.reasons import Reason
from sessionlake.protocol.wire import read_wire_header


class PayloadReader:
    """Decodes payloads of the format and with the schemas of `capture.payload`. Keeps the schemas that it has used.

    Args:
        payload: The format and the schemas.
    """

    def __init__(self, payload: PayloadFormatAndSchemas) -> None:
        self._payload = payload
        self._malformed = Reason.NOT_AVRO if payload.format is PayloadFormat.AVRO else Reason.NOT_PROTOBUF
        self._known: dict[tuple[int, tuple[int, ...]], Callable[[bytes], Any]] = {}

    def read_payload(self, value: bytes) -> Any:
        """Decodes a payload into nested dicts, lists and plain values.

        Raises:
            PayloadError: The payload is not valid Avro or Protobuf, or its schema is unknown or unusable.
        """
        header: tuple[int, tuple[int, ...]] = (0, ())
        if self._payload.header:
            found = read_wire_header(value, with_path=self._payload.format is PayloadFormat.PROTOBUF)
            if found is None:
                raise PayloadError(self._malformed)
            header, value = found[0], value[found[1] :]
        decode = self._known.get(header)
        if decode is None:
            decode = self._known[header] = self._create_payload_reader(*header)
        return decode(value)

    def _create_payload_reader(self, schema_id: int, type_path: tuple[int, ...]) -> Callable[[bytes], Any]:
        """Returns the function that decodes payloads of a schema.

        Args:
            schema_id: Id of the schema.
            type_path: For Protobuf, the indices of the message type in the schema, from the outermost type on.
        """
        definition = self._payload.schemas.find_definitions([schema_id]).get(schema_id)
        if definition is None:
            raise PayloadError(Reason.UNKNOWN_SCHEMA)
        try:
            if self._payload.format is PayloadFormat.AVRO:
                return _create_avro_reader(definition)
            return _create_protobuf_reader(definition, self._payload.message, type_path)
        except UnusableSchemaError:
            raise PayloadError(Reason.UNKNOWN_SCHEMA) from None


def _create_avro_reader(definition: Definition) -> Callable[[bytes], Any]:
    import fastavro

    from sessionlake.protocol.avro import DECODE_ERRORS, build_schema_for_decoding_to_dicts

    schema = build_schema_for_decoding_to_dicts(definition)

    def decode_avro(body: bytes) -> Any:
        stream = BytesIO(body)
        try:
            found = fastavro.schemaless_reader(stream, schema)
        except DECODE_ERRORS:
            raise PayloadError(Reason.NOT_AVRO) from None
        if stream.tell() != len(body):
            raise PayloadError(Reason.NOT_AVRO)
        return replace_non_finite_by_text(found)

    return decode_avro


def _create_protobuf_reader(
    definition: Definition, message_type: str | None, type_path: tuple[int, ...]
) -> Callable[[bytes], Any]:
    from google.protobuf.message_factory import GetMessageClass

    from sessionlake.feeds.trees import parse_protobuf_as_dict
    from sessionlake.protocol.protobuf_types import find_message_type_descriptor, find_message_type_name

    name = message_type or find_message_type_name(definition, type_path)
    if name is None:
        raise UnusableSchemaError(f"there is no message type at {list(type_path)}")
    kind = GetMessageClass(find_message_type_descriptor(definition, name))
    return lambda body: parse_protobuf_as_dict(kind, body)
