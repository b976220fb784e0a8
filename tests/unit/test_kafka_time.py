"""Kafka timestamps that say no time, or an unbelievable one: what they do to messages, sessions and stream time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.protocol import kafka_time
from sessionlake.protocol.decode import decode_messages_to_chunk
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.silence import Silence
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, Silver, of_silver, of_truth, truth_of
from support.seeds import seeds
from support.streams import COLUMNS, NO_TIME, SESSION_TIMEOUT, SKEW, START, YEAR_10000, Fact, Times, cut, with_silences
from unit.test_decode import RULES, raw, said
from unit.test_law import CASES, STREAMS, assert_same, assert_same_states, capture, core, interval, stream, times_of

LANE = ("capture.a", 0)
HOUR = SESSION_TIMEOUT
INT64_MAX = 2**63 - 1
STRICT = CaptureSettings(columns=COLUMNS, integrity=Integrity.STRICT, on_violation=OnViolation.ISOLATE)
ONCE = STRICT.model_copy(update={"integrity": Integrity.ONCE, "gap_timeout": timedelta(seconds=10)})


class Lane:
    """Messages of one topic-partition, each of a session and with the session's next seq."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self._seqs: dict[str, int] = {}
        self._offset = 0

    def send(self, session: str, timestamp: int, ingested: int | None = None, **more: Any) -> Lane:
        """Adds a snapshot, or, of a session that has one, an update."""
        seq = self._seqs.get(session, 0)
        body = {"type": "update" if seq else "snapshot", "seq": seq, "ts": START, "rows": [{"id": "r"}]} | more
        self._seqs[session] = body["seq"] + 1
        value = json.dumps(body).encode()
        self.facts.append(KafkaMessage(*LANE, self._offset, timestamp, session.encode(), value, ingested))
        self._offset += 1
        return self

    def silence(self, until: int) -> Lane:
        """Adds that nothing came behind the last message."""
        self.facts.append(Silence(*LANE, self._offset - 1, until, HOUR))
        return self

    def judged(self, rules: CaptureSettings = STRICT) -> Silver:
        """Silver, which is the truth, and the same in one batch and message by message."""
        whole, single = (Folder(rules, 2, random.Random(1)) for _ in range(2))
        whole.batch(self.facts)
        for fact in self.facts:
            single.batch([fact])
        assert_same_states(single, whole)
        assert_same(of_silver(single.silver), of_silver(whole.silver))
        assert single.silver.sessions == whole.silver.sessions
        assert_same(of_silver(whole.silver), of_truth(truth_of(self.facts, rules)))
        return whole.silver


def statuses(silver: Silver) -> dict[str, str]:
    return {session: row["status"] for (*_, session), row in silver.sessions.items()}


def times(silver: Silver, name: str) -> list[int]:
    return [row[name] for row in sorted(silver.changes, key=lambda row: row["_offset"]) if row["change"] == "upsert"]


def reasons(silver: Silver) -> list[tuple[int, str]]:
    return [(row["offset"], row["reason"]) for row in sorted(silver.quarantine, key=lambda row: row["offset"])]


# -- no timestamp


def test_a_message_without_a_timestamp_takes_stream_time_and_keeps_what_kafka_said() -> None:
    found = Lane().send("a", START).send("b", START + 5_000).send("a", NO_TIME).judged()
    assert times(found, "kafka_timestamp") == [START, START + 5_000, NO_TIME]
    assert times(found, "_applied_at") == [START, START + 5_000, START + 5_000]
    assert found.sessions["capture.a", 0, "a"]["last_kafka_timestamp"] == START + 5_000


def test_messages_without_a_timestamp_do_not_move_stream_time_and_keep_their_session_alive() -> None:
    lane = Lane().send("a", START).send("b", START + HOUR).send("a", NO_TIME).send("c", START + 2 * HOUR)
    assert statuses(lane.judged()) == {"a": "open", "b": "open", "c": "open"}
    assert statuses(lane.send("c", START + 2 * HOUR + 1).judged()) == {"a": "expired", "b": "expired", "c": "open"}


def test_where_no_message_has_a_timestamp_all_are_used_and_nothing_expires() -> None:
    found = Lane().send("a", NO_TIME).send("b", NO_TIME).send("a", NO_TIME).judged()
    assert (found.quarantine, statuses(found)) == ([], {"a": "open", "b": "open"})
    assert times(found, "kafka_timestamp") == times(found, "_applied_at") == [NO_TIME] * 3


