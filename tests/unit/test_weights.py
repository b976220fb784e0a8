"""Which tables are kept: no more than the changes pay for, and so many that every moment is near one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake.silver.fold.schemas import CUTS_SCHEMA, SilverPayloadKind, build_changes_schema
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, Row, plain, truth_of
from support.seeds import long_beyond
from support.snapshots import Cutter
from support.streams import COLUMNS, HASTY, LIGHT, WILD, StreamMaker, cut

INTERVALS = [1, 3_000, 20_000, 600_000]
CASES = [(seed, integrity) for seed in range(12) for integrity in list(Integrity)[seed % 2 :: 2]]

# What one session sends, an interval of 100 ms behind the other: `3` a snapshot of so many rows, `+2` an update of so
# many, `-1` one that deletes so many; and the sizes of the tables that are kept.
TIMELINES = [
    ("3", "3"),
    ("3 | +3", "3 ."),
    ("3 | +4", "3 4"),
    ("3 | +2 +2", "3 3"),
    ("3 | +2 | +1", "3 . ."),
    ("3 | +2 | +2", "3 . 3"),
    ("3 | 2", "3 ."),
    ("3 | 3", "3 3"),
    ("3 | 2 | +1", "3 . 2"),
    ("3 | -3 | -0 | +1 | +1", "3 . . 1 ."),
    ("1 | -1 -1 | +1", "1 0 1"),
    ("0 | +0 | +1", "0 . 1"),
    ("+0 | +1", ". 1"),
]


def messages(timeline: str) -> Iterator[KafkaMessage]:
    intervals = timeline.split(" | ")
    said = [(number, word) for number, words in enumerate(intervals) for word in words.split()]
    for offset, (number, word) in enumerate(said):
        ids = [f"r{n}" for n in range(int(word.lstrip("+-")))]
        body: dict[str, Any] = {"type": "snapshot", "rows": [{"id": name} for name in ids]}
        if word[0] == "+":
            body["type"] = "update"
        if word[0] == "-":
            body = {"type": "update", "deleted": ids}
        body |= {"seq": offset, "ts": 100 * number}
        yield KafkaMessage("t", 0, offset, 100 * number, b"s", json.dumps(body).encode())
    yield KafkaMessage("t", 0, len(said), 100 * len(intervals), b"", b"")  # lets time pass


def kept_of(cuts: list[Row], kept: list[Row]) -> str:
    known = {row["snapshot_at"]: row["rows"] for row in kept}
    return " ".join(str(known.get(row["snapshot_at"], ".")) for row in sorted(cuts, key=lambda row: row["snapshot_at"]))


@pytest.mark.parametrize(("timeline", "expected"), TIMELINES)
def test_a_table_is_kept_when_more_changes_came_since_the_last_than_that_has_rows(timeline: str, expected: str) -> None:
    stream = list(messages(timeline))
    capture = CaptureSettings(columns=COLUMNS, on_violation=OnViolation.RECORD)
    truth = truth_of(stream, capture, 100)
    assert (
        kept_of(truth.session_cuts, [row | {"rows": len(row["rows"])} for row in truth.session_snapshots]) == expected
    )
    for batches in ([stream], [[message] for message in stream]):
        folder = Folder(capture, 1, random.Random(0), interval=100)
        cutter = Cutter(folder, capture)
        for number, batch in enumerate(batches):
            folder.batch(batch)
            cutter.make(number, number + 1)
        cuts = plain(folder.table(SilverPayloadKind.CUTS, CUTS_SCHEMA))
        assert kept_of(cuts, plain(cutter.index)) == expected


Session = tuple[str, str]


class Captured:
    """A random stream's changes and kept tables by session, and how many tables were cut for each reason."""

    def __init__(self, seed: int, integrity: Integrity) -> None:
        rnd = random.Random(seed)
        capture = CaptureSettings(
            columns=COLUMNS, integrity=integrity, on_violation=rnd.choice([OnViolation.ISOLATE, OnViolation.RECORD]),
            lateness=rnd.choice(["0 s", "3 s"]), gap_timeout="5 s",
        )  # fmt: skip
        self.interval = rnd.choice(INTERVALS)
        folder = Folder(capture, 2, rnd, interval=self.interval)
        for batch in cut(rnd, StreamMaker(rnd, rnd.choice([LIGHT, WILD, HASTY])).make(150), 4):
            folder.batch(batch)
        cutter = Cutter(folder, capture)
        cutter.make(0, len(folder.parts))
        self.cuts = Counter(row["reason"] for row in plain(folder.table(SilverPayloadKind.CUTS, CUTS_SCHEMA)))
        self.changes: dict[Session, list[Row]] = {}
        for row in plain(folder.table(SilverPayloadKind.CHANGES, build_changes_schema(capture.declared_columns))):
            self.changes.setdefault(tuple(row[name] for name in SESSION), []).append(row)
        self.kept: dict[Session, list[Row]] = {session: [] for session in self.changes}
        for row in sorted(plain(cutter.index), key=lambda row: (row["position"], row["snapshot_at"])):
            self.kept.setdefault(tuple(row[name] for name in SESSION), []).append(row)


captured_of = cache(Captured)


@pytest.mark.parametrize(("seed", "integrity"), long_beyond(CASES[: len(CASES) // 4], CASES))
def test_the_tables_kept_at_intervals_have_less_than_two_rows_for_each_change(seed: int, integrity: Integrity) -> None:
    captured = captured_of(seed, integrity)
    for session, kept in captured.kept.items():
        rows = [row["rows"] for row in kept if row["reason"] == "interval"]
        assert sum(rows) < max(1, 2 * len(captured.changes.get(session, [])))


@pytest.mark.parametrize(("seed", "integrity"), long_beyond(CASES[: len(CASES) // 4], CASES))
def test_behind_a_kept_table_come_no_more_changes_than_it_has_rows_and_those_of_an_interval(
    seed: int, integrity: Integrity
) -> None:
    captured = captured_of(seed, integrity)
    for session, changes in captured.changes.items():
        bounds = [(-1, 0), *((row["position"], row["rows"]) for row in captured.kept[session]), (2**63, 0)]
        for (position, rows), (following, _) in pairwise(bounds):
            behind = [
                row["_applied_at"] // captured.interval for row in changes if position < row["_position"] <= following
            ]
            for number in set(behind):
                assert sum(earlier < number for earlier in behind) <= rows


def test_these_streams_have_tables_that_are_kept_at_intervals_and_some_that_are_not() -> None:
    cuts, kept = Counter[str](), Counter[str]()
    for seed, integrity in CASES[::5]:
        captured = captured_of(seed, integrity)
        cuts += captured.cuts
        kept += Counter(row["reason"] for rows in captured.kept.values() for row in rows)
    assert (kept["end"], kept["expiry"]) == (cuts["end"], cuts["expiry"])
    assert min(kept["end"], kept["expiry"], kept["interval"], cuts["interval"] - kept["interval"]) > 20
