"""Chains: one counter for several sessions, judged in random batches as a plain program does that reads it once."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import yaml

from sessionlake.integrity import chains
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.protocol.arrow import split_session_key
from sessionlake.settings.feeds import FeedSettings
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from support.folding import Folder, Silver, ViolationError
from support.seeds import seeds
from support.streams import cut

FEED = """
name: books
topics: books
session: product
key: [price]
columns: {price: bigint, qty: bigint}
order: {seq: n, chain: connection}
messages:
  - {when: {type: status}, is: ignore}
  - when: {type: first}
    is: snapshot
    restart: true
    rows: [{each: "rows[*]", row: all}]
  - when: {type: snapshot}
    is: snapshot
    rows: [{each: "rows[*]", row: all}]
  - {when: {type: bye}, is: end}
  - {is: update, rows: [{each: "rows[*]", row: all, delete: {qty: 0}}]}
"""
START = 1_700_000_000_000


def settings(policy: str = "isolate", **changed: Any) -> CaptureSettings:
    feed = FeedSettings.model_validate(yaml.safe_load(FEED) | changed)
    return CaptureSettings(feeds=(feed,), on_violation=policy, integrity="strict", session_timeout="100 days")


def message(offset: int, type_: str, connection: str, seq: int, product: str | None, **rows: int) -> KafkaMessage:
    body: dict[str, Any] = {"type": type_, "connection": connection, "n": seq}
    if product is not None:
        body["product"] = product
    if type_ in {"first", "snapshot", "update"}:
        body["rows"] = [{"price": int(price[1:]), "qty": qty} for price, qty in rows.items()]
    return KafkaMessage("books", 0, offset, START + offset, None, json.dumps(body).encode())


@dataclass
class PlainSession:
    """A session as a plain program sees it."""

    chain: str | None = None
    status: str = "new"
    rows: dict[int, int] = field(default_factory=dict)
    gaps: int = 0
    duplicates: int = 0
    quarantined: int = 0
    last_seq: int = -1

    def break_off(self, policy: str) -> None:
        if self.status == "open":
            self.gaps += 1
            if policy == "isolate":
                self.status = "broken"


def read_plainly(messages: list[KafkaMessage], policy: str) -> dict[str, PlainSession]:
    """Follows the chains and the sessions message by message, without batches, shards or states."""
    sessions: dict[str, PlainSession] = {}
    last: dict[str, int] = {}
    for one in messages:
        body = json.loads(one.value or b"")
        chain, seq, type_ = body["connection"], body["n"], body["type"]
        mine = sessions.setdefault(body["product"], PlainSession()) if "product" in body else PlainSession()
        members = [other for other in sessions.values() if other.chain == chain]
        if type_ == "first":
            for other in members:
                other.chain = None
        elif seq <= last.get(chain, -1):
            mine.duplicates += 1
            continue
        elif seq > last.get(chain, seq) + 1:
            for other in members:
                other.break_off(policy)
        last[chain] = seq
        if "product" in body:
            if mine.chain != chain and type_ not in {"first", "snapshot"}:
                mine.break_off(policy)
            mine.chain = chain
            apply(mine, type_, body, policy)
    return sessions


def apply(session: PlainSession, type_: str, body: dict[str, Any], policy: str) -> None:
    is_snapshot = type_ in {"first", "snapshot"}
    if policy == "isolate":
        if session.status == "new" and not is_snapshot:
            session.status = "broken"
        if session.status == "ended" or (session.status == "broken" and not is_snapshot):
            session.quarantined += 1
            return
    session.last_seq = body["n"]
    if session.status != "ended":
        session.status = "ended" if type_ == "bye" else "open"
    if is_snapshot:
        session.rows = {}
    for row in body.get("rows", ()):
        session.rows[row["price"]] = row["qty"]
        if row["qty"] == 0 and not is_snapshot:
            del session.rows[row["price"]]


def random_messages(rnd: random.Random, count: int) -> list[KafkaMessage]:
    """Messages of two connections that lose, repeat and restart, and carry three products that change connection."""
    found: list[KafkaMessage] = []
    seqs = {"x": 10, "y": 500}
    started: set[str] = set()
    while len(found) < count:
        chain = rnd.choice("xxxy")
        product = rnd.choice(["a", "b", "c", None]) if rnd.random() < 0.9 else rnd.choice("abc")
        step = rnd.choices([1, 2, 0, -3], [90, 4, 3, 2])[0]
        type_ = "status" if product is None else rnd.choices(["update", "snapshot", "first", "bye"], [83, 12, 3, 2])[0]
        if product is not None and product not in started and rnd.random() < 0.9:
            type_ = rnd.choice(["snapshot", "first"])
        if type_ == "first":
            seqs[chain] = rnd.randrange(50)
        seqs[chain] = max(seqs[chain] + step, 0)
        if product is not None:
            started.add(product)
        rows = {f"p{rnd.randrange(4)}": rnd.randrange(3) for _ in range(rnd.randrange(3))}
        found.append(message(len(found), type_, chain, seqs[chain], product, **rows))
    return found


def rows_of(silver: Silver) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (_, _, session), rows in silver.rows.items():
        found[session] = {row["price"]: row["qty"] for row in rows.values()}
    return {session: rows for session, rows in found.items() if rows}


@pytest.mark.parametrize("policy", ["isolate", "record"])
@pytest.mark.parametrize("seed", seeds(12, 60, 500))
def test_any_batches_judge_chains_as_a_plain_program_does(policy: str, seed: int) -> None:
    rnd = random.Random(seed)
    messages = random_messages(rnd, rnd.choice([5, 40, 150]))
    expected = read_plainly(messages, policy)
    folder = Folder(settings(policy), rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.8)
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        folder.batch(batch)
        if rnd.random() < 0.2:
            folder.reshard(rnd.randint(1, 3))
    silver = folder.silver
    assert rows_of(silver) == {name: one.rows for name, one in expected.items() if one.rows}
    found = {key[2]: row for key, row in silver.sessions.items()}
    assert {name: (row["status"], row["gaps"], row["duplicates"]) for name, row in found.items()} == {
        name: (one.status.replace("new", "open"), one.gaps, one.duplicates) for name, one in expected.items()
    }
    cursors = {
        split_session_key(key)[2]: int(seq)
        for state in folder.states().values()
        for key, seq in zip(state.keys.to_pylist(), state.cursors["last_seq"], strict=True)
    }
    assert cursors == {name: one.last_seq for name, one in expected.items()}
    assert len(silver.quarantine) == sum(one.quarantined for one in expected.values())
    assert {row["next_seq"] for row in found.values()} <= {None}


def judged_of(silver: Silver) -> tuple[Any, ...]:
    """What silver has judged, without what depends on where batches end."""
    events = [{name: value for name, value in row.items() if not name.startswith("_")} for row in silver.events]
    sessions = {key: {n: v for n, v in row.items() if not n.startswith("_")} for key, row in silver.sessions.items()}
    return rows_of(silver), sorted(events, key=str), sessions, len(silver.quarantine)


@pytest.mark.parametrize("seed", seeds(4, 40, 900))
def test_silences_end_chains_wherever_batches_end(seed: int) -> None:
    rnd = random.Random(seed)
    messages, now = [], START
    for one in random_messages(rnd, 60):
        now += rnd.choices([10, 3_000, 7_000, 25_000], [85, 5, 5, 5])[0]
        late = rnd.choice([0, 0, 0, 4_000])
        messages.append(one._replace(timestamp=now - late, ingested_at=now))
    rules = settings().model_copy(update={"session_timeout": timedelta(seconds=5)})
    found = []
    for count in (1, len(messages), rnd.randint(2, 9)):
        folder = Folder(rules, rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.8)
        for batch in cut(rnd, messages, count):
            folder.batch(batch)
        found.append(judged_of(folder.silver))
    assert found[1] == found[0]
    assert found[2] == found[0]


def test_a_gap_stops_each_session_of_the_chain_until_it_is_accepted() -> None:
    messages = [
        message(0, "first", "x", 1, "a", p1=1),
        message(1, "snapshot", "x", 2, "b", p2=1),
        message(2, "status", "x", 4, None),
    ]
    with pytest.raises(ViolationError) as stop:
        Folder(settings("fail"), 2, random.Random(1)).batch(messages)
    assert (stop.value.violation.offset, stop.value.violation.event) == (2, "gap")
    decisions = {("books", 0, session, 2): OperatorDecision.ACCEPT_GAP for session in "ab"}
    folder = Folder(settings("fail"), 2, random.Random(1), decisions=decisions)
    folder.batch(messages)
    events = [(row["session_id"], row["event"], row["action"], row["offset"]) for row in folder.silver.events]
    assert sorted(events) == [("a", "gap", "accepted", 2), ("b", "gap", "accepted", 2)]


@pytest.mark.parametrize("count", [1, 2, 6])
def test_a_decoder_class_gives_chains(count: int) -> None:
    feed = {
        "name": "meters", "topics": "books", "key": ["name"], "columns": {"name": "string", "value": "bigint"},
        "order": "decoder", "decoder": "support.feed_decoders:Channels",
    }  # fmt: skip
    rules = CaptureSettings(feeds=(FeedSettings.model_validate(feed),), on_violation="isolate", integrity="strict")
    bodies: list[dict[str, Any]] = [
        {"line": "l", "n": 1, "meter": "a", "values": {"p": 1}, "type": "snapshot"},
        {"line": "l", "n": 2, "meter": "b", "values": {"p": 2}, "type": "snapshot"},
        {"line": "l", "n": 3},
        {"line": "l", "n": 4, "meter": "a", "values": {"p": 3}, "type": "update"},
        {"line": "l", "n": 6},
        {"line": "l", "n": 7, "meter": "b", "values": {"p": 4}, "type": "snapshot"},
    ]
    messages = [
        KafkaMessage("books", 0, offset, START + offset, None, json.dumps(body).encode())
        for offset, body in enumerate(bodies)
    ]
    rnd = random.Random(count)
    folder = Folder(rules, 2, rnd)
    for batch in cut(rnd, messages, count):
        folder.batch(batch)
    found = {key[2]: (row["status"], row["gaps"]) for key, row in folder.silver.sessions.items()}
    assert found == {"a": ("broken", 1), "b": ("open", 1)}
    assert folder.silver.counts["books", 0]["ignored"] == 2


def test_chains_that_are_forgotten_leave_their_sessions_in_need_of_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "MAX_CHAINS", 2)
    messages = [message(n, "first", f"c{n}", 1, f"s{n}", p1=n) for n in range(3)]
    messages += [message(5 - n, "update", f"c{n}", 2, f"s{n}", p1=9) for n in (2, 1, 0)]
    folder = Folder(settings(), 1, random.Random(3))
    for one in messages:
        folder.batch([one])
    assert {key[2]: row["status"] for key, row in folder.silver.sessions.items()} == {
        "s0": "broken", "s1": "open", "s2": "open"
    }  # fmt: skip
