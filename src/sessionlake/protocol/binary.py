"""Decodes Avro and Protobuf messages into a chunk, in bulk by schema.

The library decodes each payload in C, `map` reads the fields, and Arrow and NumPy check them. As with JSON, only a
message that fails such a check is parsed singly by `protocol.parse`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.assemble import (
    MessageColumns,
    build_chunk_of_messages,
    concatenate_message_columns,
    convert_messages_to_columns,
    measure_lengths,
    select_messages,
)
from sessionlake.protocol.bulk import MessagePrechecks, MessagesReadInBulk
from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import MessageStructsAndDecoders
from sessionlake.protocol.parse import ParsedMessage, parse_decoded_message
from sessionlake.protocol.payload import Definition, PayloadFormat, PayloadFormatAndSchemas, UnusableSchemaError
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.schema_decoder import NestedTooDeepError, SchemaDecoder
from sessionlake.protocol.types import Int64s
from sessionlake.protocol.wire import SplitWireHeaders, TypePath, split_off_wire_headers

_MALFORMED = {PayloadFormat.AVRO: Reason.NOT_AVRO, PayloadFormat.PROTOBUF: Reason.NOT_PROTOBUF}
# Decoded objects can be a hundred times as large as the payload, because each row of a few bytes becomes an object.
_SLICE_BYTES = 1024 * 1024
_TYPES_WITH_ROWS = ("snapshot", "update")


@dataclass(frozen=True)
class _DecodedMessageGroup:
    """Some of the decoded messages, and where they belong.

    Attributes:
        places: The index of each message among the raw messages.
        found: The fields of these messages.
    """

    places: Int64s
    found: MessageColumns


def decode_avro_or_protobuf(
    raw: pa.Table,
    prechecks: MessagePrechecks,
    payload: PayloadFormatAndSchemas,
    types: MessageStructsAndDecoders,
    *,
    in_bulk: bool,
) -> pa.Table:
    """Decodes raw Avro or Protobuf messages into a chunk with one row per raw message.

    Args:
        raw: The raw messages.
        prechecks: Faults and limits of the raw messages that are known without reading their values.
        payload: The format and schemas of the messages.
        types: The message structs of the declared columns.
        in_bulk: False to parse every message singly. The result is the same.
    """
    sizes = pc.fill_null(pc.binary_length(raw["value"]), 0).to_numpy()
    slices = (np.cumsum(sizes) - sizes) // _SLICE_BYTES
    cuts = [0, *(np.flatnonzero(np.diff(slices)) + 1).tolist(), raw.num_rows]
    chunks = []
    for start, end in pairwise(cuts):
        one = _SliceOfRawMessages(
            raw.slice(start, end - start), prechecks.select_messages(slice(start, end)), payload, types
        )
        chunks.append(one.decode_to_chunk(in_bulk=in_bulk))
    return pa.concat_tables(chunks).combine_chunks()


class _SliceOfRawMessages:
    """A part of the raw messages, small enough to be decoded in memory at once."""

    def __init__(
        self,
        raw: pa.Table,
        prechecks: MessagePrechecks,
        payload: PayloadFormatAndSchemas,
        types: MessageStructsAndDecoders,
    ) -> None:
        self._raw, self._prechecks, self._reasons = raw, prechecks, prechecks.reasons
        self._payload, self._types = payload, types
        self._malformed = CODE_OF[_MALFORMED[payload.format]]

    def decode_to_chunk(self, *, in_bulk: bool) -> pa.Table:
        """Returns the chunk of the messages, with one row per message."""
        values = self._raw["value"].combine_chunks()
        headers = self._split_off_wire_headers(values)
        parts: list[_DecodedMessageGroup] = []
        for decoder, places in self._group_message_indices_by_decoder(headers):
            bodies = headers.bodies.take(pa.array(places)).to_pylist()
            parts += self._decode_messages_of_one_schema(decoder, places, bodies, in_bulk=in_bulk)
        columns = self._types.columns
        if not parts:
            return build_chunk_of_messages(
                self._raw, self._reasons, convert_messages_to_columns([], [], columns), columns
            )
        places = np.concatenate([part.places for part in parts])
        order = None if (np.diff(places) > 0).all() else np.argsort(places)
        return build_chunk_of_messages(
            self._raw, self._reasons, concatenate_message_columns([part.found for part in parts]), columns, order
        )

    def _split_off_wire_headers(self, values: pa.Array) -> SplitWireHeaders:
        """Splits the messages into wire headers and bodies. Without wire headers, all messages have the same schema."""
        if self._payload.header:
            return split_off_wire_headers(values, with_path=self._payload.format is PayloadFormat.PROTOBUF)
        return SplitWireHeaders(np.where(values.is_null(), -1, 0), [(0, ())], values)

    def _group_message_indices_by_decoder(self, headers: SplitWireHeaders) -> Iterator[tuple[SchemaDecoder, Int64s]]:
        """Yields each decoder, with the indices of the messages that it must decode.

        Messages without a valid header or a known schema are refused.
        """
        wanted = np.flatnonzero(self._reasons == 0)
        which = headers.which[wanted]
        self._reasons[wanted[which < 0]] = self._malformed
        decoders = _create_decoder_of_each_header(self._payload, headers.found, which[which >= 0], self._types.columns)
        first: dict[int, int] = {}  # headers that lead to the same decoder are read together
        known = np.array([-1 if r is None else first.setdefault(id(r), i) for i, r in enumerate(decoders)] or [-1])
        decoder_of = np.where(which < 0, -1, known[which])
        self._reasons[wanted[(which >= 0) & (decoder_of < 0)]] = CODE_OF[Reason.UNKNOWN_SCHEMA]
        for index in np.unique(decoder_of[decoder_of >= 0]).tolist():
            decoder = decoders[index]
            if decoder is not None:
                yield decoder, wanted[decoder_of == index]

    def _decode_messages_of_one_schema(
        self, decoder: SchemaDecoder, message_indices: Int64s, bodies: list[bytes], *, in_bulk: bool
    ) -> list[_DecodedMessageGroup]:
        """Decodes messages of one schema: in bulk where possible, else singly. Sets the reasons of malformed ones.

        Args:
            decoder: The decoder of the schema.
            message_indices: The index of each message among the raw messages.
            bodies: The messages without wire headers.
            in_bulk: False to parse every message singly.
        """
        objects, sizes = decoder.decode_payloads(bodies), measure_lengths(bodies)
        if None in objects:
            missing = np.fromiter((item is None for item in objects), np.bool_, len(objects))
            self._reasons[message_indices[missing]] = self._malformed
            objects = [item for item in objects if item is not None]
            message_indices, sizes = message_indices[~missing], sizes[~missing]
        parts: list[_DecodedMessageGroup] = []
        if in_bulk and objects and decoder.layout is not None:
            try:
                bulk = MessagesReadInBulk(
                    decoder, objects, sizes, self._prechecks.select_messages(message_indices), self._types.columns
                )
            except (UnicodeDecodeError, NestedTooDeepError):  # raised by one of the messages: parse each to find it
                return list(self._parse_messages_one_by_one(decoder, message_indices, objects))
            good = (bulk.reasons == 0) & ~bulk.unsure
            self._reasons[message_indices] = np.where(bulk.unsure, 0, bulk.reasons)
            parts.append(_DecodedMessageGroup(message_indices[good], select_messages(bulk.columns, good)))
            unsure = np.flatnonzero(bulk.unsure)
            message_indices, objects = message_indices[unsure], [objects[index] for index in unsure.tolist()]
        return [*parts, *self._parse_messages_one_by_one(decoder, message_indices, objects)]

    def _parse_messages_one_by_one(
        self, decoder: SchemaDecoder, message_indices: Int64s, objects: Sequence[Any]
    ) -> Iterator[_DecodedMessageGroup]:
        """Parses messages one by one, and yields the fields of the well-formed ones. Sets the reasons of the others."""
        kept, messages, rescued = [], [], []
        for place, item in zip(message_indices.tolist(), objects, strict=True):
            found = self._parse_decoded_message(decoder, item, place)
            if isinstance(found, ParsedMessage):
                kept.append(place)
                messages.append(found.message)
                rescued.append(found.rescued)
            else:
                self._reasons[place] = CODE_OF[found]
        if kept:
            columns = convert_messages_to_columns(messages, rescued if any(rescued) else [], self._types.columns)
            yield _DecodedMessageGroup(np.array(kept, np.int64), columns)

    def _parse_decoded_message(
        self, decoder: SchemaDecoder, decoded: Any, message_index: int
    ) -> ParsedMessage | Reason:
        """Parses one decoded message. Returns the reason if it is malformed."""
        latest, seqless = int(self._prechecks.latest[message_index]), bool(self._prechecks.seqless[message_index])
        try:
            header_fields = decoder.read_header_fields(decoded)
            found = parse_decoded_message(
                header_fields | {"rows": []}, self._types, latest_ts=latest, seq_optional=seqless
            )
            if isinstance(found, Reason):  # refused before its rows are converted, of which there can be many
                return found
            plain = (
                decoder.convert_message_to_json(decoded) if header_fields["type"] in _TYPES_WITH_ROWS else header_fields
            )
        except UnicodeDecodeError:
            return _MALFORMED[self._payload.format]
        except NestedTooDeepError:
            return Reason.TOO_DEEP
        return parse_decoded_message(plain, self._types, latest_ts=latest, seq_optional=seqless)


# -- choosing a decoder by schema


def _create_decoder_of_each_header(
    payload: PayloadFormatAndSchemas, headers: Sequence[tuple[int, TypePath]], used: Int64s, columns: tuple[Column, ...]
) -> list[SchemaDecoder | None]:
    """Returns the decoder for each wire header; None if its schema is unknown or cannot be used.

    Args:
        payload: The format and schemas of the messages.
        headers: Pairs of a schema id, and the path of the message type in a Protobuf schema.
        used: The indices of the headers whose schemas must be looked up.
        columns: The declared columns.
    """
    definitions = payload.schemas.find_definitions(sorted({headers[place][0] for place in np.unique(used).tolist()}))
    return [_create_schema_decoder_or_none(payload, definitions.get(schema), path, columns) for schema, path in headers]


@lru_cache(maxsize=1024)
def _create_schema_decoder_or_none(
    payload: PayloadFormatAndSchemas, definition: Definition | None, type_path: TypePath, columns: tuple[Column, ...]
) -> SchemaDecoder | None:
    """Returns the decoder for a schema; None if there is no schema, or if it cannot be used."""
    if definition is None:
        return None
    try:
        return create_schema_decoder(payload, definition, type_path, columns)
    except UnusableSchemaError:
        return None


def create_schema_decoder(
    payload: PayloadFormatAndSchemas, definition: Definition, type_path: TypePath, columns: tuple[Column, ...]
) -> SchemaDecoder:
    """Returns the decoder for a schema.

    Args:
        payload: The format of the messages.
        definition: The schema.
        type_path: Path of the message type in a Protobuf schema. Used if `payload` does not name the type.
        columns: The declared columns.

    Raises:
        UnusableSchemaError: No message can be read with the schema.
    """
    if payload.format is PayloadFormat.AVRO:
        return _create_avro_decoder(definition, columns)
    message = payload.message or _find_protobuf_message_type(definition, type_path)
    if message is None:
        raise UnusableSchemaError(f"there is no message type at {list(type_path)}")
    return _create_protobuf_decoder(definition, message, columns)


# The libraries are imported only when needed: JSON does not need them.
@lru_cache(maxsize=64)
def _create_avro_decoder(definition: Definition, columns: tuple[Column, ...]) -> SchemaDecoder:
    from sessionlake.protocol.avro import AvroDecoder

    return AvroDecoder(definition, columns)


@lru_cache(maxsize=64)
def _create_protobuf_decoder(definition: Definition, message: str, columns: tuple[Column, ...]) -> SchemaDecoder:
    from sessionlake.protocol.protobuf import ProtobufDecoder

    return ProtobufDecoder(definition, message, columns)


def _find_protobuf_message_type(definition: Definition, type_path: TypePath) -> str | None:
    """Returns the full name of the Protobuf message type at a path of indices; None if there is none."""
    from sessionlake.protocol.protobuf_types import find_message_type_name

    return find_message_type_name(definition, type_path)
