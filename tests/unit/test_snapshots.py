"""Snapshots out of the ones before and the changes since, whatever stretches of batches they are made in."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver.fold.schemas import CUTS_SCHEMA, build_changes_schema
from sessionlake.silver.tables.snapshots import CUT_COLUMNS, build_rows_schema, compute_snapshots
from sessionlake.silver.tables.weights import build_snapshot_weights
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, Row, plain, truth_of
from support.seeds import seeds
from support.snapshots import INDEX_SCHEMA, Cutter
from support.streams import COLUMNS, LIGHT, WILD, StreamMaker, cut

INTERVALS = [1, 3_000, 20_000, 600_000]


def lines(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def of_truth(messages: list[KafkaMessage], capture: CaptureSettings, interval: int) -> list[str]:
    return lines(
        [
            {**{name: found[name] for name in CUT_COLUMNS}, "row_id": row_id, **row}
            for found in truth_of(messages, capture, interval).session_snapshots
            for row_id, row in found["rows"].items()
        ]
    )


@pytest.mark.parametrize("integrity", Integrity)
@pytest.mark.parametrize("seed", seeds(2, 12))
def test_snapshots_of_any_stretches_are_the_truth_s(seed: int, integrity: Integrity) -> None:
    rnd = random.Random(seed)
    messages = StreamMaker(rnd, rnd.choice([LIGHT, WILD])).make(rnd.choice([20, 60, 120]))
    capture = CaptureSettings(
        columns=COLUMNS, integrity=integrity, on_violation=rnd.choice([OnViolation.ISOLATE, OnViolation.RECORD]),
        lateness=rnd.choice(["0 s", "3 s"]), gap_timeout="5 s",
    )  # fmt: skip
    interval = rnd.choice(INTERVALS)
    folder = Folder(capture, 2, rnd, interval=interval)
    batches = list(cut(rnd, messages, 6))
    for batch in batches:
        folder.batch(batch)
    cutter = Cutter(folder, capture)
    bounds = sorted({0, *rnd.sample(range(len(batches)), rnd.randint(0, 3)), len(batches)})
    for start, end in pairwise(bounds):
        cutter.make(start, end)
    assert lines(plain(cutter.found)) == of_truth(messages, capture, interval)


def test_nothing_to_cut_gives_nothing() -> None:
    columns = CaptureSettings(columns=COLUMNS).declared_columns
    cuts, changes = CUTS_SCHEMA.empty_table(), build_changes_schema(columns).empty_table()
    none = changes.select(SESSION)
    weights = build_snapshot_weights(INDEX_SCHEMA.empty_table(), cuts)
    assert (
        list(compute_snapshots(cuts, weights, build_rows_schema(columns).empty_table(), changes, none, columns)) == []
    )