def test_the_first_known_time_is_that_of_what_came_before_it() -> None:
    lane = Lane().send("a", NO_TIME).send("b", START)
    assert statuses(lane.judged()) == {"a": "open", "b": "open"}
    assert lane.judged().sessions["capture.a", 0, "a"]["last_kafka_timestamp"] == START
    found = lane.send("a", NO_TIME).send("b", START + HOUR).judged()  # nothing is an orphan
    assert (found.events, statuses(found)) == ([], {"a": "open", "b": "open"})
    assert times(found, "_applied_at") == [NO_TIME, START, START, START + HOUR]
    expired = lane.send("b", START + HOUR + 1).judged()
    assert expired.sessions["capture.a", 0, "a"]["ended_at"] == START + HOUR


def test_a_silence_can_say_the_first_time() -> None:
    lane = Lane().send("a", NO_TIME).silence(START)
    assert statuses(lane.judged()) == {"a": "open"}
    assert statuses(lane.silence(START + HOUR + 1).judged()) == {"a": "expired"}


def test_gaps_that_show_before_any_time_is_known_are_due_after_the_first_known_time() -> None:
    lane = Lane().send("a", NO_TIME).send("a", NO_TIME, seq=2).send("b", START).send("b", START + 10_000)
    assert [event["action"] for event in lane.judged(ONCE).events] == ["applied"]
    found = lane.send("b", START + 10_001).judged(ONCE)
    assert [(event["event"], event["action"]) for event in found.events] == [("gap", "applied"), ("gap", "isolated")]


@pytest.mark.parametrize("ts", [INT64_MAX, START + 10 * SKEW, -INT64_MAX - 1])
@pytest.mark.parametrize("integrity", Integrity)
def test_any_event_time_is_believed_of_a_message_without_a_timestamp(ts: int, integrity: Integrity) -> None:
    rules = STRICT.model_copy(update={"integrity": integrity})
    lane = Lane().send("a", NO_TIME).send("b", START).send("a", NO_TIME, ts=ts, type="end").send("b", NO_TIME, ts=ts)
    found = lane.judged(rules)
    assert [row for row in reasons(found) if row[1] == "future_ts"] == []


def test_an_event_time_is_still_compared_with_a_timestamp() -> None:
    assert reasons(Lane().send("a", START, ts=START + SKEW + 1).judged()) == [(0, "future_ts")]
    assert reasons(Lane().send("a", START, ts=START + SKEW).judged()) == []


# -- a timestamp in the future


@pytest.mark.parametrize("stamp", [START + SKEW + 1, YEAR_10000, 2**53])
def test_a_message_from_the_future_is_quarantined_and_moves_nothing(stamp: int) -> None:
    found = Lane().send("a", START, START).send("b", stamp, START).send("a", START + 1, START + 1).judged()
    assert reasons(found) == [(1, "future_kafka_ts")]
    assert [row["kafka_timestamp"] for row in found.quarantine] == [stamp]
    assert statuses(found) == {"a": "open"}
    assert times(found, "_applied_at") == [START, START + 1]
    counted = {name: count for name, count in found.counts[LANE].items() if count}
    assert counted == {"messages": 3, "parts": 3, "applied": 2, "quarantined": 1}


def test_a_timestamp_may_be_as_far_ahead_as_the_allowed_skew() -> None:
    found = Lane().send("a", START, START).send("b", START + SKEW, START).judged()
    assert (reasons(found), statuses(found)) == ([], {"a": "expired", "b": "open"})


def test_where_it_is_not_known_when_bronze_read_a_message_its_timestamp_is_believed() -> None:
    assert reasons(Lane().send("a", START + 10 * SKEW).judged()) == []


def test_an_old_timestamp_is_no_fault() -> None:
    assert reasons(Lane().send("a", START - 1000 * SKEW, START, ts=0).judged()) == []


def test_an_erased_message_from_the_future_moves_nothing_either() -> None:
    lane = Lane().send("a", START, START).send("b", YEAR_10000, START)
    lane.facts[-1] = lane.facts[-1]._replace(key=ERASED_KEY, value=None)
    found = lane.judged()
    assert (found.quarantine, statuses(found)) == ([], {"a": "open"})


def test_a_bad_key_comes_first_and_a_future_timestamp_before_what_the_value_is() -> None:
    good, bad_key, bad_value = (KafkaMessage(*LANE, n, YEAR_10000, b"s", b"{", START) for n in range(3))
    found = decode_messages_to_chunk(raw([good, bad_key._replace(key=b""), bad_value]), RULES)["reason"].to_pylist()
    assert found == [CODE_OF[r] for r in (Reason.FUTURE_KAFKA_TS, Reason.BAD_KEY, Reason.FUTURE_KAFKA_TS)]


# -- the fast way and the slow one

EDGES = [-INT64_MAX - 1, -(2**53), -2, -1, 0, START, START + SKEW, YEAR_10000, 2**53, INT64_MAX - SKEW, INT64_MAX]
moments = st.sampled_from(EDGES) | st.builds(int.__add__, st.sampled_from([START, SKEW]), st.integers(-2, 2))


