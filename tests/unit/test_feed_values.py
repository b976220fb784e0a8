"""What fits a column's type becomes exactly that value; what does not is refused and never changed silently."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionlake.feeds.numbers import NumberText
from sessionlake.feeds.paths import PathConstant
from sessionlake.feeds.row_ids import create_row_id
from sessionlake.feeds.times import convert_time_to_milliseconds
from sessionlake.feeds.values import convert_constant, format_json, parse_feed_column

BAD = object()
"""In place of a value: the message's is refused."""
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("sql", "how", "value", "expected"),
    [
        ("boolean", None, True, True),
        ("boolean", None, 1, BAD),
        ("tinyint", None, 127, 127),
        ("tinyint", None, 128, BAD),
        ("INT", None, -(2**31), -(2**31)),
        ("bigint", None, 2**63, BAD),
        ("long", None, Decimal("1.0"), BAD),
        ("bigint", None, True, BAD),
        ("bigint", None, "7", BAD),
        ("bigint", "text", "-7", -7),
        ("bigint", "text", 7, BAD),
        ("bigint", "text", "7 ", BAD),
        ("double", None, Decimal("0.1"), 0.1),
        ("double", None, 3, 3.0),
        ("double", None, Decimal("1e400"), BAD),
        ("double", "text", "1.5e3", 1500.0),
        ("double", "text", "nan", BAD),
        ("float", None, Decimal("1e39"), BAD),
        ("decimal(5,2)", None, Decimal("1.5"), Decimal("1.50")),
        ("decimal(5,2)", None, Decimal("1.505"), BAD),
        ("decimal(5,2)", None, 999, Decimal(999)),
        ("decimal(5,2)", None, 1000, BAD),
        ("decimal(38,0)", None, 10**38, BAD),
        ("decimal(38,10)", "text", "0.0000000001", Decimal("1e-10")),
        ("decimal(5,2)", "text", "1e999999999", BAD),
        ("decimal(5,2)", "text", "Infinity", BAD),
        ("decimal(10,2)", "base64", "MDk=", Decimal("123.45")),  # 0x3039 = 12345
        ("decimal(10,2)", "base64", "/w==", Decimal("-0.01")),
        ("decimal(10,2)", "base64", "?", BAD),
        ("string", None, "7", "7"),
        ("string", None, 7, BAD),
        ("string", "digits", NumberText("7.10"), "7.10"),
        ("string", "digits", "7.10", BAD),
        ("string", None, NumberText("7.10"), BAD),
        ("bigint", None, NumberText("7"), 7),
        ("date", None, "2026-01-31", date(2026, 1, 31)),
        ("date", None, "2026-02-31", BAD),
        ("date", "days", 1, date(1970, 1, 2)),
        ("date", "days", 2**31 - 1, BAD),
        ("timestamp", None, "2026-01-31T12:00:00Z", NOON),
        ("timestamp", None, "2026-01-31T13:00:00+01:00", NOON),
        ("timestamp", None, "2026-01-31T12:00:00", BAD),
        ("timestamp_ntz", None, "2026-01-31T12:00:00", NOON.replace(tzinfo=None)),
        ("timestamp_ntz", None, "2026-01-31T12:00:00Z", BAD),
        ("timestamp", "epoch_ms", 1, datetime(1970, 1, 1, microsecond=1000, tzinfo=UTC)),
        ("timestamp", "epoch_s", Decimal("0.000001"), datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)),
        ("timestamp", "epoch_ns", 1000, datetime(1970, 1, 1, microsecond=1, tzinfo=UTC)),
        ("timestamp", "epoch_ns", 1, BAD),
        ("timestamp", "epoch_s", 10**15, BAD),
        ("timestamp", "epoch_s", Decimal("1e999999"), BAD),
        ("binary", "base64", "AAE=", b"\0\1"),
        ("variant", None, {"b": [1, Decimal("1.10")], "a": None}, '{"b":[1,1.10],"a":null}'),
        ("array<int>", None, [1, None], [1, None]),
        ("array<int>", None, ["1"], BAD),
        ("array<int>", None, 1, BAD),
    ],
)
def test_a_value_fits_exactly_or_is_refused(sql, how, value, expected):
    column = parse_feed_column("c", sql, how)
    if expected is BAD:
        with pytest.raises(ValueError, match="it "):
            column.convert(value)
    else:
        found = column.convert(value)
        assert (found, type(found)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("sql", "how", "why"),
    [
        ("money", None, r"type 'money' is not one of array<type>|is not one of"),
        ("decimal", None, "write decimal"),
        ("decimal(39,2)", None, "write decimal"),
        ("decimal(3,4)", None, "write decimal"),
        ("bigint", "base64", "is one of text"),
        ("boolean", "text", "is not taken"),
        ("binary", None, "from: base64"),
    ],
)
def test_a_type_that_is_none_is_refused_with_what_is_allowed(sql, how, why):
    with pytest.raises(ValueError, match=why):
        parse_feed_column("c", sql, how)


