"""Presets read the messages of known senders: each kind of message, and the traps of each sender."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from sessionlake.feeds.events import DecodedMessage, MessageRefusal, RowDelete, RowUpsert, SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.reader import read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.feed_presets import list_preset_names
from sessionlake.settings.feeds import FeedSettings
from support.feed_cases import feed, record
from support.preset_cases import (
    CUSTOMER,
    CUSTOMERS,
    DEBEZIUM,
    MAXWELL,
    ORDER,
    ORDERS,
    PLC,
    SETTINGS,
    THINGS,
    UNAVAILABLE,
    data_set,
    envelope,
    maxwell,
    network,
    shadow,
    with_schema,
)


def events(given: Feed, value: Any, **of_record: Any) -> tuple[SessionEvent, ...]:
    found = read_record(given, record(value, **of_record))
    assert isinstance(found, DecodedMessage), found
    return found.events


def folded(given: Feed, *values: Any, **of_record: Any) -> dict[str, SessionTable]:
    """The tables of the sessions after some messages."""
    tables: dict[str, SessionTable] = {}
    for offset, value in enumerate(values):
        for event in events(given, value, offset=offset, **of_record):
            tables.setdefault(event.session, SessionTable(given)).apply_event(event)
    return tables


def timestamp_without_zone(micros: int) -> datetime:
    return datetime.fromtimestamp(0, UTC).replace(tzinfo=None, microsecond=micros)


# -- debezium


def test_debezium_reads_every_operation():
    given = feed(ORDERS)
    found = [events(given, value, topic="shop.orders") for value in DEBEZIUM]
    values = {
        "id": 7, "customer": "ada", "note": "n", "total": Decimal("123.45"),
        "changed": datetime(2023, 11, 14, 22, 13, 20, 1, tzinfo=UTC), "due": date(2024, 10, 4),
    }  # fmt: skip
    put = RowUpsert((7,), "[7]", values)
    assert [(one[0].kind, one[0].rows) if one else None for one in found] == [
        (EventKind.UPDATE, (put,)),
        (EventKind.UPDATE, (put,)),
        (
            EventKind.UPDATE,
            (RowUpsert((7,), "[7]", {name: value for name, value in values.items() if name != "note"}),),
        ),
        (EventKind.UPDATE, (RowDelete((7,), "[7]"),)),
        (EventKind.SNAPSHOT, ()),
        None,
    ]
    assert [one[0].ts for one in found if one] == [1_700_000_000_456, *[1_700_000_000_123] * 4]
    assert {(one[0].session, one[0].seq, one[0].after) for one in found if one} == {('["shop.orders","0"]', 7, None)}
    assert events(given, None) == ()


def test_a_key_change_of_debezium_is_a_deletion_and_a_creation():
    values = [envelope("c", None, ORDER), envelope("d", ORDER), None, envelope("c", None, ORDER | {"id": 8})]
    (table,) = folded(feed(ORDERS), *values).values()
    assert [row["id"] for row in table.rows.values()] == [8]
    (table,) = folded(feed(ORDERS), *values, envelope("t")).values()
    assert table.rows == {}


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ({"type": "decimal(10,2)", "from": "base64"}, "MDk=", Decimal("123.45")),
        ({"type": "decimal(10,2)", "from": "base64"}, {"scale": 1, "value": "MDk="}, Decimal("1234.50")),
        ({"type": "decimal(10,2)", "from": "text"}, "123.45", Decimal("123.45")),
        ("decimal(10,2)", 123.45, Decimal("123.45")),
        ({"type": "date", "from": "days"}, 1, date(1970, 1, 2)),  # io.debezium.time.Date
        ({"type": "timestamp_ntz", "from": "epoch_ms"}, 1, timestamp_without_zone(1_000)),
        ({"type": "timestamp_ntz", "from": "epoch_us"}, 1, timestamp_without_zone(1)),
        ({"type": "timestamp_ntz", "from": "epoch_ns"}, 1_000, timestamp_without_zone(1)),
        ("timestamp", "2026-01-31T12:00:00.5Z", datetime(2026, 1, 31, 12, 0, 0, 500_000, tzinfo=UTC)),  # ZonedTimestamp
        ("bigint", 43_200_000_000, 43_200_000_000),  # MicroTime: µs of the day
        ("string", "12:00:00Z", "12:00:00Z"),  # ZonedTime
        ({"type": "binary", "from": "base64"}, "AAE=", b"\0\1"),
        ("variant", '{"a":1}', '"{\\"a\\":1}"'),  # a JSON column is sent as text
        ("array<string>", ["a", None], ["a", None]),
    ],
)
def test_values_of_debezium_s_types_are_read_by_the_column_s_from(column, value, expected):
    given = feed(ORDERS, columns={"id": "bigint", "v": column})
    (event,) = events(given, envelope("c", None, {"id": 1, "v": value}))
    assert event.rows == (RowUpsert((1,), "[1]", {"id": 1, "v": expected}),)


@pytest.mark.parametrize("value", [UNAVAILABLE, "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", [UNAVAILABLE]])
def test_a_value_that_debezium_does_not_have_keeps_the_column_s_value(value):
    column = "array<string>" if isinstance(value, list) else "string"
    given = feed(ORDERS, columns={"id": "bigint", "v": column})
    (event,) = events(given, envelope("u", None, {"id": 1, "v": value}))
    assert event.rows == (RowUpsert((1,), "[1]", {"id": 1}),)


def test_messages_of_debezium_that_no_rule_reads_are_refused():
    reasons = []
    for value in ({"op": "x"}, {"ts_ms": 1}, [], envelope("d", None), envelope("c", None, {"customer": "x"})):
        found = read_record(feed(ORDERS), record(value))
        assert isinstance(found, MessageRefusal)
        reasons.append(found.reason.value)
    assert reasons == ["no_rule", "no_rule", "no_rule", "bad_path", "bad_path"]


# -- maxwell and upsert


def test_maxwell_reads_every_type_and_a_changed_key_moves_the_row():
    given = feed(CUSTOMERS)
    found = [events(given, value) for value in MAXWELL]
    assert [len(one) for one in found] == [0, 1, 0, 1, 1, 1, 1, 0]
    assert found[5][0].rows[0] == RowDelete(("eu", 2), '["eu",2]')
    assert (found[1][0].session, found[1][0].ts) == ('["shop","customers","0"]', 1_700_000_000_000)
    (table,) = folded(given, *MAXWELL[:6]).values()
    assert [(row["id"], row["name"]) for row in table.rows.values()] == [(1, "eve"), (3, "ada")]
    (table,) = folded(given, *MAXWELL, maxwell("insert", CUSTOMER | {"credit": None})).values()
    assert table.rows['["eu",1]'] == CUSTOMER | {"credit": None}


@pytest.mark.parametrize(
    ("changed", "key", "value", "row"),
    [
        ({}, b"a", {"id": "a", "v": 1}, {"id": "a", "v": 1, "w": None}),
        ({}, b"a", {"v": 1, "w": "x"}, {"id": "a", "v": 1, "w": "x"}),
        ({"key_format": "json"}, b'{"id":"a"}', {"w": "x"}, {"id": "a", "v": None, "w": "x"}),
        ({"key_format": "json"}, b'"a"', {"w": "x"}, {"id": "a", "v": None, "w": "x"}),
        ({"key_format": "json"}, json.dumps(with_schema({"id": "a"})).encode(), with_schema({"v": 2}),
         {"id": "a", "v": 2, "w": None}),
    ],
)  # fmt: skip
def test_upsert_takes_the_value_for_the_row_and_null_deletes_it(changed, key, value, row):
    given = feed(SETTINGS, **changed)
    (table,) = folded(given, {"id": "a", "v": 9, "w": "old"}, value, key=key).values()
    assert table.rows == {"a": row}
    (table,) = folded(given, value, None, key=key).values()
    assert table.rows == {}


def test_a_key_of_upsert_that_is_no_json_or_is_missing_is_refused():
    for key, reason in ((b"{", "bad_key"), (None, "bad_path"), (b"[1]", "bad_value")):
        found = read_record(feed(SETTINGS, key_format="json"), record(None, key=key))
        assert isinstance(found, MessageRefusal)
        assert found.reason == reason


# -- aws_shadow and opcua


def test_a_shadow_is_replaced_by_each_document_and_versions_are_a_chain():
    given = feed(THINGS)
    key = b"$aws/things/lamp/shadow/update/documents"
    first, second, late = shadow(None, 5, {"a": 1}), shadow(5, 6, {"a": {"b": 2}}, {"a": 3}), shadow(7, 8, {})
    (event,) = events(given, first, key=key)
    assert (event.session, event.ts, event.seq, event.restart) == (key.decode(), 1_700_000_000_000, 5, True)
    (table,) = folded(given, first, second, key=key).values()
    assert {name: row["value"] for name, row in table.rows.items()} == {
        '["reported","a"]': '{"b":2}', '["desired","a"]': "3",
    }  # fmt: skip
    (table,) = folded(given, first, second, late, key=key).values()
    assert (table.rows, table.gaps) == ({}, 1)
    assert isinstance(read_record(given, record({"state": {"a": 1}, "version": 6}, key=key)), MessageRefusal)  # a delta


def test_frames_of_opc_ua_replace_or_change_the_fields_of_a_writer():
    given = feed(PLC)
    value = {"Value": {"Type": 11, "Body": 1.5}, "StatusCode": 2147483648, "SourceTimestamp": "2026-01-31T12:00:00Z"}
    key = network(data_set("ua-keyframe", 4, {"t": value, "p": 7}), data_set("ua-keyframe", 9, {"x": "on"}, 2))
    delta = network(data_set("ua-deltaframe", 5, {"p": {"Type": 6, "Body": 8}}))
    alive = network(data_set("ua-keepalive", 6))
    tables = folded(given, key, delta, alive, network(kind="ua-metadata"))
    assert [*tables] == ['["plc1","1"]', '["plc1","2"]']
    rows = tables['["plc1","1"]'].rows
    assert {name: row["value"] for name, row in rows.items()} == {"t": "1.5", "p": "8"}
    assert (rows["t"]["status"], rows["t"]["source_time"]) == (2147483648, datetime(2026, 1, 31, 12, tzinfo=UTC))
    tables = folded(given, key, delta, alive, network(data_set(None, 6, {"p": None})), network(data_set(None, 8, {})))
    table = tables['["plc1","1"]']
    assert (table.rows["p"]["value"], table.gaps, table.duplicates) == (None, 1, 0)


def test_data_sets_of_opc_ua_without_a_header_and_numbers_that_start_again():
    given, top = feed(PLC), 2**32 - 1
    first, second = [data_set("ua-keyframe", top, {"a": 1})], [data_set("ua-deltaframe", 0, {"a": 2})]
    (table,) = folded(given, first, second, second, topic="plc").values()
    assert (table.rows["a"]["value"], table.gaps, table.duplicates) == ("2", 0, 1)
    (event,) = events(given, first, topic="plc")
    assert (event.session, event.ts) == ('["plc","1"]', 1_769_860_800_500)


# -- all presets


def test_a_preset_is_overridden_key_by_key_and_an_unknown_one_is_refused_with_the_nearest():
    settings = FeedSettings.model_validate({"name": "x", "topics": "x", "uses": "opcua", "starts_with": "snapshot",
                                            "session": "PublisherId", "messages": [{"is": "ignore"}]})  # fmt: skip
    assert (settings.starts_with, len(settings.messages), settings.key) == ("snapshot", 1, ["field"])
    assert FeedSettings.model_validate(settings.model_dump(mode="json", by_alias=True)).build() is not None
    with pytest.raises(
        ValueError, match=r"no preset 'debezum'; did you mean 'debezium'.* The presets are aws_shadow, "
    ):
        feed(ORDERS, uses="debezum")
    with pytest.raises(ValueError, match="no preset 7"):
        feed(ORDERS, uses=7)


@pytest.mark.parametrize("name", list_preset_names())
def test_sessions_of_databases_shadows_and_nodes_never_expire(name):
    of_tables = name in {"debezium", "maxwell", "upsert", "canal"}
    declared = {"columns": {"id": "string"}} if name == "sessionlake" else {}
    table = {"key": ["a", "b.c"], "columns": {"a": "string", "b.c": "string"}} if of_tables else {}
    settings = FeedSettings.model_validate({"name": "x", "topics": "x", "uses": name, **table, **declared})
    assert (settings.session_timeout == "never") == (of_tables or name in {"aws_shadow", "sparkplug"})


def test_an_unknown_preset_without_a_near_name_is_refused_with_all_names():
    with pytest.raises(ValueError, match=r"there is no preset 'xyzzy'\. The presets are aws_shadow, canal"):
        feed("uses: xyzzy")
