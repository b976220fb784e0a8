"""Malformed messages for every reason in the protocol, and valid messages in unusual forms.

Each malformed text is made from valid fields and breaks exactly one rule. The reasons are those of `silver.quarantine`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sessionlake.protocol.columns import Column, JsonType
from sessionlake_lab.simulate.rows import encode_column_name_as_json

MAX_DEPTH = 64
MAX_KEY = 256
MAX_ROW_ID = 1024
INT64 = 2**63


@dataclass(frozen=True)
class ValidMessage:
    """The valid message from which a malformed one is made.

    Attributes:
        key: Its key, the session id.
        seq: Its sequence number.
        ts: Its event time in milliseconds.
        row: A valid row as JSON.
        timestamp: Its Kafka timestamp in milliseconds.
        limit: Size of the largest allowed value in bytes.
        skew: How far an event time may be after the Kafka timestamp, in milliseconds.
    """

    key: bytes
    seq: int
    ts: int
    row: bytes
    timestamp: int
    limit: int
    skew: int


KeyAndValue = tuple[bytes | None, bytes]
MalformedVariant = tuple[str, Callable[[ValidMessage], KeyAndValue]]
"""A way to break a message: the quarantine reason, and a function that returns the malformed key and value."""


def list_malformed_message_variants(columns: Sequence[Column], *, too_large: bool) -> list[MalformedVariant]:
    """Returns all ways to break a message, with alternating reasons.

    Args:
        columns: The declared columns. There is a variant for each wrong value of each column's type.
        too_large: True to include a value that exceeds the limit by one byte. It may have megabytes.

    Returns:
        Pairs of a quarantine reason, and a function that makes the key and value of a malformed message from a valid
        one.
    """
    found = [
        *_list_variants_with_bad_keys(),
        *_list_variants_with_bad_json(),
        *_list_variants_with_bad_type_seq_or_ts(),
        *_list_variants_with_bad_rows(),
        *_list_variants_with_bad_column_values(columns),
    ]
    if too_large:
        found.append(("too_large", lambda v: (v.key, _format_message(v).ljust(v.limit + 1))))
    return _alternate_between_reasons(found)


def list_unusual_valid_forms() -> list[Callable[[bytes], bytes]]:
    """Returns functions that rewrite a message, which is JSON without spaces, without changing its meaning."""
    return [
        lambda value: b" \r\n\t" + value.replace(b',"', b' ,\r\n\t "') + b"\n ",
        lambda value: b'{"v":{"source":["sim",1e3]},' + value[1:],
        lambda value: (
            b'{"seq":"not the last","ts":null,"rows":7,"type":"end",' + value[1:] if b'"rows"' in value else value
        ),
        lambda value: value.replace(b'"type"', b'"\\u0074ype"', 1),
        lambda value: value.replace(b'"seq":', b'"comment":"\\ud83d\\ude00 {\\"seq\\":-1}","seq":', 1),
    ]


def _alternate_between_reasons(variants_by_reason: list[MalformedVariant]) -> list[MalformedVariant]:
    """Returns variants in another order: the first one of every reason, then the second one of every reason, …."""
    seen: dict[str, int] = {}
    ranked = []
    for variant in variants_by_reason:
        seen[variant[0]] = seen.get(variant[0], 0) + 1
        ranked.append((seen[variant[0]], variant))
    return [variant for _, variant in sorted(ranked, key=lambda pair: pair[0])]


def _list_variants_with_bad_keys() -> list[MalformedVariant]:
    """Returns ways to break a message by its key: missing, empty, too long, not UTF-8, or with control characters."""
    keys: tuple[bytes | None, ...] = (
        None,
        b"",
        b"k" * (MAX_KEY + 1),
        b"\xff\xfe",
        b"two\nlines",
        b"nul\x00",
        b"c1-\xc2\x85",
    )
    return [("bad_key", partial(_build_message_with_bad_key, key)) for key in keys]


def _list_variants_with_bad_json() -> list[MalformedVariant]:
    """Returns ways to break a message by a value that is not UTF-8 or JSON, nests too deep, or is no object."""
    deep = (b'"x":' + b"[" * MAX_DEPTH + b"]" * MAX_DEPTH, b'"x":' + b'{"y":' * MAX_DEPTH + b"1" + b"}" * MAX_DEPTH)
    wrong = (
        b'"x":NaN',
        b'"x":-Infinity',
        b'"x":1e999',
        b'"x":"a\tb"',
        b'"x":"\\ud800"',
        b'"x":01',
        b"'x':1",
        b'"x":1,',
    )
    return [
        ("not_utf8", lambda v: (v.key, _format_message(v).replace(b"update", b"upd\xe4te"))),
        ("not_utf8", lambda v: (v.key, b"\xff\xfe" + _format_message(v))),
        ("not_json", lambda v: (v.key, b"")),
        ("not_json", lambda v: (v.key, _format_message(v)[:-1])),
        ("not_json", lambda v: (v.key, _format_message(v) + b"}")),
        ("not_json", lambda v: (v.key, b"sensor rebooting")),
        *_make_malformed_variants("not_json", wrong, _add_unknown_field),
        *_make_malformed_variants("too_deep", deep, _add_unknown_field),
        ("not_object", lambda v: (v.key, b"[" + _format_message(v) + b"]")),
        *_make_malformed_variants("not_object", (b'"heartbeat"', b"42", b"null", b"true"), lambda _, text: text),
    ]


def _list_variants_with_bad_type_seq_or_ts() -> list[MalformedVariant]:
    """Returns ways to break a message by an invalid type, seq or ts."""
    kinds = (b"", b'"type":"Update"', b'"type":"delete"', b'"type":null', b'"type":1', b'"type":["update"]')
    # A missing seq is invalid only for some classes, so it is the last variant.
    seqs = (
        b'"seq":-1',
        b'"seq":1.0',
        b'"seq":1e0',
        b'"seq":"7"',
        b'"seq":true',
        b'"seq":null',
        b'"seq":%d' % INT64,
        b"",
    )
    times = (
        b"",
        b'"ts":"now"',
        b'"ts":1.7e12',
        b'"ts":null',
        b'"ts":false',
        b'"ts":%d' % INT64,
        b'"ts":%d' % (-INT64 - 1),
    )
    return [
        *_make_malformed_variants("bad_type", kinds, lambda v, text: _format_message(v, kind=text)),
        *_make_malformed_variants("bad_seq", seqs, lambda v, text: _format_message(v, seq=text)),
        *_make_malformed_variants("bad_ts", times, lambda v, text: _format_message(v, ts=text)),
        ("future_ts", lambda v: (v.key, _format_message(v, ts=b'"ts":%d' % (v.timestamp + v.skew + 1)))),
        ("future_ts", lambda v: (v.key, _format_message(v, ts=b'"ts":%d' % (INT64 - 1)))),
    ]


def _list_variants_with_bad_rows() -> list[MalformedVariant]:
    """Returns ways to break a message by invalid `rows`, `deleted` or row ids."""
    lists = (b'"rows":null', b'"rows":{}', b'"rows":"r0"', b'"rows":[null]', b'"rows":[[]]')
    deletions = (b"null", b'"r0"', b"[1]", b'[""]', b'["%b"]' % (b"d" * (MAX_ROW_ID + 1)))
    ids = (b"{}", b'{"id":null}', b'{"id":7}', b'{"id":""}', b'{"id":"%b"}' % (b"r" * (MAX_ROW_ID + 1)), b'{"ID":"r0"}')
    return [
        *_make_malformed_variants("bad_rows", lists, lambda v, text: _format_message(v, body=text)),
        *_make_malformed_variants("bad_rows", deletions, lambda v, text: _format_message(v, body=b'"deleted":' + text)),
        ("bad_rows", lambda v: (v.key, _format_message(v, kind=b'"type":"snapshot"', body=b""))),
        *_make_malformed_variants("bad_row_id", ids, lambda v, text: _format_message(v, body=b'"rows":[%b]' % text)),
        ("duplicate_row_id", lambda v: (v.key, _format_message(v, body=b'"rows":[%b,%b]' % (v.row, v.row)))),
    ]


def _list_variants_with_bad_column_values(columns: Sequence[Column]) -> list[MalformedVariant]:
    """Returns ways to break a message by a value of the wrong type in one column of a row."""
    cells = [
        b"%b:%b" % (encode_column_name_as_json(column.name), text)
        for column in columns
        for text in _list_values_of_wrong_type(column)
    ]
    return _make_malformed_variants(
        "bad_column", cells, lambda v, text: _format_message(v, body=b'"rows":[{"id":"r0",%b}]' % text)
    )


def _make_malformed_variants(
    reason: str, texts: Sequence[bytes], build_value: Callable[[ValidMessage, bytes], bytes]
) -> list[MalformedVariant]:
    """Returns a way to break a message for each text: `build_value(valid_message, text)` returns the value."""
    return [(reason, partial(_build_message_with_bad_value, build_value, text)) for text in texts]


def _build_message_with_bad_value(
    build_value: Callable[[ValidMessage, bytes], bytes], text: bytes, valid_message: ValidMessage
) -> KeyAndValue:
    """Returns a valid key, and the value that `build_value` makes from the valid message and a text."""
    return valid_message.key, build_value(valid_message, text)


def _build_message_with_bad_key(key: bytes | None, valid_message: ValidMessage) -> KeyAndValue:
    """Returns the key, which is not allowed, and a valid value."""
    return key, _format_message(valid_message)


def _list_values_of_wrong_type(column: Column) -> list[bytes]:
    """Returns values as JSON text that do not fit the column's type."""
    if column.json_type is JsonType.STRING:
        return [b"7", b"true", b'["OPEN"]']
    if column.json_type is JsonType.BOOLEAN:
        return [b"1", b'"true"', b"{}"]
    if column.json_type is JsonType.NUMBER:
        beyond = [b"1e39"] if column.sql == "float" else []
        return [b'"7"', b"true", b"[1.5]", *beyond]
    return [b'"7"', b"1.0", b"false", b"2.5", b"%d" % 2 ** (column.bits - 1), b"%d" % (-(2 ** (column.bits - 1)) - 1)]


def _format_message(
    valid_message: ValidMessage,
    *,
    kind: bytes = b'"type":"update"',
    seq: bytes | None = None,
    ts: bytes | None = None,
    body: bytes | None = None,
) -> bytes:
    """Returns a message as JSON text.

    Args:
        valid_message: Supplies the fields that are None.
        kind, seq, ts: The field with its name, such as `"seq":7`. An empty one is left out.
        body: The fields of the rows with their names, such as `"rows":[]`. Left out if empty.
    """
    parts = (
        kind,
        b'"seq":%d' % valid_message.seq if seq is None else seq,
        b'"ts":%d' % valid_message.ts if ts is None else ts,
        b'"rows":[%b]' % valid_message.row if body is None else body,
    )
    return b"{" + b",".join(part for part in parts if part) + b"}"


def _add_unknown_field(valid_message: ValidMessage, field: bytes) -> bytes:
    """Returns the valid message with a further field at its start, such as `"x":NaN`, whose value is not allowed."""
    return b"{" + field + b"," + _format_message(valid_message)[1:]
