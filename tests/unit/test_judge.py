"""Judging, told as timelines: one session's messages from left to right, and what becomes of each.

A message is its type's first letter and its seq: `s0` a snapshot, `u1` an update, `h2` a heartbeat, `e3` an end, `u`
one without a seq. Behind the seq, where it does not follow the seq before it: `u5<2` covers all above 2, `u5=2` is a
link to 2, `u5*` follows whatever was last, `s5>` begins the order again. Before it, `~`: it comes more than a session
timeout after the one before, `=`: exactly a session timeout. Behind it, `t5`: its event time, `@70`: its Kafka
timestamp, `!90`: stream time when it comes, if others were ahead of it. A lone `!90` is stream time passing. Its offset
is its place. Verdicts: `+` applied, `d` duplicate, `q` quarantined, `h` held back, `!` the job stops.
"""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sessionlake.errors import LakeError
from sessionlake.integrity.batch import judge_batch
from sessionlake.integrity.clock import PartitionStreamTime, ShardClock
from sessionlake.integrity.cursor import SessionCursor, SessionStatus, create_session_cursors, encode_variable_part
from sessionlake.integrity.cuts import CutReason
from sessionlake.integrity.judge import SessionJudge
from sessionlake.integrity.outcome import JudgingOutcome, MessageHeader, MessageVerdict
from sessionlake.integrity.recorder import ViolationError
from sessionlake.integrity.rules import JudgingRules, OperatorDecision
from sessionlake.integrity.shard_batch import MessageArrays, ShardBatch
from sessionlake.integrity.state import STATE_FORMAT, ShardState
from sessionlake.protocol.arrow import build_session_key
from sessionlake.protocol.columns import parse_columns
from sessionlake.protocol.message import ANY_SEQ, INT64_MAX, SeqLink
from sessionlake.settings.section import Integrity, OnViolation

TIMEOUT, LATENESS, GAP_TIMEOUT = 1_000, 10, 100
TYPES = {"s": 0, "u": 1, "h": 2, "e": 3}
MARKS = {
    MessageVerdict.APPLIED: "+",
    MessageVerdict.DUPLICATE: "d",
    MessageVerdict.QUARANTINED: "q",
    MessageVerdict.HELD: "h",
}
WORD = re.compile(r"([~=]?)([suhe])(\d*)(?:([<=])(\d+)|([*>]))?(?:t(\d+))?(?:@(\d+))?(?:!(\d+))?")
LAST = INT64_MAX
COLUMNS = parse_columns({"price": "double"})


def rules(integrity: str, policy: str, **limits: int) -> JudgingRules:
    return JudgingRules(Integrity(integrity), OnViolation(policy), TIMEOUT, LATENESS, GAP_TIMEOUT, **limits)


def headers(timeline: str) -> list[MessageHeader | int]:
    """Messages, and the stream times that come between them."""
    found: list[MessageHeader | int] = []
    now = stream_time = offset = 0
    for word in timeline.split():
        if word.startswith("!"):
            stream_time = int(word[1:])
            found.append(stream_time)
            continue
        before, kind, seq, sign, follows, alone, ts, at, ahead = WORD.fullmatch(word).groups()
        now = int(at) if at else now + {"~": TIMEOUT + 1, "=": TIMEOUT}.get(before, 1)
        stream_time = max(stream_time, now, int(ahead or 0))
        header = MessageHeader(
            type=TYPES[kind],
            seq=int(seq) if seq else -1,
            ts=int(ts) if ts else now - 1,
            offset=offset,
            kafka_ts=now,
            partition=0,
            lane=0,
            now=stream_time,
            size=10,
            changes=1,
            after=int(follows) if follows else ANY_SEQ if alone or not seq else int(seq) - 1,
            link={"=": SeqLink.LINK, ">": SeqLink.RESTART}.get(sign or alone, SeqLink.INTERVAL),
            index=offset,
        )
        found.append(header)
        offset += 1
    return found


def run(
    timeline: str, how: JudgingRules, decisions: dict[int, OperatorDecision] | None = None
) -> tuple[SessionCursor, JudgingOutcome, bool]:
    """The cursor, what became of the messages, and whether the job stopped."""
    found = headers(timeline)
    cursor, out = SessionCursor(), JudgingOutcome(sum(isinstance(item, MessageHeader) for item in found))
    judge = SessionJudge(cursor, [], how, out, decisions)
    try:
        for item in found:
            judge.judge_message(item) if isinstance(item, MessageHeader) else judge.advance_stream_time(item)
    except ViolationError:
        return cursor, out, True
    cursor.held = len(judge.held_messages)
    return cursor, out, False


