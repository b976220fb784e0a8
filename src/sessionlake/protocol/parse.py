"""Parses one message at a time. This module defines what a well-formed message is and why a message is malformed.

`protocol.decode` handles messages that are clearly well-formed in bulk and uses this module for the rest.
"""

from __future__ import annotations

import json
import math
import struct
import unicodedata
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from sessionlake.protocol.columns import ID, Column, JsonType
from sessionlake.protocol.jsontext import InvalidJsonError, parse_json
from sessionlake.protocol.message import (
    INT64_MAX,
    INT64_MIN,
    MAX_ID_BYTES,
    MAX_KEY_BYTES,
    NO_SEQ,
    EndMessage,
    HeartbeatMessage,
    Message,
    MessageStructsAndDecoders,
)
from sessionlake.protocol.reasons import Reason


class _MessageFault(Exception):  # noqa: N818 - control flow inside this module, which always catches it
    def __init__(self, reason: Reason) -> None:
        self.reason = reason


@dataclass(frozen=True, slots=True)
class ParsedMessage:
    """A well-formed message that was parsed.

    Attributes:
        message: The message struct.
        rescued: For each row, the JSON text of its undeclared columns, or None; None instead of the list if no row has
            any.
    """

    message: Message
    rescued: list[str | None] | None


def find_reason_to_refuse_key(key: bytes | None) -> Reason | None:
    """Returns the reason BAD_KEY if a message key is not a session id; else None.

    A session id is 1 to 256 bytes of UTF-8 without control characters.
    """
    if not key or len(key) > MAX_KEY_BYTES:
        return Reason.BAD_KEY
    try:
        text = key.decode()
    except UnicodeDecodeError:
        return Reason.BAD_KEY
    return Reason.BAD_KEY if any(unicodedata.category(c) == "Cc" for c in text) else None


def parse_message_value(
    value: bytes | None, types: MessageStructsAndDecoders, *, latest_ts: int, max_bytes: int, seq_optional: bool = False
) -> ParsedMessage | Reason:
    """Parses one Kafka value in JSON.

    Args:
        value: The value; None counts as malformed.
        types: The message structs of the declared columns.
        latest_ts: The highest event time allowed, in ms: the message's Kafka timestamp plus the allowed skew.
        max_bytes: The largest allowed size of the value.
        seq_optional: True if the seq may be absent. It is then `NO_SEQ` in the result.

    Returns:
        The message; if it is malformed, the reason. Of several reasons, the first in the order of `Reason`.
    """
    try:
        return _build_parsed_message(_load_json_value(value, max_bytes), types, latest_ts, seq_optional=seq_optional)
    except _MessageFault as refused:
        return refused.reason


def parse_decoded_message(
    json_object: dict[str, Any], types: MessageStructsAndDecoders, *, latest_ts: int, seq_optional: bool = False
) -> ParsedMessage | Reason:
    """Checks a message that was decoded from Avro or Protobuf, and builds its struct.

    Args:
        json_object: The message as the equivalent JSON object.
        types: The message structs of the declared columns.
        latest_ts: The highest event time allowed, in ms: the message's Kafka timestamp plus the allowed skew.
        seq_optional: True if the seq may be absent. It is then `NO_SEQ` in the result.

    Returns:
        The message; if it is malformed, the reason. Of several reasons, the first in the order of `Reason`.
    """
    try:
        return _build_parsed_message(json_object, types, latest_ts, seq_optional=seq_optional)
    except _MessageFault as refused:
        return refused.reason


def _load_json_value(value: bytes | None, max_bytes: int) -> Any:
    """Parses the JSON of a Kafka value. Raises `_MessageFault` with the reason if that is not possible."""
    if value is None:
        raise _MessageFault(Reason.NOT_JSON)
    if len(value) > max_bytes:
        raise _MessageFault(Reason.TOO_LARGE)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise _MessageFault(Reason.NOT_UTF8) from None
    try:
        return parse_json(text)
    except InvalidJsonError as error:
        raise _MessageFault(error.reason) from None


