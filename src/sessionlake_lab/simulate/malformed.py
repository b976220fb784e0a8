"""What is not a message, in every way that the protocol names, and what is one although it looks odd.

The texts are made from healthy fields, so that each breaks exactly one rule; reasons are named as
`silver.quarantine` names them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sessionlake.protocol.columns import Column, JsonType
from sessionlake_lab.simulate.rows import json_name

MAX_DEPTH = 64
MAX_KEY = 256
MAX_ROW_ID = 1024
INT64 = 2**63


@dataclass(frozen=True)
class Victim:
    """The healthy message that a malformed one imitates.

    Attributes:
        key: its session.
        seq: its sequence number.
        ts: its event time, milliseconds.
        row: one healthy row of it, as JSON.
        timestamp: its Kafka timestamp, milliseconds.
        limit: largest value that is allowed, bytes.
        skew: how far ahead of its Kafka timestamp an event time may be, milliseconds.
    """

    key: bytes
    seq: int
    ts: int
    row: bytes
    timestamp: int
    limit: int
    skew: int


Broken = tuple[bytes | None, bytes]
Variant = tuple[str, Callable[[Victim], Broken]]


def variants(columns: Sequence[Column], *, too_large: bool) -> list[Variant]:
    """Every way to break a message, as (quarantine reason, maker of key and value); reasons take turns.

    Args:
        columns: the declared columns; each is broken in each way that its type allows.
        too_large: whether to include a value of one byte beyond the limit, which may be megabytes.
    """
    found = [*_bad_keys(), *_bad_texts(), *_bad_headers(), *_bad_rows(), *_bad_columns(columns)]
    if too_large:
        found.append(("too_large", lambda v: (v.key, _message(v).ljust(v.limit + 1))))
    return _in_turns(found)


def odd_forms() -> list[Callable[[bytes], bytes]]:
    """Rewritings of a compact message that change its text and not its meaning."""
    return [
        lambda value: b" \r\n\t" + value.replace(b',"', b' ,\r\n\t "') + b"\n ",
        lambda value: b'{"v":{"source":["sim",1e3]},' + value[1:],
        lambda value: (
            b'{"seq":"not the last","ts":null,"rows":7,"type":"end",' + value[1:] if b'"rows"' in value else value
        ),
        lambda value: value.replace(b'"type"', b'"\\u0074ype"', 1),
        lambda value: value.replace(b'"seq":', b'"comment":"\\ud83d\\ude00 {\\"seq\\":-1}","seq":', 1),
    ]


def _in_turns(found: list[Variant]) -> list[Variant]:
    """First one variant of every reason, then a second of every reason, and so on."""
    seen: dict[str, int] = {}
    ranked = []
    for variant in found:
        seen[variant[0]] = seen.get(variant[0], 0) + 1
        ranked.append((seen[variant[0]], variant))
    return [variant for _, variant in sorted(ranked, key=lambda pair: pair[0])]


def _bad_keys() -> list[Variant]:
    keys: tuple[bytes | None, ...] = (
        None,
        b"",
        b"k" * (MAX_KEY + 1),
        b"\xff\xfe",
        b"two\nlines",
        b"nul\x00",
        b"c1-\xc2\x85",
    )
    return [("bad_key", partial(_under_key, key)) for key in keys]


def _bad_texts() -> list[Variant]:
    """Bytes that are no JSON object at all."""
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
        ("not_utf8", lambda v: (v.key, _message(v).replace(b"update", b"upd\xe4te"))),
        ("not_utf8", lambda v: (v.key, b"\xff\xfe" + _message(v))),
        ("not_json", lambda v: (v.key, b"")),
        ("not_json", lambda v: (v.key, _message(v)[:-1])),
        ("not_json", lambda v: (v.key, _message(v) + b"}")),
        ("not_json", lambda v: (v.key, b"sensor rebooting")),
        *_each("not_json", wrong, _beside),
        *_each("too_deep", deep, _beside),
        ("not_object", lambda v: (v.key, b"[" + _message(v) + b"]")),
        *_each("not_object", (b'"heartbeat"', b"42", b"null", b"true"), lambda _, text: text),
    ]


def _bad_headers() -> list[Variant]:
    """Objects whose type, seq or ts is none."""
    kinds = (b"", b'"type":"Update"', b'"type":"delete"', b'"type":null', b'"type":1', b'"type":["update"]')
    # A missing seq is only bad where a class needs it: the last to take its turn.
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
        *_each("bad_type", kinds, lambda v, text: _message(v, kind=text)),
        *_each("bad_seq", seqs, lambda v, text: _message(v, seq=text)),
        *_each("bad_ts", times, lambda v, text: _message(v, ts=text)),
        ("future_ts", lambda v: (v.key, _message(v, ts=b'"ts":%d' % (v.timestamp + v.skew + 1)))),
        ("future_ts", lambda v: (v.key, _message(v, ts=b'"ts":%d' % (INT64 - 1)))),
    ]


def _bad_rows() -> list[Variant]:
    """Objects whose rows or deleted are none, or whose row ids are none."""
    lists = (b'"rows":null', b'"rows":{}', b'"rows":"r0"', b'"rows":[null]', b'"rows":[[]]')
    deletions = (b"null", b'"r0"', b"[1]", b'[""]', b'["%b"]' % (b"d" * (MAX_ROW_ID + 1)))
    ids = (b"{}", b'{"id":null}', b'{"id":7}', b'{"id":""}', b'{"id":"%b"}' % (b"r" * (MAX_ROW_ID + 1)), b'{"ID":"r0"}')
    return [
        *_each("bad_rows", lists, lambda v, text: _message(v, body=text)),
        *_each("bad_rows", deletions, lambda v, text: _message(v, body=b'"deleted":' + text)),
        ("bad_rows", lambda v: (v.key, _message(v, kind=b'"type":"snapshot"', body=b""))),
        *_each("bad_row_id", ids, lambda v, text: _message(v, body=b'"rows":[%b]' % text)),
        ("duplicate_row_id", lambda v: (v.key, _message(v, body=b'"rows":[%b,%b]' % (v.row, v.row)))),
    ]


def _bad_columns(columns: Sequence[Column]) -> list[Variant]:
    """Declared columns of another type: no value is cast."""
    cells = [b"%b:%b" % (json_name(column.name), text) for column in columns for text in _misfits(column)]
    return _each("bad_column", cells, lambda v, text: _message(v, body=b'"rows":[{"id":"r0",%b}]' % text))


def _each(reason: str, texts: Sequence[bytes], make: Callable[[Victim, bytes], bytes]) -> list[Variant]:
    return [(reason, partial(_under_own_key, make, text)) for text in texts]


def _under_own_key(make: Callable[[Victim, bytes], bytes], text: bytes, victim: Victim) -> Broken:
    return victim.key, make(victim, text)


def _under_key(key: bytes | None, victim: Victim) -> Broken:
    return key, _message(victim)


def _misfits(column: Column) -> list[bytes]:
    if column.json_type is JsonType.STRING:
        return [b"7", b"true", b'["OPEN"]']
    if column.json_type is JsonType.BOOLEAN:
        return [b"1", b'"true"', b"{}"]
    if column.json_type is JsonType.NUMBER:
        beyond = [b"1e39"] if column.sql == "float" else []
        return [b'"7"', b"true", b"[1.5]", *beyond]
    return [b'"7"', b"1.0", b"false", b"2.5", b"%d" % 2 ** (column.bits - 1), b"%d" % (-(2 ** (column.bits - 1)) - 1)]


def _message(
    victim: Victim,
    *,
    kind: bytes = b'"type":"update"',
    seq: bytes | None = None,
    ts: bytes | None = None,
    body: bytes | None = None,
) -> bytes:
    """A message of the given fields as JSON text (empty: absent), the victim's own where none is given."""
    parts = (
        kind,
        b'"seq":%d' % victim.seq if seq is None else seq,
        b'"ts":%d' % victim.ts if ts is None else ts,
        b'"rows":[%b]' % victim.row if body is None else body,
    )
    return b"{" + b",".join(part for part in parts if part) + b"}"


def _beside(victim: Victim, field: bytes) -> bytes:
    """The victim with a field that nobody reads, for texts that are wrong wherever they stand."""
    return b"{" + field + b"," + _message(victim)[1:]