@given(st.lists(st.tuples(moments, moments | st.none(), moments), min_size=1, max_size=20))
def test_timestamps_are_judged_alike_in_bulk_and_one_by_one(found: list[tuple[int, int | None, int]]) -> None:
    values = (json.dumps({"type": "heartbeat", "seq": 0, "ts": ts}).encode() for _, _, ts in found)
    both = zip(found, values, strict=True)
    messages = [KafkaMessage("t", 0, n, at, b"s", value, read) for n, ((at, read, _), value) in enumerate(both)]
    fast, slow = (
        decode_messages_to_chunk(raw(messages), RULES),
        decode_messages_to_chunk(raw(messages), RULES, in_bulk=False),
    )
    assert said(fast) == said(slow)
    for (at, read, ts), reason in zip(found, fast["reason"].to_pylist(), strict=True):
        if read is not None and at > read + SKEW:
            expected = CODE_OF[Reason.FUTURE_KAFKA_TS]
        else:
            expected = CODE_OF[Reason.FUTURE_TS] if at != NO_TIME and ts > at + SKEW else 0
        assert reason == expected


@given(st.lists(st.tuples(moments, moments, st.booleans()), min_size=1))
def test_one_and_many_have_the_same_own_time_and_limit(found: list[tuple[int, int, bool]]) -> None:
    kafka_ts, now, future = (np.array(column) for column in zip(*found, strict=True))
    both: list[tuple[Callable[..., int], np.ndarray[Any, Any], tuple[np.ndarray[Any, Any], ...]]] = [
        (
            kafka_time.choose_kafka_or_stream_time,
            kafka_time.choose_kafka_or_stream_times(kafka_ts, now),
            (kafka_ts, now),
        ),
        (kafka_time.compute_latest_event_time, kafka_time.compute_latest_event_times(kafka_ts, SKEW), (kafka_ts,)),
    ]
    for one, many, given_ in both:
        rest = (SKEW,) if one is kafka_time.compute_latest_event_time else ()
        assert many.tolist() == [one(*row, *rest) for row in zip(*(column.tolist() for column in given_), strict=True)]
    told = kafka_time.replace_times_not_counted(kafka_ts, future).tolist()
    said_or_not = zip(kafka_ts.tolist(), future.tolist(), strict=True)
    assert told == [kafka_time.NOT_COUNTED if gone or at == NO_TIME else at for at, gone in said_or_not]


# -- any stream


@pytest.mark.parametrize("seed", seeds(8, 300, 31_000))
def test_any_batches_equal_one_batch(seed: int) -> None:
    rnd, messages = stream(4 * seed)  # each kind of times in turn
    facts = with_silences(rnd, messages) if seed % 2 else [*messages]
    rules, every, shards = capture(*rnd.choice(CASES), seed), interval(seed), rnd.randint(1, 4)
    found, whole = (Folder(rules, shards, rnd, interval=every, bulk=rnd.random() < 0.7) for _ in range(2))
    for batch in cut(rnd, facts, rnd.randint(2, 9)):
        found.batch(batch)
    whole.batch(facts)
    assert_same(of_silver(found.silver), of_silver(whole.silver))
    assert found.silver.sessions == whole.silver.sessions  # with the times of their last messages
    assert_same_states(found, whole)


def test_the_streams_of_the_law_have_every_kind_of_timestamp() -> None:
    found: set[str] = set()
    for seed in {seed for seed, *_ in core(range(STREAMS), CASES)}:
        kind, messages = times_of(seed), stream(seed)[1]
        lanes = {m[:2]: [o.timestamp for o in messages if o[:2] == m[:2]] for m in messages}
        for stamps in lanes.values():
            missing = [stamp == NO_TIME for stamp in stamps]
            found |= {"all missing"} if all(missing) else set()
            found |= {"first missing"} if missing[0] and not all(missing) else set()
            found |= {"missing in the middle"} if any(missing[1:]) and not missing[0] else set()
            found |= {"negative"} if any(stamp < NO_TIME for stamp in stamps) else set()
        for message in messages:
            ahead = message.timestamp - (message.ingested_at or message.timestamp)
            found |= {"in the future"} if ahead > SKEW else set()
            found |= {"as far ahead as allowed"} if ahead == SKEW else set()
            found |= {"read at an unknown time"} if message.ingested_at is None else set()
        found.add(f"stream: {kind}")
    assert found == {
        "all missing", "first missing", "missing in the middle", "negative", "in the future", "as far ahead as allowed",
        "read at an unknown time", *(f"stream: {kind}" for kind in Times),
    }  # fmt: skip
