"""A decoder class gives the events that it yields, or the message goes to quarantine. It never stops a job."""

from __future__ import annotations

import json
import pickle
import random
import re
import signal
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest

from sessionlake.errors import ConfigError
from sessionlake.feeds import decode, decode_many, decoder_events, events, time_limit
from sessionlake.feeds.compiled import CompiledFeedReader
from sessionlake.feeds.completion import DecoderRowCompleter
from sessionlake.feeds.decoder import Delete, Event, Put
from sessionlake.feeds.events import DecodedMessage, MessageRefusal
from sessionlake.feeds.events import RowDelete as DeleteRow
from sessionlake.feeds.events import RowUpsert as PutRow
from sessionlake.feeds.feed import EventKind, PresentOrAbsent
from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.reader import KafkaRecordColumns, load_json, load_json_fast, read_record
from sessionlake.feeds.table import SessionTable
from sessionlake.settings.feeds import FeedSettings
from support import feed_decoders
from support.event_lists import in_order
from support.feed_cases import feed, record
from support.seeds import seeds

METERS = """
name: meters
topics: 'meters'
decoder: "support.feed_decoders:Meters"
key: [name]
columns: {name: string, value: double}
"""
GIVEN = """
name: given
topics: 'given'
decoder: "support.feed_decoders:Given"
key: [name]
columns: {name: string, value: bigint, cost: "decimal(6,2)", at: timestamp, local: timestamp_ntz, day: date,
          raw: {type: binary, from: base64}, tags: "array<decimal(4,1)>", extra: variant,
          since: {type: timestamp, from: epoch_ms}, digits: {type: bigint, from: text}}
"""
ROW = {"meter": "m", "at": 5, "n": 3, "values": {"a": 1.5, "b": None}}
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def given_result(monkeypatch: pytest.MonkeyPatch, result: Any, **changed: Any) -> DecodedMessage | MessageRefusal:
    monkeypatch.setattr(feed_decoders.Given, "result", staticmethod(result) if callable(result) else result)
    given, one = feed(GIVEN, **changed), record({}, topic="given", headers={"h": b"x"})
    found, lists = read_record(given, one), ColumnarEvents.create_empty(given)
    lists.add_message_result(given, 0, found)
    by_fast_reader = CompiledFeedReader.compile_feed(given).read_records(KafkaRecordColumns.from_records([one]))
    assert in_order(by_fast_reader, given) == in_order(lists, given)
    return found


def row_of(monkeypatch: pytest.MonkeyPatch, row: Any, **changed: Any) -> Any:
    found = given_result(monkeypatch, [Event(session="s", rows=[row])], **changed)
    assert isinstance(found, DecodedMessage), found
    return found.events[0].rows[0]


def test_a_decoder_gives_events_with_rows_in_order():
    found = read_record(feed(METERS, order="decoder"), record(ROW))
    assert isinstance(found, DecodedMessage)
    (event,) = found.events
    assert (event.session, event.kind, event.ts, event.seq, event.after) == ("m", EventKind.UPDATE, 5, 3, 2)
    assert event.rows == (PutRow(("a",), "a", {"value": 1.5, "name": "a"}), DeleteRow(("b",), "b"))


def test_the_events_fold_to_a_table_and_the_fast_reader_gives_the_same():
    given, records = feed(METERS, order="decoder"), []
    for n, values in enumerate([{"a": 1, "b": 2}, {"a": None}, {"b": 3}]):
        kind = "update" if n else "snapshot"
        records.append(record(ROW | {"n": n, "values": values, "type": kind}, offset=n))
    table = SessionTable(given)
    for one in records:
        found = read_record(given, one)
        assert isinstance(found, DecodedMessage)
        table.apply_event(found.events[0])
    assert table.rows == {"b": {"name": "b", "value": 3.0}}
    lists = CompiledFeedReader.compile_feed(given).read_records(
        KafkaRecordColumns.from_records([*records, record(b"{")])
    )
    assert (lists.row_id, lists.rows, lists.seq) == (["a", "b", "a", "b"], [2, 1, 1], [0, 1, 2])
    assert lists.refused[3].reason == "not_json"


