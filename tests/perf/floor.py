"""The floor: poll with librdkafka, parse with orjson, fold into dicts, write Parquet. No guarantees at all.

    python tests/perf/floor.py FOLDER BOOTSTRAP_SERVERS

It checks no types, keeps no progress, survives nothing; it is what the work costs when nothing can go wrong.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from confluent_kafka import Consumer, TopicPartition


def main(folder: Path, servers: str) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    messages, tables = fold(servers)
    rows = [(s, r, c.get("price"), c.get("qty"), c.get("status")) for s, t in tables.items() for r, c in t.items()]
    names = ["session_id", "row_id", "price", "qty", "status"]
    columns = [pa.array(column) for column in zip(*rows, strict=True)]
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_arrays(columns, names=names), folder / "floor.parquet")
    figures = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall}
    sys.stdout.write(json.dumps({"stage": "floor", "messages": messages, **figures}) + "\n")


def fold(servers: str) -> tuple[int, dict[bytes, dict[str, dict[str, Any]]]]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "floor", "enable.auto.commit": False})
    topics = [name for name in consumer.list_topics().topics if name.startswith("capture.")]
    parts = [TopicPartition(t, p, 0) for t in topics for p in consumer.list_topics(t).topics[t].partitions]
    left = sum(consumer.get_watermark_offsets(part)[1] for part in parts)
    consumer.assign(parts)
    tables: dict[bytes, dict[str, dict[str, Any]]] = {}
    count = 0
    while left:
        for record in consumer.consume(10_000, timeout=1):
            left -= 1
            count += 1
            message = orjson.loads(record.value())
            if message["type"] == "snapshot":
                tables[record.key()] = {row.pop("id"): row for row in message["rows"]}
            elif message["type"] == "update":
                table = tables[record.key()]
                for row in message.get("rows", ()):
                    table.setdefault(row.pop("id"), {}).update(row)
                for gone in message.get("deleted", ()):
                    table.pop(gone, None)
    consumer.close()
    return count, tables


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
