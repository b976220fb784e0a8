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


# The code of a reason in chunks; 0 means none. Stored states have no codes, so the numbers may change.
CODES: tuple[Reason | None, ...] = (None, *Reason)
CODE_OF: dict[Reason, int] = {reason: code for code, reason in enumerate(CODES) if reason is not None}
