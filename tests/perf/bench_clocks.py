"""What a batch costs by how many topic-partitions there are: CPU milliseconds of this process, without Spark.

    python tests/perf/bench_clocks.py [--batches 20]

The sessions are as many each time, and live; every batch has 1,000 messages of some of them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sessionlake.integrity.rules import build_decode_rules
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.silver.fold.schemas import SilverPayloadKind, decode_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import sum_partition_counts
from sessionlake.silver.stream_times import StoredStreamTimes, StreamTimesLog

START = 1_790_000_000_000
SHARDS = 64
SESSIONS = 16_000
MESSAGES = 1_000
PARTITIONS = 16
TOPICS = (4, 1_000)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures packing and folding by the number of topic-partitions.")
    parser.add_argument("--batches", type=int, default=20)
    batches = parser.parse_args().batches
    with tempfile.TemporaryDirectory() as folder:
        figures = {topics: measure(topics, batches, Path(folder, str(topics))) for topics in TOPICS}
    table = Table(title=f"{MESSAGES:,} messages a batch, {SHARDS} shards, {SESSIONS:,} sessions", title_justify="left")
    table.add_column("")
    for topics in TOPICS:
        table.add_column(f"{topics * PARTITIONS:,} topic-partitions", justify="right")
    for name in next(iter(figures.values())):
        table.add_row(name, *(f"{figures[topics][name]:,.1f}" for topics in TOPICS))
    Console(width=100).print(table)


def measure(topics: int, batches: int, folder: Path) -> dict[str, float]:
    folder.mkdir()
    capture = CaptureSettings(on_violation=OnViolation.ISOLATE)
    log = StreamTimesLog("silver", folder, StreamTimesAtBatchEnds())
    packer = ShardMessagePacker(build_decode_rules(capture), SHARDS, earlier_times=StoredStreamTimes(str(folder)))
    fold = SilverFold(capture.declared_columns, capture)
    sent, offsets = np.zeros(SESSIONS, np.int64), np.zeros(topics * PARTITIONS, np.int64)
    states: dict[int, bytes | None] = {}
    rnd, packs, folds, notes = np.random.default_rng(1), [], [], []
    for number in range(batches + 4):
        # Once every session, then some; the first few of these warm up.
        chosen = np.sort(rnd.choice(SESSIONS, MESSAGES, replace=False)) if number else np.arange(SESSIONS)
        raw = messages(chosen, sent, offsets, START + number * 1000)
        begun = time.process_time()
        packed = packer.pack_message_block(raw)
        packs.append(time.process_time() - begun)
        chunks: dict[int, list[bytes]] = {}
        for shard, chunk in zip(packed["shard"].to_pylist(), packed["chunk"].to_pylist(), strict=True):
            chunks.setdefault(shard, []).append(chunk)
        reports = []
        begun = time.process_time()
        for shard, mine in chunks.items():
            after, sent_on = fold(shard, states.get(shard), mine)
            states[shard] = after or states.get(shard)
            reports += [payload for kind, payload in sent_on if kind == SilverPayloadKind.REPORT]
        folds.append(time.process_time() - begun)
        decoded = [decode_report(report) for report in reports]
        ends = sum_partition_counts(decoded)
        begun = time.process_time()
        log.add_batch_notes(ends, decoded)
        notes.append(time.process_time() - begun)
    return {
        "pack, ms": median(packs[4:]) * 1000,
        "fold, all shards, ms": median(folds[4:]) * 1000,
        "pack and fold, ms": median(a + b for a, b in zip(packs[4:], folds[4:], strict=True)) * 1000,
        "notes of stream time, ms": median(notes[4:]) * 1000,
        "notes, KiB": sum(file.stat().st_size for file in folder.iterdir()) / 1024,
        "states, KiB": sum(len(state or b"") for state in states.values()) / 1024,
    }


def messages(chosen: np.ndarray, sent: np.ndarray, offsets: np.ndarray, at: int) -> pa.Table:
    """One message of each of these sessions, as bronze has them; session n is in topic-partition n modulo all."""
    lane = chosen % len(offsets)
    order = np.argsort(lane, kind="stable")
    chosen, lane = chosen[order], lane[order]
    starts = np.flatnonzero(np.diff(lane, prepend=-1))
    offset = offsets[lane] + np.arange(len(lane)) - np.repeat(starts, np.diff(np.append(starts, len(lane))))
    np.add.at(offsets, lane, 1)
    kinds = (b'"type":"snapshot","rows":[{"id":"r0","price":1.5}]', b'"type":"update","rows":[{"id":"r0","price":2.5}]')
    values = [b'{%s,"seq":%d,"ts":%d}' % (kinds[seq > 0], seq, at) for seq in sent[chosen].tolist()]
    sent[chosen] += 1
    return pa.table(
        {
            "shard": pa.array(((chosen * 2_654_435_761 % 2**32 >> 16) % SHARDS).astype(np.int32)),
            "topic": [f"capture.chamber-{number:04d}" for number in (lane // PARTITIONS).tolist()],
            "partition": pa.array((lane % PARTITIONS).astype(np.int32)),
            "offset": offset,
            "timestamp": pa.array(np.full(len(chosen), at * 1000)).cast(pa.timestamp("us", tz="UTC")),
            "key": [b"chamber-%06d" % number for number in chosen.tolist()],
            "value": values,
        }
    )


if __name__ == "__main__":
    main()
