"""CPU time of decoding messages by feeds, beside msgspec alone and beside sessionlake's own form.

`.venv/bin/python tests/perf/bench_feeds.py [--messages N]` prints microseconds of CPU a message, the least of nine
runs. `msgspec` decodes the JSON only. `compiled` reads the events of a feed, `decoder class` does so by Python code.
`times` is the median of the ratios to `msgspec`. `chunk` makes the Arrow chunk that silver folds.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

import msgspec
import pyarrow as pa
import yaml
from rich.console import Console
from rich.table import Table

from sessionlake.feeds.compiled import CompiledFeedReader
from sessionlake.feeds.decoder import Delete, Event, Message, Put
from sessionlake.feeds.feed import DecoderClassSetting
from sessionlake.feeds.reader import KafkaRecordColumns
from sessionlake.integrity.rules import build_decode_rules
from sessionlake.protocol.decode import decode_messages_to_chunk
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
GATEWAY = """
name: gateway
topics: bench
session: .device
key: [sensor]
columns: {sensor: string, value: double}
time: {path: .at, unit: ms}
messages: [{is: update, split: {each: "readings[*]"}, rows: [{row: {sensor: .sensor, value: .value}}]}]
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


def undeclared(rnd: random.Random, number: int) -> bytes:
    """A change of one row that also has two columns that the feed does not declare."""
    return debezium(rnd, number).replace(b'"status":"OPEN"', b'"status":"OPEN","note":"abc","weight":1.5')


def gateway(rnd: random.Random, number: int) -> bytes:
    """Readings of three devices, each of which is a session."""
    at = 1_767_225_600_000 + number
    readings = [
        {"device": device, "sensor": f"s{rnd.randrange(ROWS)}", "value": rnd.random(), "at": at}
        for device in rnd.sample(range(SESSIONS), 3)
    ]
    return json.dumps({"gateway": "north", "readings": readings}, separators=(",", ":")).encode()


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


def cpu(messages: int, *works: Callable[[], object]) -> list[list[float]]:
    """Microseconds of CPU a message of several works, in nine runs in turn, without the garbage collector."""
    found: list[list[float]] = [[] for _ in works]
    for _ in range(9):
        for times, work in zip(found, works, strict=True):
            gc.collect()
            gc.disable()
            begun = time.process_time()
            work()
            times.append((time.process_time() - begun) / messages * 1e6)
            gc.enable()
    return found


def ratio(times: list[float], base: list[float]) -> str:
    """The median of the ratios of runs that followed each other."""
    return f"{statistics.median(one / other for one, other in zip(times, base, strict=True)):.2f}"


class CoinbaseDecoder:
    """Reads the same as the feed `COINBASE`."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields the event of a message."""
        found = message.json()
        rows = [
            Delete((side, price)) if not float(qty) else Put((side, price), {"qty": qty})
            for side, price, qty in found["changes"]
        ]
        yield Event(session=found["product_id"], rows=rows)


class DebeziumDecoder:
    """Reads the same as the feed `DEBEZIUM`."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields the event of a message."""
        payload = message.json()["payload"]
        rows = [Delete((payload["before"]["id"],))] if payload["op"] == "d" else []
        rows = rows or [Put((payload["after"]["id"],), payload["after"])]
        yield Event(session=(message.topic, "0"), ts=payload["ts_ms"], rows=rows)


class GatewayDecoder:
    """Reads the same as the feed `GATEWAY`."""

    def decode(self, message: Message) -> Iterable[Event]:
        """Yields an event for each device."""
        for one in message.json()["readings"]:
            sensor = one["sensor"]
            yield Event(session=str(one["device"]), ts=one["at"], rows=[Put((sensor,), {"value": one["value"]})])


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000)
    count = parser.parse_args().messages
    columns = ("messages", "bytes", "msgspec", "compiled", "times", "decoder class", "times", "chunk")
    table = Table(*columns, title="microseconds of CPU a message")
    for name, make, text, decoder in CASES:
        rnd = random.Random(1)
        values = [make(rnd, number) for number in range(count)]
        raw, size = raw_table(values), f"{sum(map(len, values)) / count:.0f}"
        base: Callable[[], object] = partial(decode_all, values)
        if decoder is None:
            found = cpu(count, base, partial(decode_messages_to_chunk, raw, build_decode_rules(CaptureSettings())))
            table.add_row(name, size, f"{min(found[0]):.2f}", "", "", "", "", f"{min(found[1]):.2f}")
            continue
        settings = FeedSettings.model_validate(yaml.safe_load(text))
        feed = settings.convert_to_feed()
        records = KafkaRecordColumns(
            ["bench"] * count, [0] * count, raw["offset"].to_pylist(), raw["kafka_ts"].to_pylist(), [None] * count,
            values, [{}] * count,
        )  # fmt: skip
        compiled = partial(CompiledFeedReader.compile_feed(feed).read_records, records)
        by_class = partial(
            CompiledFeedReader.compile_feed(replace(feed, rules=(), decoder=DecoderClassSetting(decoder))).read_records,
            records,
        )
        chunks = build_feed_decoder(CaptureSettings(feeds=(settings,)), 64)
        found = cpu(count, base, compiled, by_class, lambda raw=raw, chunks=chunks: chunks and chunks.decode(raw))
        best, times = [f"{min(one):.2f}" for one in found], [ratio(one, found[0]) for one in found]
        table.add_row(name, size, best[0], best[1], times[1], best[2], times[2], best[3])
    Console(width=100).print(table)


def decode_all(values: list[bytes]) -> list[object]:
    """Decodes JSON by msgspec, which is what all other times are compared with."""
    return [msgspec.json.decode(value) for value in values]


CASES: tuple[tuple[str, Callable[[random.Random, int], bytes], str, Callable[[], object] | None], ...] = (
    ("coinbase", coinbase, COINBASE, CoinbaseDecoder),
    ("debezium", debezium, DEBEZIUM, DebeziumDecoder),
    ("undeclared", undeclared, DEBEZIUM, DebeziumDecoder),
    ("gateway", gateway, GATEWAY, GatewayDecoder),
    ("own", own_form, "", None),
)
"""Name, function that makes a message, feed, and decoder class."""


if __name__ == "__main__":
    main()
