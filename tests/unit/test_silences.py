"""The law with silences: where bronze says that a topic-partition brought nothing for so long, stream time goes on."""

from __future__ import annotations

import random

import pytest

from sessionlake.errors import LakeError
from sessionlake.integrity.state_difference import find_first_state_difference
from sessionlake.protocol.silence import Silence, decode_silences, encode_silences
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, fold, of_silver, of_truth, truth_of
from support.seeds import seeds
from support.streams import COLUMNS, SESSION_TIMEOUT, START, Fact, cut, with_silences
from unit.test_law import CASES, assert_same, capture, interval, stream


def facts_of(seed: int) -> tuple[random.Random, list[Fact], CaptureSettings, int]:
    """A stream with silences, the rules that it is judged by, and how often tables are cut."""
    rnd, messages = stream(seed)
    return rnd, with_silences(rnd, messages), capture(*rnd.choice(CASES), seed), interval(seed)


@pytest.mark.parametrize("seed", seeds(10, 400, 21_000))
def test_any_batches_and_shards_equal_the_truth(seed: int) -> None:
    rnd, facts, rules, every = facts_of(seed)
    found = fold(cut(rnd, facts, rnd.randint(1, 9)), rules, shards=rnd.randint(1, 4), rnd=rnd, interval=every)
    assert_same(of_silver(found), of_truth(truth_of(facts, rules, every)))


@pytest.mark.parametrize("seed", seeds(8, 200, 22_000))
def test_the_state_after_any_batches_is_that_after_one(seed: int) -> None:
    rnd, facts, rules, every = facts_of(seed)
    shards = rnd.randint(1, 4)
    found, whole = (Folder(rules, shards, rnd, interval=every, bulk=rnd.random() < 0.7) for _ in range(2))
    for batch in cut(rnd, facts, rnd.randint(1, 9)):
        found.batch(batch)
    whole.batch(facts)
    for mine, other in zip(found.states().values(), whole.states().values(), strict=True):
        assert find_first_state_difference(mine, other) is None


def test_a_session_of_which_nothing_more_comes_expires_and_is_forgotten() -> None:
    rules, place = CaptureSettings(columns=COLUMNS), ("capture.a", 0)
    said = KafkaMessage(*place, 0, START, b"s", b'{"type":"snapshot","seq":0,"ts":0,"rows":[]}')
    folder = Folder(rules, 2, random.Random(1))
    folder.batch([said])
    assert folder.silver.sessions["capture.a", 0, "s"]["status"] == "open"
    folder.batch([Silence(*place, 0, START + SESSION_TIMEOUT + 1, SESSION_TIMEOUT + 1)])
    session = folder.silver.sessions["capture.a", 0, "s"]
    assert (session["status"], session["ended_at"]) == ("expired", START + SESSION_TIMEOUT)
    assert sum(len(state.cursors) for state in folder.states().values()) == 1
    folder.batch([Silence(*place, 0, START + 2 * SESSION_TIMEOUT + 1, 2 * SESSION_TIMEOUT + 1)])
    assert [(len(state.cursors), state.clock.partition_times) for state in folder.states().values()] == [
        (0, []),
        (0, []),
    ]


def test_a_silence_is_known_to_messages_behind_it_though_no_shard_has_kept_it() -> None:
    rules, place = CaptureSettings(columns=COLUMNS), ("capture.a", 0)
    until = START + 10 * SESSION_TIMEOUT
    value = b'{"type":"snapshot","seq":0,"ts":0,"rows":[{"id":"r"}]}'
    first, second = (KafkaMessage(*place, n, START + n, key, value) for n, key in enumerate((b"s", b"t")))
    for batches in (
        [[first], [Silence(*place, 0, until, 1)], [second]],
        [[first, Silence(*place, 0, until, 1), second]],
    ):
        folder = Folder(rules, 3, random.Random(1))
        for batch in batches:
            folder.batch(batch)
        assert [row["_applied_at"] for row in folder.silver.changes if row["session_id"] == "t"] == [until] * 2


def test_silences_are_read_as_they_were_written() -> None:
    silences = [Silence("capture.ö", 3, 41, START, 5), Silence("capture.a", 0, 0, -1, 2**40)]
    assert [*decode_silences([encode_silences(silences), encode_silences([])])] == silences


@pytest.mark.parametrize("value", [b"", b"{}", b'{"silences":[{"topic":"t"}]}', b"\xff", b'{"silences":[1]}'])
def test_a_row_without_a_topic_that_is_nothing_of_the_kind_is_refused(value: bytes) -> None:
    with pytest.raises(LakeError, match="not a row that bronze writes for a silence"):
        [*decode_silences([value])]