def told(out: JudgingOutcome) -> list[str]:
    return [f"{event.kind} {event.action}" for event in out.events]


ANY = "strict order"
EVERY = "strict order once window none"
ALL = "fail isolate record"
TIMELINES = [
    # class, policy, messages, verdicts, status, events
    (ANY, ALL, "s0 u1 h2 u3 e4", "+ + + + +", "ended", []),
    (ANY, ALL, "s7 u8", "+ +", "open", []),
    (ANY, ALL, "s0 u1 u1 u0 u2", "+ + d d +", "open", ["duplicate dropped"] * 2),
    (ANY, ALL, "s0 s0 s1", "+ d +", "open", ["duplicate dropped"]),
    (ANY, ALL, "s0 e1 e1 s0", "+ + d d", "ended", ["duplicate dropped"] * 2),
    # Messages that say themselves what they follow: ranges, links, and none.
    (ANY, ALL, "s5* u7* u9* u8*", "+ + + d", "open", ["duplicate dropped"]),
    (ANY, ALL, "s0> u3<0 u5<3 e6<5", "+ + + +", "ended", []),
    (ANY, ALL, "s0> u5<0 u7<3 u6<5 u8<7", "+ + + d +", "open", ["duplicate dropped"]),  # an overlap is applied
    ("strict", "fail", "s0> u5<3", "+ !", "open", ["gap stopped"]),
    ("order", ALL, "s0> u5<3 u6<5", "+ + +", "open", ["gap applied"]),
    (ANY, ALL, "s9> u12=9 u15=12", "+ + +", "open", []),
    # A keep-alive has no seq of its own.
    (ANY, ALL, "s9> h9=9 h9=9 u12=9 u12=9", "+ + + + d", "open", ["duplicate dropped"]),
    ("strict", "fail", "s9> u12=8", "+ !", "open", ["gap stopped"]),
    ("strict", "fail", "s9> u12=10", "+ !", "open", ["gap stopped"]),
    ("strict", "isolate", "s9> u12=8 u13=12 s1> u2=1", "+ q q + +", "open", ["gap isolated", "healed applied"]),
    ("strict", "record", "s9> u12=8 u13=12", "+ + +", "open", ["gap recorded"]),
    (ANY, ALL, "s9> u10=9 s2> u3=2 s3> s3>", "+ + + + + +", "open", []),
    (ANY, ALL, "s9> e10=9 s2=10", "+ + d", "ended", ["duplicate dropped"]),
    ("none", ALL, "u5<9 s3> u3=7 h3*", "+ + + +", "open", []),
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
    ("order", ALL, "s0 u2 u3 s9", "+ + + +", "open", ["gap applied"] * 2),
    ("order", ALL, "s0 u2 u1", "+ + d", "open", ["gap applied", "duplicate dropped"]),
    (ANY, "fail", "u0", "!", "open", ["orphan stopped"]),
    (ANY, "fail", "h0", "!", "open", ["orphan stopped"]),
    (ANY, "isolate", "u0 u0 e1 s0 u1", "q q q + +", "open", ["orphan isolated", "healed applied"]),
    (ANY, "record", "u5 u6 u5", "+ + d", "open", ["orphan recorded", "duplicate dropped"]),
    (ANY, "record", "e5", "+", "ended", ["orphan recorded"]),
    (ANY, "fail", "s0 e1 u2", "+ + !", "ended", ["after_end stopped"]),
    (ANY, "isolate", "s0 e1 s2 u9", "+ + q q", "ended", ["after_end isolated"] * 2),
    (ANY, "record", "s0 e1 s2 u3", "+ + + +", "ended", ["after_end recorded"] * 2),
    (ANY, ALL, "s5 =u6", "+ +", "open", []),
    (ANY, ALL, "s5 ~s0 u1", "+ + +", "open", []),
    (ANY, ALL, "s0 e1 ~s0", "+ + +", "open", []),
    (ANY, "fail", "s5 ~u6", "+ !", "open", ["orphan stopped"]),
    (ANY, "isolate", "s5 ~u6 s0", "+ q +", "open", ["orphan isolated", "healed applied"]),
    ("strict", "isolate", "s0 u2 ~s0", "+ q +", "open", ["gap isolated"]),
    (ANY, ALL, f"s{LAST - 1} u{LAST} u{LAST}", "+ + d", "open", ["duplicate dropped"]),
    # A message's own timestamp takes an expiry back, until stream time is twice the session timeout past the last one.
    (ANY, ALL, "s5@0 u6@1000!2000", "+ +", "open", []),
    (ANY, "fail", "s5@0 u6@1000!2001", "+ !", "open", ["orphan stopped"]),
    (ANY, ALL, "s5@0 s0@1000!2001", "+ +", "open", []),
    # none: whatever comes is applied, until an end.
    ("none", ALL, "u5 u5 u3 u9 u s1", "+ + + + + +", "open", []),
    ("none", "fail", "u5 e6 u5", "+ + !", "ended", ["after_end stopped"]),
    ("none", "isolate", "u e u s", "+ + q q", "ended", ["after_end isolated"] * 2),
    # once: gaps are violations when they are not filled in time.
    ("once", ALL, "u3 u1 u2 u1", "+ + + d", "open", ["duplicate dropped"]),
    ("once", ALL, "s0@0 u2@1 u1@101 u3@102", "+ + + +", "open", ["gap applied"]),
    ("once", "fail", "s0@0 u2@1 !102", "+ +", "open", ["gap applied", "gap stopped"]),
    ("once", "record", "s0@0 u2@1 !102 u1@103", "+ + +", "open", ["gap applied", "gap recorded"]),
    ("once", "isolate", "s0@0 u2@1 !102 u3@103 u1@103 s4@104", "+ + q q +", "open",
     ["gap applied", "gap isolated", "healed applied"]),
    ("once", "isolate", "s0@0 s2@1 !102 u3@103", "+ + +", "open", ["gap applied", "gap isolated"]),
    # once: an end has its place in seq order; what is missing below it may still come, nothing may above it.
    ("once", ALL, "s0 u1 e3 u2", "+ + + +", "ended", ["gap applied"]),
    ("once", ALL, "s0 e3 u1 u2 u1", "+ + + + d", "ended", ["gap applied", "duplicate dropped"]),
    ("once", ALL, "s0 e1 e1 u1", "+ + d d", "ended", ["duplicate dropped"] * 2),
    ("once", ALL, "e3 u2 s1 h0", "+ + + +", "ended", []),
    ("once", ALL, "e5 e3 u4", "+ + +", "ended", []),
    ("once", ALL, "s0 e1 ~s1 u2", "+ + + +", "open", []),
    ("once", "fail", "s0 e2 u3", "+ + !", "ended", ["gap applied", "after_end stopped"]),
    ("once", "isolate", "s0 e2 u3 u1 s3", "+ + q + q", "ended",
     ["gap applied", "after_end isolated", "after_end isolated"]),
    ("once", "record", "s0 e2 u3 u1", "+ + + +", "ended", ["gap applied", "after_end recorded"]),
    ("once", "isolate", "e5 e3 u6", "+ + q", "ended", ["after_end isolated"]),
    # once: the end itself fills in: what was applied above it stays, what is missing above it must not come any more.
    ("once", ALL, "s0 u1 u3 e2", "+ + + +", "ended", ["gap applied"]),
    ("once", "fail", "s0 u5 e2 u3", "+ + + !", "ended", ["gap applied", "after_end stopped"]),
    ("once", "isolate", "s0 u5 e2 u3 u1 u5", "+ + + q + d", "ended",
     ["gap applied", "after_end isolated", "duplicate dropped"]),
    ("once", "record", "s0 u5 e2 u3 u1", "+ + + + +", "ended", ["gap applied", "after_end recorded"]),
    # once: a gap below the end that is not filled in time.
    ("once", "fail", "s0@0 e2@1 !101 !102", "+ +", "ended", ["gap applied", "gap stopped"]),
    ("once", "fail", "s0@0 e2@1 u1@101 !102", "+ + +", "ended", ["gap applied"]),
    ("once", "isolate", "s0@0 e2@1 !102 u1@103 u3@104", "+ + + q", "ended",
     ["gap applied", "gap isolated", "after_end isolated"]),
    ("once", "record", "s0@0 e2@1 !102 u1@103", "+ + +", "ended", ["gap applied", "gap recorded"]),
    ("once", "isolate", "s0@0 u2@1 e3@2 !102 u1@103", "+ + + +", "ended", ["gap applied", "gap isolated"]),
    ("once", "isolate", "s0@0 u2@1 !102 e1@103", "+ + q", "broken", ["gap applied", "gap isolated"]),
    ("once", "isolate", "s0@0 u2@1 ~u9 !9000", "+ + +", "open", ["gap applied", "gap isolated"]),
    # window: held back until stream of event time is `lateness` further.
    ("window", ALL, "s0t0 u1t5 u2t11", "+ h h", "open", []),
    ("window", ALL, "s0t0 u2t7 u1t3 h3t30", "+ + + h", "open", []),
    ("window", ALL, "s0t20 u1t10 u2t9", "h h q", "open", ["late quarantined"]),
    ("window", ALL, "s0t0 u1t0 u1t9 h2t30", "+ + d h", "open", ["duplicate dropped"]),
    ("window", ALL, "s0t0 u4t1 h5t30", "+ + h", "open", ["gap applied"]),
    ("window", ALL, "s0t0 u1t1 !1003", "+ +", "open", []),
    ("window", "isolate", "u0t0 h1t1 s2t2 !2000", "q q +", "open", ["orphan isolated", "healed applied"]),
    ("window", "isolate", "s0t0 e1t1 u2t2 !2000", "+ + q", "ended", ["after_end isolated"]),
]  # fmt: skip
CASES = [
    pytest.param(integrity, policy, *case[2:], id=f"{integrity}-{policy}-{case[2]}")
    for case in TIMELINES
    for integrity in case[0].split()
    for policy in case[1].split()
]


