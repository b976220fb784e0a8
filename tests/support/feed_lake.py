"""A lake whose topics are read by two feeds: order books with many sessions in a message, and changes of a database.

The rows are compared with `SessionTable`, which defines the table of a feed's session.
"""

from __future__ import annotations

import base64
import json
import random
from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from operator import eq
from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, QUARANTINE, ROWS, SILVER
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.feeds.events import DecodedMessage, MessageRefusal
from sessionlake.feeds.reader import KafkaRecord, find_feed_of_topic, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake_lab.simulate.readback import read_all_messages
from support.lakes import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Row = dict[str, Any]
SessionKey = tuple[str, int, str]
Sent = tuple[str, bytes | None, bytes | None, int]
"""Topic, key, value and Kafka timestamp of a message to send."""
START = 1_700_000_000_000
SYMBOLS = ("BTC/USD", "ETH/USD", "ADA/EUR")
_SIDES = [
    {"each": f".{side}s[*]", "row": {"side": f"={side}", "price": ".[0]", "qty": ".[1]"}} for side in ("bid", "ask")
]


def books(prefix: str, **changed: Any) -> dict[str, Any]:
    """The feed of order books: each message has the books of several symbols."""
    return {
        "name": "books",
        "topics": rf"{prefix}\.books\..+",
        "session": ".symbol",
        "key": ["side", "price"],
        "columns": {
            "side": "string",
            "price": {"type": "decimal(12,2)", "from": "text"},
            "qty": {"type": "double", "from": "text"},
        },
        "time": {"path": "at"},
        "order": {"seq": "u", "rising": True},
        "messages": [
            {"when": {"event": "subscribed"}, "is": "ignore"},
            {
                "when": {"books": "present", ".full": True},
                "is": "snapshot",
                "split": {"each": "books[*]"},
                "rows": _SIDES,
            },
            {
                "when": {"books": "present"},
                "is": "update",
                "split": {"each": "books[*]"},
                "rows": [part | {"delete": {"qty": 0}} for part in _SIDES],
            },
        ],
    } | changed  # fmt: skip


def orders(prefix: str, **changed: Any) -> dict[str, Any]:
    """The feed of a database's changes, as Debezium sends them."""
    return {
        "name": "orders",
        "topics": rf"{prefix}\.shop\..+",
        "uses": "debezium",
        "key": ["id"],
        "columns": {
            "id": "bigint",
            "customer": "string",
            "total": {"type": "decimal(10,2)", "from": "base64"},
            "changed": {"type": "timestamp", "from": "epoch_us"},
        },
    } | changed


def capture_of(*feeds: dict[str, Any], **changed: Any) -> CaptureSettings:
    """Capture settings with these feeds, which isolate."""
    return CaptureSettings.model_validate({"feeds": list(feeds), "on_violation": "isolate"} | changed)


def message_of_books(number: int, *parts: Row, **changed: Any) -> bytes:
    """A message of the feed `books`."""
    return json.dumps({"u": number, "at": START + number, "books": list(parts)} | changed).encode()


def part_of(symbol: str, *, full: bool = False, bids: Any = (), asks: Any = ()) -> Row:
    """The book of one symbol in a message."""
    return {"symbol": symbol, "full": full, "bids": list(bids), "asks": list(asks)}


def change(op: str, after: Row | None = None, before: Row | None = None) -> bytes:
    """A message of the feed `orders`."""
    return json.dumps({"op": op, "before": before, "after": after, "source": {"ts_ms": START}, "ts_ms": START}).encode()


def order(number: int, customer: str, cents: int) -> Row:
    """A row of the database, as Debezium sends it."""
    total = base64.b64encode(cents.to_bytes(4, "big", signed=True)).decode()
    return {"id": number, "customer": customer, "total": total, "changed": START * 1000 + number, "extra": number}


