"""Feeds of Avro and Protobuf: paths read the decoded values, decimals are exact, and broken bytes are refused."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from sessionlake.feeds.compiled import CompiledFeedReader
from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, RowUpsert
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import KafkaRecord, KafkaRecordColumns, read_record
from sessionlake.protocol.payload import ConfiguredSchemas, PayloadFormat, PayloadFormatAndSchemas
from sessionlake.settings.capture import CaptureSettings
from support.feed_cases import feed
from support.protobuf_bytes import Float, protobuf

ROW: dict[str, Any] = {
    "type": "record", "name": "Value", "fields": [
        {"name": "id", "type": "long"},
        {"name": "total", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}]},
        {"name": "fixed", "type": {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal", "precision": 4,
                                   "scale": 1}},
        {"name": "changed", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "raw", "type": "bytes"},
        {"name": "ratio", "type": "double"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}  # fmt: skip
ENVELOPE = {
    "type": "record", "name": "Envelope", "fields": [
        {"name": "op", "type": {"type": "enum", "name": "Op", "symbols": ["c", "u", "d"]}},
        {"name": "ts_ms", "type": "long"},
        {"name": "before", "type": ["null", ROW]},
        {"name": "after", "type": ["null", "Value"]},
    ],
}  # fmt: skip
KEY = {"type": "record", "name": "Key", "fields": [{"name": "id", "type": "long"}]}
ORDERS = """
name: orders
topics: orders
uses: debezium
format: avro
key: [id]
columns: {id: bigint, total: "decimal(12,2)", fixed: "decimal(12,1)", changed: {type: timestamp, from: epoch_us},
          raw: {type: binary, from: base64}, ratio: double, tags: "array<string>"}
"""
VALUE = {"id": 1, "total": Decimal("1.50"), "fixed": Decimal("-0.3"), "changed": datetime(1970, 1, 1, 0, 0, 1, 2, UTC),
         "raw": b"\0", "ratio": 0.1, "tags": ["a"]}  # fmt: skip


def avro(schema: dict[str, Any], value: Any, number: int | None = None) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return (b"" if number is None else b"\0" + number.to_bytes(4, "big")) + out.getvalue()


def definition(schema: dict[str, Any]) -> tuple[bytes, ...]:
    return (json.dumps(schema).encode(),)


AVRO = PayloadReader(PayloadFormatAndSchemas(PayloadFormat.AVRO, ConfiguredSchemas(definition(ENVELOPE))))
BY_ID = PayloadReader(PayloadFormatAndSchemas(PayloadFormat.AVRO, header=True, schemas=ConfiguredSchemas(
    by_id=((1, definition(ENVELOPE)), (2, definition(KEY)), (3, (b"{",))))))  # fmt: skip


def read_both(
    given: Feed, value: bytes | None, payload: PayloadReader, key: bytes | None = None
) -> DecodedMessage | MessageRefusal:
    """What the interpreter reads; the fast reader must give the same."""
    record = KafkaRecord("orders", 0, 7, 1_000, key, value)
    found = read_record(given, record, payload=payload)
    lists = CompiledFeedReader.compile_feed(given, payload).read_records(KafkaRecordColumns.from_records([record]))
    if isinstance(found, MessageRefusal):
        assert lists.refused == {0: found}
    else:
        assert lists.row_id == [row.row_id for event in found.events for row in event.rows]
    return found


def change(op: str, before: Any = None, after: Any = None) -> dict[str, Any]:
    return {"op": op, "ts_ms": 5, "before": before, "after": after}


@pytest.mark.parametrize(("payload", "number"), [(AVRO, None), (BY_ID, 1)])
def test_avro_is_read_as_a_tree_with_exact_decimals(payload, number):
    given = feed(ORDERS)
    found = read_both(given, avro(ENVELOPE, change("c", None, VALUE), number), payload)
    assert isinstance(found, DecodedMessage)
    assert found.events[0].rows == (RowUpsert((1,), "[1]", VALUE),)
    found = read_both(given, avro(ENVELOPE, change("d", VALUE | {"total": None}), number), payload)
    assert isinstance(found, DecodedMessage)
    assert found.events[0].rows == (RowDelete((1,), "[1]"),)
    assert read_both(given, None, payload) == DecodedMessage((1,), ())


def test_a_decimal_beyond_the_schema_s_precision_is_not_rounded():
    text = json.dumps(ENVELOPE).replace('"precision": 4, "scale": 2', '"precision": 38, "scale": 2')
    large = json.loads(text)
    value = avro(large, change("c", None, VALUE | {"total": Decimal("1234567890.12")}))
    found = read_both(feed(ORDERS), value, AVRO)
    assert isinstance(found, DecodedMessage)
    assert isinstance(row := found.events[0].rows[0], RowUpsert)
    assert row.values["total"] == Decimal("1234567890.12")


GOOD = avro(ENVELOPE, change("c", None, VALUE))


@pytest.mark.parametrize(
    ("value", "payload", "reason"),
    [
        (GOOD[:-1], AVRO, "not_avro"),
        (GOOD + b"\0", AVRO, "not_avro"),
        (b"", AVRO, "not_avro"),
        (b"\1" + GOOD, BY_ID, "not_avro"),
        (b"\0\0\0\0\x09" + GOOD, BY_ID, "unknown_schema"),
        (b"\0\0\0\0\x03" + GOOD, BY_ID, "unknown_schema"),
        (avro(ENVELOPE, change("c", None, VALUE | {"ratio": float("nan")})), AVRO, "bad_value"),
    ],
)
def test_what_is_not_avro_of_a_known_schema_is_refused(value, payload, reason):
    found = read_both(feed(ORDERS), value, payload)
    assert isinstance(found, MessageRefusal)
    assert found.reason == reason


def test_avro_keys_are_read_by_their_schema():
    given = feed("{name: t, topics: t, uses: upsert, key: [id], columns: {id: bigint, v: string}}", key_format="avro")
    found = read_both(given, b'{"v":"x"}', BY_ID, avro(KEY, {"id": 5}, 2))
    assert isinstance(found, DecodedMessage)
    assert found.events[0].rows == (RowUpsert((5,), "[5]", {"id": 5, "v": "x"}),)
    for key in (b"5", b"\0\0\0\0\x02", b"\0\0\0\0\x09x"):
        found = read_both(given, b'{"v":"x"}', BY_ID, key)
        assert isinstance(found, MessageRefusal)
        assert (found.reason, found.path) == ("bad_key", "kafka.key")


def descriptor() -> tuple[bytes, ...]:
    file = FileDescriptorProto(name="m.proto", package="m", syntax="proto3")
    file.enum_type.add(name="Kind").value.add(name="FULL", number=0)
    file.enum_type[0].value.add(name="PART", number=1)
    row = file.message_type.add(name="Row")
    row.field.add(name="id", number=1, type=FieldDescriptorProto.TYPE_STRING)
    row.field.add(name="v", number=2, type=FieldDescriptorProto.TYPE_FLOAT)
    top = file.message_type.add(name="Top")
    top.field.add(name="kind", number=1, type=FieldDescriptorProto.TYPE_ENUM, type_name=".m.Kind")
    top.field.add(name="seq", number=2, type=FieldDescriptorProto.TYPE_UINT64)
    top.field.add(name="rows", number=3, type=FieldDescriptorProto.TYPE_MESSAGE, type_name=".m.Row",
                  label=FieldDescriptorProto.LABEL_REPEATED)  # fmt: skip
    return (file.SerializeToString(),)


PROTO = PayloadReader(PayloadFormatAndSchemas(PayloadFormat.PROTOBUF, ConfiguredSchemas(descriptor()), message="m.Top"))
TOP = """
name: top
topics: top
format: protobuf
session: kafka.topic
key: [id]
columns: {id: string, v: double, raw: variant}
order: {seq: seq}
messages:
  - {when: {kind: FULL}, is: snapshot, rows: [{each: "rows[*]", row: {id: .id, v: .v, raw: .}}]}
  - {when: {kind: PART}, is: update, rows: [{each: "rows[*]", row: {id: .id, v: .v}, delete: {v: 0}}]}
