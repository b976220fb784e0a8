"""Where whole tables are cut, told as timelines: `s u h e` a snapshot, update, heartbeat, end of the session, `-` a
message of another session; `@` its Kafka timestamp in ms. The interval is 100 ms, the session timeout 1,000 ms.

Every timeline goes to the truth, and to silver in one batch, message by message, and in a batch each.
"""

from __future__ import annotations

import json
import random
import re
from typing import Any

import pytest

from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake_lab.truth import KafkaMessage
from support.folding import fold, of_silver, of_truth, truth_of

KINDS = {"s": "snapshot", "u": "update", "h": "heartbeat", "e": "end"}
STRICT = CaptureSettings(columns={"v": "int"}, session_timeout="1 s", on_violation=OnViolation.RECORD)
WINDOW = STRICT.model_copy(update={"integrity": Integrity.WINDOW})
ONCE = STRICT.model_copy(update={"integrity": Integrity.ONCE})
INTERVAL = 100

TIMELINES = [
    # messages, cuts as reason@time:position of the last change that it holds
    ("strict", "s@10 -@99", ""),
    ("strict", "s@10 -@100", "interval@100:0"),
    ("strict", "s@10 u@99 u@100", "interval@100:1"),
    ("strict", "s@100 -@199 -@200", "interval@200:0"),
    ("strict", "s@10 u@110 u@120 u@990", "interval@100:0 interval@200:2"),
    ("strict", "s@10 h@110 h@210 -@310", "interval@100:0"),
    ("strict", "s@10 h@90 h@130 -@310", "interval@100:1"),
    ("strict", "s@10 e@20 -@900", "end@20:1"),
    ("strict", "s@10 u@90 e@110 -@900", "interval@100:1 end@110:2"),
    ("strict", "s@10 e@20 u@30 -@900", "end@20:1 interval@100:2"),
    ("strict", "s@10 e@20 -@2000", "end@20:1"),
    ("strict", "s@10 -@1010", "interval@100:0"),
    ("strict", "s@10 -@1011", "interval@100:0 expiry@1010:0"),
    ("strict", "s@10 -@1011 u@900 -@3000", "interval@100:0 expiry@1010:0 interval@1100:2 expiry@1900:2"),
    ("strict", "s@10 -@1011 h@900 -@3000", "interval@100:0 expiry@1010:0 expiry@1900:2"),
    ("strict", "s@10 -@1011 s0@900 -@3000", "interval@100:0 expiry@1010:0"),
    ("strict", "-@2000 s@10 -@2001", "expiry@2000:1"),
    ("strict", "-@2000 s@1000 -@2001", "expiry@2000:1"),
    ("strict", "-@2000 s@1001 -@2001 -@2100", "expiry@2001:1"),
    ("strict", "-@2000 s@1500 -@2100 -@2501", "interval@2100:1 expiry@2500:1"),
    ("strict", "s@-250 -@-200 u@-150 -@0", "interval@-200:0 interval@-100:2"),
    ("window", "s@10 u@20 -@1010", ""),
    ("window", "s@10 u@20 -@1021", "expiry@1020:2"),
    ("window", "s@10 e@20 -@1021", "end@1021:2"),
    ("window", "s@10 e@20 u@30 -@1021 -@1031", "end@1031:3 expiry@1030:4"),
    ("once", "s0@10 e2@20 u1@30 -@200 -@2000", "end@20:1 interval@100:2"),
    ("once", "s0@10 e2@20 u1@950 -@1951", "end@20:1 interval@1000:2"),
    ("once", "s0@10 e2@20 h1@30 -@2000", "end@20:1"),
    ("once", "-@2000 s0@1990 e2@1995 u1@999 -@2001", "end@2000:2 expiry@2000:3"),
]


def messages(timeline: str) -> list[KafkaMessage]:
    found, seq = [], 0
    for offset, word in enumerate(timeline.split()):
        kind, given, at = re.fullmatch(r"([suhe-])(\d*)@(-?\d+)", word).groups()
        body: dict[str, Any] = {"type": KINDS.get(kind, "end"), "seq": int(given or seq), "ts": int(at)}
        if kind in "su":
            body["rows"] = [{"id": f"r{offset}", "v": offset}]
        seq += not given and kind != "-"
        key = b"other" if kind == "-" else b"s"
        # Another session that never began: its message only lets time pass.
        value = b"" if kind == "-" else json.dumps(body).encode()
        found.append(KafkaMessage("capture.a", 0, offset, int(at), key, value))
    return found


CAPTURES = {"strict": STRICT, "window": WINDOW, "once": ONCE}
CASES = [(CAPTURES[kind], *rest) for kind, *rest in TIMELINES]


@pytest.mark.parametrize(("capture", "timeline", "expected"), CASES, ids=[" ".join(case[:2]) for case in TIMELINES])
def test_a_table_is_cut(capture: CaptureSettings, timeline: str, expected: str) -> None:
    stream, rnd = messages(timeline), random.Random(0)
    truth = truth_of(stream, capture, INTERVAL)
    found = [f"{cut['reason']}@{cut['snapshot_at']}:{cut['position']}" for cut in truth.session_cuts]
    assert " ".join(found) == expected
    for batches, bulk in (([stream], True), ([stream], False), ([[one] for one in stream], True)):
        silver = fold(batches, capture, shards=1, rnd=rnd, interval=INTERVAL, bulk=bulk)
        assert of_silver(silver).session_cuts == of_truth(truth).session_cuts


def test_a_cut_holds_the_table_of_its_moment_and_a_later_change_does_not_reach_it() -> None:
    truth = truth_of(messages("s@10 u@20 u@110 u@120 u@130 -@200"), STRICT, INTERVAL)
    assert [" ".join(cut["rows"]) for cut in truth.session_snapshots] == ["r0 r1", "r0 r1 r2 r3 r4"]


def test_once_a_late_fill_is_in_the_next_cut_and_not_in_the_one_before() -> None:
    stream = messages("s0@10 u3@20 u1@110 u2@120 h4@130 u5@130 -@200")
    truth = truth_of(stream, ONCE, INTERVAL)
    assert [sorted(cut["rows"]) for cut in truth.session_snapshots] == [["r0", "r1"], ["r0", "r1", "r2", "r3", "r5"]]
    assert [cut["next_seq"] for cut in truth.session_snapshots] == [4, 6]
