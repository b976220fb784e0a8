"""A feed whose client subscribes to changes first and then fetches a snapshot, as the depth streams of Binance need it.

A change covers the update ids `U` to `u`. The snapshot is a message of its own, with the last update id that it has.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.feeds.cases import FeedTestMessage, run_feed_test
from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.history.state import find_session_state
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, Silver
from support.seeds import seeds
from support.streams import cut
from unit.test_feed_rows import rows_of

DEPTH = """
name: depth
topics: depth
session: s | data.s
key: [side, price]
columns: {side: string, price: {type: "decimal(20,8)", from: text}, qty: {type: "decimal(20,8)", from: text}}
order: {seq: data.u, first: data.U}
starts_with: {snapshot: true, hold: 3}
messages:
  - when: {data.lastUpdateId: present}
    is: snapshot
    order: {seq: data.lastUpdateId}
    rows: [{each: "data.bids[*]", row: {side: =bid, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}},
           {each: "data.asks[*]", row: {side: =ask, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}}]
  - when: {data.e: depthUpdate}
    is: update
    rows: [{each: "data.b[*]", row: {side: =bid, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}},
           {each: "data.a[*]", row: {side: =ask, price: ".[0]", qty: ".[1]"}, delete: {qty: 0}}]
  - {when: {data.e: closed}, is: end, order: {seq: data.u}}