def test_without_seq_time_and_session_those_of_the_record_and_of_the_feed_apply(monkeypatch):
    found = given_result(monkeypatch, [Event()], session=["kafka.topic", "kafka.headers.h"])
    assert isinstance(found, DecodedMessage)
    assert found.events[0].session == '["given","x"]'
    assert (found.events[0].seq, found.events[0].after, found.events[0].ts) == (7, None, 1_000)
    found = given_result(monkeypatch, [Event(session="s")], order={"modulo": 256})
    assert isinstance(found, DecodedMessage)
    assert found.events[0].seq is None
    assert given_result(monkeypatch, []) == DecodedMessage((), ())


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("value", 7, 7),
        ("value", None, None),
        ("cost", Decimal("1.5"), Decimal("1.50")),
        ("at", NOON, NOON),
        ("at", "2026-01-31T13:00:00+01:00", NOON),
        ("local", NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        ("day", date(2026, 1, 31), date(2026, 1, 31)),
        ("raw", b"\0", b"\0"),
        ("raw", "AA==", b"\0"),
        ("tags", [Decimal(1), None], [Decimal("1.0"), None]),
        ("extra", {"a": [Decimal("1.10"), None]}, '{"a":[1.10,null]}'),
        ("since", 0, datetime(1970, 1, 1, tzinfo=UTC)),
        ("since", NOON, NOON),
        ("digits", "7", 7),
        ("digits", 7, 7),
    ],
)
def test_a_value_is_what_json_has_or_python_s_own(monkeypatch, column, value, expected):
    row = row_of(monkeypatch, Put(("n",), {column: value}))
    assert row.values == {"name": "n", column: expected}


def test_undeclared_values_are_rescued_or_dropped_and_a_key_may_be_a_dict(monkeypatch):
    row = Put({"name": "n", "z": 1}, {"z": 1, "b": Decimal("1.0")}, expect="absent")
    found = row_of(monkeypatch, row)
    assert (found.key, found.rescued, found.expect) == (("n",), '{"b":1.0,"z":1}', PresentOrAbsent.ABSENT)
    assert row_of(monkeypatch, row, rescue=False).rescued is None