"""


def test_protobuf_is_read_as_a_tree_in_which_fields_without_presence_have_values():
    rows = (3, protobuf((1, "a"), (2, Float(0.5)))), (3, protobuf((1, "b")))
    found = read_both(feed(TOP), protobuf((2, 4), *rows), PROTO)
    assert isinstance(found, DecodedMessage)
    assert (found.events[0].seq, found.events[0].after) == (4, 3)
    assert found.events[0].rows[1] == RowUpsert(("b",), "b", {"id": "b", "v": 0.0, "raw": '{"id":"b","v":0.0}'})
    found = read_both(feed(TOP), protobuf((1, 1), *rows), PROTO)
    assert isinstance(found, DecodedMessage)
    assert found.events[0].rows == (RowUpsert(("a",), "a", {"id": "a", "v": 0.5}), RowDelete(("b",), "b"))


@pytest.mark.parametrize(
    ("value", "reason"),
    [(b"\xff", "not_protobuf"), (protobuf((1, 9)), "no_rule"), (protobuf((3, protobuf((1, b"\xff")))), "not_protobuf")],
)
def test_what_is_not_the_protobuf_message_is_refused(value, reason):
    found = read_both(feed(TOP), value, PROTO)
    assert isinstance(found, MessageRefusal)
    assert found.reason == reason


FILES = {"schema_files": {1: "a.avsc"}}


@pytest.mark.parametrize(
    ("feeds", "payload", "why"),
    [
        ([{"format": "avro"}], {}, "format avro needs one of schema_file"),
        ([{"format": "avro"}, {"format": "protobuf"}], FILES, "avro and protobuf in one configuration"),
        ([{"key_format": "avro"}], {"schema_file": "a.avsc"}, "key_format avro needs the schema id"),
        ([{"key_format": "json"}], FILES, "is for format avro or protobuf"),
        ([{"format": "avro"}, {}], FILES, None),
        ([{"key_format": "avro"}], FILES, None),
    ],
)
def test_schemas_are_of_the_one_format_that_feeds_have(feeds, payload, why):
    plain = {"topics": "t", "uses": "debezium", "key": ["id"], "columns": {"id": "bigint"}}
    named = [plain | one | {"name": f"feed{number}"} for number, one in enumerate(feeds)]
    if why is None:
        assert CaptureSettings(feeds=named, payload=payload).payload_format == "avro"
        return
    with pytest.raises(ValueError, match=why):
        CaptureSettings(feeds=named, payload=payload)


def test_a_feed_of_avro_without_schemas_is_an_error_of_the_caller():
    with pytest.raises(TypeError, match="needs the schemas"):
        read_record(feed(ORDERS), KafkaRecord("orders", 0, 0, 0, None, b""))
