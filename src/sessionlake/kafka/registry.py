"""A client of schema registries that answer as Confluent's does, for the one question that readers have.

A schema is asked for when its id is first seen by a process, and kept: an id never changes its meaning. An id that
there is not is taken as that for a minute. Every id is asked for, whoever made it up: a message's fate must not depend
on those beside it. What the registry does not know when it is asked is in quarantine, until silver is rebuilt. So is
what names a schema beyond the bounds below: whoever may register schemas must not be able to stop silver for good.
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

from sessionlake.errors import RegistryError
from sessionlake.protocol.payload import Definition, PayloadFormat

_TIMEOUT_SECONDS = 10.0
# An answer is whole within so many seconds: one that comes byte by byte would never run into the other bound.
_ANSWER_SECONDS = 30.0
# Waits before another try, when the registry is away or busy for a moment.
_PAUSES = (0.2, 1.0)
_MAX_BYTES = 4 * 1024 * 1024
_MAX_REFERENCES = 100
_MAX_KNOWN = 1024
_MAX_UNKNOWN = 65_536
_AT_A_TIME = 8
_UNKNOWN_SECONDS = 60.0
# Registries count schemas in 32 bits with a sign, and take a greater id for a wrong address, not for an unknown schema.
_GREATEST_ID = 2**31 - 1
_NO_SCHEMA = {40401, 40402, 40403}  # no such subject, version, schema
_OK, _NOT_FOUND, _BUSY, _BROKEN = 200, 404, 429, 500


class _NoSuchSchemaError(Exception):
    """There is none, or none within the bounds."""


@dataclass(frozen=True)
class RegistrySchemas:
    """Schemas of a registry.

    Attributes:
        auth: `user:password`, or a bearer token.
    """

    format: PayloadFormat
    url: str
    auth: str | None = field(default=None, repr=False)

    def definitions(self, ids: Sequence[int]) -> Mapping[int, Definition]:
        """The definitions of these schema ids; one that is unknown is absent.

        Raises:
            RegistryError: the registry does not answer, or not as a registry does.
        """
        return _cache(self).definitions(ids)


class _Cache:
    """What one process knows of a registry; bounded, so that ids made up by someone cannot fill the memory."""

    def __init__(self, ask: Callable[[int], Definition | None]) -> None:
        self._ask = ask
        self._known: OrderedDict[int, Definition] = OrderedDict()
        self._unknown: OrderedDict[int, float] = OrderedDict()

    def definitions(self, ids: Sequence[int]) -> Mapping[int, Definition]:
        """The definitions of these schema ids; what is not known yet is asked for, a few at a time."""
        lately = time.monotonic() - _UNKNOWN_SECONDS
        found = {schema: self._known[schema] for schema in ids if schema in self._known}
        for schema in found:
            self._known.move_to_end(schema)
        ask = [s for s in dict.fromkeys(ids) if s not in found and self._unknown.get(s, lately) <= lately]
        with ThreadPoolExecutor(_AT_A_TIME) as pool:
            try:
                for schema, definition in zip(ask, pool.map(self._ask, ask), strict=True):
                    self._note(schema, definition)
                    if definition is not None:
                        found[schema] = definition
            finally:
                pool.shutdown(cancel_futures=True)
        return found

    def _note(self, schema: int, definition: Definition | None) -> None:
        if definition is None:
            self._unknown.pop(schema, None)
            self._unknown[schema] = time.monotonic()
        else:
            self._known[schema] = definition
        for kept, most in ((self._known, _MAX_KNOWN), (self._unknown, _MAX_UNKNOWN)):
            if len(kept) > most:
                kept.popitem(last=False)


_caches: dict[RegistrySchemas, _Cache] = {}


def _cache(source: RegistrySchemas) -> _Cache:
    if source not in _caches:
        _caches[source] = _Cache(_Client(source).definition)
    return _caches[source]


@contextmanager
def _ended_after(connection: http.client.HTTPConnection, seconds: float) -> Iterator[None]:
    """Ends the connection when the time is over: whoever waits for its bytes gets an error then.

    Raises:
        TimeoutError: the time was over before the block was left.
    """
    over = threading.Event()

    def end() -> None:
        over.set()
        if connection.sock is not None:
            with suppress(OSError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
    if over.is_set():
        raise TimeoutError


class _Client:
    def __init__(self, source: RegistrySchemas) -> None:
        self._source = source
        # Registries keep Protobuf schemas as source text; in this form no compiler is needed to read them.
        self._query = "?format=serialized" if source.format is PayloadFormat.PROTOBUF else ""

    def definition(self, schema: int) -> Definition | None:
        """A schema with those it refers to; None if there is none of the format."""
        if schema > _GREATEST_ID:
            return None
        try:
            answer = self._get(f"/schemas/ids/{schema}")
            if answer.get("schemaType", "AVRO") != self._source.format.upper():
                return None
            parts: dict[str, bytes] = {}
            self._follow(answer, parts)
        except _NoSuchSchemaError:
            return None
        return (*parts.values(), self._text(answer, f"schema-{schema}.proto"))

    def _follow(self, answer: dict[str, Any], parts: dict[str, bytes]) -> None:
        """Adds what a schema refers to, each after what it refers to itself."""
        for name, subject, version in self._references(answer):
            if name in parts:
                continue
            if len(parts) >= _MAX_REFERENCES:
                raise _NoSuchSchemaError
            inner = self._get(f"/subjects/{subject}/versions/{version}")
            parts[name] = b""  # seen: references that lead back end here
            self._follow(inner, parts)
            del parts[name]
            parts[name] = self._text(inner, name)

    def _references(self, answer: dict[str, Any]) -> list[tuple[str, str, int]]:
        """Name, subject (quoted for a URL) and version of each schema that this one refers to."""
        try:
            return [
                (str(one["name"]), quote(str(one["subject"]), safe=""), int(one["version"]))
                for one in answer.get("references") or ()
            ]
        except (ArithmeticError, LookupError, TypeError, ValueError):
            raise self._error("it gave a reference without name, subject and version") from None

    def _text(self, answer: dict[str, Any], name: str) -> bytes:
        text = answer.get("schema")
        if not isinstance(text, str):
            raise self._error("it gave a schema without its text")
        if self._source.format is PayloadFormat.PROTOBUF:
            return self._descriptor(text, name)
        try:
            return text.encode()
        except UnicodeEncodeError:
            raise self._error("it gave a schema that is no text: half a surrogate pair is in it") from None

    def _descriptor(self, text: str, name: str) -> bytes:
        from google.protobuf.descriptor_pb2 import FileDescriptorProto
        from google.protobuf.message import DecodeError

        try:
            file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
        except (ValueError, DecodeError):
            raise self._error(
                "it gives Protobuf schemas as source text only; name descriptor sets in capture.payload.schema_files"
            ) from None
        file.name = name
        return file.SerializeToString()

    def _get(self, path: str) -> dict[str, Any]:
        """The answer to a question, as JSON.

        Raises:
            _NoSuchSchemaError: the registry says that there is none, or its answer is beyond the bounds.
            RegistryError: it says nothing of use.
        """
        for pause in (*_PAUSES, None):
            status, body = self._exchange(path, final=pause is None)
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
                raise _NoSuchSchemaError
        raise self._error(f"it answered {path} with {status}")

    def _exchange(self, path: str, *, final: bool) -> tuple[int, bytes]:
        """Status and body; 0 if there is no answer and another try is left."""
        parts = urlsplit(self._source.url)
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = ssl.create_default_context()
            connection = http.client.HTTPSConnection(parts.netloc, timeout=_TIMEOUT_SECONDS, context=context)
        else:
            connection = http.client.HTTPConnection(parts.netloc, timeout=_TIMEOUT_SECONDS)
        try:
            with _ended_after(connection, _ANSWER_SECONDS):
                connection.request("GET", parts.path + path + self._query, headers=self._headers())
                response = connection.getresponse()
                body = response.read(_MAX_BYTES + 1)
        except (OSError, http.client.HTTPException) as error:
            if final:
                why = getattr(error, "strerror", None) or type(error).__name__
                raise self._error(f"no answer: {why}") from None
            return 0, b""
        finally:
            connection.close()
        if len(body) > _MAX_BYTES:
            if response.status == _OK:
                raise _NoSuchSchemaError
            body = b""  # of an error, the status alone counts
        return response.status, body

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        auth = self._source.auth
        if auth is not None:
            basic = "Basic " + base64.b64encode(auth.encode()).decode()
            headers["Authorization"] = basic if ":" in auth else f"Bearer {auth}"
        return headers

    def _error(self, why: str) -> RegistryError:
        return RegistryError(
            f"schema registry {self._source.url}: {why}; nothing of the batch was committed. Start the registry, or "
            "correct capture.payload.registry_url and registry_auth, and run again"
        )