def rows(*given: Any) -> list[Event]:
    return [Event(session="s", rows=given)]


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (None, "null, where events are expected"),
        (7, "7, where events are expected"),
        ("text", "where events are expected"),
        ({}, "where events are expected"),
        ([None], "where an Event is expected"),
        ([Put(("a",), {})], "type Put, where an Event is expected"),
        (feed_decoders.endless_events, "more than 10000 events"),
        (feed_decoders.endless_rows, "more than 5000 rows"),
        (feed_decoders.fails_at_last, "the decoder raised WithoutTextError: $"),
        (feed_decoders.endless_error, "the decoder raised KeyError: 'x{199}$"),
        ([Event(session="s", scope=None)], "the scope null"),
        ([Event(session="s", rows="")], "where rows are expected"),
        (rows(Put(MappingProxyType({"name": "a"}), {})), "type mappingproxy, where a tuple"),
        (rows(Put(("a",), MappingProxyType({}))), "type mappingproxy, where a dict"),
        ([Event(session="s", kind=[])], "kind \\[\\]"),
        ([Event(session="s"), Event(session="s")], "two events of session 's'"),
        ([Event(session="s", kind="upsert")], 'kind "upsert", which is none of snapshot, update'),
        ([Event(session="s", kind=7)], "kind 7"),
        ([Event(session="s", kind="ignore")], "an ignored message without chain and seq"),
        ([Event()], "an event without a session"),
        ([Event(session="")], "the session"),
        ([Event(session=())], "the session"),
        ([Event(session=("a", 7))], "the session"),
        ([Event(session="a\nb")], "the session"),
        ([Event(session="x" * 257)], "the session"),
        ([Event(session="s", ts="5")], 'ts "5", which is no whole number'),
        ([Event(session="s", ts=1.5)], "ts 1.5"),
        ([Event(session="s", ts=2**63)], "ts 9223372036854775808"),
        ([Event(session="s", seq=-1)], "seq -1, which is no whole number from 0"),
        ([Event(session="s", seq=2**63)], "seq 9223372036854775808"),
        ([Event(session="s", seq=True)], "seq true"),
        ([Event(session="s", seq=3, after=5)], "after 5 with seq 3"),
        ([Event(session="s", seq=3, after="2")], 'after "2"'),
        ([Event(session="s", chain="")], "the chain"),
        ([Event(session="s", chain=3)], "the chain 3"),
        ([Event(session="s", restart=True)], "restart or scope with a message that is update"),
        ([Event(session="s", scope={"name": "a"})], "restart or scope"),
        ([Event(session="s", kind="snapshot", scope={"nam": "a"})], 'undeclared columns: \\["nam"\\]'),
        ([Event(session="s", kind="snapshot", scope=[1])], "the scope \\[1\\]"),
        ([Event(session="s", kind="end", rows=[Delete(("a",))])], "rows with a message that is end"),
        ([Event(session="s", rows=None)], "null, where rows are expected"),
        (rows(("a", 1)), "where Put or Delete is expected"),
        (rows(Put("a", {})), 'the key "a", where a tuple is expected'),
        (rows(Put((), {})), "a key of 0 values, where name are expected"),
        (rows(Put(("a", "b"), {})), "a key of 2 values"),
        (rows(Put((None,), {})), "a key without a value for name"),
        (rows(Put((7,), {})), "7 in column name, which is string: it is no text"),
        (rows(Delete({"nam": "a"})), "a key without a value for name"),
        (rows(Put(("a",), {"name": "b"})), "\"b\" in the key's column name, but the key 'a'"),
        (rows(Put(("a",), {"name": None})), "null in the key's column name"),
        (rows(Put(("a",), [1])), "the values \\[1\\], where a dict is expected"),
        (rows(Put(("a",), {7: 1})), "the column 7, which is no text"),
        (rows(Put(("a",), {"value": "7"})), '"7" in column value, which is bigint: it is no integer in range'),
        (rows(Put(("a",), {"value": 2**63})), "it is no integer in range"),
        (rows(Put(("a",), {"value": 1.0})), "it is no integer"),
        (rows(Put(("a",), {"cost": Decimal("1.234")})), "more than 2 decimals"),
        (rows(Put(("a",), {"at": NOON.replace(tzinfo=None)})), "type datetime in column at.*no time zone"),
        (rows(Put(("a",), {"local": NOON})), "it names a time zone"),
        (rows(Put(("a",), {"day": NOON})), "it is no date"),
        (rows(Put(("a",), {"extra": object()})), "type object in column extra"),
        (rows(Put(("a",), {"extra": float("nan")})), "in column extra"),
        (rows(Put(("a",), {"b": object()})), "the decoder raised TypeError"),
        (rows(Put(("a",), {}, expect="maybe")), 'expect "maybe"'),
    ],
)  # fmt: skip
def test_whatever_is_wrong_is_refused_with_the_fault(monkeypatch, result, why):
    for module in (decode, decoder_events):
        monkeypatch.setattr(module, "MAX_ROWS", 5_000)
    found = given_result(monkeypatch, result)
    assert isinstance(found, MessageRefusal), found
    assert found.reason == "bad_value"
    assert re.search(why, found.why), found.why
    assert len(found.why) < 400


@pytest.mark.parametrize(
    ("result", "what"),
    [
        ([Event(session="s", kind="snapshot", scope={"name": "a"})], "a scope"),
        ([*rows(Put(("a",), {})), Event(session="t", rows=[Delete(("a",), expect="present")])], "a row with expect"),
    ],
)
def test_a_scope_or_expectation_needs_rows_in_memory(monkeypatch, result, what):
    assert isinstance(given_result(monkeypatch, result), DecodedMessage)
    monkeypatch.setattr(feed_decoders.Given, "needs_rows", False)
    found = given_result(monkeypatch, result)
    assert isinstance(found, MessageRefusal)
    assert found.why == f"the decoder yields {what}, but the class does not say `needs_rows = True`"
    kept = {"per": ["name"], "best": "value", "rows": 3}
    assert isinstance(given_result(monkeypatch, result, keep=kept), DecodedMessage)


