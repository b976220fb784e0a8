"""Makes the rules for decoding message payloads from the capture settings. Only this module reads schema files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sessionlake.errors import ConfigError
from sessionlake.feeds.chunks import FeedDecoder
from sessionlake.integrity.rules import build_decode_rules
from sessionlake.kafka.registry import SchemaRegistryReader
from sessionlake.protocol.binary import create_schema_decoder
from sessionlake.protocol.decode import MessageDecodingRules
from sessionlake.protocol.payload import (
    ConfiguredSchemas,
    Definition,
    PayloadFormat,
    PayloadFormatAndSchemas,
    SchemaFinder,
    UnusableSchemaError,
)
from sessionlake.settings.model import CaptureSettings, PayloadSettings
from sessionlake.settings.section import milliseconds


def build_message_decode_rules(capture: CaptureSettings) -> MessageDecodingRules:
    """Returns the rules by which a Kafka value is decoded as a message, with the schemas for Avro or Protobuf.

    Raises:
        ConfigError: A schema file cannot be read or used. The error names it.
    """
    return replace(build_decode_rules(capture), payload=read_own_form_payload_format(capture))


def build_feed_decoder(capture: CaptureSettings, shards: int) -> FeedDecoder | None:
    """Returns the decoder for messages of the configured feeds; None if the settings have no feeds.

    Args:
        capture: The capture settings.
        shards: Number of shards among which the decoded messages are divided.

    Raises:
        ConfigError: A schema file cannot be used, or a class or function that a feed names cannot be loaded.
    """
    if not capture.feeds:
        return None
    feeds = tuple(feed.build() for feed in capture.feeds)
    for feed in feeds:
        feed.load_decoder_and_check_function()
    skew = milliseconds(capture.max_future_skew)
    payload = read_feeds_payload_format(capture)
    return FeedDecoder(feeds, capture.declared_columns, capture.max_message_bytes, skew, shards, payload)


def read_own_form_payload_format(capture: CaptureSettings) -> PayloadFormatAndSchemas | None:
    """Returns the format and schemas of messages in sessionlake's own form; None if they are JSON.

    Raises:
        ConfigError: A schema file cannot be read or used. The error names it.
    """
    return None if capture.format is PayloadFormat.JSON else _build_payload_of_format(capture, capture.format)


def read_feeds_payload_format(capture: CaptureSettings) -> PayloadFormatAndSchemas | None:
    """Returns the format and schemas of feeds' messages in Avro or Protobuf; None if all feeds read JSON.

    Raises:
        ConfigError: A schema file cannot be read or used. The error names it.
    """
    kind = capture.payload_format
    return None if kind is PayloadFormat.JSON else _build_payload_of_format(capture, kind)


def _build_payload_of_format(capture: CaptureSettings, kind: PayloadFormat) -> PayloadFormatAndSchemas:
    found = capture.payload
    payload = PayloadFormatAndSchemas(kind, _create_schema_finder(kind, found), found.has_wire_header, found.message)
    for schema, file in _list_schema_files(found).items():
        definition = payload.schemas.find_definitions([schema])[schema]
        try:
            create_schema_decoder(payload, definition, (0,), capture.declared_columns if kind is capture.format else ())
        except UnusableSchemaError as error:
            raise ConfigError(
                f"capture.payload: the schema file {file} cannot be used: {error}",
                fix="Correct the schema in the file, or name another file",
            ) from None
    return payload


def _create_schema_finder(kind: PayloadFormat, settings: PayloadSettings) -> SchemaFinder:
    if settings.registry_url:
        auth = settings.registry_auth.get_secret_value() if settings.registry_auth else None
        return SchemaRegistryReader(kind, settings.registry_url, auth)
    if settings.schema_file:
        return ConfiguredSchemas(every=_read_definition(kind, settings.schema_file))
    return ConfiguredSchemas(
        by_id=tuple((schema, _read_definition(kind, file)) for schema, file in settings.schema_files.items())
    )


def _list_schema_files(settings: PayloadSettings) -> dict[int, Path]:
    return {0: settings.schema_file} if settings.schema_file else settings.schema_files


def _read_definition(kind: PayloadFormat, file: Path) -> Definition:
    try:
        content = file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"capture.payload: the schema file {file} cannot be read: {error.strerror}",
            fix="Correct the path or the file's permissions",
        ) from None
    return (content,) if kind is PayloadFormat.AVRO else _parse_descriptor_set(content, file)


def _parse_descriptor_set(content: bytes, file: Path) -> Definition:
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorSet.FromString(content).file
    except DecodeError:
        found = None
    if not found:
        raise ConfigError(
            f"capture.payload: the file {file} is not a descriptor set of Protobuf",
            fix="Make one from the .proto file with `protoc --include_imports "
            "--descriptor_set_out=capture.desc capture.proto`",
        )
    return tuple(one.SerializeToString() for one in found)
