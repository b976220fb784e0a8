"""A batch of 1,000 messages into a large `session_rows`: what it costs in silver, in the merge, and as of.

    python tests/perf/bench_large.py [--rows 1000000 50000000] [--batches 8] [--sessions 50]

The table is written by Spark as maintenance leaves it, in the order of its clustering keys; nothing waits for messages
that made it. The messages of a batch are updates of so many sessions, anywhere in the table. Medians of the second half
of the batches; one process a size.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from stages import cpu_seconds

from sessionlake.delta.folders.compaction import ROW_GROUP
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, ROWS
from sessionlake.delta.storage.txn import Txn
from sessionlake.history.asof import session_as_of
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake.settings.section import Integrity
from sessionlake.silver.job import start as start_silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.interpreted import use_temporary_spark_conf
from sessionlake.spark.session import get_or_start_spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_A_SESSION = 100
ROWS_A_FILE = 2_000_000
TOPICS = 16
MESSAGES_A_BATCH = 1_000
NOW = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a batch of 1,000 messages by the size of session_rows.")
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 50_000_000], help="held before")
    parser.add_argument("--batches", type=int, default=8, help="the first half warms up")
    parser.add_argument("--sessions", type=int, default=50, help="that a batch's messages are of")
    parser.add_argument("--one", action="store_true", help="measure in this process, and print JSON")
    arguments = parser.parse_args()
    if arguments.one:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(Path(folder), arguments.rows[0], arguments.batches, arguments.sessions)
        sys.stdout.write(json.dumps(found) + "\n")
        return
    results = []
    for rows in arguments.rows:
        sizes = {"--rows": rows, "--batches": arguments.batches, "--sessions": arguments.sessions}
        options = ["--one", *(str(word) for pair in sizes.items() for word in pair)]
        done = subprocess.run([sys.executable, __file__, *options], stdout=subprocess.PIPE, text=True, check=True)
        results.append(json.loads(done.stdout.splitlines()[-1]))
    show(arguments.rows, results)


def show(sizes: list[int], results: list[dict[str, list[float]]]) -> None:
    table = Table(title="A batch of 1,000 messages, CPU s / wall s", title_justify="left")
    table.add_column("stage")
    for rows in sizes:
        table.add_column(f"{rows:,} rows", justify="right")
    table.add_column("last / first", justify="right")
    for stage in results[0]:
        pairs = [found[stage] for found in results]
        cells = [f"{cpu:.2f} / {wall:.2f}" for cpu, wall in pairs]
        table.add_row(stage, *cells, f"{pairs[-1][0] / max(pairs[0][0], 0.01):.2f}")
    Console(width=100).print(table)


def measure(home: Path, rows: int, batches: int, sessions: int) -> dict[str, list[float]]:
    """Medians of CPU and wall seconds by stage."""
    settings = Settings(home=home, capture=CaptureSettings(integrity=Integrity.NONE))
    spark = get_or_start_spark_session(settings, long_running=True)
    lake, merger, held = Lake(settings), TableMerger(spark, settings), rows // ROWS_A_SESSION
    lake.create_or_update_tables(spark, [MESSAGES])
    load(spark, lake, held)
    rnd, ends = random.Random(1), Counter[str]()
    found: dict[str, list[tuple[float, float]]] = {}
    for number in range(batches):
        chosen = [session(place, held) for place in rnd.sample(range(held), sessions)]
        arrive(lake, number, chosen, ends)
        topic, first = chosen[0]
        stages: dict[str, Callable[[], object]] = {
            "silver": lambda: start_silver(spark, settings, once=True, on_batch=merger.add_pending_batch).wait(),
            "session_rows and sessions": merger.merge_all_pending_batches,
            "as of": partial(session_as_of, settings, first, topic, ts=NOW + number),
        }
        for stage, work in stages.items():
            cpu, wall = cpu_seconds(), time.perf_counter()
            work()
            found.setdefault(stage, []).append((cpu_seconds() - cpu, time.perf_counter() - wall))
    return {
        stage: [statistics.median(pair) for pair in zip(*times[len(times) // 2 :], strict=True)]
        for stage, times in found.items()
    }


def session(number: int, held: int) -> tuple[str, str]:
    """Topic and id of one of them: ids as far from each other as random ones are, in the order of the numbers."""
    return f"capture.s{number * TOPICS // held:02}", f"{number * _step(held):012x}"


def _step(held: int) -> int:
    return (1 << 46) // held


def load(spark: SparkSession, lake: Lake, held: int) -> None:
    """Writes the rows of so many sessions, sorted by the table's clustering keys."""
    number = f"(id div {ROWS_A_SESSION})"
    given = {
        "topic": f"'capture.s' || lpad({number} * {TOPICS} div {held}, 2, '0')",
        "session_id": f"lower(lpad(hex({number} * {_step(held)}), 12, '0'))",
        "row_id": f"'r' || (id % {ROWS_A_SESSION})",
        "price": "double(id % 1000) / 8",
        "qty": "id % 100",
        "status": "'OPEN'",
        **dict.fromkeys(("_epoch", "_seq"), "-1L"),
        "_ts": f"{NOW}L",
        "_offset": "id",
    }
    columns = lake.storage.read_column_types(spark, ROWS)
    values = [f"CAST({given.get(name, 'NULL')} AS {sql}) AS {name}" for name, sql in columns.items()]
    count = held * ROWS_A_SESSION
    rows = spark.range(0, count, numPartitions=math.ceil(count / ROWS_A_FILE)).selectExpr(*values)
    with use_temporary_spark_conf(spark, {"parquet.block.size": str(ROW_GROUP)}):
        lake.storage.append_rows_with_spark(rows, ROWS, {})


def arrive(lake: Lake, batch: int, chosen: list[tuple[str, str]], ends: Counter[str]) -> None:
    """Updates of one row each, in turn of the sessions.

    Args:
        ends: the next offset of each topic.
    """
    schema = lake.reader().read_table_schema(MESSAGES)
    at, rows = datetime.fromtimestamp((NOW + batch) / 1000, UTC), []
    for number in range(MESSAGES_A_BATCH):
        topic, name = chosen[number % len(chosen)]
        value = {
            "type": "update",
            "seq": number,
            "ts": NOW,
            "rows": [{"id": f"r{number % ROWS_A_SESSION}", "qty": number}],
        }
        at = datetime.fromtimestamp((NOW + batch) / 1000, UTC)
        row = {"topic": topic, "partition": batch, "offset": ends[topic], "timestamp": at, "timestamp_type": 0}
        rows.append(row | {"key": name.encode(), "value": json.dumps(value).encode()})
        ends[topic] += 1
    lake.storage.append_rows(None, MESSAGES, pa.Table.from_pylist(rows, schema), Txn("bench", batch))


if __name__ == "__main__":
    main()
