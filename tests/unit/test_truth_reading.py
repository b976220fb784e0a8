"""The ground-truth reader: what is a message, and the one reason when it is none. Boundaries on both sides."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionlake_lab.truth import CaptureRules, ExpectedTables, GroundTruth, KafkaMessage

START = 1_700_000_000_000
COLUMNS = {
    "flag": "boolean", "tiny": "tinyint", "small": "smallint", "normal": "int", "big": "bigint", "single": "float",
    "double": "double", "text": "string",
}  # fmt: skip
RULES = CaptureRules(columns=COLUMNS, on_violation="isolate", max_message_bytes=20_000, max_future_skew_ms=1_000)
FINE = b'{"type":"heartbeat","seq":0,"ts":0}'


def feed(value: bytes | None, key: bytes | None = b"s", rules: CaptureRules = RULES) -> ExpectedTables:
    truth = GroundTruth(rules)
    truth.judge_message(KafkaMessage("capture.a", 0, 0, START, key, value))
    return truth.finish_and_return_tables()


def reason(value: bytes | None, key: bytes | None = b"s", rules: CaptureRules = RULES) -> str | None:
    """The quarantine reason; None for a message, whatever is judged of it afterwards."""
    tables = feed(value, key, rules)
    return None if tables.sessions else tables.quarantine[0]["reason"]


def said(**fields: Any) -> bytes:
    """A message with these fields changed; `...` takes a field out."""
    body = {"type": "update", "seq": 1, "ts": START} | fields
    return json.dumps({name: value for name, value in body.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (None, "bad_key"), (b"", "bad_key"), (b"\xff", "bad_key"), (b"a\nb", "bad_key"), (b"\x00", "bad_key"),
        (b"\x7f", "bad_key"), ("\x85".encode(), "bad_key"), ("\x9f".encode(), "bad_key"), (b"k" * 257, "bad_key"),
        (("é" * 128 + "k").encode(), "bad_key"), (b"k" * 256, None), (("é" * 128).encode(), None), (b" ", None),
        ("\xa0".encode(), None), ("\u200b".encode(), None),
    ],
)  # fmt: skip
def test_key(key, expected):
    assert reason(FINE, key) == expected


@pytest.mark.parametrize(("length", "expected"), [(20_000, None), (20_001, "too_large")])
def test_value_at_and_beyond_the_size_limit(length, expected):
    assert reason(FINE.ljust(length)) == expected


def test_bad_key_comes_before_too_large_before_not_utf8():
    assert reason(b"\xff" * 20_001, b"") == "bad_key"
    assert reason(b"\xff" * 20_001) == "too_large"
    assert reason(b"\xff") == "not_utf8"


@pytest.mark.parametrize(
    "value",
    [
        None, b"", b" ", b"{", b"nul", b"{} {}", b"{}x", b"{'a':1}", b"[1,]", b'{"a":1,}', b"NaN", b"-Infinity",
        b'{"a":NaN}', b'{"a":Infinity}', b'{"a":1e999}', b'{"a":-1e999,"a":1}', b"01", b"+1", b"1.", b".5", b"1e",
        b'"\x01"', b'"\n"', rb'"\x"', rb'"\u12"', rb'"\ud800"', rb'"\udc00"', rb'"\ud800\ud800"', rb'{"\udfff":1}',
        rb'{"a":"\ud800","a":"x"}', rb'"\ud83d \ude00"', rb'"\\\ud800"', b'\xef\xbb\xbf{"type":"end"}',
        b"\xc2\xa0{}", b'{"a":' + b"9" * 4301 + b"}",
    ],
)  # fmt: skip
def test_not_json(value):
    assert reason(value) == "not_json"


@pytest.mark.parametrize("value", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf5\x80\x80\x80", FINE + b"\xe2\x82"])
def test_not_utf8(value):
    assert reason(value) == "not_utf8"


@pytest.mark.parametrize(
    "extra",
    [
        rb'"\ud83d\ude00"', rb'"\\ud800"', "\U0001f600".encode().join([b'"', b'"']), b'"\x7f"', b"9" * 4300, b"-0",
        b"1.7976931348623157e308", b"1e-999", b'"[[["', b" [ ]\r\n\t", rb'"\u0000"',
    ],
)  # fmt: skip
def test_odd_json_is_json(extra):
    assert reason(FINE[:-1] + b',"x":' + extra + b"}") is None


@pytest.mark.parametrize(("levels", "expected"), [(63, None), (64, "too_deep"), (2_000, "too_deep")])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_nesting_counts_the_message_itself(levels, expected, opening, closing):
    deep = opening * levels + b"1" + closing * levels
    assert reason(FINE[:-1] + b',"x":' + deep + b"}") == expected


def test_nesting_counts_brackets_neither_in_strings_nor_side_by_side():
    brackets = json.dumps("[{" * 200 + '"').encode()
    assert reason(FINE[:-1] + b',"x":[' + b",".join([brackets] * 9) + b"]}") is None
    assert reason(FINE[:-1] + b',"x":[' + b",".join([b"[]"] * 200) + b"]}") is None


@pytest.mark.parametrize(
    "value",
    [
        b"[" * 65 + b"]" * 64, b"[" * 5_000 + b"]" * 4_999, b"[" * 5_000 + b"1 1" + b"]" * 5_000,
        b"[" * 5_000 + b'"\\ud800"' + b"]" * 5_000, b"[" * 5_000 + b"{1:2}" + b"]" * 5_000,
        b"[" * 5_000 + b"1e999" + b"]" * 5_000, b"[" * 5_000 + b"]" * 5_000 + b"x",
        b"[" * 5_000 + b"\x0b" + b"]" * 5_000, b"[" * 5_000 + b"}" * 5_000, b"[" * 65, b'"a"' + b"{" * 65,
    ],
)  # fmt: skip
def test_text_that_is_not_json_is_too_deep_all_the_same(value):
    assert reason(value) == "too_deep"


def test_too_deep_applies_to_an_overwritten_field_and_comes_before_not_object():
    deep = b"[" * 64 + b"]" * 64
    assert reason(FINE[:-1] + b',"x":' + deep + b',"x":1}') == "too_deep"
    assert reason(b"[" + deep + b"]") == "too_deep"


@pytest.mark.parametrize("value", [b"[]", b"1", b'"x"', b"null", b"true", b'[{"type":"end"}]'])
def test_not_object(value):
    assert reason(value) == "not_object"


@pytest.mark.parametrize("kind", [..., None, 1, "", "Update", "delete", ["update"]])
def test_bad_type(kind):
    assert reason(said(type=kind, seq=-1)) == "bad_type"


@pytest.mark.parametrize("seq", [..., None, -1, 1.0, 1.5, "1", True, 2**63, [1]])
def test_bad_seq(seq):
    assert reason(said(seq=seq, ts="x")) == "bad_seq"


def test_seq_boundaries():
    assert reason(said(seq=0)) is None
    assert reason(said(seq=2**63 - 1)) is None
    assert reason(said().replace(b'"seq": 1', b'"seq": 1e0')) == "bad_seq"


def test_seq_may_be_absent_but_not_null_under_none():
    none = CaptureRules(columns=COLUMNS, integrity="none")
    assert reason(said(seq=...), rules=none) is None
    assert reason(said(seq=None), rules=none) == "bad_seq"


@pytest.mark.parametrize("ts", [..., None, 1.0, "1", False, 2**63, -(2**63) - 1])
def test_bad_ts(ts):
    assert reason(said(ts=ts, rows=1)) == "bad_ts"


@pytest.mark.parametrize(("ts", "expected"), [(START + 1_000, None), (START + 1_001, "future_ts"), (-(2**63), None)])
def test_ts_ahead_of_the_kafka_timestamp(ts, expected):
    assert reason(said(ts=ts)) == expected


def test_future_ts_comes_before_bad_rows():
    assert reason(said(ts=2**63 - 1, rows=1)) == "future_ts"


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "snapshot"}, {"type": "snapshot", "rows": None}, {"type": "snapshot", "rows": {}}, {"rows": None},
        {"rows": {}}, {"rows": "x"}, {"rows": [None]}, {"rows": [{"id": "a"}, []]}, {"deleted": None},
        {"deleted": "a"}, {"deleted": [1]}, {"deleted": [""]}, {"deleted": ["a", None]}, {"deleted": ["k" * 1025]},
        {"rows": [{"id": ""}], "deleted": [{}]},
    ],
)  # fmt: skip
def test_bad_rows(fields):
    assert reason(said(**fields)) == "bad_rows"


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "snapshot", "rows": []}, {"type": "snapshot", "rows": [], "deleted": 5}, {}, {"rows": []},
        {"deleted": ["a", "a"]}, {"deleted": ["k" * 1024]}, {"type": "end", "rows": 1, "deleted": 2},
        {"type": "heartbeat", "rows": None}, {"rows": [{"id": "k" * 1024}]}, {"rows": [{"id": " "}]}, {"more": {}},
    ],
)  # fmt: skip
def test_fine_rows(fields):
    assert reason(said(**fields)) is None


@pytest.mark.parametrize("row_id", [..., None, 1, "", "k" * 1025, "é" * 512 + "k", ["a"]])
def test_bad_row_id(row_id):
    rows = [{"id": "a", "flag": 1}, {"id": "a"}, {} if row_id is ... else {"id": row_id}]
    assert reason(said(rows=rows)) == "bad_row_id"


def test_duplicate_row_id_comes_before_bad_column():
    assert reason(said(rows=[{"id": "a", "flag": 1}, {"id": "b"}, {"id": "a"}])) == "duplicate_row_id"


NOT_NUMBERS = ["7", True, [1], {}]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("flag", 0), ("flag", "true"), ("tiny", 128), ("tiny", -129), ("small", 2**15), ("small", -(2**15) - 1),
        ("normal", 2**31), ("normal", -(2**31) - 1), ("big", 2**63), ("big", -(2**63) - 1), ("big", 1.0),
        ("tiny", 1.5), ("single", 3.5e38), ("single", 10**39), ("double", 10**309), ("text", 1), ("text", {}),
        *[(column, value) for column in ("tiny", "big", "single", "double") for value in NOT_NUMBERS],
    ],
)  # fmt: skip
def test_bad_column(column, value):
    assert reason(said(rows=[{"id": "a"}, {"id": "b", column: value}])) == "bad_column"


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        ("flag", False, False), ("tiny", -128, -128), ("small", 32767, 32767), ("normal", -(2**31), -(2**31)),
        ("big", 2**63 - 1, 2**63 - 1), ("double", 2**53 + 1, 2.0**53), ("double", 7, 7.0), ("double", 10**308, 1e308),
        ("single", 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]), ("single", 16_777_217, 16_777_216.0),
        ("single", 3.4028235e38, 3.4028234663852886e38), ("text", "", ""), ("text", "\U0001f600\x00", "\U0001f600\x00"),
        *[(column, None, None) for column in COLUMNS],
    ],
)  # fmt: skip
def test_column_value(column, value, expected):
    body = said(type="snapshot", rows=[{"id": "a", column: value}])
    found = feed(body).session_rows["capture.a", 0, "s"]["a"][column]
    assert (type(found), found) == (type(expected), expected)


def test_last_of_a_repeated_field_counts():
    body = b'{"type":"snapshot","seq":"x","seq":0,"ts":0,"rows":[{"id":"a","big":"x","big":1,"o":1,"o":2}]}'
    row = feed(body).session_rows["capture.a", 0, "s"]["a"]
    assert (row["big"], row["_rescued"]) == (1, '{"o":2}')


SCALAR = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)
JSON = SCALAR | st.lists(SCALAR, max_size=2) | st.dictionaries(st.text(max_size=3), SCALAR, max_size=2)
ALMOST = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["snapshot", "update", "heartbeat", "end"]) | JSON,
        "seq": st.integers(0, 5) | JSON,
        "ts": st.integers(START - 5, START + 5) | JSON,
        "rows": st.lists(st.dictionaries(st.sampled_from(["id", *COLUMNS, "other"]), SCALAR, max_size=4), max_size=3),
        "deleted": st.lists(st.text(max_size=2), max_size=2) | JSON,
    },
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no statement about this machine's speed
@given(
    st.lists(
        st.tuples(
            st.none() | st.binary() | st.sampled_from([b"s", b"t"]),
            st.none() | st.binary() | ALMOST.map(lambda body: json.dumps(body).encode()),
            st.integers(START - 10_000_000, START + 10_000_000),
        ),
        max_size=8,
    ),
    st.sampled_from(["none", "once", "order", "window", "strict"]),
    st.sampled_from(["isolate", "record"]),
)
def test_any_bytes_are_judged_and_accounted_for(stream, integrity, policy):
    truth = GroundTruth(CaptureRules(columns=COLUMNS, integrity=integrity, on_violation=policy))
    for offset, (key, value, timestamp) in enumerate(stream):
        truth.judge_message(KafkaMessage("capture.a", 0, offset, timestamp, key, value))
    tables = truth.finish_and_return_tables()
    for counts in tables.counts.values():
        assert 2 * counts["messages"] == sum(counts.values()) == 2 * len(stream)
