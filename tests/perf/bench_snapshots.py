"""How many rows whole tables take beside the changes: kept at every cut, and kept where the changes outweigh the last.

    python tests/perf/bench_snapshots.py

Sessions update rows that stay; W1 and W2 are a tenth of `bench.py`'s sessions, at their own pace. Without Spark.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from sessionlake.integrity.rules import build_decode_rules
from sessionlake.protocol.chunk import decode_ipc
from sessionlake.settings.model import CaptureSettings
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.silver.fold.schemas import CUTS_SCHEMA, SilverPayloadKind, build_changes_schema
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.tables.snapshots import build_snapshots_schema, compute_snapshots
from sessionlake.silver.tables.weights import build_snapshot_weights
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import Scenario

CAPTURE = CaptureSettings()
COLUMNS = CAPTURE.declared_columns
# Sessions, rows of each, messages of all, messages a second of all.
SHAPES = {
    "W1": (50, 200, 100_000, 100.0),
    "W2": (5_000, 10, 100_000, 100.0),
    "24 h, 1 change a second, 300 rows": (1, 300, 86_400, 1.0),
    "24 h, 1 change a second, 3,000 rows": (1, 3_000, 86_400, 1.0),
    "24 h, 1 change a second, 30,000 rows": (1, 30_000, 86_400, 1.0),
    "24 h, 1 change a minute, 300 rows": (1, 300, 1_440, 1 / 60),
}


def main() -> None:
    table = Table(title="rows", title_justify="left")
    for heading in ("shape", "changes", "kept at every cut", "kept by weight"):
        table.add_column(heading, justify="left" if heading == "shape" else "right")
    for name, (sessions, rows, count, rate) in SHAPES.items():
        found = folded(Scenario.create_benchmark(sessions=sessions, rows=rows, messages=count, rate=rate))
        cuts, changes = found[SilverPayloadKind.CUTS], found[SilverPayloadKind.CHANGES]
        place = cuts.column_names.index("changes")
        uncounted = cuts.set_column(place, "changes", pa.nulls(cuts.num_rows, pa.int64()))
        table.add_row(name, f"{changes.num_rows:,}", *(f"{kept(each, changes):,}" for each in (uncounted, cuts)))
    Console(width=100).print(table)


def folded(scenario: Scenario) -> dict[str, pa.Table]:
    """Changes and cuts of a scenario."""
    raw = messages(scenario)
    chunks = [
        row["chunk"] for row in ShardMessagePacker(build_decode_rules(CAPTURE), 1).pack_message_block(raw).to_pylist()
    ]
    _, payloads = SilverFold(COLUMNS, CAPTURE)(0, None, chunks)
    rows = {kind: decode_ipc(payload) for kind, payload in payloads if kind != SilverPayloadKind.REPORT}
    empty = {
        SilverPayloadKind.CUTS: CUTS_SCHEMA.empty_table(),
        SilverPayloadKind.CHANGES: build_changes_schema(COLUMNS).empty_table(),
    }
    return {**empty, **rows}


def messages(scenario: Scenario) -> pa.Table:
    made = list(generate_messages(scenario, COLUMNS))
    return pa.table(
        {
            "shard": pa.array(np.zeros(len(made), np.int32)),
            "topic": pa.array([m.topic for m in made], pa.string()),
            "partition": pa.array(np.zeros(len(made), np.int32)),
            "offset": pa.array(np.arange(len(made))),
            "timestamp": pa.array([m.timestamp * 1000 for m in made], pa.timestamp("us", tz="UTC")),
            "key": pa.array([m.key for m in made], pa.binary()),
            "value": pa.array([m.value for m in made], pa.binary()),
            "ingested_at": pa.nulls(len(made), pa.timestamp("us", tz="UTC")),
        }
    )


def kept(cuts: pa.Table, changes: pa.Table) -> int:
    """How many rows the tables have that are kept at some cuts."""
    nothing = build_snapshots_schema(COLUMNS).empty_table()
    weights = build_snapshot_weights(nothing.append_column("rows", pa.nulls(0, pa.int64())), cuts)
    made: Iterator[pa.Table] = compute_snapshots(cuts, weights, nothing, changes, nothing, COLUMNS)
    return sum(part.num_rows - part["row_id"].null_count for part in made)


if __name__ == "__main__":
    main()