def test_events_in_the_same_chain_have_the_same_seq(monkeypatch):
    monkeypatch.setattr(feed_decoders.Given, "has_chains", True, raising=False)
    same = [Event(session=name, chain="c", seq=5, after=4) for name in "ab"]
    assert isinstance(given_result(monkeypatch, same, order="decoder"), DecodedMessage)
    for other in (Event(session="d", chain="c", seq=6), Event(kind="ignore", chain="c", seq=6)):
        found = given_result(monkeypatch, [*same, other], order="decoder")
        assert isinstance(found, MessageRefusal)
        assert (found.reason, found.why) == ("bad_value", "the decoder yields several seqs of the chain c")


def test_a_decoder_completes_rows_with_those_before_and_only_columns_of_the_message():
    table = SessionTable(feed(METERS, decoder="support.feed_decoders:Sums", order="decoder"))
    for n, values in enumerate([{"a": 1, "b": 2}, {"a": 5}, {"a": None}, {"a": 1}]):
        found = read_record(table.feed, record(ROW | {"n": n, "values": values}, offset=n))
        assert isinstance(found, DecodedMessage)
        table.apply_event(found.events[0])
        if n == 1:
            assert {name: row["value"] for name, row in table.rows.items()} == {"a": 6.0, "b": 2.0}
    assert {name: row["value"] for name, row in table.rows.items()} == {"a": 1.0, "b": 2.0}
    event = events.SessionEvent("m", EventKind.UPDATE, 5, rows=(PutRow(("a",), "a", {"name": "a"}),))
    table.apply_event(event)
    assert (table.rows["a"]["value"], table.presence_failed) == (1.0, 1)


def test_a_row_s_key_may_not_be_too_long_nor_come_twice_if_the_feed_refuses_it(monkeypatch):
    found = given_result(monkeypatch, rows(Put(("x" * 2_000,), {})))
    assert isinstance(found, MessageRefusal)
    assert found.reason == "bad_row_id"
    twice = rows(Put(("a",), {}), Delete(("a",)))
    assert isinstance(given_result(monkeypatch, twice), DecodedMessage)
    found = given_result(monkeypatch, twice, repeats="refuse")
    assert isinstance(found, MessageRefusal)
    assert found.reason == "duplicate_row_id"


PARTS: dict[str, list[Any]] = {
    "session": ["s", ("s", "t"), ("s",), "t", None, 7, ("s", 7), "", [], True],
    "kind": ["update", "snapshot", EventKind.UPDATE, "end", "heartbeat", "ignore", "x", None, []],
    "ts": [None, 5, -1, 2**63, "5", 1.0, True],
    "seq": [None, 0, 5, -1, 2**63, True, 1.0],
    "after": [None, None, -1, 4, 5, 6, "4", True, -(2**63)],
    "is_link": [False, True, 1], "restart": [False, False, True, None], "scope": [{}, {}, {"name": "a"}, None, []],
    "chain": [None, None, "c", 7], "sent": [None, "7"],
}  # fmt: skip
KEYS: list[Any] = [
    ("a", 1), ("b", 1), {"name": "a", "n": 1, "z": 2}, ("a", True), ("a", 1.0), ("a",), (None, 1), "a", []
]  # fmt: skip
CELLS: list[Any] = [1, True, 1.0, "1", None, Decimal(1), NOON, b"", [], {}, float("nan"), "x" * 2_000, 2**63]
PAIRS = GIVEN.replace("key: [name]", "key: [name, n]").replace("columns: {", "columns: {n: int, ")