@pytest.mark.parametrize(("integrity", "policy", "timeline", "verdicts", "status", "events"), CASES)
def test_timeline(integrity: str, policy: str, timeline: str, verdicts: str, status: str, events: list[str]) -> None:
    cursor, out, stopped = run(timeline, rules(integrity, policy))
    marks = [MARKS[MessageVerdict(verdict)] for verdict in out.verdict.tolist()]
    wanted = verdicts.split()
    assert stopped == ("stopped" in " ".join(events))
    assert marks[: len(wanted) - ("!" in wanted)] == [mark for mark in wanted if mark != "!"]
    assert SessionStatus(cursor.status).name.lower() == status
    assert told(out) == events


def as_batch(timeline: str, how: JudgingRules) -> tuple[ShardBatch, JudgingOutcome]:
    """The same timeline as a batch; stream time that passes alone can only do so at its end."""
    found = headers(timeline)
    messages = [item for item in found if isinstance(item, MessageHeader)]
    types = {"type": np.int8, "link": np.int8, "partition": np.int32, "lane": np.int32, "size": np.int32}
    names = [field.name for field in fields(MessageArrays)][1:]
    arrays: list[Any] = [np.array([getattr(h, n) for h in messages], types.get(n, np.int64)) for n in names]
    nothing: list[Any] = [np.zeros(0, types.get(n, np.int64)) for n in names]
    end = found[-1] if isinstance(found[-1], int) else messages[-1].now
    batch = ShardBatch(
        new_messages=MessageArrays(np.zeros(1, np.int64), *arrays),
        cursors=create_session_cursors(1),
        variable_parts=np.full(1, None, object),
        rules=[how],
        ends=np.array([end]),
        held_messages=MessageArrays(np.zeros(0, np.int64), *nothing),
        held_bounds=np.zeros(2, np.int64),
    )
    return batch, judge_batch(batch)


