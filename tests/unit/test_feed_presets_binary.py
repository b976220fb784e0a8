"""Presets with a decoder class: Sparkplug B, GTFS Realtime and Canal, from bytes that are written field by field."""

from __future__ import annotations

import struct
from datetime import UTC, datetime
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.reader import read_record
from sessionlake.feeds.table import SessionTable
from support.feed_cases import feed, record
from support.protobuf_bytes import Float, protobuf

PLANT = "{name: plant, topics: 'spb.+', uses: sparkplug}"
NODE, DEVICE = b"spBv1.0/plant/%s/node1", b"spBv1.0/plant/%s/node1/pump/2"


def metric(value: tuple[int, Any] | None = None, **given: Any) -> bytes:
    """A metric: the field of its value, and name, alias, time, data type, historical and null."""
    numbers = {"name": 1, "alias": 2, "at": 3, "datatype": 4, "historical": 5, "null": 7}
    return protobuf(*((numbers[name], one) for name, one in given.items()), *([] if value is None else [value]))


def payload(*metrics: bytes, seq: int | None = None, at: int = 1_000) -> bytes:
    return protobuf((1, at), *((2, one) for one in metrics), *([] if seq is None else [(3, seq)]))


def spb(given: Feed, key: bytes, kind: bytes, value: bytes | None) -> DecodedMessage | MessageRefusal:
    return read_record(given, record(value, topic="spb", key=key % kind))


def event_of(found: DecodedMessage | MessageRefusal) -> SessionEvent:
    assert isinstance(found, DecodedMessage), found
    return found.events[0]


def values_of(*metrics: bytes) -> list[Any]:
    rows = event_of(spb(feed(PLANT), NODE, b"NDATA", payload(*metrics, seq=1))).rows
    return [row.values["value"] for row in rows]  # type: ignore[union-attr]  # all are puts


def test_births_replace_data_changes_and_deaths_remove():
    given = feed(PLANT)
    table = SessionTable(given)
    named = [
        metric((12, Float(1.5)), name="Temp", alias=7, datatype=9, at=5),
        metric((15, "on"), name="State", datatype=12),
    ]
    steps: list[tuple[bytes, bytes, bytes]] = [
        (NODE, b"NBIRTH", payload(metric((11, 4), name="bdSeq", datatype=8), *named, seq=0)),
        (DEVICE, b"DBIRTH", payload(*named, seq=1)),
        (DEVICE, b"DDATA", payload(metric((12, Float(2.5)), alias=7, datatype=9), seq=2)),
        (NODE, b"NDATA", payload(metric((15, "off"), name="State"), seq=3)),
    ]
    for key, kind, value in steps:
        table.apply_event(event_of(spb(given, key, kind, value)))
    assert [(row["device"], row["metric"], row["name"], row["value"]) for row in table.rows.values()] == [
        ("", "bdSeq", "bdSeq", "4"), ("", "7", "Temp", "1.5"), ("", "State", "State", '"off"'),
        ("pump/2", "7", "Temp", "2.5"), ("pump/2", "State", "State", '"on"'),
    ]  # fmt: skip
    assert table.rows['["","7",false]']["at"] == datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)
    table.apply_event(event_of(spb(given, DEVICE, b"DBIRTH", payload(named[0], seq=4))))
    assert sum(row["device"] == "pump/2" for row in table.rows.values()) == 1
    table.apply_event(event_of(spb(given, DEVICE, b"DDEATH", payload(seq=5))))
    assert {row["device"] for row in table.rows.values()} == {""}
    death = event_of(spb(given, NODE, b"NDEATH", payload(metric((11, 4), name="bdSeq"))))
    assert (death.session, death.kind, death.seq, death.rows) == ('["plant","node1"]', EventKind.SNAPSHOT, None, ())
    table.apply_event(death)
    assert (table.rows, table.gaps, table.duplicates, table.last_seq) == ({}, 0, 0, 5)
    table.apply_event(event_of(spb(given, *steps[0])))
    assert (len(table.rows), table.last_seq) == (3, 0)


def test_numbers_of_a_node_go_round_and_a_missing_one_is_a_gap():
    given, table = feed(PLANT), SessionTable(feed(PLANT))
    for seq in (254, 255, 0, 1, 1, 4):
        table.apply_event(event_of(spb(given, NODE, b"NDATA", payload(seq=seq))))
    assert (table.gaps, table.duplicates, table.last_seq) == (1, 1, 4)