def random_messages(prefix: str, rnd: random.Random, count: int, first: int = 0) -> list[Sent]:
    """Messages of both feeds: with several sessions, with none, and some that are refused.

    Args:
        prefix: Prefix of the topics' names.
        rnd: The source of randomness.
        count: Number of messages.
        first: Number of the first message. At 0 all books begin with a snapshot.
    """
    sent: list[Sent] = []
    for number in range(first, first + count):
        topic, at = f"{prefix}.books.{rnd.choice('ab')}", START + 100 * number
        if number == 0:
            for name in "ab":
                value = message_of_books(0, *(part_of(one, full=True, bids=[["1", "1"]]) for one in SYMBOLS))
                sent.append((f"{prefix}.books.{name}", None, value, at))
            continue
        match rnd.randrange(12):
            case 0:
                sent.append((topic, b"k", b'{"event": "subscribed"}', at))
            case 1:
                sent.append((topic, b"k", message_of_books(number, part_of(SYMBOLS[0], bids=[["x", "1"]])), at))
            case 2 | 3 | 4 | 5 | 6:
                some = rnd.sample(SYMBOLS, rnd.randrange(1, 4))
                sent.append((topic, None, message_of_books(number, *(_random_part(rnd, one) for one in some)), at))
            case _:
                sent.append((f"{prefix}.shop.orders", b"%d" % number, _random_change(rnd), at))
    return sent


def _random_part(rnd: random.Random, symbol: str) -> Row:
    sides = {
        side: [[f"{rnd.randrange(1, 6)}.{rnd.randrange(2)}0", str(rnd.randrange(4))] for _ in range(rnd.randrange(4))]
        for side in ("bids", "asks")
    }
    return part_of(symbol, full=rnd.random() < 0.1, **sides)


def _random_change(rnd: random.Random) -> bytes | None:
    row = order(rnd.randrange(8), rnd.choice("xyz"), rnd.randrange(-500, 500))
    op = rnd.choice("rcuuud ")
    if op == " ":
        return None
    return change(op, before={"id": row["id"]}) if op == "d" else change(op, row)


def send(settings: Settings, messages: Iterable[Sent]) -> None:
    """Sends messages to partition 0 of their topics."""
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for topic, key, value, at in messages:
        producer.produce(topic, value, key, 0, timestamp=at)
    assert producer.flush(30) == 0


def tables_of(settings: Settings, records: Iterable[KafkaRecord]) -> tuple[dict[SessionKey, SessionTable], list[Any]]:
    """Returns the table of each session by its definition; and place and reason of each refused message."""
    feeds = [feed.build() for feed in settings.capture.feeds]
    tables: dict[SessionKey, SessionTable] = {}
    refused = []
    for record in records:
        feed = find_feed_of_topic(feeds, record.topic)
        assert feed is not None
        found = read_record(feed, record)
        if isinstance(found, MessageRefusal):
            refused.append((record.topic, record.partition, record.offset, str(found.reason), record.value))
            continue
        assert isinstance(found, DecodedMessage)
        for event in found.events:
            place = (record.topic, record.partition, event.session)
            tables.setdefault(place, SessionTable(feed)).apply_event(event)
    return tables, refused


def assert_rows_are_the_definition(
    spark: SparkSession, settings: Settings, records: Iterable[KafkaRecord], *, ledger: bool = True
) -> None:
    """Checks rows and quarantine of silver against the definition.

    Args:
        spark: The session.
        settings: Settings of the lake.
        records: The messages that silver has read.
        ledger: True checks that the ledger accounts for all messages. After a rebuild it counts messages twice.
    """
    lake, records = Lake(settings), list(records)
    tables, refused = tables_of(settings, records)
    found: dict[SessionKey, dict[str, Row]] = defaultdict(dict)
    for row in rows_of(spark, lake, ROWS):
        feed = tables[row["topic"], row["partition"], row["session_id"]].feed
        session = found[row["topic"], row["partition"], row["session_id"]]
        session[row["row_id"]] = {name: row[name] for name in feed.columns}
    assert found == {place: table.rows for place, table in tables.items() if table.rows}
    held = rows_of(spark, lake, QUARANTINE)
    assert sorted((r["topic"], r["partition"], r["offset"], r["reason"], r["value"]) for r in held) == sorted(refused)
    entries = rows_of(spark, lake, LEDGER, ("layer", eq, SILVER))
    assert not ledger or sum(entry["messages"] for entry in entries) == len(records)
    assert all(entry[COUNTS[0]] == sum(entry[name] for name in COUNTS[1:]) for entry in entries)


def records_of_broker(settings: Settings) -> list[KafkaRecord]:
    """Returns all messages in the topics of the lake, as Kafka has them."""
    found = read_all_messages(settings)
    return [KafkaRecord(m.topic, m.partition, m.offset, m.timestamp, m.key, m.value) for m in found]


def euros(cents: int) -> Decimal:
    """Returns an amount as the feed `orders` stores it."""
    return Decimal(cents) / 100
