"""OPC UA PubSub in JSON: the forms of a field, and network messages with several messages of a writer."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage
from sessionlake.feeds.reader import KafkaRecord, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake_lab.truth import KafkaMessage
from support.feed_cases import feed
from support.folding import Folder
from support.preset_cases import PLC, data_set, network
from support.seeds import seeds
from support.streams import cut
from unit.test_feed_presets import folded
from unit.test_feed_rows import rows_of, settings

AT, TOP = 1_769_860_800_500, 2**32
BAD = 2_147_483_648


def fields(*payloads: dict[str, Any], **given: Any) -> dict[str, dict[str, Any]]:
    """The rows after a key frame and delta frames with these payloads; `given` is part of each message."""
    kinds = ["ua-keyframe"] + ["ua-deltaframe"] * (len(payloads) - 1)
    sent = [network(data_set(kind, n, one) | given) for n, (kind, one) in enumerate(zip(kinds, payloads, strict=True))]
    (table,) = folded(feed(PLC), *sent).values()
    return table.rows


@pytest.mark.parametrize(
    ("sent", "value", "status"),
    [
        (1.5, "1.5", None),
        ({"Type": 11, "Body": 1.5}, "1.5", None),
        ({"UaType": 11, "Value": 1.5}, "1.5", None),
        ({"Type": 8, "Body": "9007199254740993"}, '"9007199254740993"', None),
        ({"Value": {"Type": 11, "Body": 1.5}, "Status": BAD}, "1.5", BAD),
        ({"Value": 1.5, "StatusCode": BAD}, "1.5", BAD),
        ({"Value": 1.5, "StatusCode": {"Code": BAD, "Symbol": "Bad"}}, "1.5", BAD),
        ({"Value": 1.5, "Status": {"Code": BAD, "Symbol": "Bad"}}, "1.5", BAD),
        ({"unit": "m", "level": 3}, '{"unit":"m","level":3}', None),
        ({"Value": 3, "unit": "m"}, "3", None),
    ],
)
def test_a_field_has_its_value_and_status_in_every_encoding(sent: Any, value: str, status: int | None) -> None:
    row = fields({"f": sent})["f"]
    assert (row["value"], row["status"], row["encoded"]) == (value, status, json.dumps(sent, separators=(",", ":")))


def test_a_field_without_a_status_has_that_of_its_message():
    rows = fields({"a": 1, "b": {"Value": 2, "StatusCode": 5}}, Status=BAD)
    assert {name: row["status"] for name, row in rows.items()} == {"a": BAD, "b": 5}


def test_a_good_value_after_a_bad_one_has_no_status_and_no_earlier_time():
    bad = {"Value": 1, "StatusCode": BAD, "SourceTimestamp": "2026-01-31T12:00:00Z"}
    row = fields({"f": bad}, {"f": {"Value": 2}})["f"]
    assert (row["value"], row["status"], row["source_time"]) == ("2", None, None)


def test_a_publisher_that_counts_from_one_again_is_read_from_its_next_key_frame_on():
    old = [
        network(data_set("ua-keyframe", 1_000_000, {"a": 1})),
        network(data_set("ua-deltaframe", 1_000_001, {"a": 2})),
    ]
    new = [network(data_set("ua-keyframe", 1, {"a": 3})), network(data_set("ua-deltaframe", 2, {"b": 4}))]
    (table,) = folded(feed(PLC), *old, *new).values()
    assert {name: row["value"] for name, row in table.rows.items()} == {"a": "3", "b": "4"}
    assert (table.messages, table.gaps, table.duplicates) == (4, 0, 0)


def test_messages_without_a_sequence_number_apply_as_they_arrive():
    kinds = [("ua-keyframe", {"a": 1, "b": 1}), ("ua-deltaframe", {"a": 2}), (None, {"b": 3}), ("ua-event", {"c": 4})]
    sent = [data_set(kind, 0, payload) for kind, payload in kinds]
    for one in sent:
        del one["SequenceNumber"]
    (table,) = folded(feed(PLC), *map(network, sent)).values()
    assert {name: row["value"] for name, row in table.rows.items()} == {"a": "2", "b": "3", "c": "4"}
    assert (table.messages, table.gaps, table.duplicates) == (4, 0, 0)


def random_messages(rnd: random.Random) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]], int]:
    """Network messages of two writers, the values of their fields, and the number of gaps."""
    rows: dict[str, dict[str, int]] = {}
    seqs = {writer: rnd.randrange(TOP - 20, TOP) for writer in (1, 2)}
    sent, gaps, missing = [], 0, set()
    for number in range(40):
        parts, lost = [], number > 2 and rnd.random() < 0.1
        for _ in range(rnd.randint(1, 4)):
            writer = rnd.choice([1, 2])
            table = rows.setdefault(f'["plc1","{writer}"]', {})
            if not table or rnd.random() < 0.2:
                kind, payload = (
                    "ua-keyframe",
                    {name: rnd.randrange(9) for name in rnd.sample("abcd", rnd.randint(1, 4))},
                )
            else:
                kind, payload = "ua-deltaframe", {rnd.choice("abcd"): rnd.randrange(9)}
            if not lost:
                rows[f'["plc1","{writer}"]'] = payload if kind == "ua-keyframe" else table | payload
            parts.append(data_set(kind, seqs[writer] % TOP, payload, writer))
            seqs[writer] += 1
        writers = {one["DataSetWriterId"] for one in parts}
        if lost:
            missing |= {writer for writer in writers if rows[f'["plc1","{writer}"]']}
            continue
        complete = {one["DataSetWriterId"] for one in parts if one["MessageType"] == "ua-keyframe"}
        gaps += len((writers & missing) - complete)  # the order starts again at a key frame
        missing -= writers
        sent.append(network(*parts))
    return sent, rows, gaps


@pytest.mark.parametrize("seed", seeds(10, 400))
def test_several_messages_of_a_writer_in_one_are_applied_in_order_and_a_lost_one_is_a_gap(seed: int) -> None:
    rnd = random.Random(seed)
    sent, rows, gaps = random_messages(rnd)
    messages = [KafkaMessage("plc", 0, n, AT, None, json.dumps(one).encode()) for n, one in enumerate(sent)]
    rules = settings(PLC)
    given = rules.feeds[0].build()
    tables: dict[str, SessionTable] = {}
    for message in messages:
        found = read_record(given, KafkaRecord(*message[:6]))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            tables.setdefault(event.session, SessionTable(given)).apply_event(event)
    folder = Folder(rules, rnd.randint(1, 3), rnd)
    for batch in cut(rnd, messages, rnd.randint(1, 9)):
        folder.batch(batch)
    silver = rows_of(folder.silver, given)
    for found_rows in ({session: table.rows for session, table in tables.items()}, silver):
        assert {
            session: {name: json.loads(row["value"]) for name, row in table.items()}
            for session, table in found_rows.items()
        } == {session: table for session, table in rows.items() if table}
    assert sum(table.gaps for table in tables.values()) == gaps
    assert sum(session["gaps"] for session in folder.silver.sessions.values()) == gaps
    assert not folder.silver.quarantine
