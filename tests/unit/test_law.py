"""The law: what silver holds is a function of the messages, whatever the micro-batches, shards and tasks."""

from __future__ import annotations

import contextlib
import json
import random
from dataclasses import asdict
from itertools import combinations
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from sessionlake.integrity.rules import DecisionKey, OperatorDecision
from sessionlake.integrity.state_difference import find_first_state_difference
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.protocol.reasons import Reason
from sessionlake.settings.model import CaptureSettings, TopicRule
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake_lab.truth import GroundTruth, KafkaMessage, TruthViolationError
from support.folding import Folder, ViolationError, fold, of_silver, of_truth, truth_of, truth_rules
from support.seeds import long_beyond, seeds
from support.streams import (
    CALM,
    COLUMNS,
    HASTY,
    LIGHT,
    MAX_BYTES,
    SESSION_TIMEOUT,
    WILD,
    StreamMaker,
    Times,
    cut,
    with_times,
)

STREAMS = 134
CASES = [(integrity, policy) for integrity in Integrity for policy in ("isolate", "record")]
"""Every class, and what it does when it is violated."""
CLASSES = [(integrity,) for integrity in Integrity]
Case = tuple[Any, ...]


def core(numbers: range, cases: list[Case]) -> list[Case]:
    """The first fifth of the streams in half of the cases: in even ones if the seed is even, else in the odd ones."""
    return [(seed, *case) for seed in numbers[: len(numbers) // 5] for case in cases[seed % 2 :: 2]]


def every(numbers: range, cases: list[Case], usual: int | None = None) -> list[ParameterSet]:
    """Each stream in each case; those beyond the core of the first, the usual ones, are long tests."""
    return long_beyond(set(core(numbers[:usual], cases)), ((seed, *case) for seed in numbers for case in cases))


def capture(integrity: str, policy: str, seed: int, *by_topic: TopicRule) -> CaptureSettings:
    """Rules with times and limits that the streams overstep, now and then."""
    rnd = random.Random(-1 - seed)
    return CaptureSettings(
        columns=COLUMNS,
        integrity=Integrity(integrity),
        on_violation=OnViolation(policy),
        max_message_bytes=MAX_BYTES,
        lateness=rnd.choice(["0 ms", "1 s", "3 s", "10 minutes"]),
        gap_timeout=rnd.choice(["0 ms", "3 s", "20 s", "10 minutes"]),
        max_held_messages=rnd.choice([1, 4, 10_000, 10_000]),
        max_held_bytes=rnd.choice([300, 1 << 20, 1 << 20]),
        max_gaps=rnd.choice([0, 1, 3, 10_000, 10_000]),
        by_topic=by_topic,
    )


def interval(seed: int) -> int:
    """How often whole tables are cut: now and then, several times between two messages, or never before expiry."""
    return random.Random(-2 - seed).choice([1, 1_000, 7_000, 600_000, SESSION_TIMEOUT, SESSION_TIMEOUT + 1, 86_400_000])


def times_of(seed: int) -> Times:
    """What Kafka's timestamps are like: usual in half of the streams, else each kind in turn."""
    return Times.USUAL if seed // 2 % 2 else list(Times)[seed // 4 % len(Times)]


def stream(seed: int) -> tuple[random.Random, list[KafkaMessage]]:
    rnd = random.Random(seed)
    made = StreamMaker(rnd, rnd.choice([CALM, LIGHT, LIGHT, WILD, HASTY])).make(rnd.choice([1, 5, 30, 60, 120]))
    return rnd, with_times(random.Random(-4 - seed), made, times_of(seed))


def assert_same(found: object, expected: object) -> None:
    """Table by table, so that a failure shows the lines in question alone."""
    for (name, ours), theirs in zip(asdict(found).items(), asdict(expected).values(), strict=True):
        assert (name, sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))) == (name, [], [])
        assert (name, ours) == (name, theirs)


def assert_same_states(found: Folder, rebuilt: Folder) -> None:
    for mine, other in zip(found.states().values(), rebuilt.states().values(), strict=True):
        assert find_first_state_difference(mine, other) is None