def test_values_have_the_sign_and_the_form_of_their_data_type():
    booleans = struct.pack("<I", 9) + bytes([0b10000001, 0b10000000])
    row = protobuf((1, protobuf((1, 2**32 - 5))), (1, protobuf((6, "x"))))
    data_set = protobuf((1, 2), (2, "a"), (2, "b"), (3, 3), (3, 12), (4, row))
    assert values_of(
        metric((10, 2**32 - 1), name="a", datatype=3),
        metric((10, 255), name="b", datatype=1),
        metric((10, 2**32 - 1), name="c", datatype=7),
        metric((11, 2**64 - 2), name="d", datatype=4),
        metric((14, True), name="e", datatype=11),
        metric((13, 0.1), name="f", datatype=10),
        metric((16, b"\1\2"), name="g", datatype=17),
        metric(name="h", datatype=3, null=True),
        metric((16, struct.pack("<2h", -1, 2)), name="i", datatype=23),
        metric((16, booleans), name="j", datatype=32),
        metric((16, b"ab\0c\0"), name="k", datatype=33),
        metric((17, data_set), name="l", datatype=16),
        metric((12, Float("nan")), name="m", datatype=9),
        metric((10, 5), name="n"),
    ) == [
        "-1", "-1", "4294967295", "-2", "true", "0.1", '"AQI="', None, "[-1,2]",
        "[true,false,false,false,false,false,false,true,true]", '["ab","c"]', '[{"a":-5,"b":"x"}]', '"NaN"', "5",
    ]  # fmt: skip


def test_a_late_value_has_a_row_of_its_own_and_a_large_integer_is_no_double():
    late = metric((12, Float(1)), name="t", historical=True)
    (first, second) = event_of(
        spb(feed(PLANT), NODE, b"NDATA", payload(late, metric((11, 2**53 + 1), name="t"), seq=1))
    ).rows
    assert (first.row_id, second.row_id) == ('["","t",true]', '["","t",false]')
    assert (first.values["number"], second.values["number"]) == (1.0, None)  # type: ignore[union-attr]  # both are puts


@pytest.mark.parametrize(
    ("key", "kind", "value", "reason"),
    [
        (NODE, b"NDATA", b"\xff", "not_protobuf"),
        (NODE, b"NDATA", payload(), "bad_value"),
        (NODE, b"XDATA", payload(seq=1), "bad_value"),
        (b"plant/%s", b"x", payload(seq=1), "bad_value"),
        (NODE, b"NDATA", payload(metric((10, 1)), seq=1), "bad_value"),
        (NODE, b"NDATA", payload(metric((16, b"123"), name="t", datatype=23), seq=1), "bad_value"),
        (NODE, b"NCMD", payload(), None),
        (NODE, b"NDATA", None, None),
        (b"spBv1.0/STATE/%s", b"host", b"{}", None),
    ],
)
def test_what_is_no_state_of_a_node_is_ignored_and_what_is_wrong_is_refused(key, kind, value, reason):
    found = spb(feed(PLANT), key, kind, value)
    assert (
        (found == DecodedMessage((), ()))
        if reason is None
        else (isinstance(found, MessageRefusal) and found.reason == reason)
    )


# -- GTFS Realtime

BUSES = "{name: buses, topics: buses, uses: gtfs_realtime}"


def transit(at: int | None, *entities: bytes, incrementality: int = 0) -> bytes:
    header = protobuf((1, "2.0"), (2, incrementality), *([] if at is None else [(3, at)]))
    return protobuf((1, header), *((2, entity) for entity in entities))


def test_a_feed_of_transit_is_replaced_by_each_message_and_its_timestamp_orders_them():
    given = feed(BUSES)
    trip = protobuf((1, "t1"), (5, "r1"), (6, 1), (3, "20260131"), (4, 5))
    position = protobuf((1, Float(48.5)), (2, Float(9.25)), (5, Float(3)))
    vehicle = protobuf(
        (1, trip), (8, protobuf((1, "v1"), (2, "bus 1"))), (2, position), (4, 1), (9, 99), (5, 60), (7, "s")
    )
    update = protobuf((1, trip), (2, protobuf((1, 3), (2, protobuf((1, -60))))), (5, -60))
    alert = protobuf((10, protobuf((1, protobuf((1, "Late"), (2, "en"))))))
    first = transit(
        60, protobuf((1, "a"), (4, vehicle)), protobuf((1, "b"), (3, update)), protobuf((1, "c"), (5, alert))
    )
    tables = SessionTable(given)
    for value in (first, first, transit(61, protobuf((1, "b"), (3, update)))):
        tables.apply_event(event_of(read_record(given, record(value, topic="buses"))))
    assert (list(tables.rows), tables.duplicates, tables.gaps, tables.last_seq) == (['["trip_update","b"]'], 1, 0, 61)
    event = event_of(read_record(given, record(first, topic="buses")))
    assert (event.session, event.kind, event.ts) == ("buses", EventKind.SNAPSHOT, 60_000)
    rows: list[dict[str, Any]] = [row.values for row in event.rows]  # type: ignore[union-attr]  # all are puts
    assert [row["kind"] for row in rows] == ["vehicle", "trip_update", "alert"]
    expected = {
        "trip_id": "t1", "route_id": "r1", "direction_id": 1, "start_date": "20260131", "start_time": None,
        "schedule_relationship": "REPLACEMENT", "vehicle_id": "v1", "vehicle_label": "bus 1", "latitude": 48.5,
        "longitude": 9.25, "speed": 3.0, "bearing": None, "stop_id": "s", "current_status": "STOPPED_AT",
        "occupancy_status": "99", "measured": datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
    }  # fmt: skip
    assert {name: rows[0][name] for name in expected} == expected
    assert rows[1]["delay"] == -60
    assert '"stop_time_update":[{"stop_sequence":3,"arrival":{"delay":-60}}]' in rows[1]["entity"]
    assert '"text":"Late"' in rows[2]["entity"]


