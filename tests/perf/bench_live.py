"""How fresh the tables are while everything runs at once: producer, broker, and the three layers, on this machine.

    python tests/perf/bench_live.py [--rate 1000] [--seconds 120] [--warm-up 60]

A message's latency is the time from its Kafka timestamp (set by the producer as it sends) to the commit, by
Delta's own timestamp, that made it visible in a table. The first `--warm-up` seconds are not counted.
"""

from __future__ import annotations

import argparse
import json
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sessionlake.bronze.job import start as start_bronze
from sessionlake.config import CaptureSettings, KafkaSettings, OnViolation, Settings
from sessionlake.gold.job import start as start_gold
from sessionlake.lake.tables import Lake
from sessionlake.local.broker import down, up
from sessionlake.local.simulate import run_simulation
from sessionlake.runtime.spark import spark_session
from sessionlake.silver.job import start as start_silver
from sessionlake.silver.tables import TableMerger


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures freshness.")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    parser.add_argument("--seconds", type=int, default=120, help="of measuring")
    parser.add_argument("--warm-up", type=int, default=60, help="seconds before that")
    parser.add_argument("--no-gold", action="store_true", help="leave gold out")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        settings = Settings(
            home=Path(folder),
            kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{port}"),
            capture=CaptureSettings(on_violation=OnViolation.ISOLATE),
        )
        up(settings)
        try:
            measure(settings, arguments)
        finally:
            down(settings)


def measure(settings: Settings, arguments: argparse.Namespace) -> None:
    spark = spark_session(settings)
    merger = TableMerger(spark, settings).start()
    queries = [start_bronze(spark, settings), start_silver(spark, settings, on_batch=merger.announce)]
    if not arguments.no_gold:
        queries.append(start_gold(spark, settings))
    total = arguments.warm_up + arguments.seconds
    source = threading.Thread(
        target=run_simulation, args=(settings,), kwargs={"mode": "live", "rate": arguments.rate, "duration": total}
    )
    begun = time.time()
    source.start()
    source.join()
    time.sleep(5)
    for query in queries:
        query.stop()
    merger.stop()
    report(settings, (begun + arguments.warm_up) * 1000, (begun + total) * 1000)


def report(settings: Settings, since: float, until: float) -> None:
    from pyspark.sql import functions as F

    spark, lake = spark_session(settings), Lake(settings)
    ledger = (
        lake.read(spark, "ops.ledger").select("layer", "batch_id", "source_from", "outputs", "started_at").collect()
    )
    changes = lake.read(spark, "silver.session_changes")
    sent = changes.select("_batch", F.unix_millis("kafka_timestamp").alias("sent")).distinct().toPandas()
    sent = sent[(sent["sent"] >= since) & (sent["sent"] < until)]
    visible: dict[str, dict[int, float]] = {"silver.session_changes": {}, "silver.session_rows": {}}
    for row in ledger:
        for output in row["outputs"] or ():
            if output["table"] in visible:
                first = row["batch_id"] if row["source_from"] is None else row["source_from"]
                at = committed(lake, output["table"], output["version"])
                visible[output["table"]] |= dict.fromkeys(range(first, row["batch_id"] + 1), at)
    table = Table(title="Seconds from the Kafka timestamp to the commit", title_justify="left")
    for name in ("table", "median", "p90", "max", "first half", "second half"):
        table.add_column(name, justify="left" if name == "table" else "right")
    for name, commits in visible.items():
        seen = sent[sent["_batch"].isin(list(commits))]
        latency = (seen["_batch"].map(commits) - seen["sent"]).to_numpy() / 1000
        late = seen["sent"].to_numpy() >= (since + until) / 2
        halves = (np.median(latency[~late]), np.median(latency[late]))
        table.add_row(
            name, *(f"{x:.2f}" for x in (np.median(latency), np.quantile(latency, 0.9), latency.max(), *halves))
        )
    Console(width=100).print(table)
    counts = {layer: sum(1 for row in ledger if row["layer"] == layer) for layer in {row["layer"] for row in ledger}}
    Console(width=100).print(f"batches in all: {counts}; messages counted: {len(sent):,} distinct times")


def committed(lake: Lake, table: str, version: int) -> float:
    """Delta's timestamp of a commit, ms since the epoch."""
    log = lake.path(table) / "_delta_log" / f"{version:020}.json"
    for line in log.read_text(encoding="utf-8").splitlines():
        info = json.loads(line).get("commitInfo")
        if info:
            return float(info["timestamp"])
    raise LookupError(log)


if __name__ == "__main__":
    main()
