"""A feed whose columns have every type, messages for it, and the tables that these messages make."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sessionlake.feeds.events import MessageRefusal
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage

TOPIC = "feed.typed"
NOW = 1_700_000_000_000

TYPES: dict[str, Any] = {
    "id": "string",
    "flag": "boolean",
    "tiny": "tinyint",
    "small": "smallint",
    "whole": "int",
    "big": "bigint",
    "half": "float",
    "price": "double",
    "note": "string",
    "total": "decimal(20,4)",
    "cents": "decimal(5,2)",
    "wide": {"type": "decimal(38,10)", "from": "text"},
    "day": "date",
    "moment": "timestamp",
    "local": "timestamp_ntz",
    "raw": {"type": "binary", "from": "base64"},
    "doc": "variant",
    "tags": "array<string>",
    "shares": "array<decimal(10,2)>",
    "moments": "array<timestamp>",
    "blobs": {"type": "array<binary>", "from": "base64"},
    "grid": "array<array<int>>",
}
"""The columns of the feed. `id` is the key."""
_NOON = datetime(2026, 1, 2, 12, 0, 0, 1, tzinfo=UTC)
_FIRST, _LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, 23, 59, 59, 999_999, tzinfo=UTC)
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, 127],
    "smallint": [-(2**15), 2**15 - 1],
    "int": [-(2**31), 2**31 - 1],
    "bigint": [-(2**63), 2**63 - 1],
    "float": [1.5, -0.25],
    "double": [0.1, -1e300],
    "string": ["", "\U0001f600"],
    "decimal(5,2)": [Decimal("-999.99"), Decimal("0.10")],
    "decimal(18,18)": [Decimal("0.000000000000000001"), Decimal("-0.999999999999999999")],
    "decimal(38,10)": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")],
    "date": [_FIRST.date(), _LAST.date(), date(1969, 12, 31)],
    "timestamp": [_FIRST, _LAST, _NOON],
    "timestamp_ntz": [_FIRST.replace(tzinfo=None), _LAST.replace(tzinfo=None), _NOON.replace(tzinfo=None)],
    "binary": [b"", b"\xff\x00", b"text"],
    "array<string>": [[], ["a", None], ["\U0001f600"]],
    "array<decimal(38,10)>": [[Decimal("-0.0000000001"), None], []],
    "array<timestamp>": [[_LAST, None], [_FIRST]],
    "array<binary>": [[b"", None, b"\xff"], []],
    "array<array<int>>": [[[1, None], None, []], [[-(2**31)]]],
}
"""Values of each type that a feed's column can have."""
LATER: dict[str, Any] = {"later": "decimal(12,3)", "times": "array<timestamp_ntz>"}
"""Columns that the feed declares later."""

FEED: dict[str, Any] = {
    "name": "typed",
    "topics": r"feed\.typed",
    "session": "s",
    "key": ["id"],
    "columns": TYPES,
    "time": {"path": "t"},
    "order": {"seq": "n"},
    "messages": [
        {"when": {"kind": "all"}, "is": "snapshot", "rows": [{"each": "rows[*]", "row": "all"}]},
        {
            "when": {"kind": "some"},
            "is": "update",
            "rows": [{"each": "rows[*]", "row": "all"}, {"each": "gone[*]", "row": {"id": "."}, "delete": True}],
        },
    ],
}


@dataclass(frozen=True)
class Number:
    """A number with exactly these digits in JSON."""

    digits: str


def capture(columns: dict[str, Any] = TYPES) -> CaptureSettings:
    """The rules of capture with this feed."""
    feed = FeedSettings.model_validate(FEED | {"columns": columns})
    return CaptureSettings(session_timeout=timedelta(days=365), feeds=(feed,))


def value_of(rnd: random.Random, sql: str) -> Any:
    """A value of this type as a message has it, of which one in eight is at an end of the type's range."""
    end = rnd.random() < 0.125
    if sql.startswith("array<"):
        inner = sql.removeprefix("array<").removesuffix(">")
        return [None if rnd.random() < 0.2 else value_of(rnd, inner) for _ in range(rnd.randrange(4))]
    if sql.startswith("decimal("):
        precision, scale = map(int, sql.removeprefix("decimal(").removesuffix(")").split(","))
        digits = "9" * precision if end else str(rnd.randrange(10 ** min(precision, 7))).zfill(scale + 1)
        sign = "-" * rnd.randrange(2)
        return Number(f"{sign}{digits[: len(digits) - scale] or '0'}.{digits[len(digits) - scale :]}")
    return _SIMPLE[sql](rnd, end)


