"""How long `sessionlake report` takes over a lake of thirty million rows, and how large the page is.

    python tests/perf/bench_report.py

The rows are written by delta-rs alone, into a folder of their own. Without Spark; CPU is that of the command's process.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from deltalake import write_deltalake
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parents[1]))

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES, EVENTS, LEDGER, METRICS_1M, PROGRESS, QUARANTINE, SESSIONS
from sessionlake.settings.model import Settings
from support.lakes import find_table_folder
from support.ledgers import entries
from support.reports import END, TIME

PARTS, ROWS = 6, 1_000_000
"""Commits to each large table, and rows of each."""
ENTRIES = 60_000
SESSION_COUNT, TOPIC_COUNT = 20_000, 300
REASONS, KINDS, STATUSES = (
    ["gap", "session_broken", "bad_key"],
    ["gap", "duplicate", "late"],
    ["open", "ended", "broken"],
)


class Filler:
    """Writes the tables, part by part."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.rnd = lake, np.random.default_rng(0)
        self.sessions = pa.array([f"s-{n:05}" for n in range(SESSION_COUNT)])
        topics = pa.array([f"capture.t-{n:03}" for n in range(TOPIC_COUNT)])
        self.topics = topics.take(pa.array(np.arange(SESSION_COUNT) % TOPIC_COUNT))

    def one_of(self, texts: list[str], count: int = ROWS) -> pa.Array:
        return pa.array(texts).take(pa.array(self.rnd.integers(0, len(texts), count)))

    def write(self, table: str, columns: dict[str, pa.Array]) -> None:
        write_deltalake(find_table_folder(self.lake, table), pa.table(columns), mode="append")

    def ledger(self) -> None:
        each = PARTS * ROWS // (ENTRIES // 4)
        more = [{"table": table, "version": 0, "rows": each} for table in (QUARANTINE, EVENTS, PROGRESS)]
        for first in range(0, ENTRIES, 20_000):
            rows = entries(first, first + 20_000).to_pylist()
            for row in rows:
                row["outputs"] += more if row["layer"] == "silver" else []
            found = pa.Table.from_pylist(rows, entries(0, 1).schema)
            write_deltalake(find_table_folder(self.lake, LEDGER), found, mode="append")

    def part(self, number: int) -> None:
        batches = ENTRIES // 4 // PARTS
        own = {"_batch": pa.array(np.sort(self.rnd.integers(number * batches, (number + 1) * batches, ROWS)))}
        at = pa.array(np.sort(self.rnd.integers(number * 3_000, number * 3_000 + 300, ROWS)))
        place = {"topic": self.topics.take(at), "session_id": self.sessions.take(at)}
        self.write(QUARANTINE, place | own | {"reason": self.one_of(REASONS)})
        self.write(EVENTS, place | own | {"event": self.one_of(KINDS)})
        last = {"messages": pa.array(self.rnd.integers(0, 10**6, ROWS)), "last_ts": pa.array(np.full(ROWS, END))}
        self.write(PROGRESS, place | own | last)
        order = np.arange(ROWS)
        series = place | {"row_id": self.one_of([f"r{n}" for n in range(50)]), "metric": self.one_of(["price", "qty"])}
        values = {name: pa.array(self.rnd.random(ROWS)) for name in ("value", "average")}
        points = {"ts": pa.array(END - self.rnd.integers(0, 3_600_000, ROWS)), "position": pa.array(order)}
        self.write(AVERAGES, series | points | values | {"ordinal": pa.array(np.zeros(ROWS, np.int32))})
        starts = pa.array((END - order % 60 * 60_000) * 1000).cast(TIME)
        bounds = {"min": values["value"], "max": pa.array(self.rnd.random(ROWS) + 1), "average": values["average"]}
        self.write(METRICS_1M, series | {"window_start": starts, "points": pa.array(order)} | bounds)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        filler = Filler(Lake(Settings(home=Path(folder))))
        filler.ledger()
        statuses = filler.one_of(STATUSES, SESSION_COUNT)
        filler.write(SESSIONS, {"topic": filler.topics, "session_id": filler.sessions, "status": statuses})
        for number in range(PARTS):
            filler.part(number)
        page = Path(folder) / "report.html"
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        words = [sys.executable, "-m", "sessionlake", "report", "--output", str(page)]
        subprocess.run(words, env=os.environ | {"SESSIONLAKE_HOME": folder}, check=True, stdout=subprocess.DEVNULL)
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
        rows = PARTS * ROWS * 5 + SESSION_COUNT + ENTRIES
        Console().print(
            f"{rows:,} rows: {cpu:.1f} s of CPU, {used.ru_maxrss / 1024:.0f} MB at most, {page.stat().st_size:,} bytes"
        )


if __name__ == "__main__":
    main()
