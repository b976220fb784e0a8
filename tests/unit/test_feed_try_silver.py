"""`feed try` has the tables that silver would have, also of sessions that break, and says where they do."""

from __future__ import annotations

import json
import random
from collections import Counter
from pathlib import Path

import pytest

from sessionlake.cli.feed_trial import SilverTrialJudge
from sessionlake.feeds.lines import MessageOfLine
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.feeds.trial import FeedTrial
from sessionlake.settings.capture import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, ViolationError
from support.seeds import seeds
from support.split_streams import FEEDS, capture_of_split, split_messages
from unit import test_chains
from unit.test_feed_try import CHANGE, SNAPSHOT, Call, call, lines  # noqa: F401 - `call` is a fixture


def fold_one_by_one(messages: list[KafkaMessage], capture: CaptureSettings) -> tuple[Folder, KafkaMessage | None]:
    """Silver's tables after the messages, or before the first at which it stops; and that message."""
    folder = Folder(capture, 1, random.Random(0))
    for message in messages:
        try:
            folder.batch([message])
        except ViolationError:
            return folder, message
    return folder, None


def require_silver(messages: list[KafkaMessage], capture: CaptureSettings, block: int) -> SilverTrialJudge:
    folder, stopped_at = fold_one_by_one(messages, capture)
    judged = SilverTrialJudge.create(capture, None, block=block)
    tried = [
        MessageOfLine(number, KafkaRecord(m.topic, m.partition, m.offset, m.timestamp, m.key, m.value), is_bare=False)
        for number, m in enumerate(messages, 1)
    ]
    trial = FeedTrial([one.convert_to_feed() for one in capture.feeds])
    outcomes = [outcome for _, outcome in judged.judge_lines(trial, tried)]
    expected, found = folder.silver, judged.silver
    assert {key: rows for key, rows in found.rows.items() if rows} == {
        key: rows for key, rows in expected.rows.items() if rows
    }
    names = ("status", "gaps", "duplicates", "messages")
    assert {key: [row[name] for name in names] for key, row in found.sessions.items()} == {
        key: [row[name] for name in names] for key, row in expected.sessions.items()
    }
    assert found.reasons == Counter(row["reason"] for row in expected.quarantine)
    assert {*found.breaks} == {key for key, row in expected.sessions.items() if row["status"] == "broken"}
    for key, row in found.breaks.items():
        own = [one for one in expected.events if (one["topic"], one["partition"], one["session_id"]) == key]
        last = [one for one in own if one["action"] == "isolated"][-1]
        assert [row[name] for name in ("offset", "event")] == [last["offset"], last["event"]]
    assert (judged.stopped is None) == (stopped_at is None)
    if stopped_at is not None and judged.stopped is not None:
        assert judged.stopped["topic"] == stopped_at.topic
    shown = {
        (one.record.partition, one.record.offset, session): reason
        for one in outcomes
        for session, reason in one.quarantined.items()
    }
    if block >= len(messages):
        readable = [row for row in expected.quarantine if row["session_id"] is not None]
        assert shown == {(row["partition"], row["offset"], row["session_id"]): row["reason"] for row in readable}
    return judged


@pytest.mark.parametrize("policy", ["isolate", "record", "fail"])
@pytest.mark.parametrize("form", FEEDS)
@pytest.mark.parametrize("seed", seeds(1, 60))
def test_tables_are_those_of_silver(form: str, policy: str, seed: int) -> None:
    rnd = random.Random(seed)
    classes = ["strict", "order", "none"] if form in {"links", "chain"} else ["strict", "once", "window", "order"]
    capture = capture_of_split(form, on_violation=policy, integrity=rnd.choice(classes))
    require_silver(split_messages(form, rnd, 40), capture, rnd.choice([1, 7, 100]))


@pytest.mark.parametrize("policy", ["isolate", "record", "fail"])
@pytest.mark.parametrize("seed", seeds(1, 40))
def test_tables_of_chains_are_those_of_silver(policy: str, seed: int) -> None:
    rnd = random.Random(seed)
    require_silver(test_chains.random_messages(rnd, 50), test_chains.settings(policy), rnd.choice([1, 9, 100]))


@pytest.mark.parametrize(("form", "seed"), [("entries", 3), ("objects", 13)])
def test_messages_after_a_held_one_are_applied_up_to_the_message_whose_time_stops_silver(form: str, seed: int) -> None:
    test_tables_are_those_of_silver(form, "fail", seed)


def test_the_streams_break_sessions_and_stop_silver() -> None:
    broken, stopped = 0, 0
    for form in FEEDS:
        messages = split_messages(form, random.Random(4), 60)
        broken += len(require_silver(messages, capture_of_split(form), 100).silver.breaks)
        stopped += require_silver(messages, capture_of_split(form, on_violation="fail"), 100).stopped is not None
    assert broken
    assert stopped


def with_policy(policy: str) -> None:
    text = Path("sessionlake.yml").read_text().replace("capture:\n", f"capture:\n  on_violation: {policy}\n")
    Path("sessionlake.yml").write_text(text)


GAP = CHANGE | {"u": 9, "pu": 8, "bids": [["2", "1"]]}
AFTER = CHANGE | {"u": 10, "pu": 9, "bids": [["3", "1"]]}


def test_a_session_that_breaks_is_named_and_its_further_rows_are_not_shown(call: Call) -> None:  # noqa: F811 - the fixture of another module
    with_policy("isolate")
    result = call("try", "messages.jsonl", content=lines(SNAPSHOT, GAP, AFTER))
    assert "; in quarantine: gap" in result.stdout
    assert "; in quarantine: session_broken" in result.stdout
    assert '["bid",2]' not in result.stdout
    assert "  tables: sessions 1, rows 1" in result.stdout
    assert "  quarantine, session_broken: 1" in result.stdout
    broken = "  broken: session A at topic feed.book.a, partition 0, offset 1: gap, found seq 9"
    assert broken in result.stdout
    last = json.loads(call("try", "messages.jsonl", "--format", "json").stdout.splitlines()[-1])["summary"]
    assert (last["rows"], last["quarantine"], last["stopped"]) == (1, {"gap": 1, "session_broken": 1}, None)
    assert [(one["session_id"], one["offset"]) for one in last["broken"]] == [("A", 1)]


def test_where_silver_stops_is_said_and_the_tables_are_as_before(call: Call) -> None:  # noqa: F811 - the fixture of another module
    with_policy("fail")
    result = call("try", "messages.jsonl", content=lines(SNAPSHOT, GAP, AFTER))
    assert "  tables: sessions 1, rows 1" in result.stdout
    assert "silver stops, as `on_violation: fail` says: session A at topic feed.book.a" in result.stdout