def test_a_differential_feed_changes_entities_and_one_without_a_timestamp_applies_as_it_arrives():
    given = feed(BUSES)
    event = event_of(
        read_record(given, record(transit(9, protobuf((1, "a"), (2, True)), incrementality=1), topic="buses"))
    )
    assert (event.kind, event.seq, event.ts) == (
        EventKind.UPDATE,
        None,
        9_000,
    )  # another one may have the same timestamp
    assert {*event.rows} >= {RowDelete(("vehicle", "a"), '["vehicle","a"]'), RowDelete(("alert", "a"), '["alert","a"]')}
    event = event_of(read_record(given, record(transit(None), topic="buses", timestamp=77)))
    assert (event.kind, event.seq, event.ts) == (EventKind.SNAPSHOT, None, 77)
    wrong = [(b"\xff", "not_protobuf"), (transit(1, b""), "bad_value")]
    for value, reason in [*wrong, (transit(1, incrementality=2), "bad_value")]:
        found = read_record(given, record(value, topic="buses"))
        assert isinstance(found, MessageRefusal)
        assert found.reason == reason
    assert read_record(given, record(None, topic="buses")) == DecodedMessage((), ())


def test_each_part_of_an_entity_has_a_row_and_a_position_without_a_number_is_null():
    nowhere = protobuf((2, protobuf((1, Float("nan")), (2, Float(9)), (3, Float("inf")))))
    both = protobuf((1, "a"), (4, nowhere), (3, protobuf((5, 7))))
    given = transit(9, both, protobuf((1, "b"), (9, protobuf((1, 1)))))
    rows = event_of(read_record(feed(BUSES), record(given, topic="buses"))).rows
    assert [(row.key, row.values["latitude"], row.values["longitude"], row.values["delay"]) for row in rows] == [
        (("trip_update", "a"), None, None, 7),
        (("vehicle", "a"), None, 9.0, None),
        (("unknown", "b"), None, None, None),
    ]
    assert '"latitude":"NaN"' in rows[1].values["entity"]


# -- Canal

ITEMS = """
name: items
topics: items
uses: canal
key: [id]
columns: {id: {type: bigint, from: text}, name: string, price: {type: "decimal(8,2)", from: text}, at: timestamp_ntz}
"""


def canal(kind: str, data: Any, old: Any = None, **given: Any) -> dict[str, Any]:
    return {"type": kind, "data": data, "old": old, "es": 5, "isDdl": False, "pkNames": ["id"]} | given


def test_canal_reads_several_rows_and_a_changed_key_moves_the_row():
    given = feed(ITEMS)
    table = SessionTable(given)
    rows = [{"id": str(number), "name": "n", "price": "1.50", "at": "2026-01-31 12:00:00"} for number in (1, 2)]
    steps = [
        canal("INSERT", rows),
        canal("UPDATE", [rows[0] | {"price": None}, rows[1] | {"id": "3"}], [{"price": "1.50"}, {"id": "2"}]),
        canal("UPDATE", [rows[0]], [{"id": "1", "name": "m"}]),  # a sender that names all columns
        canal("ALTER", None, isDdl=True),
    ]
    for offset, value in enumerate(steps):
        found = read_record(given, record(value, topic="items", offset=offset))
        assert isinstance(found, DecodedMessage), found
        for event in found.events:
            assert (event.session, event.ts) == ('["items","0"]', 5)
            table.apply_event(event)
    assert sorted(table.rows) == ["[1]", "[3]"]
    table.apply_event(event_of(read_record(given, record(canal("DELETE", rows[:1]), topic="items", offset=8))))
    assert sorted(table.rows) == ["[3]"]
    table.apply_event(
        event_of(read_record(given, record(canal("TRUNCATE", None, isDdl=True), topic="items", offset=9)))
    )
    assert table.rows == {}


@pytest.mark.parametrize(
    "value", [{}, canal("MERGE", []), canal("INSERT", None), canal("INSERT", [{}]), canal("UPDATE", [{}], [{}, {}]), []]
)
def test_messages_of_canal_that_lack_something_are_refused(value):
    found = read_record(feed(ITEMS), record(value, topic="items"))
    assert isinstance(found, MessageRefusal)
    assert found.reason == "bad_value"
