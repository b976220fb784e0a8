"""What a decoder's `complete` and `narrow` return is checked. A failure is a violation, and never stops silver."""

from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.feed import Feed
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake_lab.truth import KafkaMessage
from support.feed_cases import feed
from support.folding import Folder
from support.seeds import seeds
from support.streams import cut
from unit.test_feed_presets_binary import NODE, metric, payload
from unit.test_feed_rows import folded, plain_tables, rows_of, settings

CARELESS = """
name: careless
topics: careless
decoder: "support.feed_decoders:Careless"
starts_with: anything
key: [id]
columns: {id: string, v: int, seen: bigint, device: string, cost: {type: "decimal(6,2)", from: text}}
"""
ROWS = [{"id": "a", "v": 1, "cost": "1.50"}, {"id": "b", "v": 2, "cost": "2.00"}]
FAILING = {"raises", "unknown", "unfit", "no dict"}


def message(offset: int, kind: str, rows: list[dict[str, Any]], **body: Any) -> KafkaMessage:
    value = json.dumps({"s": "s", "type": kind, "rows": rows} | body).encode()
    return KafkaMessage("careless", 0, offset, 1_700_000_000_000 + offset, None, value)


@pytest.mark.parametrize("value", [4, 5, 6, 7, 8, 9])
def test_if_complete_fails_the_values_stay_as_they_were_sent_and_there_is_a_violation(value: int) -> None:
    rules = settings(CARELESS)
    sent = [message(0, "update", ROWS), message(1, "update", [{"id": "a", "v": value}])]
    table = plain_tables(rules.feeds[0].build(), sent, None)["s"]
    assert (table.rows["a"]["v"], table.presence_failed) == (value, 1)
    folder = Folder(rules, 1, random.Random(0))
    folder.batch(sent)
    assert rows_of(folder.silver, table.feed)["s"] == table.rows
    assert [event["event"] for event in folder.silver.events] == ["presence"]


@pytest.mark.parametrize(
    ("device", "left"),
    [("all", []), ("none", ["a", "b"]), ("text", ["b"]), *((name, ["a", "b"]) for name in sorted(FAILING))],
)
def test_the_scope_of_narrow_is_converted_and_if_it_fails_no_row_is_removed(device: str, left: list[str]) -> None:
    rules = settings(CARELESS)
    sent = [message(0, "update", ROWS), message(1, "snapshot", [], scope={"device": device})]
    table = plain_tables(rules.feeds[0].build(), sent, None)["s"]
    assert (sorted(table.rows), table.presence_failed) == (left, device in FAILING)
    folder = Folder(rules, 1, random.Random(0))
    folder.batch(sent)
    assert rows_of(folder.silver, table.feed).get("s", {}) == table.rows
    assert len(folder.silver.events) == table.presence_failed


PLANT = """
name: plant
topics: plant
uses: sparkplug
columns: {device: string, metric: string, historical: boolean, value: variant, datatype: string, number: int,
          untyped: variant}
"""


def test_a_metric_that_does_not_fit_its_column_stays_untyped_and_does_not_stop_silver() -> None:
    birth = payload(metric((10, 1), name="m", alias=1, datatype=7), seq=0)
    data = payload(metric((10, 3_000_000_000), alias=1), seq=1)
    sent = [
        KafkaMessage("plant", 0, n, 1_700_000_000_000 + n, NODE % kind, value)
        for n, (kind, value) in enumerate([(b"NBIRTH", birth), (b"NDATA", data)])
    ]
    rules = settings(PLANT)
    folder = Folder(rules, 1, random.Random(0))
    folder.batch(sent)
    given: Feed = feed(PLANT)
    (rows,) = rows_of(folder.silver, given).values()
    assert [(row["number"], row["untyped"]) for row in rows.values()] == [(None, '{"int_value":3000000000}')]
    assert [event["event"] for event in folder.silver.events] == ["presence"]
    table = SessionTable(given)
    for one in sent:
        found = read_record(given, KafkaRecord(*one[:6]))
        assert isinstance(found, DecodedMessage)
        table.apply_event(found.events[0])
    assert table.rows == rows


def random_messages(rnd: random.Random) -> list[KafkaMessage]:
    def row() -> dict[str, Any]:
        found: dict[str, Any] = {"id": rnd.choice("abcd")}
        values = {"v": rnd.randint(0, 9), "seen": 0, "device": rnd.choice("de"), "cost": rnd.choice(["1.5", "2"])}
        found |= {name: value for name, value in values.items() if rnd.random() < 0.5}
        return found | ({"gone": True} if rnd.random() < 0.1 else {})

    sent = []
    for offset in range(rnd.choice([5, 40])):
        kind = rnd.choice(["snapshot", *["update"] * 3])
        rows = [row() for _ in range(rnd.randint(0, 3))]
        devices = ["d", "e", "all", "none", "text", *FAILING]
        scope = {"device": rnd.choice(devices)} if kind == "snapshot" and rnd.random() < 0.6 else {}
        sent.append(message(offset, kind, rows, scope=scope, s=rnd.choice("xy")))
    return sent


@pytest.mark.parametrize("seed", seeds(10, 600))
def test_silver_completes_rows_as_the_plain_table_does_whatever_the_batches(seed: int) -> None:
    rnd = random.Random(seed)
    rules, sent = settings(CARELESS), random_messages(rnd)
    given = rules.feeds[0].build()
    tables = plain_tables(given, sent, None)
    folder = Folder(rules, rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.8)
    for batch in cut(rnd, sent, rnd.randint(1, 5)):
        folder.batch(batch)
    silver = folder.silver
    expected = {session: table.rows for session, table in tables.items() if table.rows}
    assert {session: rows for session, rows in rows_of(silver, given).items() if rows} == expected
    assert {session: rows for session, rows in folded(silver, given).items() if rows} == expected
    events = Counter(event["event"] for event in silver.events)
    assert events["presence"] == sum(table.presence_failed for table in tables.values())


def test_complete_sees_all_columns_of_a_snapshots_rows_in_silver_and_in_the_plain_table() -> None:
    rules = settings(CARELESS)
    sent = [message(0, "snapshot", ROWS), message(1, "update", [{"id": "a", "v": 3}])]
    table = plain_tables(rules.feeds[0].build(), sent, None)["s"]
    folder = Folder(rules, 1, random.Random(0))
    folder.batch(sent)
    assert {name: row["seen"] for name, row in table.rows.items()} == {"a": 5, "b": 5}
    assert rows_of(folder.silver, table.feed)["s"] == table.rows
