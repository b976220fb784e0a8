"""Parses Kafka messages, or names the reason why a message is malformed."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from sessionlake_lab.truth.model import CaptureRules, KafkaMessage
from sessionlake_lab.truth.text import JsonTooDeepError, NotJsonError, parse_json

MAX_KEY_BYTES = 256
MAX_ROW_ID_BYTES = 1024
MAX_INT64 = 2**63 - 1
NO_TIMESTAMP = -1
"""Kafka timestamp of a message whose producer set none, and stream time before any time is known."""
_TYPES = ("snapshot", "update", "heartbeat", "end")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")
"""All characters of the Unicode category Cc."""

ColumnTypeCheck = Callable[[Any], Any]


class MalformedMessageError(Exception):
    """The message is malformed. `reason` is a quarantine reason of the protocol."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class ParsedRow(NamedTuple):
    """One row of a message: its id, the declared columns that it sets, and the other columns as JSON text."""

    row_id: str
    values: dict[str, Any]
    rescued: str | None


class ParsedMessage(NamedTuple):
    """A well-formed message: the Kafka record and its parsed fields."""

    kafka: KafkaMessage
    session_id: str
    kind: str
    seq: int | None
    ts: int
    rows: list[ParsedRow]
    deleted: list[str]
    time: int
    """The message's Kafka timestamp in ms, or stream time if it has none."""


class MessageParser:
    """Parses messages of topics that have the same rules."""

    def __init__(self, rules: CaptureRules) -> None:
        self._rules = rules
        self._checks = {name: _CHECKS[spark_type] for name, spark_type in rules.columns.items()}
        self._known = {"id", *rules.columns}
        self._all_null = dict.fromkeys(rules.columns)

    def is_timestamp_too_far_ahead(self, message: KafkaMessage) -> bool:
        """Returns True if the Kafka timestamp is too far after the time at which bronze read the message."""
        ahead = 0 if message.ingested_at is None else message.timestamp - message.ingested_at
        return ahead > self._rules.max_future_skew_ms

    def parse_message(self, message: KafkaMessage, stream_time: int) -> ParsedMessage:
        """Returns the parsed message.

        Args:
            message: The Kafka record.
            stream_time: Stream time at its arrival, in ms.

        Raises:
            MalformedMessageError: The message is malformed. It has the first applicable reason in the protocol's order.
        """
        session_id = parse_session_id(message.key)
        if session_id is None:
            raise MalformedMessageError("bad_key")
        if self.is_timestamp_too_far_ahead(message):
            raise MalformedMessageError("future_kafka_ts")
        body = self._parse_json_object(message.value)
        kind = body.get("type")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise MalformedMessageError("bad_type")
        seq, ts = self._parse_seq(body), self._parse_event_time(body, message.timestamp)
        rows: list[ParsedRow] = []
        deleted: list[str] = []
        if kind in {"snapshot", "update"}:
            raw, deleted = _parse_rows_and_deleted_ids(body, kind)
            _require_unique_row_ids(raw)
            rows = [self._parse_row(row, kind) for row in raw]
        time = stream_time if message.timestamp == NO_TIMESTAMP else message.timestamp
        return ParsedMessage(message, session_id, kind, seq, ts, rows, deleted, time)

    def _parse_json_object(self, value: bytes | None) -> dict[str, Any]:
        """Returns the JSON object in a Kafka value. Any other or too large value raises MalformedMessageError."""
        if value is None:
            raise MalformedMessageError("not_json")
        if len(value) > self._rules.max_message_bytes:
            raise MalformedMessageError("too_large")
        try:
            body = parse_json(value.decode("utf-8"))
        except UnicodeDecodeError:
            raise MalformedMessageError("not_utf8") from None
        except NotJsonError:
            raise MalformedMessageError("not_json") from None
        except JsonTooDeepError:
            raise MalformedMessageError("too_deep") from None
        if not isinstance(body, dict):
            raise MalformedMessageError("not_object")
        return body

    def _parse_seq(self, body: dict[str, Any]) -> int | None:
        if "seq" not in body and self._rules.integrity == "none":
            return None
        seq = body.get("seq")
        if type(seq) is not int or not 0 <= seq <= MAX_INT64:
            raise MalformedMessageError("bad_seq")
        return seq

    def _parse_event_time(self, body: dict[str, Any], kafka_timestamp: int) -> int:
        ts = body.get("ts")
        if type(ts) is not int or not -MAX_INT64 - 1 <= ts <= MAX_INT64:
            raise MalformedMessageError("bad_ts")
        if kafka_timestamp != NO_TIMESTAMP and ts > kafka_timestamp + self._rules.max_future_skew_ms:
            raise MalformedMessageError("future_ts")
        return ts

    def _parse_row(self, row: dict[str, Any], kind: str) -> ParsedRow:
        """Returns a row. A snapshot sets absent columns to null, and an update leaves them as they are."""
        values = self._all_null.copy() if kind == "snapshot" else {}
        for name, check in self._checks.items():
            if name in row:
                value = row[name]
                values[name] = None if value is None else check(value)
        others = row.keys() - self._known
        rescued = _to_compact_json({name: row[name] for name in others}) if others else None
        return ParsedRow(row["id"], values, rescued)


