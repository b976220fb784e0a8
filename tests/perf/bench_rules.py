"""What a batch costs that 1,000 rules over 10,000 series are held against, with 72 hours of history.

    python tests/perf/bench_rules.py [--rules 1000] [--rows 2000] [--batches 5]

The buckets are written as gold leaves them: one a series and minute for 72 hours, and their hours; no JVM is started.
Each batch brings a minute of all series, and one point that is an hour late. Times are of the step alone, without what
gold merges in any case; memory is the highest of the process once the tables are there.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console
from rich.table import Table

from sessionlake.delta.folders.reader import FolderReader
from sessionlake.delta.schemas.names import RULE_EVENTS
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import DeclaredColumns
from sessionlake.gold.aggregate.standard import METRICS_1D, METRICS_1H, METRICS_1M
from sessionlake.gold.alerts.lake_rule_inputs import LakeRuleInputs
from sessionlake.gold.rules.batch import compute_alert_log_rows
from sessionlake.gold.rules.log_rows import RuleBatchData
from sessionlake.gold.rules.patterns import MATCH
from sessionlake.gold.rules.rule import Rule, RuleSettings, compile_rule

METRICS = ("price", "qty", "size", "bid", "ask")
HOURS = 72
START = 1_790_000_000 // 86_400 * 1440  # the minute since the epoch at which the history begins
SESSIONS = 20
WINDOWS = ("2 min", "10 min", "1 h", "2 h", "6 h", "24 h", "72 h")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures the step of gold's batch that evaluates rules.")
    parser.add_argument("--rules", type=int, default=1_000)
    parser.add_argument("--rows", type=int, default=2_000, help="five series each")
    parser.add_argument("--batches", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        reader = FolderReader(lambda table: Path(folder, table))
        end = write_history(Path(folder), given.rows)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        figures = measure(reader, Path(folder), rules_of(given.rules), given.rows, end, given.batches)
    Console(width=100).print(f"{before:,.0f} MiB to write them")
    title = f"{given.rules:,} rules, {given.rows * len(METRICS):,} series, {HOURS} h"
    table = Table(title=title, title_justify="left")
    for name in ("", "median", "most"):
        table.add_column(name, justify="right" if name else "left")
    for name, values in figures.items():
        table.add_row(name, f"{median(values):,.1f}", f"{max(values):,.1f}")
    Console(width=100).print(table)


def rules_of(count: int) -> list[Rule]:
    rnd, declared = np.random.default_rng(3), DeclaredColumns(METRICS)
    found = []
    for i in range(count):
        one, other = rnd.choice(METRICS, 2)
        short, long = sorted(rnd.choice(len(WINDOWS), 2))
        when = (
            f"sum({one}) over {WINDOWS[long]} < {rnd.normal(0, 30):.3f} and every {other} over {WINDOWS[short]} > 2.5",
            f"max({one}) over {WINDOWS[short]} > avg({other}) over {WINDOWS[long]} and not min({one}) over 2 min < 2.9",
            f"any(last({one}) over {WINDOWS[short]} > 3.5, count({other}) over {WINDOWS[long]} < 1)",
        )[i % 3]
        found.append(compile_rule(RuleSettings(name=f"r{i}", when=when), declared))
    return found


def series_of(rows: int) -> dict[str, pa.Array]:
    number = np.arange(rows * len(METRICS))
    row = number // len(METRICS)
    return {
        "topic": pa.array([f"capture.sensor-{r % 4}" for r in row.tolist()]),
        "session_id": pa.array([f"sensor-{r % SESSIONS:04d}-5f3e" for r in row.tolist()]),
        "row_id": pa.array([f"row-{r:06d}" for r in row.tolist()]),
        "metric": pa.array([METRICS[n % len(METRICS)] for n in number.tolist()]),
        "partition": pa.array(np.zeros(len(number), np.int32)),
    }


def tier(product: Product, series: dict[str, pa.Array], minutes: np.ndarray, length: int, seed: int) -> pa.Table:
    """Buckets of all series that begin at these minutes, with the columns that rules read filled in."""
    count = len(series["topic"])
    each, rnd = np.tile(np.arange(count), len(minutes)), np.random.default_rng(seed)
    start = pa.array(np.repeat(minutes, count) * 60_000_000).cast(pa.timestamp("us", "UTC"))
    value = rnd.normal(0, 1, len(each))
    first = np.repeat(minutes, count) * 60_000
    columns: dict[str, pa.Array] = {name: values.take(pa.array(each)) for name, values in series.items()}
    for name, sql in product.column_types[len(product.row_keys) :]:
        number = {"bigint": first, "int": np.zeros(len(each), np.int32)}.get(sql, value)
        columns[name] = pa.array(number)
    columns |= {"window_start": start, "points": pa.array(np.full(len(each), 2 * length))}
    columns["_sum_rest"] = pa.array(np.zeros(len(each)))
    return pa.table([columns[name] for name, _ in product.column_types], schema=product.arrow_schema())


def write_history(folder: Path, rows: int) -> int:
    """Writes the tables; returns the minute at which they end."""
    series = series_of(rows)
    for hour in range(HOURS):
        minutes = START + hour * 60 + np.arange(60)
        append(folder, METRICS_1M, tier(METRICS_1M, series, minutes, 1, hour))
        append(folder, METRICS_1H, tier(METRICS_1H, series, minutes[:1], 60, 1000 + hour))
    for day in range(HOURS // 24):
        append(folder, METRICS_1D, tier(METRICS_1D, series, START + np.array([day * 1440]), 1440, 2000 + day))
    texts = [(name, pa.string()) for name in ("rule", "topic", "session_id", "row_id", "value", "event", "retracts")]
    log = pa.schema([*texts, ("partition", pa.int32()), ("window_end", pa.timestamp("us", "UTC"))])
    write_deltalake(folder / RULE_EVENTS, log.empty_table())
    return START + HOURS * 60


def append(folder: Path, product: Product, rows: pa.Table) -> None:
    write_deltalake(folder / product.table_name, rows, mode="append")


def measure(
    reader: FolderReader, folder: Path, rules: list[Rule], rows: int, end: int, batches: int
) -> dict[str, list[float]]:
    series, stored = series_of(rows), LakeRuleInputs(reader)
    found: dict[str, list[float]] = {"wall, s": [], "CPU, s": [], "alerts": [], "memory, MiB": []}
    size = reader.read_size(METRICS_1M.table_name)
    Console(width=100).print(f"{size.rows:,} buckets of a minute in {size.files} files")
    for minute in range(end, end + batches):
        part = tier(METRICS_1M, series, np.array([minute]), 1, 5000 + minute)
        append(folder, METRICS_1M, part)
        if not (minute + 1) % 60:
            append(folder, METRICS_1H, tier(METRICS_1H, series, np.array([minute - 59]), 60, 9000 + minute))
        topics = sorted({*series["topic"].to_pylist()})
        before, after = (dict.fromkeys(topics, at * 60_000) for at in (minute, minute + 1))
        touched = pa.concat_tables([_touched(part, minute + 1), _touched(part.slice(7, 1), minute - 60)])
        wall, cpu = time.perf_counter(), time.process_time()
        logged = compute_alert_log_rows(rules, [], RuleBatchData(before, after, touched, MATCH.empty_table()), stored)
        found["wall, s"].append(time.perf_counter() - wall)
        found["CPU, s"].append(time.process_time() - cpu)
        found["alerts"].append(len(logged))
        found["memory, MiB"].append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    return found


def _touched(part: pa.Table, end: int) -> pa.Table:
    rows = part.select(["topic", "session_id", "row_id", "metric", "partition"])
    rows = rows.append_column("end", pa.array(np.full(part.num_rows, end)))
    return rows.append_column("ts", pa.array(np.full(part.num_rows, end * 60_000 - 1)))


if __name__ == "__main__":
    main()
