"""What the core costs a million messages, without Spark: CPU seconds of this process.

    python tests/perf/bench_core.py [--messages 300000]

`decode` is what Python does per message: the C calls of a typed JSON decode and attribute reads by `map`.
Everything after it is columnar. `slow` sends every message through the one-by-one path, for comparison.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sessionlake.integrity.rules import build_decode_rules
from sessionlake.protocol.chunk import decode_ipc
from sessionlake.protocol.decode import decode_messages_to_chunk
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver.fold.pack import ShardMessagePacker, convert_times_to_milliseconds
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.tables.net_changes import compute_net_changes
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import Scenario

SHAPES = {"W1": (500, 200), "W2": (50_000, 10)}
SHARDS = 64


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures decoding, judging and folding.")
    parser.add_argument("--messages", type=int, default=300_000, help="per shape")
    count = parser.parse_args().messages
    figures = {shape: measure(*size, count) for shape, size in SHAPES.items()}
    table = Table(title="CPU seconds per million messages", title_justify="left")
    table.add_column("step")
    for shape in figures:
        table.add_column(shape, justify="right")
    for step in next(iter(figures.values())):
        table.add_row(step, *(f"{figures[shape][step]:.2f}" for shape in figures))
    Console(width=80).print(table)


def measure(sessions: int, rows: int, count: int) -> dict[str, float]:
    capture = CaptureSettings(on_violation=OnViolation.ISOLATE, lateness="2 seconds")
    rules = build_decode_rules(capture)
    raw = messages(sessions, rows, count, capture)
    kafka = convert_times_to_milliseconds(raw)
    figures: dict[str, float] = {}

    def timed(step: str, work: Callable[[], Any]) -> Any:
        work()  # the first time imports and compiles
        begun = time.process_time()
        result = work()
        figures[step] = (time.process_time() - begun) / count * 1e6
        return result

    timed("decode", lambda: decode_messages_to_chunk(kafka, rules))
    timed("decode, slow path", lambda: decode_messages_to_chunk(kafka, rules, in_bulk=False))
    packer = ShardMessagePacker(build_decode_rules(capture), SHARDS)
    packed = timed("pack (decode, sort, cut, clocks, IPC)", lambda: packer.pack_message_block(raw)).to_pylist()
    chunks: dict[int, list[bytes]] = {}
    for row in packed:
        chunks.setdefault(row["shard"], []).append(row["chunk"])

    def folded(integrity: Integrity, *, bulk: bool = True) -> list[list[tuple[str, bytes]]]:
        judged = capture.model_copy(update={"integrity": integrity})
        fold = SilverFold(capture.declared_columns, judged, is_vectorized=bulk)
        return [fold(shard, None, mine)[1] for shard, mine in chunks.items()]

    outs = timed("fold, strict", lambda: folded(Integrity.STRICT))
    for integrity in (Integrity.NONE, Integrity.ORDER, Integrity.ONCE, Integrity.WINDOW):
        timed(f"fold, {integrity}", functools.partial(folded, integrity))
    timed("fold, strict, message by message", lambda: folded(Integrity.STRICT, bulk=False))
    changes = pa.concat_tables([decode_ipc(out) for shard in outs for kind, out in shard if kind == "changes"])
    timed("net changes", lambda: compute_net_changes(changes, capture.declared_columns))
    return figures


def messages(sessions: int, rows: int, count: int, capture: CaptureSettings) -> pa.Table:
    made = list(
        generate_messages(
            Scenario.create_benchmark(sessions=sessions, rows=rows, messages=count), capture.declared_columns
        )
    )
    keys = pa.array([m.key for m in made], pa.binary())
    shards = pa.array(np.array([hash(m.key) % SHARDS for m in made], np.int32))
    return pa.table(
        {
            "shard": shards,
            "topic": pa.array([m.topic for m in made], pa.string()),
            "partition": pa.array(np.zeros(len(made), np.int32)),
            "offset": pa.array(np.arange(len(made))),
            "timestamp": pa.array([m.timestamp * 1000 for m in made], pa.timestamp("us", tz="UTC")),
            "key": keys,
            "value": pa.array([m.value for m in made], pa.binary()),
            "ingested_at": pa.nulls(len(made), pa.timestamp("us", tz="UTC")),
        }
    )


if __name__ == "__main__":
    main()
