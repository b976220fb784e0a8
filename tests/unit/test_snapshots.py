"""Snapshots out of the ones before and the changes since, whatever stretches of batches they are made in."""

from __future__ import annotations

import random
import sys
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

sys.path.append(str(Path(__file__).parents[1]))
from sessionlake.config import CaptureSettings, Integrity, OnViolation
from sessionlake.integrity.cuts import NO_OFFSET
from sessionlake.local.truth import KafkaMessage
from sessionlake.protocol.arrow import are_of, session_keys
from sessionlake.silver.outputs import CUTS, PROGRESS, Output, changes_schema
from sessionlake.silver.snapshots import CUT, change_columns, last_cuts, rows_schema, snapshots, snapshots_schema
from support.folding import Folder, Row, plain, truth_of
from support.streams import COLUMNS, LIGHT, WILD, StreamMaker, cut

INTERVALS = [1, 3_000, 20_000, 600_000]
SESSION = ["topic", "session_id"]


def lines(rows: list[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def of_truth(messages: list[KafkaMessage], capture: CaptureSettings, interval: int) -> list[str]:
    return lines(
        [
            {**{name: found[name] for name in CUT}, "row_id": row_id, **row}
            for found in truth_of(messages, capture, interval).session_snapshots
            for row_id, row in found["rows"].items()
        ]
    )


class Cutter:
    """Makes the snapshots of stretches of batches, each from the last cuts before it and what was applied since."""

    def __init__(self, folder: Folder, capture: CaptureSettings) -> None:
        self._columns, self._parts = capture.declared, folder.parts
        self.found = snapshots_schema(self._columns).empty_table()

    def _all(self, kind: Output, schema: pa.Schema, batches: slice) -> pa.Table:
        found = [batch[kind] for batch in self._parts[batches] if kind in batch]
        return pa.concat_tables([schema.empty_table(), *found]).combine_chunks()

    def make(self, start: int, end: int) -> None:
        due = self._all(Output.CUTS, CUTS, slice(start, end))
        earlier = self._all(Output.CUTS, CUTS, slice(start))
        last = last_cuts(earlier.filter(are_of(earlier, due)))
        changes = self._all(Output.CHANGES, changes_schema(self._columns), slice(end))
        progress = self._all(Output.PROGRESS, PROGRESS, slice(end))
        anew = progress.filter(progress["beneath"]).group_by(SESSION).aggregate([])
        base = last["position"].take(pc.index_in(session_keys(changes), value_set=session_keys(last)))
        since = pc.greater(changes["_position"], pc.fill_null(base, NO_OFFSET))
        changes = changes.filter(pc.or_(since, are_of(changes, anew))).select(change_columns(self._columns))
        rows = self.found.join(last.select(CUT), list(CUT), join_type="left semi")
        rows = rows.filter(pc.invert(are_of(rows, anew)))
        made = snapshots(due.select(CUT), rows, changes, anew, self._columns)
        self.found = pa.concat_tables([self.found, *made])


@pytest.mark.parametrize("integrity", Integrity)
@pytest.mark.parametrize("seed", range(40))
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
    columns = CaptureSettings(columns=COLUMNS).declared
    cuts, changes = snapshots_schema(columns).empty_table().select(CUT), changes_schema(columns).empty_table()
    none = changes.select(SESSION)
    assert list(snapshots(cuts, rows_schema(columns).empty_table(), changes, none, columns)) == []
