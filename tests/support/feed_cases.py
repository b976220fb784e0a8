"""Feeds and messages that tests of feeds share. The frames are made by hand, after what the senders document."""

from __future__ import annotations

import json
from typing import Any

import yaml

from sessionlake.feeds.feed import Feed
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.settings.feeds import FeedSettings

BOOK = """
name: book
topics: 'feed\\.book\\..+'
session: s
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: {type: "decimal(24,10)", from: text}}
time: {path: t}
order: {seq: u, after: pu}
messages:
  - {when: {type: snapshot}, is: snapshot, restart: true, rows: [
      {each: "bids[*]", row: {side: =bid, price: ".[0]", qty: ".[1]"}},
      {each: "asks[*]", row: {side: =ask, price: ".[0]", qty: ".[1]"}}]}
  - {when: {type: [change, delta]}, is: update, rows: [
      {each: "bids[*]", row: {side: =bid, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}},
      {each: "asks[*]", row: {side: =ask, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}}]}
  - {when: {type: beat}, is: heartbeat}
  - {when: {type: bye}, is: end}
  - {when: {type: info}, is: ignore}
"""

KRAKEN = """
name: kraken
topics: 'feed\\.kraken\\..+'
session: [kafka.headers.connection, "[-1]"]
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: {type: "decimal(24,10)", from: text},
          price_text: string, qty_text: string}
order: arrival
keep: {per: [side], best: price, descending: [bid], rows: 1000}
check: {checksum: "[-3].c", with: "sessionlake.feeds.kraken:checksum", rows: 10}
messages:
  - {when: {body: object}, is: ignore}
  - when: {"[1].as": present}
    is: snapshot
    rows: [{each: "[1].as[*]", row: {side: =ask, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"}},
           {each: "[1].bs[*]", row: {side: =bid, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"}}]
  - is: update
    rows: [{each: "[1:-2][*].a[*]", row: {side: =ask, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"},
            delete: {qty: 0}},
           {each: "[1:-2][*].b[*]", row: {side: =bid, price: ".[0]", qty: ".[1]", price_text: ".[0]", qty_text: ".[1]"},
            delete: {qty: 0}}]
"""


def feed(text: str, **changed: Any) -> Feed:
    """A feed of YAML text, with other keys in place of some."""
    return FeedSettings.model_validate(yaml.safe_load(text) | changed).convert_to_feed()


def record(value: Any, topic: str = "feed.book.a", offset: int = 7, **given: Any) -> KafkaRecord:
    """A message with this value as JSON; bytes stay as they are, None is a tombstone."""
    content = value if isinstance(value, bytes | None) else json.dumps(value).encode()
    return KafkaRecord(topic, 0, offset, given.pop("timestamp", 1_000), given.pop("key", None), content, **given)


COINBASE = """
name: coinbase
topics: 'feed\\.coinbase\\..+'
session: product_id
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: {type: "decimal(24,10)", from: text}}
time: {path: time, from: iso, else: kafka.timestamp}
messages:
  - when: {type: snapshot}
    is: snapshot
    rows: [{each: "bids[*]", row: {side: =buy, price: ".[0]", qty: ".[1]"}},
           {each: "asks[*]", row: {side: =sell, price: ".[0]", qty: ".[1]"}}]
  - when: {type: l2update}
    is: update
    rows: [{each: "changes[*]", row: {side: ".[0]", price: ".[1]", qty: ".[2]"}, delete: {qty: 0}}]
  - {when: {type: [ticker, match, last_match, subscriptions]}, is: ignore}
"""

HITBTC = """
name: hitbtc
topics: 'feed\\.hitbtc\\..+'
session: params.symbol
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, size: {type: "decimal(24,10)", from: text}}
time: {path: params.timestamp, from: iso}
order: {seq: params.sequence}
messages:
  - when: {method: snapshotOrderbook}
    is: snapshot
    restart: true
    rows: [{each: "params.bid[*]", row: {side: =bid, price: .price, size: .size}},
           {each: "params.ask[*]", row: {side: =ask, price: .price, size: .size}}]
  - when: {method: updateOrderbook}
    is: update
    rows: [{each: "params.bid[*]", row: {side: =bid, price: .price, size: .size}, delete: {size: 0}},
           {each: "params.ask[*]", row: {side: =ask, price: .price, size: .size}, delete: {size: 0}}]
  - {is: ignore}
"""

BINANCE = """
name: binance
topics: 'feed\\.binance\\..+'
session: data.s
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: {type: "decimal(24,10)", from: text}}
time: {path: data.E}
order: {seq: data.u, first: data.U}
messages:
  - when: {data.e: depthUpdate}
    is: update
    rows: [{each: "data.b[*]", row: {side: =bid, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}},
           {each: "data.a[*]", row: {side: =ask, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}}]
  - {is: ignore}
"""
