"""A client that reads schemas from a registry with Confluent's API.

- A process asks for a schema when it first sees its id, and caches the answer, since an id never changes its meaning.
  An unknown id is cached as unknown for a minute.
- It asks for every id, even an invented one, because the result for a message must not depend on other messages.
- A message whose schema the registry does not know goes to quarantine and stays there until silver is rebuilt.
- A schema that exceeds the limits below counts as unknown. Otherwise anyone who may register schemas could stop silver
  for good.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit

from sessionlake.errors import SchemaRegistryError
from sessionlake.protocol.payload import Definition, PayloadFormat

_TIMEOUT_SECONDS = 10.0
# Limit for a complete answer. An answer that arrives byte by byte would never exceed the timeout above.
_ANSWER_SECONDS = 30.0
# Seconds to wait before each retry when the registry does not answer or is busy.
_PAUSES = (0.2, 1.0)
_MAX_BYTES = 4 * 1024 * 1024
_MAX_REFERENCES = 100
_MAX_KNOWN = 1024
_MAX_UNKNOWN = 65_536
_AT_A_TIME = 8
_UNKNOWN_SECONDS = 60.0
# Registries use signed 32-bit schema ids, and answer a larger one as a wrong address instead of an unknown schema.
_GREATEST_ID = 2**31 - 1
_NO_SCHEMA = {40401, 40402, 40403}  # no such subject, version, schema
_OK, _NOT_FOUND, _BUSY, _BROKEN = 200, 404, 429, 500


class _SchemaNotInRegistryError(Exception):
    """The registry does not have the schema, or the schema exceeds the limits."""


@dataclass(frozen=True)
class SchemaRegistryReader:
    """Reads schemas from a registry.

    Attributes:
        format: Avro or Protobuf. A schema of another format counts as unknown.
        url: Base URL of the registry.
        auth: `user:password`, or a bearer token; None for a registry without login.
    """

    format: PayloadFormat
    url: str
    auth: str | None = field(default=None, repr=False)

    def find_definitions(self, schema_ids: Sequence[int]) -> Mapping[int, Definition]:
        """Returns, by id, the texts of each schema: first those of the schemas that it refers to.

        Unknown ids are absent.

        Raises:
            SchemaRegistryError: The registry does not answer, or its answer is not valid.
        """
        return _get_schema_cache(self).find_definitions(schema_ids)


class _SchemaCache:
    """The schemas that a process has read from one registry.

    Limited in size, so that invented ids cannot fill the memory.
    """

    def __init__(self, ask: Callable[[int], Definition | None]) -> None:
        self._ask = ask
        self._known: OrderedDict[int, Definition] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()

    def find_definitions(self, schema_ids: Sequence[int]) -> Mapping[int, Definition]:
        """Returns, by id, the schemas that are cached or that the registry has. Asks the registry a few at a time."""
        oldest = time.monotonic() - _UNKNOWN_SECONDS
        found = {schema: self._known[schema] for schema in schema_ids if schema in self._known}
        for schema in found:
            self._known.move_to_end(schema)
        ask = [s for s in dict.fromkeys(schema_ids) if s not in found and self._unknown.get(s, oldest) <= oldest]
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            try:
                for schema, definition in zip(ask, pool.map(self._ask, ask), strict=True):
                    self._store_definition(schema, definition)
                    if definition is not None:
                        found[schema] = definition
            finally:
                pool.shutdown(cancel_futures=True)
        return found

    def _store_definition(self, schema_id: int, definition: Definition | None) -> None:
        """Caches a schema, or, if it is None, that the registry does not know the id.

        Drops the oldest entries if there are too many.
        """
        if definition is None:
            self._unknown.pop(schema_id, None)
            self._unknown[schema_id] = time.monotonic()
        else:
            self._known[schema_id] = definition
        for cached, limit in ((self._known, _MAX_KNOWN), (self._unknown, _MAX_UNKNOWN)):
            if len(cached) > limit:
                cached.popitem(last=False)


_caches: dict[SchemaRegistryReader, _SchemaCache] = {}


def _get_schema_cache(registry: SchemaRegistryReader) -> _SchemaCache:
    if registry not in _caches:
        _caches[registry] = _SchemaCache(_RegistryClient(registry).fetch_definition)
    return _caches[registry]


@contextmanager
def _close_after_timeout(connection: http.client.HTTPConnection, timeout_seconds: float) -> Iterator[None]:
    """Closes the connection once the time limit is over, so that a read in the block fails.

    Raises:
        TimeoutError: The block took longer than the limit.
    """
    expired = threading.Event()

    def close_connection() -> None:
        expired.set()
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_seconds, close_connection)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if expired.is_set():
        raise TimeoutError


class _RegistryClient:
    """Sends requests to a schema registry."""

    def __init__(self, source: SchemaRegistryReader) -> None:
        self._source = source
        # Registries store Protobuf schemas as source text. The serialized form needs no compiler.
        self._query = "?format=serialized" if source.format is PayloadFormat.PROTOBUF else ""

    def fetch_definition(self, schema_id: int) -> Definition | None:
        """Returns the texts of a schema: first those of the schemas that it refers to, then its own.

        Returns None if the registry does not know the id, or if the schema has another format or exceeds the limits.
        """
        if schema_id > _GREATEST_ID:
            return None
        try:
            answer = self._fetch_json(f"/schemas/ids/{schema_id}")
            if answer.get("schemaType", "AVRO") != self._source.format.upper():
                return None
            parts: dict[str, bytes] = {}
            self._fetch_referenced_schemas(answer, parts)
        except _SchemaNotInRegistryError:
            return None
        return (*parts.values(), self._read_schema_text(answer, f"schema-{schema_id}.proto"))

    def _fetch_referenced_schemas(self, answer: dict[str, Any], schemas: dict[str, bytes]) -> None:
        """Adds the schemas to which a schema refers to `schemas`, by name.

        Each comes after those that it refers to itself.

        Args:
            answer: The registry's answer for the schema.
            schemas: The texts of the schemas that were added so far.
        """
        for name, subject, version in self._parse_schema_references(answer):
            if name in schemas:
                continue
            if len(schemas) >= _MAX_REFERENCES:
                raise _SchemaNotInRegistryError
            inner = self._fetch_json(f"/subjects/{subject}/versions/{version}")
            schemas[name] = b""  # marks the name as seen, so that circular references end here
            self._fetch_referenced_schemas(inner, schemas)
            del schemas[name]
            schemas[name] = self._read_schema_text(inner, name)

    def _parse_schema_references(self, answer: dict[str, Any]) -> list[tuple[str, str, int]]:
        """Returns name, subject (quoted for a URL) and version of each schema to which an answer's schema refers."""
        try:
            return [
                (str(one["name"]), quote(str(one["subject"]), safe=""), int(one["version"]))
                for one in answer.get("references") or ()
            ]
        except (ArithmeticError, LookupError, TypeError, ValueError):
            raise self._create_registry_error("it sent a reference without name, subject or version") from None

    def _read_schema_text(self, answer: dict[str, Any], name: str) -> bytes:
        """Returns the text of the schema in an answer; with Protobuf, its serialized descriptor under this name.

        Raises:
            SchemaRegistryError: The answer has no usable schema.
        """
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._create_registry_error("it sent a schema without its text")
        if self._source.format is PayloadFormat.PROTOBUF:
            return self._serialize_descriptor_as_file(text, name)
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise self._create_registry_error(
                "it sent a schema that is not valid text, with half of a surrogate pair in it"
            ) from None

    def _serialize_descriptor_as_file(self, text: str, name: str) -> bytes:
        """Decodes a Protobuf file descriptor from base64, and serializes it again with `name` as its file's name."""
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError

        try:
            file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (ValueError, DecodeError):
            raise self._create_registry_error(
                "it sends Protobuf schemas as source text only; instead of it, name descriptor sets in "
                "capture.payload.schema_files"
            ) from None
        file.name = name
        return file.SerializeToString()

    def _fetch_json(self, path: str) -> dict[str, Any]:
        """Requests a path and returns the answer's JSON object.

        Raises:
            _SchemaNotInRegistryError: The registry does not have the schema, or its answer exceeds the limits.
            SchemaRegistryError: The registry does not answer, or its answer is not valid.
        """
        for pause in (*_PAUSES, None):
            status, body = self._send_request(path, final=pause is None)
            if status not in {_BUSY, 0} and status < _BROKEN:
                break
            if pause is not None:
                time.sleep(pause)
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            if status == _OK:
                return answer
            code = answer.get("error_code")
            if status == _NOT_FOUND and isinstance(code, int) and code in _NO_SCHEMA:
                raise _SchemaNotInRegistryError
        raise self._create_registry_error(f"it answered {path} with {status}")

    def _send_request(self, path: str, *, final: bool) -> tuple[int, bytes]:
        """Sends a GET request. Returns HTTP status and body; status 0 if there is no answer and a retry is left.

        Args:
            path: Path of the request's URL.
            final: True if no retry is left.

        Raises:
            SchemaRegistryError: There is no answer, and no retry is left.
        """
        parts = urlsplit(self._source.url)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
        try:
            with _close_after_timeout(connection, _ANSWER_SECONDS):
                connection.request("GET", parts.path + path + self._query, headers=self._build_headers())
                response = connection.getresponse()
                body = response.read(_MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            if final:
                why = getattr(error, "strerror", None) or type(error).__name__
                raise self._create_registry_error(f"no answer: {why}") from None
            return 0, b""
        finally:
            connection.close()
        if len(body) > _MAX_BYTES:
            if response.status == _OK:
                raise _SchemaNotInRegistryError
            body = b""  # for an error, only the status matters
        return response.status, body

    def _build_headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        auth = self._source.auth
        if auth is not None:
            basic = "Basic " + base64.b64encode(auth.encode()).decode()
            headers["Authorization"] = basic if ":" in auth else f"Bearer {auth}"
        return headers

    def _create_registry_error(self, reason: str) -> SchemaRegistryError:
        return SchemaRegistryError(
            f"schema registry {self._source.url}: {reason}",
            why="Nothing of the batch was committed",
            fix="Start the registry, or correct capture.payload.registry_url and registry_auth, and run "
            "the command again",
        )
