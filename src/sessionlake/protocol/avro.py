"""Avro payloads: one datum each, in its writer's schema and nothing after it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from itertools import repeat
from operator import itemgetter
from typing import Any

import fastavro
import numpy as np
from fastavro.schema import SchemaParseException, UnknownType

from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import MAX_DEPTH
from sessionlake.protocol.payload import Definition, UnusableSchemaError
from sessionlake.protocol.schema_decoder import HEADS, SET, Holds, Layout, as_json, canonical, fits, masked
from sessionlake.protocol.types import Bools

Schema = dict[str, Any]
# What fastavro makes of bytes that are no datum of the schema.
_NO_DATUM = (ArithmeticError, EOFError, LookupError, ValueError)
_HOLDS = {
    "boolean": Holds.BOOLEAN,
    "int": Holds.INTEGER,
    "long": Holds.INTEGER,
    "float": Holds.FLOAT,
    "double": Holds.FLOAT,
    "string": Holds.STRING,
    "enum": Holds.STRING,
}


class AvroDecoder:
    """Reads data of one writer's schema.

    Raises:
        UnusableSchemaError: the schema is none, or one that a few bytes could exhaust the reader with.
    """

    def __init__(self, definition: Definition, columns: tuple[Column, ...]) -> None:
        self._raw = {"id", *(column.name for column in columns)}
        self._schema = _Preparation(definition).schema
        fields = _fields(self._schema)
        self._has = frozenset(fields)
        row = _items(fields.get("rows"))
        self._row_has = frozenset(_fields(row)) if row else frozenset[str]()
        self.layout = _layout(fields, row, columns)

    def decode(self, bodies: Sequence[bytes]) -> list[Any]:
        """Each payload as a dict; None where it is no datum of the schema, or more than one."""
        found: list[Any] = []
        streams = list(map(BytesIO, bodies))
        rest = iter(streams)
        while len(found) < len(streams):
            try:
                found.extend(map(fastavro.schemaless_reader, rest, repeat(self._schema)))
            except _NO_DATUM:
                found.append(None)  # `extend` kept what came before, and `rest` stands behind the refused one
        ends = np.fromiter(map(BytesIO.tell, streams), np.int64, len(streams))
        sizes = np.fromiter(map(len, bodies), np.int64, len(streams))
        for index in np.flatnonzero(ends != sizes).tolist():
            found[index] = None
        return found

    def types(self, objects: Sequence[Any]) -> list[Any]:
        """Name of each message's type."""
        return list(map(itemgetter("type"), objects))

    def numbers(self, objects: Sequence[Any], name: str) -> tuple[list[int], Bools | None]:
        """`seq` or `ts` of each message."""
        found: list[Any] = list(map(itemgetter(name), objects)) if name in self._has else [None] * len(objects)
        if None not in found:
            return found, None
        missing = np.fromiter((item is None for item in found), np.bool_, len(found))
        return [0 if item is None else item for item in found], missing

    def lists(self, objects: Sequence[Any], name: str) -> tuple[list[Any], Bools | None]:
        """`rows` or `deleted` of each message."""
        found = list(map(itemgetter(name), objects)) if name in self._has else [None] * len(objects)
        if None not in found:
            return found, None
        missing = np.fromiter((item is None for item in found), np.bool_, len(found))
        return [() if item is None else item for item in found], missing

    def ids(self, rows: Sequence[Any]) -> list[str]:
        """`id` of each row."""
        return list(map(itemgetter("id"), rows))

    def sets(self, rows: Sequence[Any]) -> list[Any] | None:
        """`_set` of each row, None where it is null."""
        found = list(map(itemgetter(SET), rows)) if SET in self._row_has else []
        return None if found.count(None) == len(found) else found

    def cells(self, rows: Sequence[Any], name: str) -> tuple[list[Any], Bools | None]:
        """A declared column of each row."""
        if name in self._row_has:
            return list(map(itemgetter(name), rows)), None
        return [None] * len(rows), np.zeros(len(rows), np.bool_)

    def rows_with_unknown_fields(self, rows: Sequence[Any]) -> Sequence[int]:
        """None: the writer's schema names every field."""
        del rows
        return ()

    def plain_row(self, row: Any) -> dict[str, Any]:
        """A row as the JSON object that says the same."""
        plain = {name: value if name in self._raw else as_json(value) for name, value in row.items()}
        return masked(plain)

    def heads(self, message: Any) -> dict[str, Any]:
        """Type, seq and ts of a message, as far as it has them."""
        return {name: message[name] for name in HEADS if message.get(name) is not None}

    def plain(self, message: Any) -> dict[str, Any]:
        """A message as the JSON object that says the same."""
        plain = self.heads(message)
        for name in ("rows", "deleted"):
            if message.get(name) is not None:
                plain[name] = message[name]
        rows = plain.get("rows")
        if isinstance(rows, list):
            plain["rows"] = [self.plain_row(row) if isinstance(row, dict) else row for row in rows]
        return plain


