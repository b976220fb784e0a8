"""A processor's records are a function of the messages, whatever the micro-batches, tasks and shards."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import pyarrow as pa
import pytest

from sessionlake.processors import NEVER, Emitted, Message, Processor, Session, Timer
from sessionlake.processors.testing import Result, run_raw_batches
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake_lab.truth import KafkaMessage
from support.folding import fold as fold_silver
from support.folding import raw_table
from support.seeds import seeds
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

STREAMS = 8
"""Streams a class and policy."""
ENDING = 500
"""From this number on, ends overtake what was to come before them."""
CASES = [(integrity, policy) for integrity in Integrity for policy in ("isolate", "record")]
DELAYS = (-5_000, 0, 1, 700, 3_000, SESSION_TIMEOUT, SESSION_TIMEOUT + 1, 2 * SESSION_TIMEOUT, NEVER)


@dataclass
class Log:
    born_in: str
    messages: int = 0
    timers: int = 0
    seen: dict[str, float | int | str | bool | None] = field(default_factory=dict)


class Recorder(Processor[Log]):
    """Says all it is given, sets timers of all kinds, and fails now and then."""

    state = Log
    output: ClassVar = {
        "what": "string",
        "n": "int",
        "timers": "int",
        "seq": "bigint",
        "kafka_ts": "bigint",
        "epoch": "bigint",
        "rows": "string",
        "changes": "boolean",
    }

    def __init__(self, failing: int = 0) -> None:
        self._failing = failing

    def initial(self, session: Session) -> Log:
        return Log(f"{session.topic}/{session.partition}")

    def on_message(self, state: Log, message: Message) -> Iterable[Emitted]:
        state.messages += 1
        for row in message.rows:
            state.seen |= row.values
        yield {
            "what": message.type,
            "n": state.messages,
            "timers": state.timers,
            "seq": message.seq,
            "kafka_ts": message.kafka_timestamp,
            "epoch": message.epoch,
            "rows": f"{sorted(state.seen)} {[row.id for row in message.rows]} {message.deleted}",
            "changes": message.type == "snapshot" or bool(message.rows or message.deleted),
        }
        if self._failing and message.offset % self._failing == self._failing - 1:
            raise ValueError(f"not {message.offset}")
        for name in ("a", "b"):
            delay = DELAYS[(message.offset * 7 + len(name) + ord(name)) % len(DELAYS)]
            yield Timer(delay if delay == NEVER else message.stream_time + delay, name)

    def on_timeout(self, state: Log, timer: Timer) -> Iterable[Emitted]:
        state.timers += 1
        yield {"what": f"{timer.name} {timer.expired}", "n": state.messages, "timers": state.timers}
        if timer.name == "a" and not timer.expired and state.timers % 4:
            yield Timer(timer.at + 1_500, "a")


def capture(integrity: str, policy: str, seed: int) -> CaptureSettings:
    rnd = random.Random(-1 - seed)
    return CaptureSettings(
        columns=COLUMNS,
        integrity=Integrity(integrity),
        on_violation=OnViolation(policy),
        max_message_bytes=MAX_BYTES,
        lateness=rnd.choice(["0 ms", "1 s", "3 s", "10 minutes"]),
        gap_timeout=rnd.choice(["0 ms", "3 s", "20 s", "10 minutes"]),
        max_held_messages=rnd.choice([1, 4, 10_000, 10_000]),
    )


def stream(seed: int) -> tuple[random.Random, list[KafkaMessage]]:
    rnd = random.Random(seed)
    noise = HASTY if seed % 1_000 >= ENDING else rnd.choice([CALM, LIGHT, LIGHT, WILD])
    made = StreamMaker(rnd, noise).make(rnd.choice([5, 30, 60, 120]))
    return rnd, with_times(random.Random(-4 - seed), made, random.Random(-3 - seed).choice([Times.USUAL, *Times]))


def fold(
    batches: Iterable[list[KafkaMessage]], rules: CaptureSettings, shards: int, rnd: random.Random, failing: int = 0
) -> Result:
    def tasks(batch: list[KafkaMessage]) -> list[pa.Table]:
        cuts: list[list[KafkaMessage]] = [[] for _ in range(rnd.randint(1, 3))]
        for message in batch:
            rnd.choice(cuts).append(message)
        return [raw_table(task, shards) for task in cuts if task]

    return run_raw_batches(Recorder(failing), map(tasks, batches), rules, shards)


def assert_same(found: Result, expected: Result) -> None:
    """Part by part, so that a failure shows the rows in question alone."""
    for ours, theirs in ((found.rows, expected.rows), (found.errors, expected.errors)):
        assert [row for row in ours if row not in theirs] == [row for row in theirs if row not in ours]
        assert ours == theirs
    assert (found.states, found.counts) == (expected.states, expected.counts)


@pytest.mark.parametrize(("integrity", "policy"), CASES)
# 25: a life that an old timestamp ends
@pytest.mark.parametrize("seed", [*seeds(STREAMS // 8, STREAMS), 25, *seeds(1, 2, ENDING)])
def test_any_batches_and_shards_equal_one_batch(seed: int, integrity: str, policy: str) -> None:
    rnd, messages = stream(seed)
    rules = capture(integrity, policy, seed)
    failing = rnd.choice([0, 0, 11, 3])
    whole = fold([messages], rules, 1, rnd, failing)
    cuts = cut(rnd, messages, rnd.choice([2, 5, 12]))
    assert_same(fold(cuts, rules, rnd.randint(1, 4), rnd, failing), whole)


@pytest.mark.parametrize(("integrity", "policy"), CASES)
@pytest.mark.parametrize("seed", [*seeds(1, 2, 1_000), *seeds(0, 2, 1_000 + ENDING)])
def test_it_is_given_what_silver_applies_in_the_same_order(seed: int, integrity: str, policy: str) -> None:
    rnd, messages = stream(seed)
    rules = capture(integrity, policy, seed)
    found = fold(cut(rnd, messages, 3), rules, 2, rnd)
    silver = fold_silver(cut(rnd, messages, 3), rules, shards=2, rnd=rnd)
    ours = ("topic", "session_id", "partition", "_offset", "_position", "seq", "epoch")
    theirs = ("topic", "session_id", "partition", "_offset", "_position", "_seq", "_epoch")
    given = {tuple(row[name] for name in ours) for row in found.rows if row["changes"]}
    assert given == {tuple(row[name] for name in theirs) for row in silver.changes}
    counts = {name: sum(count[name] for count in silver.counts.values()) for name in found.counts}
    assert found.counts == counts


def test_these_streams_have_timers_of_every_kind() -> None:
    rows = []
    for seed in range(STREAMS):
        rnd, messages = stream(seed)
        for case in CASES:
            found = fold([messages], capture(*case, seed), 1, rnd, failing=3)
            rows += found.rows + found.errors
    assert {"a False", "b False", " True", "snapshot", "update", "heartbeat", "end"} == {
        row["what"] for row in rows if "what" in row
    }
    assert {row["action"] for row in rows if "action" in row} == {"isolated", "recorded", "skipped"}