@pytest.mark.parametrize(("seed", "integrity", "policy"), every(range(STREAMS), CASES))
def test_any_batches_and_shards_equal_the_truth(seed: int, integrity: str, policy: str) -> None:
    rnd, messages = stream(seed)
    rules = capture(integrity, policy, seed)
    every = interval(seed)
    found = fold(cut(rnd, messages, rnd.randint(1, 7)), rules, shards=rnd.randint(1, 4), rnd=rnd, interval=every)
    assert_same(of_silver(found), of_truth(truth_of(messages, rules, every)))


@pytest.mark.parametrize("seed", seeds(STREAMS // 8, STREAMS, 9_000))
def test_in_which_order_partitions_are_read_changes_nothing_though_they_share_session_ids(seed: int) -> None:
    rnd, messages = stream(seed)
    rules, every = capture(*rnd.choice(CASES), seed), interval(seed)
    other = merged_anew(rnd, messages)
    found = fold(cut(rnd, other, rnd.randint(1, 7)), rules, shards=rnd.randint(1, 4), rnd=rnd, interval=every)
    assert_same(of_silver(found), of_truth(truth_of(messages, rules, every)))


def merged_anew(rnd: random.Random, messages: list[KafkaMessage]) -> list[KafkaMessage]:
    """The same topic-partitions, one after the other or interleaved at random."""
    lanes: dict[tuple[str, int], list[KafkaMessage]] = {}
    for message in messages:
        lanes.setdefault((message.topic, message.partition), []).append(message)
    turns = [place for place, lane in lanes.items() for _ in lane]
    rnd.shuffle(turns)
    turns = sorted(turns) if rnd.random() < 0.3 else turns
    left = {place: iter(lane) for place, lane in lanes.items()}
    return [next(left[place]) for place in turns]


def test_these_streams_split_ids_over_partitions_alive_at_once_and_one_after_the_other() -> None:
    found = set()
    for seed in range(STREAMS):
        tables = truth_of(stream(seed)[1], capture("none", "record", seed))
        split = [event for event in tables.integrity_events if event["event"] == "split_session"]
        spans: dict[tuple[str, str], list[tuple[int, int]]] = {}
        for event in split:
            key = tuple(event[name] for name in SESSION)
            own = tables.sessions[key]
            spans.setdefault((event["topic"], event["session_id"]), []).append((own["first_ts"], own["last_ts"]))
        for (first, until), (then, last) in (pair for many in spans.values() for pair in combinations(many, 2)):
            found.add("one after the other" if until < then or last < first else "at once")
    assert found == {"at once", "one after the other"}


@pytest.mark.parametrize("seed", seeds(STREAMS // 8, STREAMS // 4, 7_000))
def test_erased_messages_are_moments_of_stream_time_and_nothing_else(seed: int) -> None:
    rnd, messages = stream(seed)
    gone = {key for key in {m.key for m in messages} if rnd.random() < 0.5}
    messages = [m._replace(key=ERASED_KEY, value=None) if m.key in gone else m for m in messages]
    rules, every = capture(*rnd.choice(CASES), seed), interval(seed)
    found = fold(cut(rnd, messages, rnd.randint(1, 7)), rules, shards=rnd.randint(1, 4), rnd=rnd, interval=every)
    assert_same(of_silver(found), of_truth(truth_of(messages, rules, every)))


@pytest.mark.parametrize(("seed", "integrity"), every(range(5_000, 5_000 + STREAMS // 2), CLASSES))
def test_the_state_after_any_batches_is_that_after_one(seed: int, integrity: str) -> None:
    rnd, messages = stream(seed)
    rules = capture(integrity, list(OnViolation)[seed % 3], seed)
    shards, every = rnd.randint(1, 4), interval(seed)
    found, rebuilt = (Folder(rules, shards, rnd, interval=every, bulk=rnd.random() < 0.7) for _ in range(2))
    done: list[KafkaMessage] = []
    with contextlib.suppress(ViolationError):
        for batch in cut(rnd, messages, rnd.randint(1, 9)):
            found.batch(batch)
            done += batch
    rebuilt.batch(done)
    assert_same_states(found, rebuilt)


def test_a_batch_that_concerns_no_session_of_a_shard_leaves_its_state_as_it_is() -> None:
    rules = capture("strict", "isolate", 0)
    text = b'{"type":"snapshot","seq":0,"ts":0,"rows":[]}'
    folder = Folder(rules, 2, random.Random(0))
    folder.batch([KafkaMessage("capture.a", 0, n, 0, b"s%d" % n, text) for n in range(8)])
    before = dict(folder.stored)
    assert all(len(state.cursors) for state in folder.states().values())
    folder.batch([KafkaMessage("capture.b", 0, 0, 10**9, b"s", text)])
    assert sorted(folder.stored[shard] is before[shard] for shard in range(2)) == [False, True]


def test_these_streams_bring_sessions_to_shards_that_have_not_kept_what_their_topic_partition_had_before() -> None:
    found = 0
    for seed in range(STREAMS // 6):
        rnd, messages = stream(seed)
        folder = Folder(capture("once", "record", seed), 3, rnd)
        for batch in cut(rnd, messages, 6):
            ends, before = dict(folder.ends), folder.states()
            folder.batch(batch)
            for shard, after in folder.states().items():
                kept = before[shard].clock.stream_times_by_partition
                found += sum(
                    1 for place in after.clock.stream_times_by_partition if place in ends and place not in kept
                )
        if found > 1:
            break
    assert found > 1


def test_these_streams_have_every_fault_of_the_protocol() -> None:
    tables = [truth_of(stream(seed)[1], capture(*case, seed)) for seed, *case in core(range(STREAMS), CASES)]
    others = (3_000 + seed for seed in range(STREAMS))  # fed to `fail`
    tables += [truth_of(stream(seed)[1], capture("none", "record", seed)) for seed in others]
    reasons = {row["reason"] for table in tables for row in table.quarantine}
    events = {(row["event"], row["action"]) for table in tables for row in table.integrity_events}
    others = {"skipped", "not_avro", "not_protobuf", "unknown_schema"}  # an operator's word; other formats than JSON
    others |= {"tombstone", "no_rule", "bad_path", "bad_value"}  # of feeds
    assert {str(reason) for reason in Reason} - reasons == others
    violations = ("gap", "orphan", "after_end", "held_limit", "gap_limit")
    assert events == {
        ("duplicate", "dropped"),
        ("healed", "applied"),
        ("split_session", "recorded"),
        ("gap", "applied"),
        ("late", "quarantined"),
        *((event, action) for event in violations for action in ("isolated", "recorded")),
    }
    statuses = {row["status"] for table in tables for row in table.sessions.values()}
    assert statuses == {"open", "ended", "expired", "broken"}


def test_these_streams_have_all_that_can_come_below_an_end() -> None:
    found = set()
    for seed, integrity, policy in core(range(STREAMS), CASES):
        if (integrity, policy) != (Integrity.ONCE, "isolate"):
            continue  # under `isolate` nothing else is applied to a session that has ended
        messages = stream(seed)[1]
        truth = truth_of(messages, capture(integrity, policy, seed), interval(seed))
        values = {(message.topic, message.partition, message.offset): message.value for message in messages}
        ends: dict[tuple[str, int, str, int], int] = {}
        for row in truth.session_cuts:
            life = *(row[name] for name in SESSION), row["life"]
            if row["reason"] == "end":
                ends[life] = row["position"]
                said = json.loads(values[row["topic"], row["partition"], row["offset"]] or b"")
                found |= {"an end below applied messages"} if said["seq"] + 1 < row["next_seq"] else set()
            elif life in ends:
                found.add(f"cut again at {row['reason']}")
        for row in truth.session_changes:  # what follows the end of a session's last life
            key = tuple(row[name] for name in SESSION)
            if row["_position"] > ends.get((*key, truth.sessions[key]["first_offset"]), row["_position"]):
                found.add(f"below an end: {row['change']}")
    assert found == {
        "an end below applied messages",
        "cut again at interval",
        "cut again at expiry",
        "below an end: clear",
        "below an end: upsert",
        "below an end: delete",
    }


@pytest.mark.parametrize("seed", seeds(STREAMS // 8, STREAMS // 2, 1_000))
def test_message_by_message_equals_bulk(seed: int) -> None:
    rnd, messages = stream(seed)
    rules = capture(*rnd.choice(CASES), seed)
    batches = list(cut(rnd, messages, 4))
    bulk = fold(batches, rules, shards=2, rnd=rnd, interval=interval(seed))
    single = fold(batches, rules, shards=2, rnd=rnd, interval=interval(seed), bulk=False)
    assert_same(of_silver(bulk), of_silver(single))


@pytest.mark.parametrize("seed", seeds(STREAMS // 16, STREAMS // 2, 2_000))
def test_every_topic_is_judged_by_its_own_rules(seed: int) -> None:
    rnd, messages = stream(seed)
    own = [
        TopicRule(pattern=r"capture\.a", integrity=Integrity.ORDER, on_violation=OnViolation.RECORD),
        TopicRule(pattern=r"capture\.(a|ö).*", on_violation=OnViolation.RECORD),
        TopicRule(pattern=r"capture\.b", integrity=Integrity.WINDOW, lateness="2 s"),
    ]
    rules = capture("strict", "isolate", seed, *own)
    found = fold(cut(rnd, messages, 5), rules, shards=3, rnd=rnd)
    assert_same(of_silver(found), of_truth(truth_of(messages, rules)))


@pytest.mark.parametrize(("seed", "integrity"), every(range(3_000, 3_000 + STREAMS), CLASSES, STREAMS // 2))
def test_fail_stops_at_the_truth_s_violation_and_commits_nothing_of_that_batch(seed: int, integrity: str) -> None:
    rnd, messages = stream(seed)
    rules = capture(integrity, "fail", seed)
    folder = Folder(rules, rnd.randint(1, 4), rnd)
    done: list[KafkaMessage] = []
    for batch in cut(rnd, messages, rnd.randint(1, 8)):
        due = first_violation([*done, *batch], rules)
        if due is None:
            folder.batch(batch)
            done += batch
            continue
        for _ in range(2):  # it stops again at the same place
            with pytest.raises(ViolationError) as stopped:
                folder.batch(batch)
            assert told(stopped.value.violation) == told(due)
        break
    assert_same(of_silver(folder.silver), of_truth(truth_of(done, rules)))


@pytest.mark.parametrize(("seed", "integrity"), every(range(4_000, 4_000 + STREAMS // 8), CLASSES, STREAMS // 16))
def test_decided_place_by_place_equals_the_same_decisions_known_from_the_beginning(seed: int, integrity: str) -> None:
    rnd, messages = stream(seed)
    rules = capture(integrity, "fail", seed)
    decisions: dict[DecisionKey, OperatorDecision] = {}
    shards = rnd.randint(1, 4)
    folder = Folder(rules, shards, rnd, decisions=decisions)
    for batch in cut(rnd, messages, rnd.randint(1, 8)):
        here = {(message.topic, message.partition, message.offset) for message in batch}
        for _ in messages:
            try:
                folder.batch(batch)
                break
            except ViolationError as stopped:
                at = stopped.violation
                place = at.topic, at.partition, at.session_id, at.offset
                assert place not in decisions, "a place is passed once it is decided"
                # What was taken in by an earlier batch cannot be skipped any more.
                skippable = (at.topic, at.partition, at.offset) in here and not (
                    integrity == "once" and at.event == "gap"
                )
                decisions[place] = rnd.choice(
                    [d for d in OperatorDecision if skippable or d is not OperatorDecision.SKIP]
                )
    again = Folder(rules, 2, rnd, decisions=decisions)
    for batch in cut(rnd, messages, rnd.randint(1, 8)):
        again.batch(batch)
    assert_same(of_silver(folder.silver), of_silver(again.silver))
    if shards == 2:
        assert_same_states(folder, again)


def told(violation: object) -> tuple[object, ...]:
    names = ("topic", "partition", "offset", "session_id", "integrity", "event")
    return tuple(getattr(violation, name) for name in names)


def first_violation(messages: list[KafkaMessage], rules: CaptureSettings) -> TruthViolationError | None:
    """The lowest place, by topic, partition and offset, of the sessions' first violations."""
    found = []
    for session in {(message.topic, message.partition, message.key) for message in messages}:
        truth = GroundTruth(truth_rules(rules))
        try:
            for message in messages:
                if (message.topic, message.partition) == session[:2]:
                    # The others' messages only let time pass.
                    truth.judge_message(message if message.key == session[2] else message._replace(key=None))
            truth.finish_and_return_tables()
        except TruthViolationError as violation:
            found.append(violation)
    return min(found, key=lambda v: (v.topic, v.partition, v.offset), default=None)
