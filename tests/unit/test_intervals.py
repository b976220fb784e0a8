"""Messages that cover intervals `(after, seq]`: any cut into batches is judged as message by message, and as said."""

from __future__ import annotations

import random
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from sessionlake.integrity.batch import judge_batch
from sessionlake.integrity.cursor import create_session_cursors
from sessionlake.integrity.outcome import MessageHeader, MessageVerdict
from sessionlake.integrity.rules import JudgingRules
from sessionlake.integrity.shard_batch import MessageArrays, ShardBatch
from sessionlake.protocol.message import ANY_SEQ, MessageType, SeqLink
from sessionlake.settings.section import Integrity, OnViolation
from support.seeds import seeds

TYPES: dict[str, Any] = {"type": np.int8, "link": np.int8, "partition": np.int32, "lane": np.int32, "size": np.int32}
NAMES = [field.name for field in fields(MessageArrays)][1:]
KINDS = [MessageType.SNAPSHOT, MessageType.UPDATE, MessageType.HEARTBEAT, MessageType.END]
Made = tuple[list[str], list[int], list[str], int]


def messages(rnd: random.Random, count: int) -> list[MessageHeader]:
    """A session's messages in one order: steps, ranges, links or any; with gaps, repeats, restarts and keep-alives."""
    form, last, found = rnd.choice(["step", "range", "link", "any"]), rnd.randint(0, 3), []
    for offset in range(count):
        kind = rnd.choices(
            [MessageType.SNAPSHOT, MessageType.UPDATE, MessageType.HEARTBEAT, MessageType.END], [2, 8, 2, 0.2]
        )[0]
        seq = last + (1 if form == "step" else rnd.randint(1, 4)) + rnd.choice([0] * 9 + [1, 3])
        after = {"step": seq - 1, "range": last + rnd.choice([0] * 8 + [-2, -1, 1]), "link": last, "any": ANY_SEQ}[form]
        link = SeqLink.LINK if form == "link" else SeqLink.INTERVAL
        if form == "link" and rnd.random() < 0.08:
            after += rnd.choice([-1, 1])
        if rnd.random() < 0.1 and found:  # once more, as it was
            seq, after, link = rnd.choice([(one.seq, one.after, one.link) for one in found])
        elif form == "link" and kind == MessageType.HEARTBEAT and rnd.random() < 0.5:
            seq = last
        if kind == MessageType.SNAPSHOT and rnd.random() < 0.3:
            seq, after, link = rnd.randint(0, 30), ANY_SEQ, SeqLink.RESTART
        after = after if after == ANY_SEQ else max(after, -1)
        found.append(MessageHeader(kind, seq, offset, offset, offset, 0, 0, offset, 1, 1, after, link, offset))
        last = seq if link == SeqLink.RESTART else max(last, seq)
    return found


def judged(found: list[MessageHeader], how: JudgingRules, cuts: list[int], *, bulk: bool) -> Made:
    """Verdicts, positions, events and the last seq, of batches that are cut there."""
    cursors, memories = create_session_cursors(1), np.full(1, None, object)
    verdicts, positions, events = [], [], []
    for first, past in zip([0, *cuts], [*cuts, len(found)], strict=True):
        part = found[first:past]
        if not part:
            continue
        empty = MessageArrays(np.zeros(0, np.int64), *(np.zeros(0, TYPES.get(name, np.int64)) for name in NAMES))
        arrays = (np.array([getattr(one, name) for one in part], TYPES.get(name, np.int64)) for name in NAMES)
        stream, ends, bounds = (
            MessageArrays(np.zeros(1, np.int64), *arrays),
            np.array([part[-1].now]),
            np.zeros(2, np.int64),
        )
        batch = ShardBatch(stream, cursors, memories, [how], ends, empty, bounds)
        out = judge_batch(batch, is_vectorized=bulk)
        verdicts += [MessageVerdict(one).name for one in out.verdict.tolist()]
        positions += out.position.tolist()
        events += [
            f"{event.kind} {event.action} {event.offset} {event.expected} {event.actual}" for event in out.events
        ]
    return verdicts, positions, events, int(cursors["last_seq"][0])


def as_said(found: list[MessageHeader], integrity: Integrity, policy: OnViolation) -> list[str]:
    """The verdicts, from what the protocol says, in plain Python: no cursor, one message after the other."""
    said: list[str] = []
    last: int | None = None
    is_broken = has_ended = False
    for one in found:
        restarts = one.link == SeqLink.RESTART
        keeps_alive = one.type == MessageType.HEARTBEAT and one.after == one.seq == last
        if last is not None and one.seq <= last and not restarts and not keeps_alive:
            said.append("DUPLICATE")
            continue
        if last is None or restarts:
            missing = False
        else:
            missing = one.after != last if one.link == SeqLink.LINK else one.after > last
        wrong = has_ended
        if is_broken:
            wrong = one.type != MessageType.SNAPSHOT
        elif last is None or (missing and integrity is Integrity.STRICT):
            wrong |= one.type != MessageType.SNAPSHOT
        if wrong and (policy is OnViolation.ISOLATE or is_broken):
            said.append("QUARANTINED")
            is_broken = not has_ended
            continue
        said.append("APPLIED")
        is_broken = False
        last = one.seq if last is None or restarts else max(last, one.seq)
        has_ended |= one.type == MessageType.END
    return said


@pytest.mark.parametrize("policy", [OnViolation.ISOLATE, OnViolation.RECORD])
@pytest.mark.parametrize("integrity", [Integrity.STRICT, Integrity.ORDER])
@pytest.mark.parametrize("seed", seeds(40, 2_000))
def test_any_batches_are_judged_as_message_by_message_and_as_the_protocol_says(seed, integrity, policy):
    rnd = random.Random(seed)
    found = messages(rnd, rnd.choice([3, 10, 60]))
    how = JudgingRules(integrity, policy, 10_000, 10, 100)
    cuts = sorted(rnd.sample(range(len(found) + 1), rnd.randint(0, min(4, len(found)))))
    plain = judged(found, how, [], bulk=False)
    assert judged(found, how, [], bulk=True) == plain
    assert judged(found, how, cuts, bulk=True) == plain
    assert plain[0] == as_said(found, integrity, policy)


def test_these_messages_have_gaps_duplicates_overlaps_restarts_and_keep_alives():
    every = [one for seed in range(40) for one in messages(random.Random(seed), 60)]
    assert {one.link for one in every} == {
        SeqLink.INTERVAL,
        SeqLink.LINK,
        SeqLink.RESTART,
    }  # the others are of chains: unit/test_chains
    assert any(one.after == one.seq for one in every)
    assert any(one.after < one.seq - 1 and one.link == SeqLink.INTERVAL and one.after != ANY_SEQ for one in every)