"""
CHAINED = {"seq": "data.u", "chain": "data.c"}
RULE = {"is": "update", "rows": [{"at": "data", "row": "all"}]}
TIMEOUT = 1_000
Call = Callable[..., Result]


def snapshot(last: int, *bids: tuple[str, str]) -> dict[str, Any]:
    return {"s": "BTCUSDT", "data": {"lastUpdateId": last, "bids": bids or [("0.0024", "10")], "asks": []}}


def depth(first: int, last: int, *bids: tuple[str, str]) -> dict[str, Any]:
    """A change that covers the update ids from `first` to `last`. By default it sets a price of its own."""
    b = bids or [(f"0.{last:04}", "1")]
    return {"data": {"e": "depthUpdate", "E": 1, "s": "BTCUSDT", "U": first, "u": last, "b": b, "a": []}}


def closed(last: int) -> dict[str, Any]:
    return {"data": {"e": "closed", "s": "BTCUSDT", "u": last}}


def sent(bodies: Sequence[dict[str, Any]], times: Sequence[int] = ()) -> list[KafkaMessage]:
    """These bodies as messages, one ms after the other, or at these times after the start."""
    return [
        KafkaMessage("depth", 0, n, 1_700_000_000_000 + (times[n] if times else n), None, json.dumps(body).encode())
        for n, body in enumerate(bodies)
    ]


def depth_rules(policy: str = "isolate", integrity: str = "strict", **changed: Any) -> CaptureSettings:
    feed = FeedSettings.model_validate(yaml.safe_load(DEPTH) | {"integrity": integrity} | changed)
    return CaptureSettings(feeds=(feed,), on_violation=policy, session_timeout=f"{TIMEOUT} ms")


def fates(silver: Silver, count: int, changed: set[int]) -> str:
    """What happened to each message: `+` applied, `d` duplicate, `o` orphan, `b` session_broken, `g` gap, `h` held."""
    marks = {
        row["offset"]: {"orphan": "o", "session_broken": "b", "gap": "g"}[row["reason"]] for row in silver.quarantine
    }
    marks |= {row["offset"]: "d" for row in silver.events if row["event"] == "duplicate"}
    marks |= dict.fromkeys(changed, "+")
    return "".join(marks.get(n, "h") for n in range(count))


def judged(bodies: Sequence[dict[str, Any]], rules: CaptureSettings, times: Sequence[int] = ()) -> tuple[str, Silver]:
    """Returns the fates and tables of these messages. One batch for each and one batch for all must agree."""
    messages, found = sent(bodies, times), []
    for batches in ([[message] for message in messages], [messages]):
        folder = Folder(rules, 1, random.Random(0))
        for batch in batches:
            folder.batch(batch)
        silver = folder.silver
        found.append((fates(silver, len(messages), {row["_offset"] for row in silver.changes}), silver))
        assert folder.silver.counts["depth", 0]["held"] == found[-1][0].count("h")
    assert found[0][0] == found[1][0]
    assert found[0][1].rows == found[1][1].rows
    return found[1]


def test_changes_before_the_snapshot_are_held_and_those_that_follow_it_are_applied() -> None:
    fate, silver = judged(
        [depth(157, 160), depth(161, 165), depth(166, 166), snapshot(162), depth(167, 170)], depth_rules()
    )
    assert fate == "d++++"
    session = silver.sessions["depth", 0, "BTCUSDT"]
    assert [session[name] for name in ("status", "messages", "duplicates", "gaps", "next_seq")] == [
        "open",
        4,
        1,
        0,
        171,
    ]
    order = sorted((row["_position"], row["_offset"], row["_applied_by"]) for row in silver.changes)
    assert [(offset, by) for _, offset, by in order] == [(3, 3), (3, 3), (1, 3), (2, 3), (4, 4)]
    assert {row["_epoch"] for row in silver.changes} == {3}
    assert set(silver.rows["depth", 0, "BTCUSDT"]) == {
        '["bid",0.0024]', '["bid",0.0165]', '["bid",0.0166]', '["bid",0.017]'
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bodies", "fate"),
    [
        # One more than `hold` sends the oldest to quarantine; a snapshot repairs the session.
        ([depth(1, 1), depth(2, 2), depth(3, 3), depth(4, 4)], "ohhh"),
        ([depth(1, 1), depth(2, 2), depth(3, 3), depth(4, 4), depth(5, 5), snapshot(3)], "ood+++"),
        # A snapshot that is too old: the held messages have a gap after it, and wait for the next snapshot.
        ([depth(8, 9), depth(10, 11), snapshot(5)], "hh+"),
        ([depth(8, 9), depth(10, 11), snapshot(5), snapshot(8), depth(12, 12)], "+++++"),
        # The same if the gap comes later: the message that reveals it waits, too.
        ([snapshot(5), depth(8, 9), depth(10, 11), snapshot(9), depth(12, 12)], "+d+++"),
        ([snapshot(5), *(depth(n, n) for n in range(8, 12))], "+bhhh"),
        # A snapshot that replaces the table of an open session holds nothing back.
        ([snapshot(5), depth(6, 6), snapshot(7), depth(8, 8)], "++++"),
        # The end of the session: no snapshot can come any more.
        ([depth(1, 1), depth(2, 2), closed(3)], "oob"),
        ([depth(1, 1), snapshot(3), depth(9, 9), closed(10)], "d+bb"),
    ],
)
def test_what_happens_to_messages_that_wait(bodies: list[dict[str, Any]], fate: str) -> None:
    assert judged(bodies, depth_rules())[0] == fate


def test_a_gap_among_held_messages_is_counted_and_applied_under_class_order() -> None:
    fate, silver = judged([depth(3, 4), depth(7, 8), snapshot(3)], depth_rules(integrity="order"))
    assert (fate, silver.sessions["depth", 0, "BTCUSDT"]["gaps"]) == ("+++", 1)


@pytest.mark.parametrize("policy", ["isolate", "record"])
def test_the_session_timeout_sends_held_messages_to_quarantine_and_the_next_life_starts_again(policy: str) -> None:
    bodies = [depth(1, 1), depth(2, 2), depth(3, 3), snapshot(2)]
    fate, silver = judged(bodies, depth_rules(policy), times=[0, 1, TIMEOUT + 2, TIMEOUT + 3])
    assert fate == "oo++"
    action = {"isolate": ["isolated"], "record": ["recorded", "recorded"]}[policy]
    assert [row["action"] for row in silver.events if row["event"] == "orphan"] == action


def test_max_held_bytes_limits_what_waits() -> None:
    size = len(json.dumps(depth(1, 1)))
    rules = depth_rules().model_copy(update={"max_held_bytes": 2 * size + 1})
    assert judged([depth(n, n) for n in (1, 2, 3)], rules)[0] == "ohh"


def test_state_show_lists_what_waits_in_order_of_arrival() -> None:
    folder = Folder(depth_rules(), 1, random.Random(0))
    folder.batch(sent([depth(5, 6), depth(3, 4)]))
    stored = folder.stored[0]
    assert stored is not None
    found = find_session_state(stored, "depth", 0, "BTCUSDT")
    assert (found["held_until"], [row["seq"] for row in found["held"]]) == ("snapshot", [6, 4])


def plain_table(feed: Feed, messages: Sequence[KafkaMessage]) -> SessionTable:
    table = SessionTable(feed)
    for message in messages:
        found = read_record(feed, KafkaRecord(*message[:6]))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            table.apply_event(event)
    return table


@pytest.mark.parametrize("seed", seeds(20, 100, 300))
def test_any_batches_give_the_rows_of_the_plain_table(seed: int) -> None:
    rnd, last = random.Random(seed), 0
    bodies: list[dict[str, Any]] = []
    for _ in range(rnd.randint(2, 30)):
        first = last + 1 + rnd.choice([0, 0, 0, 0, -1, 1])
        last = max(first, first + rnd.randint(0, 3))
        bodies.append(depth(first, last, (f"0.{rnd.randint(1, 4)}", str(rnd.randint(0, 2)))))
    bodies.insert(rnd.randint(0, 6), snapshot(rnd.randint(0, 12)))
    rules = depth_rules(integrity="order", starts_with={"snapshot": True, "hold": rnd.randint(1, 5)})
    messages, feed = sent(bodies), rules.feeds[0].build()
    table = plain_table(feed, messages)
    folder = Folder(rules, rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.7)
    for batch in cut(rnd, messages, rnd.randint(1, 7)):
        folder.batch(batch)
    assert rows_of(folder.silver, feed) == {"BTCUSDT": table.rows}
    session, counts = folder.silver.sessions["depth", 0, "BTCUSDT"], folder.silver.counts["depth", 0]
    assert [session[name] for name in ("messages", "gaps", "duplicates")] == [
        table.messages,
        table.gaps,
        table.duplicates,
    ]
    assert (counts["held"], counts["quarantined"]) == (len(table.held), table.unapplied)


def test_feed_test_compares_the_table_after_the_snapshot_with_what_was_held() -> None:
    frames = [
        FeedTestMessage({"topic": "depth", "value": body}, {}) for body in (depth(1, 2), depth(3, 4), snapshot(2))
    ]
    rows = {"BTCUSDT": [{"side": "bid", "price": "0.0024"}, {"side": "bid", "price": "0.0004"}]}
    assert list(run_feed_test([depth_rules().feeds[0].build()], None, frames, rows)) == []


# -- the configuration


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"integrity": "none"}, "integrity none applies every message as it comes.*order or strict"),
        ({"integrity": "once", "order": {"seq": "data.u"}}, "integrity once applies messages in their place"),
        (
            {"integrity": "window", "order": {"seq": "data.u"}},
            "integrity window already holds messages back, by event time",
        ),
        ({"order": "arrival"}, "with order: arrival, the seq is the Kafka offset"),
        (
            {"order": {"seq": "data.u", "modulo": 256}, "messages": [RULE | {"is": "snapshot"}]},
            "with order.modulo, a held message's seq does not show",
        ),
        ({"order": CHAINED, "messages": [RULE | {"order": CHAINED}]}, "with order.chain, a held message's seq"),
        ({"starts_with": {"snapshot": True, "hold": 0}}, "greater than or equal to 1"),
        ({"starts_with": {"snapshot": False, "hold": 1}}, "snapshot"),
        ({"starts_with": {"snapshot": True}}, "hold"),
    ],
)
def test_hold_is_refused_where_nothing_can_wait_for_a_snapshot(changed: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        depth_rules(**changed)


def test_hold_is_refused_if_a_snapshot_has_no_seq() -> None:
    rules = yaml.safe_load(DEPTH)["messages"]
    with pytest.raises(ValueError, match="with order: none, a snapshot has no seq"):
        depth_rules(messages=[rules[0] | {"order": "none"}, *rules[1:]])


# -- `feed try`


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(tmp_path)
    content = {"capture": {"feeds": [yaml.safe_load(DEPTH)]}}
    Path("sessionlake.yml").write_text(yaml.safe_dump(content, sort_keys=False))

    def run(*bodies: dict[str, Any]) -> Result:
        Path("messages.jsonl").write_text(
            "".join(json.dumps({"topic": "depth", "value": one}) + "\n" for one in bodies)
        )
        environment = {"SESSIONLAKE_HOME": str(tmp_path / "home")}
        return CliRunner().invoke(cli.app, ["feed", "try", "messages.jsonl"], env=environment)

    return run


def test_feed_try_shows_what_is_held_and_what_the_snapshot_releases(call: Call) -> None:
    result = call(depth(1, 2), depth(3, 4), snapshot(2), depth(5, 5))
    assert result.exit_code == 0, result.output
    shown = result.stdout
    assert shown.count("held: it waits for the first snapshot of its session") == 2
    assert "snapshot: 2 held messages are judged after it" in shown
    assert "held back until the first snapshot of their session: 2; 0 still wait" in shown
    assert "order: gaps 0, duplicates 1" in shown
    assert "rows 3" in shown


def test_feed_try_shows_messages_for_which_no_snapshot_came(call: Call) -> None:
    shown = call(*(depth(n, n) for n in range(1, 6))).stdout
    assert shown.count("before the first snapshot: 1 held messages go to quarantine") == 2
    assert "held back until the first snapshot of their session: 5; 3 still wait" in shown
    assert "updates before the first snapshot of their session: 2; they go to quarantine" in shown
