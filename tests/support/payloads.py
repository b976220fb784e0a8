"""The same messages as JSON, Avro and Protobuf, and a schema registry that answers over HTTP."""

from __future__ import annotations

import base64
import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import fastavro
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from support.streams import COLUMNS

Body = dict[str, Any]
MESSAGE = "lab.Capture"
_WIRE = {"bigint": "long", "int": "long", "smallint": "long", "tinyint": "long", "float": "double"}
AVRO_ROW = [
    {"name": "id", "type": "string"},
    *({"name": name, "type": ["null", _WIRE.get(sql, sql)]} for name, sql in COLUMNS.items()),
    {"name": "_set", "type": ["null", {"type": "array", "items": "string"}]},
]
TYPES = ["SNAPSHOT", "UPDATE", "HEARTBEAT", "END", "OTHER"]


def avro_schema(row: list[Any] | None = None, **changed: Any) -> dict[str, Any]:
    """Returns a writer's schema. `changed` changes the types of fields; None removes a field."""
    fields = {
        "type": {"type": "enum", "name": "Type", "symbols": TYPES},
        "seq": ["null", "long"],
        "ts": "long",
        "rows": ["null", {"type": "array", "items": {"type": "record", "name": "Row", "fields": row or AVRO_ROW}}],
        "deleted": {"type": "array", "items": "string"},
    } | changed
    named = [{"name": name, "type": kind} for name, kind in fields.items() if kind is not None]
    return {"type": "record", "name": "Capture", "namespace": "lab", "fields": named}


def avro(body: Body, schema: dict[str, Any] | None = None) -> bytes:
    """Returns a message as an Avro datum of `avro_schema()`, with `_set` if columns are absent."""
    names = [field["name"] for field in AVRO_ROW[1:-1]]
    rows = [
        {name: row.get(name) for name in ["id", *names, *row]}
        | {"_set": None if all(n in row for n in names) else [n for n in row if n != "id"]}
        for row in body.get("rows", [])
    ]
    datum = body | {"type": _symbol(body), "rows": rows if "rows" in body else None}
    return datum_of(schema or avro_schema(), {"deleted": [], "seq": None} | datum)


def datum_of(schema: Any, value: Any) -> bytes:
    """Returns a value encoded with a schema."""
    out = BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema, {}), value)
    return out.getvalue()


def _symbol(body: Body) -> str:
    symbol = str(body["type"]).upper()
    return symbol if symbol in TYPES else "OTHER"


# -- Protobuf

_F = FieldDescriptorProto
_PROTO = {"double": _F.TYPE_DOUBLE, "long": _F.TYPE_INT64, "string": _F.TYPE_STRING, "boolean": _F.TYPE_BOOL}


def proto_file(*, before: int = 0, extra: bool = False, always: str = "") -> FileDescriptorProto:
    """Returns a file with `lab.Capture`, and with `lab.Outer.Capture` nested in another type.

    Args:
        before: Number of other types before it in the file.
        extra: True to add a field that the reader does not know.
        always: A column whose field has no presence.
    """
    file = FileDescriptorProto(name="capture.proto", package="lab", syntax="proto3")
    for number in range(before):
        file.message_type.add(name=f"Other{number}")
    row = file.message_type.add(name="Row")
    _field(row, "id", _F.TYPE_STRING)
    for name, sql in COLUMNS.items():
        _field(row, name, _PROTO[_WIRE.get(sql, sql)], optional=name != always)
    _field(row, "_set", _F.TYPE_STRING, repeated=True)
    if extra:
        _field(row, "extra", _F.TYPE_INT64, optional=True)
    file.message_type.append(_capture("Capture"))
    outer = file.message_type.add(name="Outer")
    outer.nested_type.add(name="First")
    outer.nested_type.append(_capture("Capture"))
    return file