def random_row(rnd: random.Random, plain: float) -> Any:
    def choose(values: list[Any]) -> Any:
        return values[0] if rnd.random() < plain else rnd.choice(values)

    names = ["value", "cost", "at", "raw", "tags", "extra", "digits", "name", "n", "z", 7]
    values = {rnd.choice(names[: choose([7, 11])]): choose([1, *CELLS]) for _ in range(rnd.randrange(4))}
    key = rnd.choice(KEYS[:3]) if rnd.random() < plain else rnd.choice(KEYS)
    return choose([Put(key, values, choose([None, "absent", "x"])), Delete(key), None])


def random_event(rnd: random.Random, plain: float) -> Any:
    fields = {
        name: values[rnd.randrange(2)] if rnd.random() < plain else rnd.choice(values) for name, values in PARTS.items()
    }
    rows = [random_row(rnd, plain) for _ in range(rnd.randrange(4))]
    return Event(**fields, rows=rows if rnd.random() < plain else rnd.choice([tuple(rows), rows, None, "", {}]))


def count_slow_messages(monkeypatch: pytest.MonkeyPatch, rnd: random.Random, plain: float) -> int:
    """Reads 20 random messages by both readers, which must agree. Returns how many the fast one left to the exact."""
    results = [[random_event(rnd, plain) for _ in range(rnd.choice([1, 1, 2]))] for _ in range(20)]
    monkeypatch.setattr(feed_decoders.ByOffset, "results", results)
    given = feed(PAIRS, session="kafka.topic", rescue=rnd.random() < 0.5, repeats=rnd.choice(["refuse", "in_order"]),
                 order=rnd.choice(["arrival", "decoder"]), decoder="support.feed_decoders:ByOffset")  # fmt: skip
    records = [record({}, topic="given", offset=offset) for offset in range(len(results))]
    exact = ColumnarEvents.create_empty(given)
    for number, one in enumerate(records):
        exact.add_message_result(given, number, read_record(given, one))
    compiled = CompiledFeedReader.compile_feed(given)
    assert in_order(compiled.read_records(KafkaRecordColumns.from_records(records)), compiled.feed) == in_order(
        exact, compiled.feed
    )
    return compiled.slow


@pytest.mark.parametrize("seed", seeds(150, 20_000))
def test_the_fast_reader_gives_what_the_exact_one_gives(monkeypatch, seed):
    rnd = random.Random(seed)
    monkeypatch.setattr(decode_many, "_BLOCK", rnd.choice([1, 7, 2_000]))
    count_slow_messages(monkeypatch, rnd, rnd.choice([0.5, 0.9, 0.97, 1]))


def test_the_fast_reader_reads_most_messages_without_faults(monkeypatch):
    rnd = random.Random(1)
    slow = [count_slow_messages(monkeypatch, rnd, 1) for _ in range(20)]
    assert sum(slow) < 300, slow  # of 400; the others have conflicts by chance


def test_the_limits_are_what_a_decoder_may_yield(monkeypatch):
    for module in (decode, decoder_events):
        monkeypatch.setattr(module, "MAX_ROWS", 2)
        monkeypatch.setattr(module, "MAX_EVENTS", 2)
    assert isinstance(given_result(monkeypatch, rows(Delete(("a",)), Delete(("b",)))), DecodedMessage)
    assert isinstance(given_result(monkeypatch, [Event(session="a"), Event(session="b")]), DecodedMessage)
    split = [Event(session=name, rows=[Delete(("a",)), Delete(("b",))]) for name in "ab"]
    assert isinstance(given_result(monkeypatch, split), MessageRefusal)


