"""A batch of 1,000 changes into gold with many live keys: what it costs, and whether the hundredth costs more.

    python tests/perf/bench_gold.py [--keys 2000000] [--batches 24] [--spread 1000]

Each key, a row of a session, gets one point first, in batches of half a million, as silver writes them. Then come
batches of 1,000 changes of keys anywhere, in event time behind all before, by a stream that stays up, as it does live.
Printed are CPU and wall seconds of the tenth, and of the last, each as the median of three around it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from stages import cpu_seconds

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold.job import start
from sessionlake.settings.model import GoldSettings, Settings
from sessionlake.spark.session import get_or_start_spark_session

ROWS_A_SESSION = 40
TOPICS = 4
LOADED_AT_ONCE = 500_000
BATCH = 1_000
NOW = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures gold's batches with many live keys.")
    parser.add_argument("--keys", type=int, default=2_000_000)
    parser.add_argument("--batches", type=int, default=24, help="of 1,000 changes, after the keys")
    parser.add_argument("--spread", type=int, default=1_000, help="different keys in a batch")
    parser.add_argument("--shards", type=int, default=64)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        gold = GoldSettings.model_validate({"trigger": "0 s", "shards": arguments.shards})
        settings = Settings(home=Path(folder), gold=gold)
        costs = measure(settings, arguments.keys, arguments.batches, arguments.spread)
    out = Console(highlight=False)
    out.print(f"{arguments.keys:,} live keys; a batch of {BATCH:,} changes of {arguments.spread:,} keys")
    for name, at in (("tenth", min(9, len(costs) - 2)), ("last", len(costs) - 2)):
        cpu, wall = (statistics.median(part) for part in zip(*costs[max(at - 1, 0) : at + 2], strict=True))
        out.print(f"  the {name}: {cpu:.2f} CPU s, {wall:.2f} s")


def measure(settings: Settings, keys: int, batches: int, spread: int) -> list[tuple[float, float]]:
    """CPU and wall seconds of each small batch."""
    spark = get_or_start_spark_session(settings, long_running=True)
    lake, rnd, written = Lake(settings), random.Random(1), 0
    lake.create_or_update_tables(spark, [CHANGES])
    costs: list[tuple[float, float]] = []
    query = start(spark, settings)
    try:
        for first in range(0, keys, LOADED_AT_ONCE):
            append(lake, written, range(first, min(first + LOADED_AT_ONCE, keys)))
            written += 1
            query.process_all_available()
        for _ in range(batches):
            chosen = rnd.sample(range(keys), spread)
            cpu, wall = cpu_seconds(), time.perf_counter()
            append(lake, written, [chosen[place % spread] for place in range(BATCH)])
            written += 1
            query.process_all_available()
            costs.append((cpu_seconds() - cpu, time.perf_counter() - wall))
    finally:
        query.stop()
    return costs


def append(lake: Lake, batch: int, keys: Sequence[int]) -> None:
    """One change of each key, as one batch of silver's."""
    schema, count = lake.reader().read_table_schema(CHANGES), len(keys)
    key = np.asarray(keys, np.int64)
    session = key // ROWS_A_SESSION
    now = datetime.fromtimestamp(NOW / 1000 + batch, UTC)
    given = {
        "topic": pa.array([f"capture.s{n}" for n in range(TOPICS)]).take(pa.array(session % TOPICS)),
        "session_id": pa.array([f"session-{n:08d}" for n in session.tolist()]),
        "row_id": pa.array([f"r{n}" for n in range(ROWS_A_SESSION)]).take(pa.array(key % ROWS_A_SESSION)),
        "price": pa.array(key % 1000 / 8),
        "_ts": pa.array(np.full(count, NOW + batch * 1000)),
        "_position": pa.array(np.arange(count) + batch),
        "_offset": pa.array(np.arange(count) + batch * LOADED_AT_ONCE),
        "partition": pa.array(np.zeros(count, np.int32)),
        "ordinal": pa.array(np.zeros(count, np.int32)),
        "change": pa.array(["upsert"]).take(pa.array(np.zeros(count, np.int64))),
        "_set": pa.array([["price"]], pa.list_(pa.string())).take(pa.array(np.zeros(count, np.int64))),
        "kafka_timestamp": pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
        "_batch": pa.array(np.full(count, batch)),
    }
    columns = [given[f.name].cast(f.type) if f.name in given else pa.nulls(count, f.type) for f in schema]
    lake.storage.append_rows(None, CHANGES, pa.table(columns, schema=schema), Txn("bench", batch))


if __name__ == "__main__":
    main()