def _layout(fields: dict[str, Any], row: Schema | None, columns: tuple[Column, ...]) -> Layout | None:
    if _holds(fields.get("type")) is not Holds.STRING:
        return None
    if any(name in fields and _holds(fields[name]) is not Holds.INTEGER for name in ("seq", "ts")):
        return None
    if ("rows" in fields and row is None) or not _strings(fields.get("deleted")):
        return None
    of_row = _fields(row) if row else {}
    if row and (of_row.get("id") != "string" or not _strings(of_row.get(SET))):
        return None
    cells = {column.name: _holds(of_row[column.name]) for column in columns if column.name in of_row}
    if not all(fits(cells[column.name], column) for column in columns if column.name in cells):
        return None
    row_bytes = 1 + sum(_takes_bytes(kind) for kind in of_row.values())  # and a character of its id
    return Layout(cells, bool(of_row.keys() - cells.keys() - {"id", SET}), row_bytes)


def _branches(schema: Any) -> list[Any]:
    """The types that a value may be of, null aside."""
    if isinstance(schema, dict) and schema["type"] == "union":
        return [schema[i] for i in range(len(schema) - 1) if schema[i] != "null"]
    return [] if schema is None else [schema]


def _kind(schema: Any) -> str:
    return str(schema["type"] if isinstance(schema, dict) else schema)


def _holds(schema: Any) -> Holds:
    found = {_HOLDS.get(_kind(branch), Holds.OTHER) for branch in _branches(schema)}
    return found.pop() if len(found) == 1 else Holds.OTHER


def _items(schema: Any) -> Schema | None:
    """The record that an array, or null, holds."""
    branches = _branches(schema)
    if len(branches) == 1 and _kind(branches[0]) == "array" and _kind(branches[0]["items"]) == "record":
        return dict(branches[0]["items"])
    return None


def _strings(schema: Any) -> bool:
    """Whether it is missing, or an array of strings, or null."""
    branches = _branches(schema)
    return schema is None or (len(branches) == 1 and branches[0] == {"type": "array", "items": "string"})


def _with_canonical_symbols(schema: Any) -> Any:
    """The schema with each enum's symbols replaced by the message types that they name, also inside a union."""
    if not isinstance(schema, dict):
        return schema
    if schema["type"] == "union":
        return {name: _with_canonical_symbols(branch) for name, branch in schema.items()}
    if schema["type"] == "enum":
        return schema | {"symbols": {i: canonical(symbol) for i, symbol in schema["symbols"].items()}}
    return schema


def _takes_bytes(schema: Any) -> bool:
    """Whether every value takes a byte at least, as far as that is plain to see."""
    return isinstance(schema, dict | str) and _kind(schema) not in {"null", "fixed", "record"}


def _fields(record: Schema) -> dict[str, Any]:
    return {field["name"]: field["type"] for field in record["fields"]}