@lru_cache(maxsize=65_536)
def parse_session_id(key: bytes | None) -> str | None:
    """Returns the session id in a Kafka key, or None if the key is not a valid session id."""
    if not key or len(key) > MAX_KEY_BYTES:
        return None
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return None if _CONTROL.search(text) else text


def _parse_rows_and_deleted_ids(body: dict[str, Any], kind: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Returns `rows` and `deleted` of a snapshot or update. In a snapshot, `deleted` is ignored as an unknown field."""
    rows: object = body.get("rows", [] if kind == "update" else None)
    deleted: object = body.get("deleted", []) if kind == "update" else []
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise MalformedMessageError("bad_rows")
    if not isinstance(deleted, list) or not all(_is_row_id(row_id) for row_id in deleted):
        raise MalformedMessageError("bad_rows")
    return rows, deleted


def _require_unique_row_ids(rows: list[dict[str, Any]]) -> None:
    """Raises MalformedMessageError unless each row has a valid id, and all ids are different."""
    if not all(_is_row_id(row.get("id")) for row in rows):
        raise MalformedMessageError("bad_row_id")
    if len({row["id"] for row in rows}) < len(rows):
        raise MalformedMessageError("duplicate_row_id")


def _is_row_id(value: object) -> bool:
    return isinstance(value, str) and 1 <= len(value.encode("utf-8")) <= MAX_ROW_ID_BYTES


def _to_compact_json(value: dict[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _require_boolean(value: object) -> bool:
    if type(value) is not bool:
        raise MalformedMessageError("bad_column")
    return value


def _require_string(value: object) -> str:
    if type(value) is not str:
        raise MalformedMessageError("bad_column")
    return value


def _create_integer_type_check(bits: int) -> ColumnTypeCheck:
    """Returns a function that returns integers of up to `bits` bits, and raises MalformedMessageError otherwise."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def require_integer_in_range(value: object) -> int:
        if type(value) is not int or not low <= value <= high:
            raise MalformedMessageError("bad_column")
        return value

    return require_integer_in_range


def _convert_to_double(value: object) -> float:
    """Returns a number as a double. Any other value, or a double that is not finite, raises MalformedMessageError."""
    if type(value) is not float and type(value) is not int:
        raise MalformedMessageError("bad_column")
    try:
        return float(value)
    except OverflowError:
        raise MalformedMessageError("bad_column") from None


def _convert_to_float32(value: object) -> float:
    """Returns the 32-bit float nearest to a number. Raises MalformedMessageError if there is none."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", _convert_to_double(value)))[0]
    except OverflowError:
        raise MalformedMessageError("bad_column") from None
    return rounded


_CHECKS: Mapping[str, ColumnTypeCheck] = {
    "boolean": _require_boolean,
    "tinyint": _create_integer_type_check(8),
    "smallint": _create_integer_type_check(16),
    "int": _create_integer_type_check(32),
    "bigint": _create_integer_type_check(64),
    "float": _convert_to_float32,
    "double": _convert_to_double,
    "string": _require_string,
}
