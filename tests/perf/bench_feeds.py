"""CPU time of decoding messages by feeds, beside msgspec alone and beside sessionlake's own form.

`.venv/bin/python tests/perf/bench_feeds.py [--messages N]` prints microseconds of CPU a message. `msgspec` decodes the
JSON only. `compiled` reads the events of a feed. `chunk` makes the Arrow chunk that silver folds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable

import msgspec
import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table

from sessionlake.feeds.compiled import compiled_reader
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.integrity.rules import build_decode_rules
from sessionlake.protocol.decode import decode_messages
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake.streaming.payloads import build_feed_decoder

COINBASE = """
name: coinbase
topics: bench
session: product_id
key: [side, price]
columns: {side: string, price: {type: "decimal(20,10)", from: text}, qty: {type: "decimal(24,10)", from: text}}
time: {path: time, from: iso, else: kafka.timestamp}
messages:
  - when: {type: l2update}
    is: update
    rows: [{each: "changes[*]", row: {side: ".[0]", price: ".[1]", qty: ".[2]"}, delete: {qty: 0}}]
"""
DEBEZIUM = """
name: orders
topics: bench
session: [kafka.topic, kafka.partition]
key: [id]
columns: {id: bigint, price: double, qty: bigint, status: string, changed: {type: timestamp, from: epoch_us}}
time: {path: payload.ts_ms}
starts_with: anything
messages:
  - {when: {body: tombstone}, is: ignore}
  - {when: {payload.op: [r, c, u]}, is: update, rows: [{at: payload.after, row: all}]}
  - {when: {payload.op: d}, is: update, rows: [{at: payload.before, row: key, delete: true}]}
"""
SESSIONS, ROWS = 500, 200


def coinbase(rnd: random.Random, number: int) -> bytes:
    """An update of one level, as W1 has one row in each message."""
    level = [rnd.choice(["buy", "sell"]), f"{rnd.randrange(ROWS) / 4 + 100:.2f}", f"{rnd.random():.8f}"]
    clock = f"{number // 3_600_000 % 24:02}:{number // 60_000 % 60:02}:{number // 1000 % 60:02}.{number % 1000:03}000"
    at = f"2026-01-01T{clock}Z"
    body = {"type": "l2update", "product_id": f"P-{rnd.randrange(SESSIONS)}", "changes": [level], "time": at}
    return json.dumps(body, separators=(",", ":")).encode()


def debezium(rnd: random.Random, number: int) -> bytes:
    """A change of one row of a table, without the schema."""
    row = {"id": rnd.randrange(SESSIONS * ROWS), "price": rnd.random(), "qty": number, "status": "OPEN"}
    row["changed"] = 1_767_225_600_000_000 + number
    source = {
        "version": "3.0.0",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": 1,
        "db": "shop",
        "table": "orders",
    }
    payload = {"before": None, "after": row, "source": source, "op": "u", "ts_ms": 1_767_225_600_000 + number}
    return json.dumps({"payload": payload}, separators=(",", ":")).encode()


def own_form(rnd: random.Random, number: int) -> bytes:
    """An update of one row in sessionlake's own form."""
    row = {"id": f"r{rnd.randrange(ROWS)}", "price": round(rnd.random() * 100, 2), "qty": number, "status": "OPEN"}
    body = {"type": "update", "seq": number, "ts": 1_767_225_600_000 + number, "rows": [row]}
    return json.dumps(body, separators=(",", ":")).encode()


def raw_table(values: list[bytes]) -> pa.Table:
    """The messages as silver reads them from bronze."""
    count = len(values)
    return pa.table(
        {
            "topic": pa.array(["bench"] * count),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "kafka_ts": pa.array([1_767_225_600_000 + n for n in range(count)], pa.int64()),
            "key": pa.array([b"s%d" % (n % SESSIONS) for n in range(count)], pa.binary()),
            "value": pa.array(values, pa.binary()),
            "ingested_at": pa.nulls(count, pa.int64()),
        }
    )


def cpu(work: Callable[[], object], messages: int) -> float:
    """Microseconds of CPU a message: the least of five runs, without the garbage collector."""
    found = []
    gc.disable()
    for _ in range(5):
        begun = time.process_time()
        work()
        found.append((time.process_time() - begun) / messages * 1e6)
    gc.enable()
    return min(found)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    count = parser.parse_args().messages
    decode = msgspec.json.decode
    table = Table("messages", "bytes", "msgspec", "compiled", "times", "chunk", title="microseconds of CPU a message")
    for name, make, text in (("coinbase", coinbase, COINBASE), ("debezium", debezium, DEBEZIUM), ("own", own_form, "")):
        rnd = random.Random(1)
        values = [make(rnd, number) for number in range(count)]
        raw, size = raw_table(values), f"{sum(map(len, values)) / count:.0f}"
        base = cpu(lambda values=values: [decode(value) for value in values], count)
        if not text:
            rules = build_decode_rules(CaptureSettings())
            chunk = cpu(lambda raw=raw, rules=rules: decode_messages(raw, rules), count)
            table.add_row(name, size, f"{base:.2f}", "", "", f"{chunk:.2f}")
            continue
        settings = FeedSettings.model_validate(yaml.safe_load(text))
        reader = compiled_reader(settings.made())
        records = [KafkaRecord("bench", 0, n, 1_767_225_600_000 + n, None, value) for n, value in enumerate(values)]
        read = cpu(lambda reader=reader, records=records: reader.read(records), count)
        decoder = build_feed_decoder(CaptureSettings(feeds=(settings,)), 64)
        chunk = cpu(lambda decoder=decoder, raw=raw: decoder and decoder.decode(raw), count)
        table.add_row(name, size, f"{base:.2f}", f"{read:.2f}", f"{read / base:.1f}", f"{chunk:.2f}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