def _integer(bits: int) -> Any:
    top = 1 << (bits - 1)
    return lambda rnd, end: rnd.choice([-top, top - 1]) if end else rnd.randrange(-100, 100)


def _time(rnd: random.Random, end: bool) -> datetime:
    if end:
        return datetime.fromisoformat(rnd.choice(["0001-01-02", "9999-12-30T23:59:59.999999", "1969-12-31T23:00:00"]))
    return datetime.fromisoformat("2024-01-01") + timedelta(microseconds=rnd.randrange(10**15))


_SIMPLE: dict[str, Any] = {
    "boolean": lambda rnd, _: rnd.random() < 0.5,
    "tinyint": _integer(8),
    "smallint": _integer(16),
    "int": _integer(32),
    "bigint": _integer(64),
    "float": lambda rnd, _: rnd.randrange(-1000, 1000) / 8,
    "double": lambda rnd, _: rnd.randrange(-1000, 1000) / 7,
    "string": lambda rnd, end: "" if end else rnd.choice(["x", "ä\n€", "\U0001f600", '"quoted"']),
    "date": lambda rnd, end: _time(rnd, end).date().isoformat(),
    "timestamp": lambda rnd, end: _time(rnd, end).replace(tzinfo=UTC).isoformat(),
    "timestamp_ntz": lambda rnd, end: _time(rnd, end).isoformat(),
    "binary": lambda rnd, end: base64.b64encode(b"" if end else rnd.randbytes(rnd.randrange(1, 9))).decode(),
    "variant": lambda rnd, end: rnd.choice([{"a": [1, None]}, "text", 7, [], True]) if not end else {},
}


def encode(value: Any) -> str:
    """JSON text, in which each `Number` has its digits."""
    if isinstance(value, Number):
        return value.digits
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(name)}:{encode(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(encode, value)) + "]"
    return json.dumps(value)


def row_of(rnd: random.Random, name: str, columns: dict[str, Any]) -> dict[str, Any]:
    """A row in which some columns are absent and some null."""
    row: dict[str, Any] = {"id": name}
    for column, given in columns.items():
        sql = given if isinstance(given, str) else given["type"]
        if column == "id" or rnd.random() < 0.25:
            continue
        value = value_of(rnd, sql)
        if isinstance(value, Number) and not isinstance(given, str):
            value = value.digits
        row[column] = None if rnd.random() < 0.1 else value
    return row


def messages(seed: int, count: int, sessions: int = 3, later_from: int = 1 << 40) -> list[KafkaMessage]:
    """Messages of some sessions, in the order of their offsets: a snapshot of each, then updates and snapshots.

    From offset `later_from` on, rows have the columns `LATER`, too.
    """
    rnd = random.Random(seed)
    made, seqs = [], [0] * sessions
    for offset in range(count):
        session = offset % sessions if offset < sessions else rnd.randrange(sessions)
        whole = seqs[session] == 0 or rnd.random() < 0.05
        names = rnd.sample([f"r{i}" for i in range(6)], 3)
        body = {"kind": "all" if whole else "some", "s": f"s{session}", "n": seqs[session], "t": NOW + offset * 1000}
        columns = TYPES if offset < later_from else TYPES | LATER
        gone = [] if whole or rnd.random() < 0.7 else [f"r{rnd.randrange(6)}"]
        value = encode(body | {"rows": [row_of(rnd, name, columns) for name in names], "gone": gone})
        made.append(KafkaMessage(TOPIC, 0, offset, NOW + offset * 1000, b"k", value.encode()))
        seqs[session] += 1
    return made


def fold(found: Iterable[KafkaMessage], rules: CaptureSettings) -> dict[str, dict[str, dict[str, Any]]]:
    """The rows of each session by row id, as the definition of a feed's table gives them."""
    feed = rules.feeds[0].build()
    tables: dict[str, SessionTable] = {}
    for message in found:
        place = (message.topic, message.partition, message.offset, message.timestamp, message.key, message.value)
        decoded = read_record(feed, KafkaRecord(*place))
        assert not isinstance(decoded, MessageRefusal), decoded
        for event in decoded.events:
            tables.setdefault(event.session, SessionTable(feed)).apply_event(event)
    return {session: table.rows for session, table in tables.items()}


def flat(tables: dict[str, dict[str, dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """The rows of all sessions, with `session_id` and `row_id`."""
    for session, rows in sorted(tables.items()):
        for name, row in sorted(rows.items()):
            yield {"session_id": session, "row_id": name, **row}
