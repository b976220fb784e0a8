"""Judging, told as timelines: one session's messages from left to right, and what becomes of each.

A message is its type's first letter and its seq: `s0` a snapshot, `u1` an update, `h2` a heartbeat, `e3` an end; `~`
before it: it comes more than a session timeout after the one before, `=`: exactly a session timeout. Its offset is its
place. Verdicts: `+` applied, `d` duplicate, `q` quarantined, `!` the job stops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sessionlake.config import CaptureSettings, Integrity, OnViolation
from sessionlake.errors import ConfigError, LakeError
from sessionlake.integrity.batch import Stream, judge_batch
from sessionlake.integrity.cursor import FORMAT, Cursor, ShardState, Status, new_cursors
from sessionlake.integrity.judge import Header, Judgement, Verdict, judge
from sessionlake.integrity.rules import RuleBook, Rules
from sessionlake.protocol.message import INT64_MAX

TIMEOUT = 1_000
TYPES = {"s": 0, "u": 1, "h": 2, "e": 3}
MARKS = {Verdict.APPLIED: "+", Verdict.DUPLICATE: "d", Verdict.QUARANTINED: "q"}
LAST = INT64_MAX


def rules(integrity: str, policy: str) -> Rules:
    return Rules(Integrity(integrity), OnViolation(policy), TIMEOUT, lateness=0, gap_timeout=0)


def headers(timeline: str) -> list[Header]:
    found, now = [], 0
    for offset, word in enumerate(timeline.split()):
        now += {"~": TIMEOUT + 1, "=": TIMEOUT}.get(word[0], 1)
        kind, *seq = word.lstrip("~=")
        found.append(Header(TYPES[kind], int("".join(seq)), ts=now - 1, offset=offset, kafka_ts=now, partition=0))
    return found


def run(timeline: str, how: Rules) -> tuple[Cursor, list[Judgement]]:
    cursor, judgements = Cursor(), []
    for header in headers(timeline):
        judgements.append(judge(cursor, header, how))
        if judgements[-1].violation:
            break
    return cursor, judgements


def marks(judgements: list[Judgement]) -> str:
    return " ".join("!" if j.violation else MARKS[j.verdict] for j in judgements)


ANY = "strict order"
TIMELINES = [
    # class, policy, messages, verdicts, status, events
    (ANY, "fail isolate record", "s0 u1 h2 u3 e4", "+ + + + +", "ended", []),
    (ANY, "fail isolate record", "s7 u8", "+ +", "open", []),
    (ANY, "fail isolate record", "s0 u1 u1 u0 u2", "+ + d d +", "open", ["duplicate dropped"] * 2),
    (ANY, "fail isolate record", "s0 s0 s1", "+ d +", "open", ["duplicate dropped"]),
    (ANY, "fail isolate record", "s0 e1 e1 s0", "+ + d d", "ended", ["duplicate dropped"] * 2),
    ("strict", "fail", "s0 u2", "+ !", "open", ["gap stopped"]),
    ("strict", "isolate", "s0 u2 u3 e4", "+ q q q", "broken", ["gap isolated"]),
    ("strict", "isolate", "s0 u2 u1", "+ q q", "broken", ["gap isolated"]),
    ("strict", "isolate", "s0 u1 u3 u1", "+ + q d", "broken", ["gap isolated", "duplicate dropped"]),
    ("strict", "isolate", "s0 u2 s1 u2", "+ q + +", "open", ["gap isolated", "healed applied"]),
    ("strict", "isolate", "s0 u2 s9 u10", "+ q + +", "open", ["gap isolated", "healed applied"]),
    ("strict", "isolate", "s0 u2 s0", "+ q d", "broken", ["gap isolated", "duplicate dropped"]),
    ("strict", "isolate", "s0 s2 u3", "+ + +", "open", ["gap isolated"]),
    ("strict", "record", "s0 u2 u3", "+ + +", "open", ["gap recorded"]),
    ("strict", "record", "s0 u2 u1", "+ + d", "open", ["gap recorded", "duplicate dropped"]),
    ("order", "fail isolate record", "s0 u2 u3 s9", "+ + + +", "open", ["gap applied"] * 2),
    ("order", "fail isolate record", "s0 u2 u1", "+ + d", "open", ["gap applied", "duplicate dropped"]),
    (ANY, "fail", "u0", "!", "open", ["orphan stopped"]),
    (ANY, "fail", "h0", "!", "open", ["orphan stopped"]),
    (ANY, "isolate", "u0 u0 e1 s0 u1", "q q q + +", "open", ["orphan isolated", "healed applied"]),
    (ANY, "record", "u5 u6 u5", "+ + d", "open", ["orphan recorded", "duplicate dropped"]),
    (ANY, "record", "e5", "+", "ended", ["orphan recorded"]),
    (ANY, "fail", "s0 e1 u2", "+ + !", "ended", ["after_end stopped"]),
    (ANY, "isolate", "s0 e1 s2 u9", "+ + q q", "ended", ["after_end isolated"] * 2),
    (ANY, "record", "s0 e1 s2 u3", "+ + + +", "ended", ["after_end recorded"] * 2),
    (ANY, "fail isolate record", "s5 =u6", "+ +", "open", []),
    (ANY, "fail isolate record", "s5 ~s0 u1", "+ + +", "open", []),
    (ANY, "fail isolate record", "s0 e1 ~s0", "+ + +", "open", []),
    (ANY, "fail", "s5 ~u6", "+ !", "open", ["orphan stopped"]),
    (ANY, "isolate", "s5 ~u6 s0", "+ q +", "open", ["orphan isolated", "healed applied"]),
    ("strict", "isolate", "s0 u2 ~s0", "+ q +", "open", ["gap isolated"]),
    (ANY, "fail isolate record", f"s{LAST - 1} u{LAST} u{LAST}", "+ + d", "open", ["duplicate dropped"]),
]
CASES = [
    pytest.param(integrity, policy, *case[2:], id=f"{integrity}-{policy}-{case[2]}")
    for case in TIMELINES
    for integrity in case[0].split()
    for policy in case[1].split()
]


@pytest.mark.parametrize(("integrity", "policy", "timeline", "verdicts", "status", "events"), CASES)
def test_timeline(integrity: str, policy: str, timeline: str, verdicts: str, status: str, events: list[str]) -> None:
    cursor, judgements = run(timeline, rules(integrity, policy))
    assert marks(judgements) == verdicts
    assert Status(cursor.status).name.lower() == status
    assert [f"{j.event} {j.action}" for j in judgements if j.event] == events


@pytest.mark.parametrize("case", [pytest.param(case.values, id=case.id) for case in CASES])
def test_timeline_judged_as_a_batch(case: Any) -> None:
    integrity, policy, timeline, verdicts, *_ = case
    how, found = rules(integrity, policy), headers(timeline)[: len(verdicts.split())]
    types = {"type": np.int8, "partition": np.int32}
    names = ("type", "seq", "ts", "offset", "kafka_ts", "partition")
    arrays: list[Any] = [np.array([getattr(h, n) for h in found], types.get(n, np.int64)) for n in names]
    cursors = new_cursors(1)
    judged = judge_batch(Stream(np.zeros(1, np.int64), *arrays), cursors, lambda _: how)
    cursor, judgements = run(timeline, how)
    assert [Verdict(v) for v in judged.verdict] == [j.verdict for j in judgements]
    assert Cursor.of(cursors[0]) == cursor
    assert [j for _, j in judged.remarks] == [j for j in judgements if j.event or j.reason]


def test_a_new_life_counts_from_the_beginning() -> None:
    cursor, _ = run("s0 u1 u1 u5 ~s0", rules("order", "fail"))
    assert (cursor.messages, cursor.duplicates, cursor.gaps, cursor.first_offset, cursor.epoch) == (1, 0, 0, 4, 4)


def test_a_gap_counts_once_while_the_session_is_broken() -> None:
    assert run("s0 u2 u5 s9", rules("strict", "isolate"))[0].gaps == 1


def test_a_session_ends_at_the_event_time_of_its_end() -> None:
    assert run("s0 e1", rules("strict", "fail"))[0].ended_at == 1


def test_the_seq_after_the_last_possible_one_still_fits_a_bigint() -> None:
    _, judgements = run(f"s{LAST} u{LAST}", rules("strict", "fail"))
    assert judgements[1].expected == LAST


def test_state_comes_back_as_it_was_stored() -> None:
    cursors = new_cursors(1)
    cursors[0] = run("s0 u2 u5 s9 u1", rules("strict", "isolate"))[0].as_tuple()
    state = ShardState(pa.array(["t\0s"]), cursors)
    again = ShardState.decode(state.encode())
    assert again.keys.to_pylist() == ["t\0s"]
    assert again.cursors.tolist() == cursors.tolist()


def test_state_of_another_format_is_refused_with_what_to_do() -> None:
    stored = ShardState().encode().replace(FORMAT, FORMAT[:-1] + b"9")
    with pytest.raises(LakeError, match=r"cursors/9.*reads.*cursors/1.*fresh home"):
        ShardState.decode(stored)


@pytest.mark.parametrize("integrity", ["none", "once", "window"])
def test_a_class_that_is_not_built_is_refused_by_name(integrity: str) -> None:
    with pytest.raises(ConfigError, match=f"class {integrity} is not built"):
        RuleBook(CaptureSettings(integrity=Integrity(integrity)))
