"""A batch of many sessions with one message each: CPU seconds and memory of packing and folding, shard after shard.

python tests/perf/bench_sessions.py --sessions 1000000
"""

from __future__ import annotations

import argparse
import resource
import time

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from sessionlake.integrity.rules import build_decode_rules
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver.fold.pack import BLOCK_MESSAGES, ShardMessagePacker
from sessionlake.silver.fold.shard import SilverFold

SHARDS = 64
START = 1_700_000_000_000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sessions", type=int, default=1_000_000)
    parser.add_argument("--shards", type=int, default=SHARDS)
    given = parser.parse_args()
    table = Table(title=f"{given.sessions:,} sessions of one message each, {given.shards} shards", title_justify="left")
    for heading in ("step", "CPU s", "bytes out", "peak memory, MiB"):
        table.add_column(heading, justify="left" if heading == "step" else "right")
    capture = CaptureSettings(on_violation=OnViolation.ISOLATE)
    states: dict[int, bytes | None] = {}
    for batch in range(2):
        table.add_row(f"before batch {batch}", "", "", f"{peak():,.0f}")
        chunks: dict[int, list[bytes]] = {}
        begun = time.process_time()
        packer = ShardMessagePacker(build_decode_rules(capture), given.shards)
        for start in range(0, given.sessions, BLOCK_MESSAGES):
            count = min(BLOCK_MESSAGES, given.sessions - start)
            packed = packer.pack_message_block(messages(start, count, batch, given)).to_pydict()
            for shard, chunk in zip(packed["shard"], packed["chunk"], strict=True):
                chunks.setdefault(shard, []).append(chunk)
        size = sum(len(chunk) for mine in chunks.values() for chunk in mine)
        table.add_row(f"pack {batch}", f"{time.process_time() - begun:.1f}", f"{size:,}", f"{peak():,.0f}")
        begun, size = time.process_time(), 0
        fold = SilverFold(capture.declared_columns, capture)
        for shard in sorted(chunks):
            after, out = fold(shard, states.get(shard), chunks.pop(shard))
            states[shard] = after or states.get(shard)
            size += sum(len(payload) for _, payload in out)
        table.add_row(f"fold {batch}", f"{time.process_time() - begun:.1f}", f"{size:,}", f"{peak():,.0f}")
        size = sum(len(state or b"") for state in states.values())
        table.add_row(f"states {batch}", "", f"{size:,}", f"{peak():,.0f}")
    Console(width=100).print(table)


def messages(start: int, count: int, batch: int, given: argparse.Namespace) -> pa.Table:
    """One message of each of these sessions, as bronze has them: snapshots, then updates."""
    number = np.arange(start, start + count)
    names = pc.cast(pa.array(number), pa.string())
    kind, seq = ("snapshot", 0) if batch == 0 else ("update", batch)
    head = f'{{"type":"{kind}","seq":{seq},"ts":{START},"rows":[{{"id":"r","qty":'
    values = pc.binary_join_element_wise(head, names, "}]}", "")
    return pa.table(
        {
            "shard": pa.array((number * 2_654_435_761 % 2**32 % given.shards).astype(np.int32)),
            "topic": pa.array(["capture.a"] * count),
            "partition": pa.array(np.zeros(count, np.int32)),
            "offset": pa.array(number + batch * given.sessions),
            "timestamp": pa.array(np.full(count, START * 1000 + batch), pa.timestamp("us", "UTC")),
            "key": pc.cast(pc.binary_join_element_wise("session-", names, ""), pa.binary()),
            "value": pc.cast(values, pa.binary()),
            "ingested_at": pa.nulls(count, pa.timestamp("us", "UTC")),
        }
    )


def peak() -> float:
    """The most memory that the process has had so far, MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