@pytest.mark.parametrize("case", [pytest.param(case.values, id=case.id) for case in CASES])
def test_timeline_judged_as_a_batch(case: Any) -> None:
    integrity, policy, timeline, *_ = case
    how = rules(integrity, policy)
    cursor, out, stopped = run(timeline, how)
    batch, found = as_batch(timeline, how)
    assert found.events == out.events
    if not stopped:
        for name in ("verdict", "reason", "epoch", "position", "life"):
            assert getattr(found, name).tolist() == getattr(out, name).tolist(), name
        assert tuple(batch.cursors[0].tolist()) == cursor.list_array_record_values()
        assert batch.variable_parts[0] == encode_variable_part(cursor.create_variable_part())


def test_a_new_life_counts_from_the_beginning() -> None:
    cursor, *_ = run("s0 u1 u1 u5 ~s0", rules("order", "fail"))
    assert (cursor.messages, cursor.duplicates, cursor.gaps, cursor.first_offset, cursor.epoch) == (1, 0, 0, 4, 4)


def test_a_gap_counts_once_while_the_session_is_broken() -> None:
    assert run("s0 u2 u5 s9", rules("strict", "isolate"))[0].gaps == 1


def test_a_session_ends_at_the_event_time_of_its_end() -> None:
    assert run("s0 e1", rules("strict", "fail"))[0].ended_at == 1