def _capture(name: str) -> DescriptorProto:
    capture = DescriptorProto(name=name)
    kinds = capture.enum_type.add(name="Type")
    for number, symbol in enumerate(["TYPE_OTHER", *(f"TYPE_{symbol}" for symbol in TYPES[:-1])]):
        kinds.value.add(name=symbol, number=number)
    _field(capture, "type", _F.TYPE_ENUM).type_name = "Type"
    _field(capture, "seq", _F.TYPE_INT64, optional=True)
    _field(capture, "ts", _F.TYPE_INT64)
    _field(capture, "rows", _F.TYPE_MESSAGE, repeated=True).type_name = ".lab.Row"
    _field(capture, "deleted", _F.TYPE_STRING, repeated=True)
    return capture


def _field(
    message: DescriptorProto, name: str, kind: Any, *, optional: bool = False, repeated: bool = False
) -> FieldDescriptorProto:
    label = _F.LABEL_REPEATED if repeated else _F.LABEL_OPTIONAL
    field = message.field.add(name=name, number=len(message.field) + 1, type=kind, label=label)
    if optional:
        field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
        message.oneof_decl.add(name=f"_{name}")
    return field


def descriptor_set(file: FileDescriptorProto | None = None) -> bytes:
    """Returns a descriptor set like that of `protoc --include_imports --descriptor_set_out`."""
    return FileDescriptorSet(file=[file or proto_file()]).SerializeToString()


def proto_class(file: FileDescriptorProto, name: str = MESSAGE) -> Any:
    """Returns the Python class of a message type of a file."""
    pool = DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return GetMessageClass(pool.FindMessageTypeByName(name))


CAPTURE = proto_class(proto_file())


def protobuf(body: Body, rnd: random.Random, kind: Any = CAPTURE) -> bytes:
    """Returns a message as Protobuf. A column that is set is present, or is in `_set`, as a null must be."""
    message = kind(seq=body.get("seq"), ts=body["ts"], deleted=body.get("deleted", []))
    message.type = ["OTHER", *TYPES[:-1]].index(_symbol(body))
    for row in body.get("rows", []):
        given = {name: value for name, value in row.items() if value is not None}
        made = message.rows.add(**given)
        if len(given) < len(row) or rnd.random() < 0.2:
            made._set.extend(name for name in row if name != "id")
    return bytes(message.SerializeToString())


def header(schema: int, path: bytes = b"") -> bytes:
    """Returns a wire header with the schema id."""
    return b"\x00" + schema.to_bytes(4, "big") + path


# -- a registry


class Registry:
    """Schemas of the registry, and the paths that were requested."""

    def __init__(self) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.subjects: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.auth: list[str | None] = []
        self.answer: tuple[int, bytes] | None = None
        """If set, the answer to every request."""
        self.url = ""

    def add_avro(self, schema: int, definition: Any, references: list[dict[str, Any]] | None = None) -> None:
        self.schemas[schema] = {"schema": json.dumps(definition), "references": references or []}

    def add_protobuf(self, schema: int, file: FileDescriptorProto) -> None:
        text = base64.b64encode(file.SerializeToString()).decode()
        self.schemas[schema] = {"schemaType": "PROTOBUF", "schema": text}

    def reply(self, path: str) -> tuple[int, bytes]:
        if self.answer is not None:
            return self.answer
        parts = path.partition("?")[0].split("/")
        if parts[1:3] == ["schemas", "ids"]:
            found, code = self.schemas.get(int(parts[3])), 40403
        elif parts[1] == "subjects":
            found, code = self.subjects.get("/".join(parts[2:])), 40402
        else:
            return 404, b"<html>"
        return (200, json.dumps(found).encode()) if found else (404, json.dumps({"error_code": code}).encode())


@contextmanager
def serving() -> Iterator[Registry]:
    """Runs a registry on a free port of the loopback interface."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked.append(self.path)
            registry.auth.append(self.headers.get("Authorization"))
            status, body = registry.reply(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Suppresses the log."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