def test_a_decoder_that_does_not_end_costs_its_message_alone_and_bounded_cpu_time(monkeypatch):
    monkeypatch.setattr(time_limit, "MAX_CPU_SECONDS", 0.2)
    monkeypatch.setattr(decode_many, "_BLOCK", 5)
    monkeypatch.setattr(feed_decoders.Endless, "offsets", (2, 11))
    given = feed(METERS, session="kafka.topic", decoder="support.feed_decoders:Endless")
    begun, compiled = time.process_time(), CompiledFeedReader.compile_feed(given)
    found = compiled.read_records(KafkaRecordColumns.from_records([record({}, offset=offset) for offset in range(12)]))
    assert time.process_time() - begun < 4
    assert {number: (one.reason, one.why) for number, one in found.refused.items()} == dict.fromkeys(
        (2, 11), ("bad_value", "the decoder used more than 0.2 s of CPU time")
    )
    assert sorted(found.message) == [0, 1, *range(3, 11)]
    assert compiled.slow == 7  # those of the first and the last block
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)
    assert signal.getsignal(signal.SIGVTALRM) == signal.SIG_DFL


def test_methods_that_do_not_end_fail_as_those_that_raise_do(monkeypatch):
    monkeypatch.setattr(time_limit, "MAX_CPU_SECONDS", 0.2)
    completer = DecoderRowCompleter.create_for_feed(
        feed(METERS, session="kafka.topic", decoder="support.feed_decoders:Endless")
    )
    assert completer.complete_row_values({"name": "a", "value": 1}, {}) == ({}, True)
    assert completer.narrow_snapshot_scope({"name": "a"}, {}) == (None, True)


def test_a_message_without_json_has_the_reason_that_fits():
    assert [
        getattr(read_record(feed(METERS), record(value)), "reason", None)
        for value in (None, b"\xff", b"{", b"[" * 65 + b"]" * 65, b'"\\ud800"')
    ] == ["tombstone", "not_utf8", "not_json", "too_deep", "not_json"]


@pytest.mark.parametrize(
    "text", ['[1.10,1e400,-0,12345678901234567890123,{"a":1,"a":null}]', '"\\ud83d\\ude00"', '[true,"",{}]', "7"]
)
def test_fast_json_is_the_same_as_exact_json(text):
    assert repr(load_json_fast(text.encode())) == repr(load_json(text.encode()))


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("support.no_such_module:X", "module support.no_such_module cannot be imported"),
        ("support.feed_decoders:Nobody", "has no Nobody; its classes: Meters, Both, Channels, Given"),
        (
            "support.feed_decoders:NeedsArguments",
            r"NeedsArguments cannot be created without arguments: TypeError.*needs no arguments",
        ),
        ("support.feed_decoders:NoDecode", "has no method `decode`"),
    ],
)
def test_a_decoder_that_cannot_be_loaded_stops_the_job_and_names_the_feed(target, why):
    with pytest.raises(ConfigError, match=r"capture\.feeds\.meters\.decoder") as caught:
        read_record(feed(METERS, decoder=target), record(ROW))
    assert re.search(why, str(caught.value))


def test_a_feed_with_a_decoder_can_be_sent_to_workers():
    given = pickle.loads(pickle.dumps(feed(METERS)))  # noqa: S301 - the test has pickled it itself
    assert read_record(given, record(ROW)) == read_record(feed(METERS), record(ROW))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"messages": [{"is": "ignore"}]}, "messages: the feed has a decoder class, which reads the messages"),
        ({"time": {"path": "t"}}, "time: the feed has a decoder class"),
        ({"unavailable": ["x"]}, "unavailable: the feed has a decoder class"),
        ({"order": {"seq": "n"}}, "order: the decoder class gives the seq"),
        ({"order": {}}, "`order` needs a `seq`"),
        ({"session": "meter"}, "session: the path 'meter' leads into the message"),
        ({"decoder": "meters"}, "pattern"),
        ({"decoder": None}, "a feed needs `messages`"),
    ],
)
def test_keys_that_do_not_go_with_a_decoder_are_refused(changed, why):
    with pytest.raises(ValueError, match=re.escape(why)):
        feed(METERS, **changed)


def test_json_of_settings_is_as_it_was_written():
    settings = FeedSettings.model_validate(json.loads(json.dumps({
        "name": "m", "topics": "m", "decoder": "a:B", "key": ["n"], "columns": {"n": "string"}, "session": "kafka.key"
    })))  # fmt: skip
    assert settings.model_dump(mode="json", exclude_defaults=True)["session"] == ["kafka.key"]
