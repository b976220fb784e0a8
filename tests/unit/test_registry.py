"""Schemas from a registry over real HTTP: asked for once, bounded whatever ids come, and clear when it is away."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from sessionlake.errors import ConfigError, SchemaRegistryError
from sessionlake.kafka import registry as client
from sessionlake.kafka.registry import SchemaRegistryReader
from sessionlake.protocol.binary import create_schema_decoder
from sessionlake.protocol.payload import PayloadFormat, PayloadFormatAndSchemas
from sessionlake.settings.model import CaptureSettings
from sessionlake.streaming.payloads import read_own_form_payload_format
from support.payloads import AVRO_ROW, MESSAGE, Registry, avro_schema, descriptor_set, proto_file, serving
from support.streams import COLUMNS

SECRET = "user:pässword"  # noqa: S105 - of no real account


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))
    with serving() as found:
        yield found


def schemas(
    registry: Registry, kind: PayloadFormat = PayloadFormat.AVRO, auth: str | None = None
) -> SchemaRegistryReader:
    return SchemaRegistryReader(kind, registry.url, auth)


def test_a_schema_is_asked_for_once_and_an_unknown_one_as_well(registry: Registry) -> None:
    registry.add_avro(3, avro_schema())
    for _ in range(3):
        assert dict(schemas(registry).find_definitions([3, 4])) == {3: (json.dumps(avro_schema()).encode(),)}
    assert sorted(registry.asked) == ["/schemas/ids/3", "/schemas/ids/4"]


def test_an_id_registered_later_is_found_after_a_minute(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: now[0]))
    assert schemas(registry).find_definitions([3]) == {}
    registry.add_avro(3, avro_schema())
    now[0] = 59.9
    assert schemas(registry).find_definitions([3]) == {}
    now[0] = 60.1
    assert list(schemas(registry).find_definitions([3])) == [3]


def test_ids_made_up_by_someone_hide_no_schema_and_cost_one_question_each(registry: Registry) -> None:
    registry.add_avro(3, avro_schema())
    registry.add_avro(9_999, avro_schema())
    assert list(schemas(registry).find_definitions([3])) == [3]
    for _ in range(2):
        assert sorted(schemas(registry).find_definitions([*range(1_000, 2_000), 9_999, 3])) == [3, 9_999]
    assert len(registry.asked) == 2 + 1_000


def test_an_id_beyond_32_bits_is_unknown_and_not_asked_for(registry: Registry) -> None:
    registry.answer = (404, b'{"error_code": 404}')  # what a registry says of an address that it has not
    assert schemas(registry).find_definitions([2**31, 2**32 - 1]) == {}
    assert registry.asked == []
    with pytest.raises(SchemaRegistryError):
        schemas(registry).find_definitions([2**31 - 1])


def test_an_error_ends_the_asking(registry: Registry) -> None:
    registry.answer = (401, b"{}")
    with pytest.raises(SchemaRegistryError):
        schemas(registry).find_definitions(range(1_000))
    assert len(registry.asked) < 100


def test_what_is_remembered_is_bounded(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_MAX_KNOWN", 2)
    monkeypatch.setattr(client, "_MAX_UNKNOWN", 3)
    for schema in range(5):
        registry.add_avro(schema, avro_schema())
    found = schemas(registry)
    assert len(found.find_definitions(range(10))) == 5
    cache = client._get_schema_cache(found)
    assert (list(cache._known), list(cache._unknown)) == ([3, 4], [7, 8, 9])


def test_references_come_before_what_refers_to_them(registry: Registry) -> None:
    row = {"type": "record", "name": "Row", "namespace": "lab", "fields": AVRO_ROW}
    registry.subjects["row%2Favro/versions/2"] = {"subject": "row", "schema": json.dumps(row)}
    capture = avro_schema(rows={"type": "array", "items": "lab.Row"})
    registry.add_avro(3, capture, [{"name": "lab.Row", "subject": "row/avro", "version": 2}])
    definition = schemas(registry).find_definitions([3])[3]
    assert [json.loads(text)["name"] for text in definition] == ["Row", "Capture"]
    payload = PayloadFormatAndSchemas(PayloadFormat.AVRO, schemas(registry), header=True)
    assert (
        create_schema_decoder(payload, definition, (), CaptureSettings(columns=COLUMNS).declared_columns).layout
        is not None
    )


def test_references_in_a_ring_end(registry: Registry) -> None:
    back = [{"name": "a", "subject": "a", "version": 1}]
    registry.subjects["a/versions/1"] = {"schema": '"int"', "references": back}
    registry.add_avro(3, avro_schema(), back)
    assert len(schemas(registry).find_definitions([3])[3]) == 2


def test_a_protobuf_schema_comes_as_a_descriptor_with_google_s_own_files_known(registry: Registry) -> None:
    file = proto_file()
    file.dependency.append("google/protobuf/timestamp.proto")
    registry.add_protobuf(5, file)
    definition = schemas(registry, PayloadFormat.PROTOBUF).find_definitions([5])[5]
    assert registry.asked == ["/schemas/ids/5?format=serialized"]
    payload = PayloadFormatAndSchemas(PayloadFormat.PROTOBUF, schemas(registry, PayloadFormat.PROTOBUF), header=True)
    assert (
        create_schema_decoder(payload, definition, (1,), CaptureSettings(columns=COLUMNS).declared_columns).layout
        is not None
    )


def test_a_registry_that_gives_source_text_only_is_reported_apart(registry: Registry) -> None:
    registry.schemas[5] = {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'}
    with pytest.raises(
        SchemaRegistryError, match=r"source text only; .* name descriptor sets in capture.payload.schema_files"
    ):
        schemas(registry, PayloadFormat.PROTOBUF).find_definitions([5])


def test_a_schema_of_another_format_is_none(registry: Registry) -> None:
    registry.schemas[5] = {"schemaType": "JSON", "schema": "{}"}
    assert schemas(registry).find_definitions([5]) == {}


@pytest.mark.parametrize(
    ("auth", "sent"),
    [(None, None), (SECRET, "Basic dXNlcjpww6Rzc3dvcmQ="), ("a.b.c", "Bearer a.b.c")],
)
def test_credentials_are_sent_and_shown_nowhere(registry: Registry, auth: str | None, sent: str | None) -> None:
    registry.answer = (401, b"{}")
    found = schemas(registry, auth=auth)
    with pytest.raises(SchemaRegistryError, match="answered /schemas/ids/3 with 401") as error:
        found.find_definitions([3])
    assert registry.auth == [sent]
    assert auth is None or auth not in repr(found) + str(error.value)


@pytest.mark.parametrize(
    "answer",
    [
        (503, b"{}"),
        (429, b"{}"),
        (404, b'{"error_code": 404}'),
        (404, b"<html>"),
        (200, b"[]"),
        (302, b""),
        (200, b"{}"),
    ],
)
def test_what_is_no_registry_s_answer_is_an_error_and_no_unknown_schema(
    registry: Registry, answer: tuple[int, bytes]
) -> None:
    registry.answer = answer
    with pytest.raises(
        SchemaRegistryError, match=f"schema registry {registry.url}: .*Nothing of the batch was committed"
    ):
        schemas(registry).find_definitions([3])
    assert len(registry.asked) == (3 if answer[0] in {503, 429} else 1)
    registry.answer = None
    registry.add_avro(3, avro_schema())
    assert list(schemas(registry).find_definitions([3])) == [3]


def nested(levels: int) -> bytes:
    return b'{"schema":' + b"[" * levels + b"]" * levels + b"}"


@pytest.mark.parametrize("kind", list(PayloadFormat)[1:])
@pytest.mark.parametrize(
    "answer",
    [
        (200, nested(100_000)),
        (200, b'{"schema":"\\ud800"}'),
        (200, b'{"schema":"' + b"\xff" + b'"}'),
        (200, b'{"schema":5}'),
        (200, b'{"schema":"\\"int\\"","references":5}'),
        (200, b'{"schema":"\\"int\\"","references":{"a":1}}'),
        (200, b'{"schema":"\\"int\\"","references":["a"]}'),
        (200, b'{"schema":"\\"int\\"","references":[{"name":"a","subject":"a","version":1e999}]}'),
        (200, b'{"schema":"\\"int\\"","references":[{"name":"a","subject":"a","version":"' + b"9" * 5000 + b'"}]}'),
        (404, b'{"error_code":[40403]}'),
        (404, b'{"error_code":{}}'),
    ],
)
def test_a_hostile_answer_is_an_error_that_names_the_registry(
    registry: Registry, answer: tuple[int, bytes], kind: PayloadFormat
) -> None:
    if kind is PayloadFormat.PROTOBUF:
        answer = (answer[0], answer[1].replace(b"{", b'{"schemaType":"PROTOBUF",', 1))
    registry.answer = answer
    with pytest.raises(SchemaRegistryError, match=f"schema registry {registry.url}: "):
        schemas(registry, kind).find_definitions([3])


def test_an_answer_that_comes_byte_by_byte_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSES", ())
    monkeypatch.setattr(client, "_ANSWER_SECONDS", 0.5)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not ended.wait(0.05):
                connection.sendall(b" ")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=(server,), daemon=True)
        thread.start()
        source = SchemaRegistryReader(PayloadFormat.AVRO, f"http://127.0.0.1:{server.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(SchemaRegistryError, match="no answer"):
            source.find_definitions([1])
        assert time.monotonic() - started < 8  # the drip never stops by itself
        ended.set()
        thread.join()


def test_a_schema_beyond_the_bounds_is_as_if_there_were_none_and_stops_nothing(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_MAX_BYTES", 1_000)
    monkeypatch.setattr(client, "_MAX_REFERENCES", 2)
    others = [{"name": f"r{n}", "subject": f"r{n}", "version": 1} for n in range(3)]
    registry.subjects.update({f"r{n}/versions/1": {"schema": '"int"'} for n in range(3)})
    registry.add_avro(3, "int" + " " * 1_000)
    registry.add_avro(4, "int", others)
    registry.add_avro(5, "int", others[:2])
    assert [*schemas(registry).find_definitions([3, 4, 5])] == [5]


def test_a_registry_that_is_away_is_named_after_some_tries(free_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSES", (0.0, 0.0))
    with pytest.raises(SchemaRegistryError, match=rf"127.0.0.1:{free_port}: no answer: .*refused"):
        SchemaRegistryReader(PayloadFormat.AVRO, f"http://127.0.0.1:{free_port}").find_definitions([1])


# -- from the configuration


def capture(**payload: object) -> CaptureSettings:
    kind = payload.pop("format", "avro")
    return CaptureSettings(format=kind, columns=COLUMNS, payload=payload)


def test_json_needs_no_payload() -> None:
    assert read_own_form_payload_format(CaptureSettings()) is None


def test_files_are_read_and_tried_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.avsc").write_text(json.dumps(avro_schema()))
    (tmp_path / "c.desc").write_bytes(descriptor_set())
    avro = read_own_form_payload_format(capture(schema_file=tmp_path / "a.avsc"))
    assert (avro.format, avro.header) == (PayloadFormat.AVRO, False)
    by_id = read_own_form_payload_format(capture(schema_files={4: tmp_path / "a.avsc"}))
    assert (by_id.header, list(by_id.schemas.find_definitions([3, 4]))) == (True, [4])
    proto = read_own_form_payload_format(
        capture(format="protobuf", schema_file=tmp_path / "c.desc", message=MESSAGE, wire_header=True)
    )
    assert (proto.header, proto.message) == (True, MESSAGE)


@pytest.mark.parametrize(
    ("name", "content", "payload", "text"),
    [
        ("x", None, {}, r"schema file .*/x cannot be read: No such file"),
        ("x", b"{", {}, r"/x cannot be used: not an Avro schema"),
        ("x", b'"long"', {}, r"/x cannot be used: the schema is of type long, but a message must be a record"),
        (
            "x",
            b"\xff",
            {"format": "protobuf", "message": "a"},
            r"/x is not a descriptor set of Protobuf. Make one .*protoc",
        ),
        ("x", b"", {"format": "protobuf", "message": "a"}, r"/x is not a descriptor set"),
        (
            "x",
            descriptor_set(),
            {"format": "protobuf", "message": "lab.No"},
            r"no message type 'lab.No'; there are lab.Row",
        ),
        (
            "x",
            descriptor_set(FileDescriptorProto(name="a", dependency=["b"])),
            {"format": "protobuf", "message": "a"},
            "not a Protobuf descriptor",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes | None, payload: dict[str, object], text: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigError, match=text):
        read_own_form_payload_format(capture(schema_file=tmp_path / name, **payload))
