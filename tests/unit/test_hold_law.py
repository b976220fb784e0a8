"""The law of `hold`: what waits for a snapshot does not depend on the batches, and is what the truth says."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from sessionlake.integrity.rules import JudgingRuleLookup, JudgingRules, OperatorDecision
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity
from sessionlake_lab.truth import ExpectedTables, GroundTruth, KafkaMessage, TruthViolationError
from support.folding import Folder, ViolationError, of_silver, of_truth, truth_rules
from support.seeds import seeds
from support.streams import cut
from unit.test_law import assert_same, assert_same_states, capture, interval, stream

CASES = [(integrity, policy) for integrity in (Integrity.ORDER, Integrity.STRICT) for policy in ("isolate", "record")]
STREAMS = 400
HOLDS = (1, 2, 4, 1_000)


class HoldingRules(JudgingRuleLookup):
    """The rules of the capture settings, with `hold` in every topic."""

    hold = 0

    def find_judging_rules(self, topic: str) -> JudgingRules:
        return replace(super().find_judging_rules(topic), hold=self.hold)


def holding(rules: CaptureSettings, hold: int, every: int) -> HoldingRules:
    lookup = HoldingRules(rules, every)
    lookup.hold = hold
    return lookup


def late_snapshots(rnd: random.Random, messages: Sequence[KafkaMessage]) -> list[KafkaMessage]:
    """The stream of a client that subscribes first: half of the snapshots come some messages of their session later."""
    found = list(messages)
    places: dict[tuple[str, int, bytes | None], list[int]] = {}
    for place, message in enumerate(found):
        places.setdefault((message.topic, message.partition, message.key), []).append(place)
    for own in places.values():
        values = [found[place].value for place in own]
        for number in [n for n, value in enumerate(values) if value is not None and b"snapshot" in value]:
            if rnd.random() < 0.5:
                values.insert(number + rnd.randint(1, 4), values.pop(number))
        for place, value in zip(own, values, strict=True):
            found[place] = found[place]._replace(value=value)
    return found


def case(seed: int) -> tuple[random.Random, list[KafkaMessage], CaptureSettings, int, int]:
    """Stream, rules, interval of cuts and hold of a seed."""
    rnd, messages = stream(seed)
    messages = late_snapshots(rnd, messages)
    return rnd, messages, capture(*CASES[seed % len(CASES)], seed), interval(seed), HOLDS[seed // 4 % len(HOLDS)]


def truth_of(messages: Iterable[KafkaMessage], rules: CaptureSettings, every: int, hold: int) -> ExpectedTables:
    truth = GroundTruth(replace(truth_rules(rules, every), hold=hold))
    for message in messages:
        truth.judge_message(message)
    return truth.finish_and_return_tables()


def find_table_folder(rules: CaptureSettings, rnd: random.Random, every: int, hold: int, shards: int) -> Folder:
    folder = Folder(rules, shards, rnd, interval=every, bulk=rnd.random() < 0.7)
    folder.use_rules(holding(rules, hold, every))
    return folder


@pytest.mark.parametrize("seed", seeds(40, STREAMS))
def test_any_batches_and_shards_equal_the_truth_and_leave_the_same_state(seed: int) -> None:
    rnd, messages, rules, every, hold = case(seed)
    shards = rnd.randint(1, 4)
    found, rebuilt = (find_table_folder(rules, rnd, every, hold, shards) for _ in range(2))
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        found.batch(batch)
    rebuilt.batch(messages)
    expected = of_truth(truth_of(messages, rules, every, hold))
    assert_same(of_silver(found.silver), expected)
    assert_same(of_silver(rebuilt.silver), expected)
    assert_same_states(found, rebuilt)


@pytest.mark.parametrize("seed", seeds(10, 60, 5_000))
def test_fail_stops_at_the_first_violation_of_the_truth(seed: int) -> None:
    rnd, messages, _, every, hold = case(seed)
    rules = capture("strict", "fail", seed)
    folder = find_table_folder(rules, rnd, every, hold, 1)
    done: list[KafkaMessage] = []
    for batch in cut(rnd, messages, rnd.randint(1, 8)):
        try:
            truth_of([*done, *batch], rules, every, hold)
        except TruthViolationError:
            with pytest.raises(ViolationError):
                folder.batch(batch)
            break
        folder.batch(batch)
        done += batch
    assert_same(of_silver(folder.silver), of_truth(truth_of(done, rules, every, hold)))


@pytest.mark.parametrize("seed", seeds(10, 60, 6_000))
def test_decided_place_by_place_equals_the_same_decisions_known_from_the_beginning(seed: int) -> None:
    rnd, messages, _, every, hold = case(seed)
    rules, decisions = capture("strict", "fail", seed), {}
    folders = [Folder(rules, 2, rnd, interval=every, decisions=decisions) for _ in range(2)]
    for folder in folders:
        folder.use_rules(holding(rules, hold, every))
    for batch in cut(rnd, messages, rnd.randint(1, 8)):
        here = {(message.topic, message.partition, message.offset) for message in batch}
        for _ in messages:
            try:
                folders[0].batch(batch)
                break
            except ViolationError as stopped:
                at = stopped.violation
                place = at.topic, at.partition, at.session_id, at.offset
                assert place not in decisions, "a place is passed once it is decided"
                skippable = (at.topic, at.partition, at.offset) in here  # what an earlier batch holds is processed
                decisions[place] = rnd.choice(
                    [d for d in OperatorDecision if skippable or d is not OperatorDecision.SKIP]
                )
    for batch in cut(rnd, messages, rnd.randint(1, 8)):
        folders[1].batch(batch)
    assert_same(of_silver(folders[0].silver), of_silver(folders[1].silver))
    assert_same_states(*folders)


def test_these_streams_have_all_that_can_happen_to_a_message_that_waits() -> None:
    found = set()
    for seed in range(60):
        _, messages, rules, every, hold = case(seed)
        tables, without = (truth_of(messages, rules, every, size) for size in (hold, 0))
        reasons = {(row["topic"], row["partition"], row["offset"]): row["reason"] for row in tables.quarantine}
        before = {(row["topic"], row["partition"], row["offset"]): row["reason"] for row in without.quarantine}
        found |= {("quarantined", why) for place, why in reasons.items() if before.get(place) == why}
        applied_later = [row for row in tables.session_changes if row["_applied_by"] != row["_offset"]]
        found |= {("applied", before.get((r["topic"], r["partition"], r["_offset"]))) for r in applied_later}
        places = {(row["topic"], row["partition"], row["offset"]) for row in tables.integrity_events
                  if row["event"] == "duplicate"}  # fmt: skip
        found |= {("duplicate", before[place]) for place in places if place in before}
        found |= {("held at the end", "")} if any(row["held"] for row in tables.counts.values()) else set()
    assert {
        ("quarantined", "orphan"),
        ("quarantined", "session_broken"),
        ("applied", "orphan"),
        ("applied", "session_broken"),
        ("applied", "gap"),
        ("duplicate", "orphan"),
        ("duplicate", "session_broken"),
        ("held at the end", ""),
    } <= found


def test_messages_wait_over_a_change_of_shards_and_are_released_if_hold_is_removed() -> None:
    rules = capture("strict", "record", 0)
    rules = rules.model_copy(update={"max_held_bytes": 1 << 20})
    bodies = [("update", 4), ("update", 5), ("update", 6), ("snapshot", 4), ("update", 7)]
    messages = [
        KafkaMessage(
            "capture.a", 0, n, 1_000 + n, b"s", json.dumps({"type": kind, "seq": seq, "ts": 1, "rows": []}).encode()
        )
        for n, (kind, seq) in enumerate(bodies)
    ]
    found = []
    for hold_after in (10, 0):
        folder = Folder(rules, 1, random.Random(0))
        folder.use_rules(holding(rules, 10, 600_000))
        folder.batch(messages[:3])
        assert folder.silver.counts["capture.a", 0]["held"] == 3
        folder.reshard(3)
        folder.use_rules(holding(rules, hold_after, 600_000))
        folder.batch(messages[3:])
        counts = folder.silver.counts["capture.a", 0]
        events = [(row["event"], row["offset"]) for row in folder.silver.events]
        found.append(([counts[name] for name in ("applied", "duplicates", "held")], events))
    assert found == [([4, 1, 0], [("duplicate", 0)]), ([4, 1, 0], [("orphan", 0), ("duplicate", 3)])]