@pytest.mark.parametrize(
    ("sql", "text", "expected"),
    [
        ("string", "ask", "ask"),
        ("decimal(5,2)", "0", Decimal("0.00")),
        ("boolean", "true", True),
        ("timestamp", "2026-01-31T12:00:00Z", NOON),
        ("bigint", "x", BAD),
        ("boolean", "1", BAD),
        ("array<int>", "1", BAD),
    ],
)
def test_a_constant_has_the_type_of_its_column(sql, text, expected):
    column = parse_feed_column("c", sql)
    if expected is BAD:
        with pytest.raises(ValueError, match="column 'c'"):
            convert_constant(PathConstant(text), column)
    else:
        assert convert_constant(PathConstant(text), column) == expected


@pytest.mark.parametrize(
    ("key", "row_id"),
    [
        (("ask",), "ask"),
        (("ask", Decimal("1.10")), '["ask",1.1]'),
        (("a", Decimal("100.00"), 3, True), '["a",100,3,true]'),
        ((Decimal(0),), "[0]"),
        ((5,), "[5]"),
        (('"', "ü"), r'["\"","ü"]'),
        ((date(2026, 1, 31),), '["2026-01-31"]'),
    ],
)
def test_a_row_id_is_the_canonical_text_of_the_key(key, row_id):
    assert create_row_id(key) == row_id


@given(st.decimals(allow_nan=False, allow_infinity=False, places=6, min_value=-(10**12), max_value=10**12))
def test_equal_decimals_have_one_row_id(number):
    assert create_row_id((number,)) == create_row_id((number.normalize(),))


SCALARS = st.none() | st.booleans() | st.integers() | st.text()


@given(st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8))
def test_json_text_is_json_of_the_same_value(value):
    assert json.loads(format_json(value)) == value


@pytest.mark.parametrize(
    ("value", "how", "from_text", "expected"),
    [
        (1_700_000_000_123, "epoch_ms", False, 1_700_000_000_123),
        (Decimal("1618678132.927716"), "epoch_s", False, 1_618_678_132_927),
        ("1618678132.927716", "epoch_s", True, 1_618_678_132_927),
        (-1, "epoch_us", False, -1),
        (1_625_342_241_094_999_999, "epoch_ns", False, 1_625_342_241_094),
        ("-0.000000001", "epoch_s", True, -1),
        ("1970-01-01T00:00:01.5Z", "iso", False, 1500),
        ("1", "epoch_ms", False, BAD),
        ("1x", "epoch_ms", True, BAD),
        (None, "iso", False, BAD),
    ],
)
def test_a_time_is_whole_milliseconds(value, how, from_text, expected):
    if expected is BAD:
        with pytest.raises(ValueError, match="it "):
            convert_time_to_milliseconds(value, how, from_text=from_text)
    else:
        assert convert_time_to_milliseconds(value, how, from_text=from_text) == expected
