"""The table of a feed that uses `sparkplug` is what the node has said, encoded by an independent encoder."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from pysparkplug import DataType

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from support.feed_cases import feed
from support.folding import Folder, Silver
from support.seeds import seeds
from support.sparkplug_node import EPOCH, START, Node, RowKey, type_name
from support.streams import cut
from unit.test_feed_rows import folded, rows_of, settings

PLANT = "{name: plant, topics: plant, uses: sparkplug}"
SESSION = ("plant", 0, '["plant","node"]')
Rows = dict[RowKey, dict[str, Any]]


def messages_of(sent: Sequence[tuple[bytes, bytes]]) -> list[KafkaMessage]:
    return [KafkaMessage("plant", 0, offset, START, key, value) for offset, (key, value) in enumerate(sent)]


def as_sent(rows: dict[str, dict[str, Any]]) -> Rows:
    """Rows of a table in the form of `Node.rows`."""
    found = {}
    for row in rows.values():
        metric = row["metric"]
        if metric.startswith('"'):
            metric = f"name {json.loads(metric)}"
        else:
            metric = f"alias {metric}" if metric.isdigit() else f"name {metric}"
        left_out = {"device", "metric", "historical", "quality", "properties"}
        found[row["device"], metric, row["historical"]] = {n: v for n, v in row.items() if n not in left_out}
    return found


def apply(table: SessionTable, message: KafkaMessage) -> None:
    found = read_record(table.feed, KafkaRecord(*message[:6]))
    assert isinstance(found, DecodedMessage), found
    for event in found.events:
        table.apply_event(event)


def silver_of(messages: Sequence[KafkaMessage], rnd: random.Random, **changed: Any) -> tuple[Silver, CaptureSettings]:
    """Silver's tables after the messages, in random batches and shards."""
    rules = settings(PLANT, **changed)
    folder = Folder(rules, rnd.randint(1, 3), rnd, bulk=rnd.random() < 0.8)
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        folder.batch(batch)
    return folder.silver, rules


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("seed", seeds(8, 1_000))
def test_the_table_is_what_the_node_has_said_after_every_message(seed: int, typed: bool) -> None:
    node = Node(random.Random(seed), typed)
    table = SessionTable(feed(PLANT))
    for offset in range(60):
        node.act()
        for message in messages_of(node.sent)[table.messages :]:
            apply(table, message)
        assert as_sent(table.rows) == node.rows, offset
    assert (table.gaps, table.duplicates, table.messages) == (0, 0, len(node.sent))


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("seed", seeds(4, 300))
def test_silver_has_the_same_table_whatever_the_batches(seed: int, typed: bool) -> None:
    rnd = random.Random(seed)
    node = Node(rnd, typed)
    for _ in range(rnd.choice([5, 80, 300])):
        node.act()
    silver, rules = silver_of(messages_of(node.sent), rnd)
    given = rules.feeds[0].build()
    assert as_sent(rows_of(silver, given)[SESSION[2]]) == node.rows
    times = {"at": lambda at: EPOCH + timedelta(milliseconds=at)}  # changes have times in milliseconds
    by_changes = {
        row_id: {name: times.get(name, lambda value: value)(value) for name, value in row.items()}
        for row_id, row in folded(silver, given)[SESSION[2]].items()
    }
    assert as_sent(by_changes) == node.rows
    assert (silver.events, silver.quarantine) == ([], [])
    assert silver.sessions[SESSION]["messages"] == len(node.sent)


@pytest.mark.parametrize("seed", seeds(2, 200))
def test_lost_and_repeated_messages_are_counted_modulo_256(seed: int) -> None:
    rnd = random.Random(seed)
    node = Node(rnd, typed=True)
    for _ in range(400):
        node.act()
    kept, gaps, duplicates, missing = [], 0, 0, False
    for key, value in node.sent:
        kind = key.split(b"/")[2]
        if kind == b"NDEATH":
            continue
        if kind != b"NBIRTH" and rnd.random() < 0.05:
            missing = True
            continue
        gaps += missing and kind != b"NBIRTH"
        missing = False
        kept.append((key, value))
        if kind != b"NBIRTH" and rnd.random() < 0.05:
            kept.append((key, value))
            duplicates += 1
    silver, _ = silver_of(messages_of(kept), rnd, integrity="order")
    session = silver.sessions[SESSION]
    assert (session["gaps"], session["duplicates"]) == (gaps, duplicates)


@pytest.mark.parametrize("seed", seeds(6, 300))
def test_without_the_birth_a_value_is_right_or_null_and_kept_as_it_was_sent(seed: int) -> None:
    node = Node(random.Random(seed), typed=False)
    node.act()
    table = SessionTable(feed(PLANT))
    first, births = len(node.sent), node.done["NBIRTH"] + node.done["DBIRTH"]
    while births == node.done["NBIRTH"] + node.done["DBIRTH"] and len(node.sent) < 40:
        node.act()
        sent = messages_of(node.sent)[first:]
        if births == node.done["NBIRTH"] + node.done["DBIRTH"]:
            apply(table, sent[-1])
            for key, row in as_sent(table.rows).items():
                assert row["untyped"] is not None or row["value"] == node.rows[key]["value"], key
                assert row["untyped"] is None or (row["value"], row["number"], row["text"]) == (None, None, None)


def test_the_messages_have_every_type_and_every_data_type() -> None:
    done: Counter[str] = Counter()
    for seed in range(20):
        node = Node(random.Random(seed), typed=False)
        for _ in range(60):
            node.act()
        done += node.done
    kinds = {"NBIRTH", "NDATA", "NDEATH", "DBIRTH", "DDATA", "DDEATH"}
    assert {*done} >= kinds | {one.name for one in DataType} - {
        "UNKNOWN", "DATASET", "TEMPLATE", "PROPERTYSET", "PROPERTYSETLIST",
    }  # fmt: skip
    assert {type_name(one) for one in (DataType.UINT8, DataType.DATETIME_ARRAY, DataType.FLOAT_ARRAY)} == {
        "UInt8", "DateTimeArray", "FloatArray",
    }  # fmt: skip
