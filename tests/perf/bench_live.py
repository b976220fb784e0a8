"""How fresh the tables are while everything runs at once: producer, broker, and the three layers, on this machine.

    python tests/perf/bench_live.py [--rate 1000] [--seconds 120] [--warm-up 120] [--triggers 1 5 20 60]

A message's latency is the time from its Kafka timestamp (set by the producer as it sends) to the commit, by
Delta's own timestamp, that made it visible in a table. The first `--warm-up` seconds are not counted:
Spark compiles itself meanwhile.

With `--triggers`, once for each: all layers' triggers are so many seconds, and MERGEs no more often. What freshness
costs is then one table.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
from bench import free_port
from rich.console import Console
from rich.table import Table

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.operations.pipeline import Pipeline
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings
from sessionlake.settings.section import OnViolation
from sessionlake.spark.session import get_or_start_spark_session
from sessionlake_lab.simulate.run import run_simulation

_SETTLE_SECONDS = 15
_PARTS = {"kafka.Kafka": "broker", "SparkSubmit": "Spark's JVM", "laptop.daemon": "Python workers"}


TABLES = ("silver.session_changes", "silver.session_rows", "gold.rolling_average")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures freshness.")
    parser.add_argument("--rate", type=int, default=1000, help="messages a second")
    parser.add_argument("--seconds", type=int, default=120, help="of measuring")
    parser.add_argument("--warm-up", type=int, default=120, help="seconds before that")
    parser.add_argument("--triggers", type=float, nargs="*", default=[None], help="seconds; by default as configured")
    arguments = parser.parse_args()
    curve = {}
    for trigger in arguments.triggers:
        with tempfile.TemporaryDirectory() as folder:
            settings = with_trigger(
                Settings(
                    home=Path(folder),
                    kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port()}"),
                    capture=CaptureSettings(on_violation=OnViolation.ISOLATE),
                ),
                trigger,
            )
            start_broker(settings)
            try:
                curve[trigger] = measure(settings, arguments)
            finally:
                stop_broker(settings)
    if len(curve) > 1:
        show(curve)


def with_trigger(settings: Settings, seconds: float | None) -> Settings:
    """The same, with a trigger for all layers."""
    if seconds is None:
        return settings
    trigger = timedelta(seconds=seconds)
    changed = {name: {"trigger": trigger} for name in ("bronze", "silver", "gold")}
    changed["silver"]["merge_interval"] = max(settings.silver.merge_interval, trigger)
    sections = {name: getattr(settings, name).model_copy(update=values) for name, values in changed.items()}
    return settings.model_copy(update=sections)


def measure(settings: Settings, arguments: argparse.Namespace) -> dict[str, float]:
    """Median latencies by table, in seconds, and the CPU seconds of the layers for a million messages."""
    total = arguments.warm_up + arguments.seconds
    live = {"mode": "live", "rate": arguments.rate, "duration": total}
    with Pipeline(get_or_start_spark_session(settings, long_running=True), settings) as pipeline:
        source = threading.Thread(target=run_simulation, args=(settings,), kwargs=live)
        begun = time.time()
        source.start()
        time.sleep(arguments.warm_up)
        before = cpu_seconds()
        source.join()
        spent = Counter(cpu_seconds())
        spent.subtract(before)
        time.sleep(_SETTLE_SECONDS + 2 * settings.silver.trigger.total_seconds())
        pipeline.raise_error_of_failed_layer()
    found = report(settings, (begun + arguments.warm_up) * 1000, (begun + total) * 1000)
    shares = ", ".join(f"{name} {100 * seconds / arguments.seconds:.0f} %" for name, seconds in spent.items())
    Console(width=100).print(f"of one core: {shares}")
    layers = sum(spent.values()) - spent["broker"]
    return found | {"cpu": layers / (arguments.rate * arguments.seconds) * 1_000_000}


def show(curve: dict[float | None, dict[str, float]]) -> None:
    """What a longer trigger saves, and what it makes wait."""
    table = Table(title="Median seconds until a message is seen, and what a million cost", title_justify="left")
    for name in ("trigger", *TABLES, "CPU s (with the producer)"):
        table.add_column(name, justify="right")
    for trigger, found in curve.items():
        table.add_row(f"{trigger:g} s", *(f"{found[name]:.1f}" for name in (*TABLES, "cpu")))
    Console(width=120).print(table)


def cpu_seconds() -> dict[str, float]:
    """CPU seconds so far: the broker, Spark's JVM, its Python workers, and this process (driver and simulator).

    Those of processes that have ended are with who waited for them.
    """
    me, found = psutil.Process(), Counter()
    brokers = [p for p in psutil.process_iter() if "kafka.Kafka" in _command(p)]
    for process in (me, *me.children(recursive=True), *brokers):
        with contextlib.suppress(psutil.Error):
            times, line = process.cpu_times(), _command(process)
            name = next((name for part, name in _PARTS.items() if part in line), "driver and simulator")
            found[name] += times.user + times.system + times.children_user + times.children_system
    return dict(found)


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def report(settings: Settings, since: float, until: float) -> dict[str, float]:
    """Prints latencies by table, and returns their medians."""
    from pyspark.sql import functions as F

    spark, lake = get_or_start_spark_session(settings), Lake(settings)
    ledger = lake.read(spark, "ops.ledger").select("layer", "batch_id", "source_from", "source_to", "outputs").collect()
    changes = lake.read(spark, "silver.session_changes")
    sent = changes.select("_batch", F.unix_millis("kafka_timestamp").alias("sent")).distinct().toPandas()
    sent = sent[(sent["sent"] >= since) & (sent["sent"] < until)]
    visible: dict[str, dict[int, float]] = {name: {} for name in TABLES}
    for row in ledger:
        for output in row["outputs"] or ():
            if output["table"] in visible:
                own = row["layer"] == "silver"  # of others, the source is silver's batches
                first, last = (row["batch_id"],) * 2 if own else (row["source_from"], row["source_to"])
                at = committed(lake, output["table"], output["version"])
                visible[output["table"]] |= dict.fromkeys(range(first, last + 1), at)
    table = Table(title="Seconds from the Kafka timestamp to the commit", title_justify="left")
    for name in ("table", "median", "p90", "max", "first half", "second half"):
        table.add_column(name, justify="left" if name == "table" else "right")
    medians = {}
    for name, commits in visible.items():
        seen = sent[sent["_batch"].isin(list(commits))]
        latency = (seen["_batch"].map(commits) - seen["sent"]).to_numpy() / 1000
        late = seen["sent"].to_numpy() >= (since + until) / 2
        medians[name] = float(np.median(latency))
        halves = (np.median(latency[~late]), np.median(latency[late]))
        table.add_row(
            name, *(f"{x:.2f}" for x in (np.median(latency), np.quantile(latency, 0.9), latency.max(), *halves))
        )
    Console(width=100).print(table)
    counts = {layer: sum(1 for row in ledger if row["layer"] == layer) for layer in {row["layer"] for row in ledger}}
    Console(width=100).print(f"batches in all: {counts}; messages counted: {len(sent):,} distinct times")
    return medians


def committed(lake: Lake, table: str, version: int) -> float:
    """Delta's timestamp of a commit, ms since the epoch."""
    log = FolderStorage(lake.settings).path(table) / "_delta_log" / f"{version:020}.json"
    for line in log.read_text(encoding="utf-8").splitlines():
        info = json.loads(line).get("commitInfo")
        if info:
            return float(info["timestamp"])
    raise LookupError(log)


if __name__ == "__main__":
    main()