def test_once_a_message_below_the_end_changes_nothing_but_the_table() -> None:
    cursor, out, _ = run("s0@0 e3t9@1 s1t1@2 e2t20@3", rules("once", "fail"))
    assert (cursor.ended_at, cursor.end_seq, cursor.last_seq, cursor.last_ts) == (9, 3, 3, 20)
    assert (out.epoch.tolist(), out.position.tolist(), out.late_fills) == ([0, 0, 2, 2], [0, 1, 2, 3], {0})
    assert [(CutReason(cut["reason"]).name, cut["at"], cut["changed_at"]) for cut in out.recorded_cuts] == [
        ("END", 1, 0)
    ]
    assert cursor.changed_at == 2


def test_once_one_gap_too_many_below_an_end_is_a_violation_and_the_session_stays_ended() -> None:
    cursor, out, _ = run("s0 e9 u5 u1", rules("once", "isolate", max_gaps=1))
    assert (told(out), cursor.status) == (["gap applied", "gap_limit isolated"], SessionStatus.ENDED)
    assert [MARKS[MessageVerdict(v)] for v in out.verdict.tolist()] == ["+", "+", "q", "+"]


def test_the_seq_after_the_last_possible_one_still_fits_a_bigint() -> None:
    _, out, _ = run(f"s{LAST} u{LAST}", rules("strict", "fail"))
    assert out.events[0].expected == LAST


def test_an_unfilled_gap_is_reported_the_message_that_revealed_it() -> None:
    _, out, _ = run("s0@0 u5@1 u1@2 u2@3 !200", rules("once", "record"))
    event = out.events[-1]
    assert (event.offset, event.expected, event.actual, event.kafka_ts) == (1, 3, 5, 1)


def test_what_is_released_together_takes_the_next_free_positions() -> None:
    _, out, _ = run("s0t0 u2t7 u1t3 h3t30 u4t31 !5000", rules("window", "fail"))
    assert out.position.tolist() == [3, 5, 4, 6, 7]


@pytest.mark.parametrize(
    ("policy", "verdicts", "events"),
    [
        ("isolate", "h h q h", ["held_limit isolated", "held_limit isolated"]),
        ("record", "+ + h h", ["held_limit recorded", "held_limit recorded"]),
    ],
)
def test_one_message_more_than_may_be_held_is_a_violation(policy: str, verdicts: str, events: list[str]) -> None:
    _, out, _ = run("s0t0 u1t1 u2t2 u3t3", rules("window", policy, max_held_messages=2))
    marks = " ".join(MARKS[MessageVerdict(v)] for v in out.verdict.tolist())
    assert (marks, told(out)) == (verdicts.replace("h h q h", "h h q q"), events)


def test_one_byte_more_than_may_be_held_is_a_violation() -> None:
    _, out, _ = run("s0t0 u1t1 u2t2", rules("window", "isolate", max_held_bytes=29))
    assert told(out) == ["held_limit isolated"]


@pytest.mark.parametrize("integrity", ["once", "window"])
def test_one_gap_more_than_is_allowed_is_a_violation_and_closes_the_oldest(integrity: str) -> None:
    timeline = "s0t5 u2t6 u4t7 u1t8 u3t9"
    cursor, out, _ = run(timeline, rules(integrity, "record", max_gaps=1))
    assert [told_ for told_ in told(out) if "gap applied" not in told_] == ["gap_limit recorded", "duplicate dropped"]
    assert cursor.taken.interval_bounds == [0, 4]


