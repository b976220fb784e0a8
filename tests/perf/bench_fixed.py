"""Fixed costs: Spark's start, and batches of one message with many rows in `session_rows`, all warm.

    python tests/perf/bench_fixed.py [--rows 500000] [--batches 12]

Each batch is one update of one row of one session, taken through bronze, silver and the merge into the tables.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench import free_port
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table
from stages import cpu_seconds

from sessionlake.bronze.job import start_kafka_job as start_bronze
from sessionlake.delta.lake import Lake
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.settings.model import KafkaSettings, Settings
from sessionlake.silver.job import start as start_silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.session import get_or_start_spark_session
from sessionlake_lab.simulate.run import run_simulation

ROWS_A_SESSION = 200


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures what a batch of one message costs.")
    parser.add_argument("--rows", type=int, default=500_000, help="in session_rows before")
    parser.add_argument("--batches", type=int, default=12, help="of one message; the first half warms up")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder), kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"))
        start_broker(settings)
        try:
            measure(settings, arguments)
        finally:
            stop_broker(settings)


def measure(settings: Settings, arguments: argparse.Namespace) -> None:
    begun = time.perf_counter()
    spark = get_or_start_spark_session(settings, long_running=True)
    started = time.perf_counter() - begun
    merger = TableMerger(spark, settings)
    stages: dict[str, Callable[[], object]] = {
        "bronze": lambda: start_bronze(spark, settings, once=True).wait(),
        "silver": lambda: start_silver(spark, settings, once=True, on_batch=merger.add_pending_batch).wait(),
        "session_rows and sessions": merger.merge_all_pending_batches,
    }
    sessions = arguments.rows // ROWS_A_SESSION
    run_simulation(settings, mode="bench", messages=2 * sessions, sensors=1, sessions=sessions, rows=ROWS_A_SESSION)
    for stage in stages.values():
        stage()
    held = Lake(settings).read(spark, "silver.session_rows").count()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in stages}
    for seq in range(arguments.batches):
        send(settings, seq)
        for name, stage in stages.items():
            cpu, wall = cpu_seconds(), time.perf_counter()
            stage()
            found[name].append((time.perf_counter() - wall, cpu_seconds() - cpu))
    table = Table(title=f"One message, {held:,} rows held; Spark up in {started:.1f} s", title_justify="left")
    for name in ("stage", "wall s", "CPU s"):
        table.add_column(name, justify="left" if name == "stage" else "right")
    for name, times in found.items():
        warm = times[len(times) // 2 :]
        table.add_row(name, *(f"{statistics.median(pair):.2f}" for pair in zip(*warm, strict=True)))
    Console(width=100).print(table)


def send(settings: Settings, seq: int) -> None:
    """The next message of one session: first a snapshot, then updates of its row."""
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    kind = "update" if seq else "snapshot"
    value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
    producer.produce("capture.fixed", json.dumps(value).encode(), b"one", 0)
    if producer.flush(30):
        raise RuntimeError("the broker did not take the message")


if __name__ == "__main__":
    main()
