"""What a great many live sessions cost: state on disk, memory of the fold, and the time to take up work again.

    python tests/perf/bench_state.py [--sessions 1000000]

Every session sends one snapshot, then some send again, so that every shard's state is written in every batch. The
restart is a process of its own: from its start until its first batch is in the ledger.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Self

import numpy as np
import psutil
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.txn import Txn
from sessionlake.settings.model import Settings
from sessionlake.silver import job
from sessionlake.spark.session import get_or_start_spark_session, stop_spark

START = 1_790_000_000_000
TOPICS = 8
BLOCK = 100_000
BATCHES = 8
SENDERS = 20_000


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures silver's state.")
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--home", type=Path, help="go on in this home: what the restart does")
    given = parser.parse_args()
    if given.home:
        take_up(given.home)
        return
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        figures = measure(home, given.sessions)
        begun = time.monotonic()
        subprocess.run([sys.executable, __file__, "--home", str(home)], check=True)
        figures["restart to first batch, s"] = time.monotonic() - begun
    table = Table(title=f"{given.sessions:,} live sessions", title_justify="left")
    table.add_column("figure")
    table.add_column("", justify="right")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.1f}")
    Console(width=80).print(table)


def measure(home: Path, sessions: int) -> dict[str, float]:
    settings = Settings(home=home)
    spark, lake = get_or_start_spark_session(settings, long_running=True), Lake(settings)
    lake.create_or_update_tables(spark, ["bronze.messages"])
    peak = Peak()
    offsets = np.zeros(TOPICS, np.int64)
    for first in range(0, sessions, BLOCK):
        numbers = np.arange(first, min(first + BLOCK, sessions))
        send(lake, numbers, 0, offsets)
    with peak:
        job.start(spark, settings, once=True).wait()
        for seq in range(1, BATCHES):
            send(lake, np.arange(SENDERS), seq, offsets)
            job.start(spark, settings, once=True).wait()
    state = Path(settings.checkpoint_path("silver")) / "state"
    size = sum(file.stat().st_size for file in state.rglob("*") if file.is_file())
    send(lake, np.arange(SENDERS), BATCHES, offsets)
    stop_spark()
    return {"state store on disk, MiB": size / 2**20, "Python worker, most, MiB": peak.bytes / 2**20}


def take_up(home: Path) -> None:
    settings = Settings(home=home)
    job.start(get_or_start_spark_session(settings, long_running=True), settings, once=True).wait()
    stop_spark()


def send(lake: Lake, numbers: np.ndarray, seq: int, offsets: np.ndarray) -> None:
    """One message of each of these sessions into bronze."""
    kind = b'"type":"snapshot","rows":[{"id":"r0","price":1.5}]' if not seq else b'"type":"heartbeat"'
    value = b'{%s,"seq":%d,"ts":%d}' % (kind, seq, START + seq * 1000)
    topic = numbers % TOPICS
    offset = np.empty(len(numbers), np.int64)
    for number in range(TOPICS):
        mine = np.flatnonzero(topic == number)
        offset[mine] = offsets[number] + np.arange(len(mine))
        offsets[number] += len(mine)
    count = len(numbers)
    at = pa.array(np.full(count, (START + seq * 1000) * 1000)).cast(pa.timestamp("us", tz="UTC"))
    rows = {
        "topic": [f"capture.chamber-{number:02d}" for number in topic],
        "partition": pa.array(np.zeros(count, np.int32)),
        "offset": offset,
        "timestamp": at,
        "timestamp_type": pa.array(np.zeros(count, np.int32)),
        "key": [b"chamber-%02d-%08x-%06d" % (n % TOPICS, n * 2654435761 % 2**32, n) for n in numbers.tolist()],
        "value": [value] * count,
        "headers": pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        "ingested_at": at,
    }
    lake.storage.append_rows(None, "bronze.messages", pa.table(rows), Txn(f"bench-{numbers[0]}", seq))


class Peak:
    """The highest memory (proportional set) of any one Python worker while it watches."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            for child in psutil.Process().children(recursive=True):
                try:
                    if "daemon" in " ".join(child.cmdline()):
                        self.bytes = max(self.bytes, child.memory_full_info().pss)
                except psutil.Error:
                    continue


if __name__ == "__main__":
    main()