class _Preparation:
    """A writer's schema as the reader gets it: names resolved, logical types gone, message types by their names.

    Symbols and unions become dicts by number: of a list, Python would read a negative index from its end. A record
    that holds itself is refused, since data could nest to any depth, and an array of items that take no bytes,
    since a few bytes could promise any number of them.
    """

    def __init__(self, definition: Definition) -> None:
        named: dict[str, Any] = {}
        try:
            parsed = [fastavro.parse_schema(json.loads(text), named, _write_hint=False) for text in definition]
        except (SchemaParseException, UnknownType, LookupError, TypeError, ValueError, AttributeError) as error:
            raise UnusableSchemaError(f"not an Avro schema: {error}") from None
        except RecursionError:
            raise UnusableSchemaError("not an Avro schema: it nests too deeply") from None
        self._named = named
        self._done: dict[str, Schema] = {}
        self._height: dict[str, int] = {}
        self._least: dict[str, int] = {}
        self._open: list[str] = []
        self._deepest = 0
        whole = self._prepared(parsed[-1], 1)
        if _kind(whole) != "record":
            raise UnusableSchemaError(f"the schema is of type {_kind(whole)}, a message is a record")
        for field in whole["fields"]:
            if field["name"] == "type":
                field["type"] = _with_canonical_symbols(field["type"])
        self.schema = whole | {"__fastavro_parsed": True, "__named_schemas": {}}

    def _prepared(self, schema: Any, level: int) -> Any:
        self._reach(level)
        if isinstance(schema, list):
            return {"type": "union", **{i: self._prepared(branch, level) for i, branch in enumerate(schema)}}
        if isinstance(schema, str):
            return self._of_name(schema, level) if schema in self._named else schema
        kind = schema["type"]
        if kind in {"record", "error", "enum", "fixed"}:
            return self._of_name(schema["name"], level)
        if kind == "array":
            items = self._prepared(schema["items"], level + 1)
            if self._bytes(items) == 0:
                raise UnusableSchemaError(
                    "it has an array of items that take no bytes, of which data could hold any number"
                )
            return {"type": "array", "items": items}
        if kind == "map":
            return {"type": "map", "values": self._prepared(schema["values"], level + 1)}
        return self._prepared(kind, level)

    def _of_name(self, name: str, level: int) -> Schema:
        if name in self._open:
            raise UnusableSchemaError(f"{name} holds itself, so that data could nest to any depth")
        if name not in self._done:
            before, self._deepest = self._deepest, level
            self._open.append(name)
            self._done[name] = self._definition(name, self._named[name], level)
            self._open.pop()
            self._height[name], self._deepest = self._deepest - level, max(before, self._deepest)
        self._reach(level + self._height[name])
        return self._done[name]

    def _reach(self, level: int) -> None:
        if level > MAX_DEPTH:
            raise UnusableSchemaError(f"the schema nests deeper than {MAX_DEPTH}")
        self._deepest = max(self._deepest, level)

    def _definition(self, name: str, schema: Schema, level: int) -> Schema:
        if schema["type"] == "enum":
            return {"type": "enum", "name": name, "symbols": dict(enumerate(schema["symbols"]))}
        if schema["type"] == "fixed":
            return {"type": "fixed", "name": name, "size": schema["size"]}
        fields = [
            {"name": field["name"], "type": self._prepared(field["type"], level + 1)} for field in schema["fields"]
        ]
        return {"type": "record", "name": name, "fields": fields}

    def _bytes(self, schema: Any) -> int:
        """1 if every value takes a byte at least."""
        kind = _kind(schema)
        if kind == "record":
            name = schema["name"]
            if name not in self._least:
                self._least[name] = max((self._bytes(field["type"]) for field in schema["fields"]), default=0)
            return self._least[name]
        return 0 if kind == "null" or (kind == "fixed" and schema["size"] == 0) else 1