def _build_parsed_message(
    json_value: Any, types: MessageStructsAndDecoders, latest_ts: int, *, seq_optional: bool
) -> ParsedMessage:
    """Checks a message in JSON form, and builds its struct. Raises `_MessageFault` if it is malformed."""
    if not isinstance(json_value, dict):
        raise _MessageFault(Reason.NOT_OBJECT)
    kind = json_value.get("type")
    if kind not in ("snapshot", "update", "heartbeat", "end"):
        raise _MessageFault(Reason.BAD_TYPE)
    ts, seq = json_value.get("ts"), json_value.get("seq")
    if seq_optional and "seq" not in json_value:
        seq = NO_SEQ
    elif type(seq) is not int or not 0 <= seq <= INT64_MAX:
        raise _MessageFault(Reason.BAD_SEQ)
    if type(ts) is not int or not INT64_MIN <= ts <= INT64_MAX:
        raise _MessageFault(Reason.BAD_TS)
    if ts > latest_ts:
        raise _MessageFault(Reason.FUTURE_TS)
    if kind == "heartbeat":
        return ParsedMessage(HeartbeatMessage(seq, ts), None)
    if kind == "end":
        return ParsedMessage(EndMessage(seq, ts), None)
    rows = _read_rows(json_value, required=kind == "snapshot")
    deleted = _read_deleted_ids(json_value) if kind == "update" else []
    _require_valid_row_ids(rows)
    parsed = [_build_row_struct(row, types) for row in rows]
    rescued = [encode_undeclared_fields(row, types.columns) for row in rows]
    message = types.snapshot(seq, ts, parsed) if kind == "snapshot" else types.update(seq, ts, parsed, deleted)
    return ParsedMessage(message, rescued if any(rescued) else None)


def _read_rows(json_object: dict[str, Any], *, required: bool) -> list[dict[str, Any]]:
    if "rows" not in json_object and not required:
        return []
    rows = json_object.get("rows")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise _MessageFault(Reason.BAD_ROWS)
    return rows


def _read_deleted_ids(json_object: dict[str, Any]) -> list[str]:
    deleted = json_object.get("deleted", [])
    if not isinstance(deleted, list) or not all(_is_valid_row_id(item) for item in deleted):
        raise _MessageFault(Reason.BAD_ROWS)
    return deleted


def _require_valid_row_ids(rows: list[dict[str, Any]]) -> None:
    """Raises `_MessageFault` if a row has no valid id, or if two rows have the same id."""
    if not all(_is_valid_row_id(row.get("id")) for row in rows):
        raise _MessageFault(Reason.BAD_ROW_ID)
    if len({row["id"] for row in rows}) != len(rows):
        raise _MessageFault(Reason.DUPLICATE_ROW_ID)


def _is_valid_row_id(value: Any) -> bool:
    return isinstance(value, str) and 1 <= len(value.encode()) <= MAX_ID_BYTES


def _build_row_struct(row: dict[str, Any], types: MessageStructsAndDecoders) -> Any:
    values = [
        _require_value_of_column_type(row.get(column.name, UNSET), column)
        for column in types.columns
        if column.name != ID
    ]
    return types.row(row[ID], *values)


def _require_value_of_column_type(value: Any, column: Column) -> Any:
    """Returns the value of a column if it has the column's type. Raises `_MessageFault` otherwise.

    Only an integer in a column of floats or doubles is converted.
    """
    if value is UNSET or value is None:
        return value
    if column.json_type is JsonType.BOOLEAN and isinstance(value, bool):
        return value
    if column.json_type is JsonType.STRING and isinstance(value, str):
        return value
    if (
        type(value) is int
        and column.json_type is JsonType.INTEGER
        and -(2 ** (column.bits - 1)) <= value < 2 ** (column.bits - 1)
    ):
        return value
    if type(value) in (int, float) and column.json_type is JsonType.NUMBER:
        return _require_finite_number(value, column)
    raise _MessageFault(Reason.BAD_COLUMN)


def _require_finite_number(value: float, column: Column) -> float:
    """Returns a number as a finite double, rounded if the column's type is `float`.

    Raises `_MessageFault` if it is out of range.
    """
    try:
        number = float(value)
        if not math.isfinite(number):  # JSON has no NaN or infinity, but Avro and Protobuf do
            raise _MessageFault(Reason.BAD_COLUMN)
        # Only packing in a stated byte order raises an error for a value beyond a float.
        return struct.unpack("<f", struct.pack("<f", number))[0] if column.sql == "float" else number
    except OverflowError:
        raise _MessageFault(Reason.BAD_COLUMN) from None


def encode_undeclared_fields(row: dict[str, Any], columns: tuple[Column, ...]) -> str | None:
    """Returns a row's undeclared columns as JSON text with sorted names; None if it has none."""
    known = {ID} | {column.name for column in columns}
    extra = {name: value for name, value in row.items() if name not in known}
    if not extra:
        return None
    return json.dumps(extra, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