@pytest.mark.parametrize(
    ("integrity", "timeline", "offset", "decision", "verdicts", "events"),
    [
        ("strict", "s0 u2 u3", 1, OperatorDecision.ACCEPT_GAP, "+ + +", ["gap accepted"]),
        ("strict", "s0 u2 s3 u4", 1, OperatorDecision.ISOLATE, "+ q + +", ["gap isolated", "healed applied"]),
        ("strict", "s0 u7 u1", 1, OperatorDecision.SKIP, "+ q +", ["skipped quarantined"]),
        ("strict", "s0 e1 u2 e1", 2, OperatorDecision.SKIP, "+ + q d", ["skipped quarantined", "duplicate dropped"]),
        ("order", "u0 s1", 0, OperatorDecision.ISOLATE, "q +", ["orphan isolated", "healed applied"]),
        ("once", "s0@0 u2@1 !102", 1, OperatorDecision.ACCEPT_GAP, "+ +", ["gap applied", "gap accepted"]),
    ],
)
def test_a_decision_lets_the_job_pass_its_place(
    integrity: str, timeline: str, offset: int, decision: OperatorDecision, verdicts: str, events: list[str]
) -> None:
    _, out, stopped = run(timeline, rules(integrity, "fail"), {offset: decision})
    assert " ".join(MARKS[MessageVerdict(v)] for v in out.verdict.tolist()) == verdicts
    assert (told(out), stopped) == (events, False)


def test_a_decision_is_for_one_place_only() -> None:
    _, out, stopped = run("s0 u2 u4", rules("strict", "fail"), {1: OperatorDecision.ACCEPT_GAP})
    assert (told(out), stopped) == (["gap accepted", "gap stopped"], True)


# -- the state between batches


KEY, OTHER = build_session_key("t", 0, "s"), build_session_key("t", 0, "r")


def state(timeline: str, how: JudgingRules) -> ShardState:
    cursor, *_ = run(timeline, how)
    cursors, memories = create_session_cursors(1), np.full(1, None, object)
    cursors[0], memories[0] = cursor.list_array_record_values(), encode_variable_part(cursor.create_variable_part())
    return ShardState(pa.array([KEY]), cursors, memories, ShardClock([PartitionStreamTime("t", 0, 7, 9)]))


@pytest.mark.parametrize(
    ("timeline", "integrity"), [("s0 u2 u5 s9 u1", "strict"), ("s0 u2 u5 s9 u1", "once"), ("s0 s1", "once")]
)
def test_state_comes_back_as_it_was_stored(timeline: str, integrity: str) -> None:
    before = state(timeline, rules(integrity, "isolate"))
    again = ShardState.decode_shard_state(before.encode_shard_state(COLUMNS), COLUMNS)
    assert again.keys.to_pylist() == [KEY]
    assert again.cursors.tolist() == before.cursors.tolist()
    assert again.variable_parts.tolist() == before.variable_parts.tolist()
    assert again.clock.partition_times == before.clock.partition_times


def test_state_of_another_format_is_refused_with_what_to_do() -> None:
    stored = ShardState().encode_shard_state(COLUMNS).replace(STATE_FORMAT.encode(), STATE_FORMAT[:-1].encode() + b"9")
    with pytest.raises(LakeError, match=r"silver/9.*reads.*silver/8.*sessionlake rebuild silver"):
        ShardState.decode_shard_state(stored, COLUMNS)


def test_a_state_takes_over_some_sessions_of_another_and_keeps_its_own_others() -> None:
    own, other = state("s0 u1", rules("strict", "fail")), state("s0 u1 u2 u3", rules("strict", "fail"))
    own.keys, other.keys = pa.array([KEY]), pa.array([OTHER])
    own.store_cursors(np.array([-1]), pa.array([OTHER]), own.cursors.copy(), own.variable_parts.copy())
    own.clock = ShardClock([PartitionStreamTime("u", 0, 1, 1)])
    own.replace_sessions(other, lambda *name: name == ("t", 0, "r"))
    found = dict(zip(own.keys.to_pylist(), own.cursors[["last_seq", "lane"]].tolist(), strict=True))
    assert found == {KEY: (1, 0), OTHER: (3, 1)}
    assert own.clock.partition_times == [PartitionStreamTime("u", 0, 1, 1), PartitionStreamTime("t", 0, 7, 9)]


def test_a_state_keeps_the_topic_partitions_of_its_sessions_and_those_that_are_asked_for() -> None:
    found = state("s0 u1", rules("strict", "fail"))
    found.clock = ShardClock([PartitionStreamTime(topic, 0, 7, 9) for topic in "utvw"])
    found.cursors["lane"] = 1
    found.drop_clock_partitions_without_sessions({("w", 0)})
    again = ShardState.decode_shard_state(found.encode_shard_state(COLUMNS), COLUMNS)
    assert ([lane.topic for lane in again.clock.partition_times], again.cursors["lane"].tolist()) == (["t", "w"], [0])
