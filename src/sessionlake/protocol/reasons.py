"""The closed list of reasons why a message goes to `silver.quarantine` instead of its session's table."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """Why a message is in `silver.quarantine`. If several reasons apply, the first in this order is recorded."""

    BAD_KEY = "bad_key"
    FUTURE_KAFKA_TS = "future_kafka_ts"
    TOO_LARGE = "too_large"
    NOT_UTF8 = "not_utf8"
    TOO_DEEP = "too_deep"
    NOT_JSON = "not_json"
    NOT_OBJECT = "not_object"
    BAD_TYPE = "bad_type"
    BAD_SEQ = "bad_seq"
    BAD_TS = "bad_ts"
    FUTURE_TS = "future_ts"
    BAD_ROWS = "bad_rows"
    BAD_ROW_ID = "bad_row_id"
    DUPLICATE_ROW_ID = "duplicate_row_id"
    BAD_COLUMN = "bad_column"
    # From judging a well-formed message:
    LATE = "late"
    SESSION_BROKEN = "session_broken"
    ORPHAN = "orphan"
    GAP = "gap"
    AFTER_END = "after_end"
    HELD_LIMIT = "held_limit"
    GAP_LIMIT = "gap_limit"
    SKIPPED = "skipped"  # by an operator's decision
    # From Avro and Protobuf payloads, in place of not_utf8 to not_object:
    NOT_AVRO = "not_avro"
    NOT_PROTOBUF = "not_protobuf"
    UNKNOWN_SCHEMA = "unknown_schema"
    # From a feed (`feeds.interpret`):
    TOMBSTONE = "tombstone"
    NO_RULE = "no_rule"
    BAD_PATH = "bad_path"
    BAD_VALUE = "bad_value"


MEANINGS: dict[Reason, str] = {
    Reason.BAD_KEY: "The key is not a session id: 1 to 256 bytes of UTF-8 without control characters",
    Reason.FUTURE_KAFKA_TS: "The Kafka timestamp is more than max_future_skew ahead of ingested_at",
    Reason.TOO_LARGE: "The message has more than capture.max_message_bytes",
    Reason.NOT_UTF8: "The value is not UTF-8",
    Reason.TOO_DEEP: "Brackets outside strings are nested more than 64 levels",
    Reason.NOT_JSON: "The value is not JSON",
    Reason.NOT_OBJECT: "The value is JSON, but not an object",
    Reason.BAD_TYPE: "The field type is missing or unknown",
    Reason.BAD_SEQ: "The field seq is missing, or not an integer in range",
    Reason.BAD_TS: "The field ts is missing, or not an integer in range",
    Reason.FUTURE_TS: "The field ts is more than max_future_skew ahead of the Kafka timestamp",
    Reason.BAD_ROWS: "The field rows is not a list of objects, or deleted is not a list of ids",
    Reason.BAD_ROW_ID: "The id of a row is not a string of 1 to 1,024 bytes",
    Reason.DUPLICATE_ROW_ID: "Two rows of the message have the same id",
    Reason.BAD_COLUMN: "The value of a declared column has another type, or is out of range",
    Reason.LATE: "Class window: ts is more than lateness behind the session's latest",
    Reason.SESSION_BROKEN: "The session broke its class at an earlier message, and waits for a snapshot",
    Reason.ORPHAN: "The session has no snapshot yet, and its class needs one",
    Reason.GAP: "Messages before this one are missing, which the class does not allow",
    Reason.AFTER_END: "The session has already sent its message end",
    Reason.HELD_LIMIT: "The session would hold back more than max_held_messages or max_held_bytes",
    Reason.GAP_LIMIT: "The session would have more than max_gaps open gaps",
    Reason.SKIPPED: "An operator decided to skip the message",
    Reason.NOT_AVRO: "The value cannot be decoded as Avro",
    Reason.NOT_PROTOBUF: "The value cannot be decoded as Protobuf",
    Reason.UNKNOWN_SCHEMA: "The schema of the message is not registered, or too large",
    Reason.TOMBSTONE: "The message has no value, and no rule of the feed is for that",
    Reason.NO_RULE: "No rule of the feed matches the message",
    Reason.BAD_PATH: "A value that the feed needs is missing",
    Reason.BAD_VALUE: "A value that the feed reads does not fit its column's type",
}
"""What each reason means, for the page of tables."""

# The code of a reason in chunks; 0 means none. Stored states have no codes, so the numbers may change.
CODES: tuple[Reason | None, ...] = (None, *Reason)
CODE_OF: dict[Reason, int] = {reason: code for code, reason in enumerate(CODES) if reason is not None}
