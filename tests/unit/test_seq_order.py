"""A session told in seq order from a snapshot is the one that is told from its beginning."""

from __future__ import annotations

import random
from collections import Counter
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from sessionlake.protocol.arrow import SESSION, mask_rows_of_sessions
from sessionlake.protocol.names import DELETE
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver.fold.schemas import PROGRESS_SCHEMA, SilverPayloadKind, build_changes_schema
from sessionlake.silver.merge.seq_history import read_stored_rows_and_later_changes
from sessionlake.silver.tables.net_changes import compute_net_changes_in_seq_order
from sessionlake.silver.tables.snapshots import ROW_KEY, list_columns_of_session_changes
from support.folding import Folder
from support.seeds import seeds
from support.snapshots import Cutter, Tables
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut


def tables(seed: int) -> tuple[dict[str, pa.Table], CaptureSettings, int]:
    """Silver's tables after some batches of streams of class `once`, and how many there were."""
    rnd = random.Random(seed)
    capture = CaptureSettings(
        columns=COLUMNS,
        integrity=Integrity.ONCE,
        on_violation=OnViolation.RECORD,
        max_message_bytes=MAX_BYTES,
        gap_timeout=rnd.choice(["3 s", "20 s", "10 minutes"]),
    )
    folder = Folder(capture, 2, rnd, interval=rnd.choice([1_000, 5_000, 60_000]))
    batches = list(cut(rnd, StreamMaker(rnd, LIGHT, ["t"]).make(120), 12))
    cutter = Cutter(folder, capture)
    for number, batch in enumerate(batches):
        folder.batch(batch)
        cutter.make(number, number + 1)
    found = {
        "silver.session_changes": folder.table(
            SilverPayloadKind.CHANGES, build_changes_schema(capture.declared_columns)
        ),
        "silver.session_progress": folder.table(SilverPayloadKind.PROGRESS, PROGRESS_SCHEMA),
        "silver.session_snapshots": cutter.found,
        "silver.session_snapshot_index": cutter.index,
    }
    return found, capture, len(batches)


@cache
def fold_and_compare(seed: int) -> Counter[str]:
    """Compares sessions folded from a snapshot with the same from the beginning; returns how many began at which."""
    found, capture, batches = tables(seed)
    columns, progress = capture.declared_columns, found["silver.session_progress"]
    begun = Counter[str]()
    for batch in range(batches):
        mine = progress.filter((pc.field("_batch") == batch) & pc.field("beneath"))
        sessions = mine.group_by(SESSION).aggregate([])
        if not sessions.num_rows:
            continue
        cuts = found["silver.session_snapshot_index"].filter(pc.field("_batch") < batch)
        rows, changes = read_stored_rows_and_later_changes(
            Tables(found).read_arrow_table, sessions, cuts, batch, columns
        )
        whole = found["silver.session_changes"].filter(pc.field("_batch") <= batch)
        whole = whole.filter(mask_rows_of_sessions(whole, sessions)).select(list_columns_of_session_changes(columns))
        begun["snapshot" if changes.num_rows < whole.num_rows else "beginning"] += 1
        expected = compute_net_changes_in_seq_order(whole, columns).to_pylist()
        made = compute_net_changes_in_seq_order(changes, columns, rows).to_pylist()
        assert _rows(made) == _rows(expected)
        # A session that has nothing new, and had an empty table, is not even cleared.
        assert _cleared(made) - _cleared(expected) == set()
        assert _cleared(expected) - _cleared(made) <= {
            key for key in _cleared(expected) if key not in _changed(changes)
        }
    return begun


@pytest.mark.parametrize("seed", seeds(8, 60))
def test_from_a_snapshot_it_is_the_same_as_from_the_beginning(seed: int) -> None:
    fold_and_compare(seed)


def test_these_streams_begin_at_snapshots_and_at_the_beginning() -> None:
    begun = sum((fold_and_compare(seed) for seed in range(8)), Counter[str]())
    assert min(begun["snapshot"], begun["beginning"]) > 3


def _rows(net: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a MERGE makes of net changes that begin with a clear: the rows that are there then."""
    kept = [row for row in net if row["row_id"] is not None and not row[DELETE]]
    return sorted(kept, key=lambda row: tuple(row[name] for name in ROW_KEY))


def _cleared(net: list[dict[str, Any]]) -> set[tuple[str, str]]:
    return {tuple(row[name] for name in SESSION) for row in net if row["row_id"] is None}


def _changed(changes: pa.Table) -> set[tuple[str, str]]:
    return {tuple(row[name] for name in SESSION) for row in changes.select(SESSION).to_pylist()}
