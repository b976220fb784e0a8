"""How soon a table of gold of ten million rows answers a dashboard, beside the files that a 15-minute job leaves.

    python tests/perf/bench_queries.py [--rows 10000000]

Minutes of sessions of two hours are written to `gold.metrics_1m` as gold and its maintenance leave them: days merged
into few files, the last hours not yet. The same rows are written as plain Parquet, a file for every quarter of an hour
of event time. Printed are, of each query, the files read of all, and the median wall seconds of warm runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import METRICS_1M
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold.aggregate.standard import METRICS_1H
from sessionlake.operations.maintenance import TableMaintainer
from sessionlake.settings.model import Settings
from sessionlake.spark.session import get_or_start_spark_session

BEGIN = 1_700_000_000 // 86_400 * 86_400_000
MINUTE, QUARTER = 60_000, 15
SESSION_MINUTES, TOPICS, ROWS, METRICS = 120, 8, 10, ("price", "qty")
A_MINUTE = TOPICS * ROWS * len(METRICS)
DAY = 24 * 60
NOT_MERGED = 8 * QUARTER
"""The last minutes, each quarter of an hour of which is still a file of its own."""
RUNS = 7


def minutes(first: int, count: int, schema: pa.Schema) -> pa.Table:
    """So many minutes of all series, in the order in which they come."""
    rows = count * A_MINUTE
    series, minute = np.arange(rows) % A_MINUTE, first + np.arange(rows) // A_MINUTE
    value, points = (minute * 7_919 + series * 104_729) % 8_000 / 8, 1 + minute * series % 60
    given = {
        "topic": pa.array([f"capture.s{n}" for n in range(TOPICS)]).take(pa.array(series % TOPICS)),
        "session_id": pa.array([f"session-{n:06d}" for n in (minute // SESSION_MINUTES).tolist()]),
        "row_id": pa.array([f"r{n}" for n in range(ROWS)]).take(pa.array(series // TOPICS % ROWS)),
        "metric": pa.array(METRICS).take(pa.array(series // TOPICS // ROWS)),
        "window_start": pa.array((BEGIN + minute * MINUTE) * 1000).cast(pa.timestamp("us", "UTC")),
        "points": pa.array(points),
        "sum": pa.array(value * points),
    }
    figures = ("min", "max", "average", "first", "last")
    given |= {name: pa.array(value) for name in figures}
    columns = [given[f.name].cast(f.type) if f.name in given else _zeros(rows, f.type) for f in schema]
    return pa.table(columns, schema=schema)


def _zeros(rows: int, kind: pa.DataType) -> pa.Array:
    return pa.array(np.zeros(rows)).cast(kind)


def write(spark: Any, settings: Settings, plain: Path, rows: int) -> int:
    """Writes both; the number of minutes."""
    lake, every = Lake(settings), rows // A_MINUTE // SESSION_MINUTES * SESSION_MINUTES
    lake.create_or_update_tables(spark, [METRICS_1M, METRICS_1H.table_name])
    schema, merged = lake.reader().read_table_schema(METRICS_1M), every - NOT_MERGED
    spans = [(first, min(DAY, merged - first)) for first in range(0, merged, DAY)]
    for number, (first, count) in enumerate(spans):
        part = minutes(first, count, schema)
        for table, found in ((METRICS_1M, part), (METRICS_1H.table_name, METRICS_1H.aggregate_shorter_buckets(part))):
            lake.storage.append_rows(None, table, found, Txn("bench", number))
    for _ in TableMaintainer(spark, settings).maintain_tables_once(METRICS_1M):
        pass
    for number, first in enumerate(range(merged, every, QUARTER), len(spans)):
        part = minutes(first, min(QUARTER, every - first), schema)
        lake.storage.append_rows(None, METRICS_1M, part, Txn("bench", number))
    hours = METRICS_1H.aggregate_shorter_buckets(minutes(merged, NOT_MERGED, schema))
    lake.storage.append_rows(None, METRICS_1H.table_name, hours, Txn("bench", len(spans)))
    plain.mkdir()
    for first in range(0, every, QUARTER):
        pq.write_table(minutes(first, min(QUARTER, every - first), schema), plain / f"part-{first:08d}.snappy.parquet")
    return every


_FIGURES = "sum(sum) / sum(points) AS average, min(min) AS min, max(max) AS max"
_BY_HOUR = f"SELECT date_trunc('HOUR', window_start) AS hour, topic, metric, {_FIGURES} FROM metrics"  # noqa: S608 - made of constants of this module
_ONE = "topic = 'capture.s1' AND row_id = 'r3' AND metric = 'price'"
QUERIES = {
    "one series, the last day": f"SELECT window_start, average FROM metrics WHERE {_ONE} AND window_start >= :day",  # noqa: S608 - made of constants of this module
    "one session, all it has": "SELECT * FROM metrics WHERE topic = 'capture.s1' AND session_id = :session",
    "highest by topic, the last hour": (
        "SELECT topic, metric, max(max) AS max FROM metrics WHERE window_start >= :hour GROUP BY ALL"
    ),
    "all topics by hour, the last day": f"{_BY_HOUR} WHERE window_start >= :day GROUP BY ALL",
    "all topics by hour, all time": f"{_BY_HOUR} GROUP BY ALL",
}
"""What a dashboard asks, of minutes that are called `metrics`."""
OF_HOURS = {
    "all topics by hour, all time": (
        f"SELECT window_start AS hour, topic, metric, {_FIGURES} FROM metrics_1h GROUP BY ALL"  # noqa: S608 - made of constants of this module
    )
}
"""What it asks of the coarsest table that has it, where gold keeps one."""


def asked(every: int) -> dict[str, Any]:
    """The values that are asked for, where there are so many minutes."""
    last = (BEGIN + every * MINUTE) // 1000
    day, hour = (datetime.fromtimestamp(last - minutes * 60, UTC) for minutes in (DAY, 60))
    return {"day": day, "hour": hour, "session": f"session-{every // SESSION_MINUTES // 2:06d}"}


def timed(spark: Any, query: str, values: dict[str, Any]) -> tuple[float, int, list[Any]]:
    """Median wall seconds of warm runs, files read, and the rows, sorted."""
    values = {name: value for name, value in values.items() if f":{name}" in query}
    seconds, rows = [], []
    for _ in range(RUNS):
        begun = time.perf_counter()
        rows = spark.sql(query, values).collect()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds[2:]), len(spark.sql(query, values).inputFiles()), sorted(rows, key=repr)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures queries of a dashboard.")
    parser.add_argument("--rows", type=int, default=10_000_000)
    rows = parser.parse_args().rows
    table = Table(title=f"{rows:,} rows: seconds, and files read", title_justify="left")
    for name in ("query", "gold", "files", "plain Parquet", "files", "times"):
        table.add_column(name, justify="left" if name == "query" else "right")
    with tempfile.TemporaryDirectory() as folder:
        settings, plain = Settings(home=Path(folder) / "home"), Path(folder) / "plain"
        spark = get_or_start_spark_session(settings, long_running=True)
        every = write(spark, settings, plain, rows)
        frames = {"gold": Lake(settings).read(spark, METRICS_1M), "plain": spark.read.parquet(str(plain))}
        Lake(settings).read(spark, METRICS_1H.table_name).createOrReplaceTempView("metrics_1h")
        total = {name: len(frame.inputFiles()) for name, frame in frames.items()}
        for what, query in QUERIES.items():
            found = {}
            for name, frame in frames.items():
                frame.createOrReplaceTempView("metrics")
                said = OF_HOURS.get(what, query) if name == "gold" else query
                found[name] = timed(spark, said, asked(every))
            (gold, read, answer), (other, opened, same) = found["gold"], found["plain"]
            if not answer or answer != same:
                raise SystemExit(f"{what}: other rows")
            files = str(read) if what in OF_HOURS else f"{read} of {total['gold']}", f"{opened} of {total['plain']}"
            table.add_row(what, f"{gold:.2f}", files[0], f"{other:.2f}", files[1], f"{other / gold:.1f}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
