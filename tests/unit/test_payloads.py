"""Avro and Protobuf say what JSON says, with and without a wire header; what is none of them is kept apart."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionlake.protocol.columns import Column, JsonType
from sessionlake.protocol.decode import MessageDecodingRules, decode_messages_to_chunk
from sessionlake.protocol.payload import ConfiguredSchemas, PayloadFormat, PayloadFormatAndSchemas
from sessionlake.protocol.reasons import CODES
from sessionlake.settings.model import CaptureSettings
from support.payloads import (
    AVRO_ROW,
    MESSAGE,
    avro,
    avro_schema,
    datum_of,
    header,
    proto_class,
    proto_file,
    protobuf,
)
from support.seeds import examples
from support.streams import COLUMNS, SKEW

NOW = 1_700_000_000_000
DECLARED = CaptureSettings(columns=COLUMNS).declared_columns
MAX_BYTES = 4_096

scalars = {
    "price": st.floats(allow_nan=False, allow_infinity=False) | st.just(-0.0),
    "qty": st.integers(-(2**63), 2**63 - 1),
    "status": st.text(st.characters(codec="utf-8"), max_size=5),
    "flag": st.booleans(),
    "ratio": st.floats(-3e38, 3e38) | st.sampled_from([3.5e38, 1e-46]),
    "tiny": st.integers(-129, 128),
    "small": st.sampled_from([2**15, 2**15 - 1, -(2**15), -(2**15) - 1]),
    "whole": st.sampled_from([2**31, 2**31 - 1, -(2**31), 0]),
}
ids = st.sampled_from(["a", "b", "ä", "", "x" * 1024, "x" * 1025, "é" * 513]) | st.text(min_size=1, max_size=3)
rows = st.fixed_dictionaries({"id": ids}, optional={name: kind | st.none() for name, kind in scalars.items()})
bodies = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["snapshot", "update", "update", "heartbeat", "end", "other"]),
        "ts": st.sampled_from([NOW, NOW + SKEW, NOW + SKEW + 1, -(2**63), 0]),
        "rows": st.lists(rows, max_size=3),
    },
    optional={"deleted": st.lists(ids, max_size=2), "seq": st.integers(0, 2**63 - 1) | st.just(-1)},
)


def raw(values: list[bytes | None]) -> pa.Table:
    """Messages of two topics in turn: the first may lack a seq."""
    count = len(values)
    return pa.table(
        {
            "topic": pa.array((["seqless", "t"] * count)[:count], pa.string()),
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "kafka_ts": pa.array([NOW] * count, pa.int64()),
            "key": pa.array([b"s"] * count, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "ingested_at": pa.nulls(count, pa.int64()),
        }
    )


def rules(payload: PayloadFormatAndSchemas | None, max_bytes: int = 10**7) -> MessageDecodingRules:
    return MessageDecodingRules(DECLARED, max_bytes, SKEW, lambda topic: topic == "seqless", payload)


def decoded(values: list[bytes | None], payload: PayloadFormatAndSchemas, max_bytes: int = 10**7) -> pa.Table:
    """The chunk, which is the same in bulk and one by one."""
    fast = decode_messages_to_chunk(raw(values), rules(payload, max_bytes))
    assert said(fast) == said(decode_messages_to_chunk(raw(values), rules(payload, max_bytes), in_bulk=False))
    return fast


def said(chunk: pa.Table) -> list[str]:
    """Each message as text, but how long it is: -0.0 is not 0.0."""
    return [repr(row) for row in chunk.drop_columns(["size"]).to_pylist()]


def reasons(values: list[bytes | None], payload: PayloadFormatAndSchemas) -> list[str | None]:
    return [None if code == 0 else str(CODES[code]) for code in decoded(values, payload)["reason"].to_pylist()]


def of_avro(schema: Any, **more: Any) -> PayloadFormatAndSchemas:
    return PayloadFormatAndSchemas(PayloadFormat.AVRO, ConfiguredSchemas(every=(json.dumps(schema).encode(),)), **more)


def of_protobuf(file: Any = None, **more: Any) -> PayloadFormatAndSchemas:
    found = ConfiguredSchemas(every=((file or proto_file()).SerializeToString(),))
    return PayloadFormatAndSchemas(PayloadFormat.PROTOBUF, found, **({"message": MESSAGE} | more))


PLAIN_AVRO, PLAIN_PROTOBUF = of_avro(avro_schema()), of_protobuf()
NESTED = proto_class(proto_file(before=2), "lab.Outer.Capture")
BY_ID = ConfiguredSchemas(by_id=((7, (json.dumps(avro_schema()).encode(),)),))
PROTO_BY_ID = ConfiguredSchemas(by_id=((2**31, (proto_file(before=2).SerializeToString(),)),))
# The third type but one of the file, as a path of one; and the second in the fifth, as a path of two.
PATHS = {MESSAGE: bytes([2, 6]), "lab.Outer.Capture": bytes([4, 8, 2])}


@settings(examples(usual=60, in_all=600), derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(bodies, max_size=6), st.randoms(use_true_random=False))
def test_the_same_messages_say_the_same_in_every_format(found: list[dict[str, Any]], rnd: random.Random) -> None:
    expected = said(decode_messages_to_chunk(raw([json.dumps(body).encode() for body in found]), rules(None)))
    data = [avro(body) for body in found]
    assert said(decoded(data, PLAIN_AVRO)) == expected
    assert (
        said(
            decoded(
                [header(7) + datum for datum in data], PayloadFormatAndSchemas(PayloadFormat.AVRO, BY_ID, header=True)
            )
        )
        == expected
    )
    messages = [protobuf(body, rnd) for body in found]
    assert said(decoded(messages, PLAIN_PROTOBUF)) == expected
    headed = [_headed(body, rnd) for body in found]
    assert said(decoded(headed, PayloadFormatAndSchemas(PayloadFormat.PROTOBUF, PROTO_BY_ID, header=True))) == expected


def _headed(body: dict[str, Any], rnd: random.Random) -> bytes:
    name = rnd.choice(list(PATHS))
    kind = NESTED if name != MESSAGE else proto_class(proto_file())
    return header(2**31, PATHS[name]) + protobuf(body, rnd, kind)


# -- what is absent, null, and undeclared


def changes(payload: PayloadFormatAndSchemas, value: bytes) -> list[dict[str, Any]]:
    """What one message's rows set, and what they hold undeclared."""
    [message] = decoded([value], payload).to_pylist()
    assert not message["reason"], CODES[message["reason"]]
    return [
        {name: c[f"value:{i}"] for i, name in enumerate(COLUMNS) if c[f"set:{i}"]}
        | ({"_rescued": c["_rescued"]} if c["_rescued"] else {})
        for c in message["changes"]
    ]


def row_schema(*fields: Any) -> dict[str, Any]:
    return avro_schema([{"name": "id", "type": "string"}, *({"name": n, "type": t} for n, t in fields)])


def update(schema: Any, row: dict[str, Any]) -> bytes:
    return datum_of(schema, {"type": "UPDATE", "seq": 0, "ts": 0, "rows": [{"id": "a"} | row], "deleted": []})


def test_an_avro_row_sets_every_column_of_its_schema_and_a_null_to_null() -> None:
    schema = row_schema(("price", ["null", "double"]), ("qty", ["null", "long"]))
    assert changes(of_avro(schema), update(schema, {"qty": 4})) == [{"price": None, "qty": 4}]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (None, {"price": 1.5, "qty": None}),
        (["price"], {"price": 1.5}),
        (["qty", "status"], {"qty": None, "status": None}),
        ([], {}),
        (["ghost"], {"_rescued": '{"ghost":null}'}),
    ],
)
def test_an_avro_row_s_own_list_says_which_columns_it_sets(names: Any, expected: dict[str, Any]) -> None:
    strings = ["null", {"type": "array", "items": "string"}]
    schema = row_schema(("price", ["null", "double"]), ("qty", ["null", "long"]), ("_set", strings))
    assert changes(of_avro(schema), update(schema, {"price": 1.5, "qty": None, "_set": names})) == [expected]


def test_a_protobuf_field_that_is_not_present_keeps_its_value_and_one_without_presence_is_always_set() -> None:
    file = proto_file(always="qty")
    kind = proto_class(file)
    message = kind(type=2, rows=[{"id": "a", "price": 0.0}])
    assert changes(of_protobuf(file), message.SerializeToString()) == [{"price": 0.0, "qty": 0}]
    message.rows[0]._set.append("status")
    assert changes(of_protobuf(file), message.SerializeToString()) == [{"status": None}]


def test_unsigned_numbers_are_in_range_up_to_the_highest_signed_one() -> None:
    file = proto_file()
    for message, name in ((file.message_type[0], "qty"), (file.message_type[1], "seq")):
        [field] = [field for field in message.field if field.name == name]
        field.type = field.TYPE_UINT64
    kind = proto_class(file)
    made = [(2**63 - 1, 2**63 - 1), (2**63, 0), (0, 2**63), (2**64 - 1, 2**64 - 1)]
    values = [kind(type=2, seq=seq, rows=[{"id": "a", "qty": qty}]).SerializeToString() for seq, qty in made]
    assert reasons(list(values), of_protobuf(file)) == [None, "bad_seq", "bad_column", "bad_seq"]


def test_undeclared_fields_are_rescued_as_json() -> None:
    inner = {"type": "record", "name": "Inner", "fields": [{"name": "when", "type": "bytes"}]}
    schema = row_schema(("qty", "int"), ("inner", inner), ("odd", "double"), ("gone", ["null", "int"]))
    row = {"qty": 1, "inner": {"when": b"\x00\xff"}, "odd": float("nan"), "gone": None}
    text = '{"gone":null,"inner":{"when":"AP8="},"odd":"NaN"}'
    assert changes(of_avro(schema), update(schema, row)) == [{"qty": 1, "_rescued": text}]
    file = proto_file(extra=True)
    message = proto_class(file)(type=2, rows=[{"id": "a", "extra": 2**60}, {"id": "b"}])
    assert changes(of_protobuf(file), message.SerializeToString()) == [{"_rescued": f'{{"extra":{2**60}}}'}, {}]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("long", 2**53 + 1, float(2**53)),
        ("int", 7, 7.0),
        ("float", 0.5, 0.5),
        ({"type": "long", "logicalType": "timestamp-micros"}, 5, 5.0),
        (["null", "long", "double"], 1, 1.0),
        ("string", "7", None),
        ("boolean", True, None),
        ("double", float("nan"), None),
        ("double", float("-inf"), None),
    ],
)
def test_a_double_column_takes_any_finite_number_and_nothing_else(kind: Any, value: Any, expected: Any) -> None:
    schema = row_schema(("price", kind))
    if expected is None:
        assert reasons([update(schema, {"price": value})], of_avro(schema)) == ["bad_column"]
    else:
        assert changes(of_avro(schema), update(schema, {"price": value})) == [{"price": expected}]


@pytest.mark.parametrize("lacking", ["type", "seq", "ts", "rows", "deleted"])
def test_what_a_schema_lacks_is_absent(lacking: str) -> None:
    schema = avro_schema(**{lacking: None})
    datum = {"type": "SNAPSHOT", "seq": 0, "ts": 0, "rows": [], "deleted": []}
    expected = {"type": "bad_type", "seq": "bad_seq", "ts": "bad_ts", "rows": "bad_rows"}.get(lacking)
    value = datum_of(schema, datum)
    assert reasons([value, value], of_avro(schema)) == [None if lacking == "seq" else expected, expected]


@pytest.mark.parametrize("symbol", ["snapshot", "Snapshot", "SNAPSHOT", "MESSAGE_TYPE_SNAPSHOT"])
def test_an_enum_s_symbol_names_a_type_in_any_case_with_any_prefix(symbol: str) -> None:
    schema = avro_schema(type={"type": "enum", "name": "T", "symbols": ["x", symbol]})
    assert reasons(
        [datum_of(schema, {"type": symbol, "seq": 0, "ts": 0, "rows": [], "deleted": []})], of_avro(schema)
    ) == [None]
    text = avro_schema(type="string")
    expected = None if symbol == "snapshot" else "bad_type"
    assert reasons([datum_of(text, {"type": symbol, "seq": 0, "ts": 0, "rows": [], "deleted": []})], of_avro(text)) == [
        expected
    ]


def unions(kind: Any) -> list[Any]:
    """A type alone, and in the unions that say the same."""
    return [kind, ["null", kind], [kind, "null"], [kind]]


TYPE = {"type": "enum", "name": "T", "symbols": ["TYPE_OTHER", "TYPE_UPDATE"]}
ROW_TYPE = {"type": "record", "name": "Row", "fields": AVRO_ROW}
STRINGS = {"type": "array", "items": "string"}


@pytest.mark.parametrize("wrapped", range(4))
@pytest.mark.parametrize(
    ("field", "kind"),
    [
        ("type", TYPE),
        ("type", "string"),
        ("seq", "long"),
        ("seq", "int"),
        ("ts", "long"),
        ("deleted", STRINGS),
        ("rows", {"type": "array", "items": ROW_TYPE}),
    ],
)
def test_a_union_around_a_field_of_a_message_changes_nothing(field: str, kind: Any, wrapped: int) -> None:
    schema = avro_schema(**{"type": TYPE, field: unions(kind)[wrapped]})
    row = dict.fromkeys(COLUMNS) | {"id": "a", "price": 1.5, "_set": ["price"]}
    symbol = "update" if field == "type" and kind == "string" else "TYPE_UPDATE"
    value = datum_of(schema, {"type": symbol, "seq": 3, "ts": 0, "rows": [row], "deleted": ["b"]})
    [message] = decoded([value], of_avro(schema)).to_pylist()
    assert (message["reason"], message["seq"], len(message["changes"])) == (0, 3, 2)
    assert changes(of_avro(schema), value)[0] == {"price": 1.5}


@pytest.mark.parametrize("wrapped", range(4))
@pytest.mark.parametrize(
    ("field", "kind", "value"),
    [
        ("id", "string", "a"),
        ("_set", STRINGS, ["price", "qty", "status", "flag"]),
        ("price", "double", 1.5),
        ("price", "float", 1.5),
        ("qty", "long", 4),
        ("qty", "int", 4),
        ("flag", "boolean", True),
        ("status", "string", "OPEN"),
        ("status", {"type": "enum", "name": "S", "symbols": ["OPEN", "SHUT"]}, "OPEN"),
        ("status", {"type": "string", "logicalType": "uuid"}, "OPEN"),
    ],
)
def test_a_union_around_a_field_of_a_row_changes_nothing(field: str, kind: Any, value: Any, wrapped: int) -> None:
    types = {"id": "string", "price": "double", "qty": "long", "flag": "boolean", "status": "string"}
    row = {"id": "a", "price": 0.5, "qty": 1, "flag": False, "status": "NEW"} | {field: value}
    named = types | {field: unions(kind)[wrapped]}
    schema = avro_schema([{"name": name, "type": of} for name, of in named.items()])
    found = changes(of_avro(schema), update(schema, row))
    assert found == [{name: row[name] for name in ("price", "qty", "status", "flag")}]


def test_an_enum_in_a_union_names_the_message_type_in_any_case() -> None:
    schema = avro_schema(type=["null", {"type": "enum", "name": "T", "symbols": ["UPDATE", "SNAPSHOT"]}])
    datum = {"seq": 0, "ts": 0, "rows": [], "deleted": []}
    values: list[bytes | None] = [datum_of(schema, datum | {"type": kind}) for kind in ("SNAPSHOT", "UPDATE", None)]
    assert reasons(values, of_avro(schema)) == [None, None, "bad_type"]


# -- fields that the reader's descriptor does not name


def test_protobuf_fields_that_the_descriptor_lacks_are_rescued_by_number() -> None:
    newer = proto_class(proto_file(extra=True))
    number = newer.DESCRIPTOR.fields_by_name["rows"].message_type.fields_by_name["extra"].number
    value = newer(type=2, rows=[{"id": "a", "qty": 4, "extra": 7}, {"id": "b"}]).SerializeToString()
    assert changes(PLAIN_PROTOBUF, value) == [{"qty": 4, "_rescued": f'{{"{number}":7}}'}, {}]


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"\x98\x06\x05", "5"),  # a varint of field 99
        (b"\x98\x06" + b"\xff" * 9 + b"\x01", str(2**64 - 1)),
        (b"\x99\x06" + bytes(range(8)), str(int.from_bytes(bytes(range(8)), "little"))),
        (b"\x9d\x06" + bytes(range(4)), str(int.from_bytes(bytes(range(4)), "little"))),
        (b"\x9a\x06\x02\x00\xff", '"AP8="'),
        (b"\x98\x06\x05\x98\x06\x06", "[5,6]"),
        (b"\x9b\x06\x98\x06\x07\x9c\x06", '{"99":7}'),
    ],
)
def test_an_unknown_protobuf_field_of_any_wire_type_is_kept(sent: bytes, expected: str) -> None:
    row = b"\x0a\x01a" + sent
    value = b"\x08\x02" + b"\x22" + varint(len(row)) + row
    assert changes(PLAIN_PROTOBUF, value) == [{"_rescued": f'{{"99":{expected}}}'}]


def test_unknown_fields_inside_an_undeclared_field_and_beside_a_list_of_set_columns_are_kept() -> None:
    file = proto_file(extra=True)
    inner = file.message_type.add(name="Inner")
    inner.field.add(name="x", number=1, type=3, label=1)
    extra = file.message_type[0].field[-1]
    extra.type, extra.type_name = 11, ".lab.Inner"
    row = b"\x0a\x01a" + varint(extra.number << 3 | 2) + b"\x04\x08\x01\x10\x02"
    value = b"\x08\x02\x22" + varint(len(row)) + row
    assert changes(of_protobuf(file), value) == [{"_rescued": '{"extra":{"2":2,"x":1}}'}]
    kept = proto_class(file)(type=2, rows=[{"id": "a", "_set": ["qty"], "extra": {"x": 1}}]).SerializeToString()
    assert changes(PLAIN_PROTOBUF, kept) == [{"qty": None, "_rescued": f'{{"{extra.number}":"CAE="}}'}]


def test_an_unknown_field_is_not_taken_for_a_declared_column_with_its_number_as_name() -> None:
    columns = (Column("99", "bigint", JsonType.INTEGER, pa.int64(), 64),)
    row = b"\x0a\x01a\x98\x06\x05"
    value = raw([b"\x08\x02\x22" + varint(len(row)) + row])
    rules_of = MessageDecodingRules(columns, 10**7, SKEW, lambda _: True, PLAIN_PROTOBUF)
    for fast in (True, False):
        [message] = decode_messages_to_chunk(value, rules_of, in_bulk=fast).to_pylist()
        [change] = message["changes"]
        assert (change["set:0"], change["_rescued"]) == (False, '{"#99":5}')


def test_groups_nested_beyond_the_limit_are_refused() -> None:
    for depth, reason in ((60, None), (70, "too_deep")):
        row = b"\x0a\x01a" + b"\x9b\x06" * depth + b"\x9c\x06" * depth
        value = b"\x08\x02\x22" + varint(len(row)) + row
        assert reasons([value], PLAIN_PROTOBUF) == [reason]


# -- hostile bytes

GOOD = {"type": "update", "seq": 5, "ts": NOW, "rows": [{"id": "a", "price": 1.5, "status": "ü"}], "deleted": ["b"]}
FORMATS: list[tuple[PayloadFormatAndSchemas, bytes, str]] = [
    (PLAIN_AVRO, avro(GOOD), "not_avro"),
    (PayloadFormatAndSchemas(PayloadFormat.AVRO, BY_ID, header=True), header(7) + avro(GOOD), "not_avro"),
    (PLAIN_PROTOBUF, protobuf(GOOD, random.Random(1)), "not_protobuf"),
    (
        PayloadFormatAndSchemas(PayloadFormat.PROTOBUF, PROTO_BY_ID, header=True),
        header(2**31, PATHS[MESSAGE]) + protobuf(GOOD, random.Random(1)),
        "not_protobuf",
    ),
]
formats = pytest.mark.parametrize(
    ("payload", "good", "reason"), FORMATS, ids=["avro", "avro+", "protobuf", "protobuf+"]
)


@formats
def test_bytes_of_any_kind_are_decoded_or_kept_and_leave_the_rest_alone(
    payload: PayloadFormatAndSchemas, good: bytes, reason: str
) -> None:
    rnd = random.Random(3)
    values: list[bytes | None] = [None, b"", good]
    for _ in range(400):
        at = rnd.randrange(len(good))
        values += [
            good[:at] + rnd.randbytes(rnd.choice([0, 1, 1, 4])) + good[at + rnd.choice([0, 1, 1, 3]) :],
            rnd.randbytes(at),
        ]
    found = reasons([*values, good], payload)
    assert (found[0], found[2], found[-1]) == (reason, None, None)
    assert {reason, None} < set(found)


@formats
def test_a_truncated_payload_never_says_the_whole(payload: PayloadFormatAndSchemas, good: bytes, reason: str) -> None:
    cut: list[bytes | None] = [good[:end] for end in range(len(good))]
    whole = said(decoded([good], payload))[0]
    found = decoded(cut, payload)
    assert whole not in said(found.set_column(2, "offset", pa.array([0] * len(cut), pa.int64())))
    if payload.format is PayloadFormat.AVRO:
        assert set(found["reason"].to_pylist()) == {CODES.index(reason)}
        assert reasons([good + b"\x00"], payload) == [reason]


def varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out, value = out + bytes([value & 0x7F | 0x80]), value >> 7
    return out + bytes([value])


def zigzag(value: int) -> bytes:
    return varint((value << 1) ^ (value >> 63) & (2**64 - 1)) if value >= 0 else varint((-value << 1) - 1)


HEAD = zigzag(1) + zigzag(1) + zigzag(0) + zigzag(0)  # an update, seq 0, ts 0; then the branch of the rows' union


@pytest.mark.parametrize(
    "value",
    [
        HEAD + zigzag(1) + zigzag(2**60),
        HEAD + zigzag(1) + zigzag(-(2**60)) + zigzag(2**60),
        HEAD + zigzag(1) + zigzag(-(2**63)) + zigzag(1),
        HEAD + zigzag(1) + zigzag(1) + zigzag(2**60),
        HEAD + zigzag(1) + zigzag(1) + zigzag(-7) + b"abcdefg",
        HEAD + zigzag(-1) + zigzag(0) + zigzag(0),
        HEAD + zigzag(2) + zigzag(0) + zigzag(0),
        zigzag(-1) + HEAD[1:] + zigzag(0) + zigzag(0),
        zigzag(9) + HEAD[1:] + zigzag(0) + zigzag(0),
        HEAD + b"\xff" * 20,
    ],
)
def test_lengths_counts_and_numbers_that_cannot_be_are_no_avro(value: bytes) -> None:
    assert reasons([HEAD + zigzag(0) + zigzag(0), value], PLAIN_AVRO) == [None, "not_avro"]


@pytest.mark.parametrize(
    "value", [b"\x22\xff\xff\xff\xff\x07", b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x0b" * 500]
)
def test_lengths_and_depths_that_cannot_be_are_no_protobuf(value: bytes) -> None:
    assert reasons([b"\x08\x02", value], PLAIN_PROTOBUF) == [None, "not_protobuf"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\x08\x02" + b"\x22\x00" * 50, "bad_row_id"),
        (b"\x08\x02" + b"\x22\x00" * 50 + b"\x2a\x00", "bad_rows"),
        (b"\x08\x02" + b"\x22\x00" * 50 + b"\x18" + zigzag(NOW + SKEW), "future_ts"),
        (b"\x08\x03" + b"\x22\x00" * 50, None),
        (b"\x08\x02" + b"".join(b"\x22\x03\x0a\x01" + bytes([i]) for i in range(50)), None),
    ],
)
def test_more_rows_than_could_have_an_id_have_their_reason_and_a_heartbeat_s_mean_nothing(
    message: bytes, reason: str | None
) -> None:
    assert reasons([message], PLAIN_PROTOBUF) == [reason]


def test_a_value_beyond_the_limit_is_not_decoded() -> None:
    small = avro(GOOD | {"rows": [{"id": "a", "status": "x" * 100}]})
    chunk = decoded([small, small + b"x"], PLAIN_AVRO, max_bytes=len(small))
    assert [str(CODES[code]) for code in chunk["reason"].to_pylist()] == ["None", "too_large"]


NULLS = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}


@pytest.mark.parametrize(
    "schema",
    [
        avro_schema(more={"type": "array", "items": "null"}),
        avro_schema(more={"type": "array", "items": NULLS}),
        avro_schema(more={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
        avro_schema(more=["null", "lab.Capture"]),
        avro_schema(more="lab.Unheard"),
        "string",
        [],
        {"type": "array", "items": "string"},
        {},
        7,
    ],
)
def test_a_schema_that_cannot_be_read_safely_is_as_unknown(schema: Any) -> None:
    assert reasons([avro(GOOD), b""], of_avro(schema)) == ["unknown_schema", "unknown_schema"]


def test_a_schema_may_nest_to_64_levels_however_it_is_put_together() -> None:
    def chain(length: int, kind: Callable[[int], Any]) -> list[Any]:
        return [
            {"name": f"f{i}", "type": {"type": "record", "name": f"R{i}", "fields": [{"name": "x", "type": kind(i)}]}}
            for i in range(length)
        ]

    for length, fine in ((60, True), (70, False)):
        record = {"type": "record", "name": "Deep", "fields": chain(length, lambda i: f"R{i - 1}" if i else "int")}
        found = reasons([b""], of_avro(avro_schema(more=record)))
        assert found == ["not_avro" if fine else "unknown_schema"]


# -- wire headers

BODY = protobuf(GOOD, random.Random(1))


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (header(2**31, bytes([2, 6])), None),
        (header(2**31, bytes([4, 8, 2])), None),
        (header(2**31, bytes([0x82, 0x00, 0x86, 0x00])), None),
        (header(2**31, bytes([0])), "unknown"),  # the first type of the file: one without any of the fields
        (header(2**31, bytes([2, 20])), "unknown_schema"),
        (header(2**31, bytes([4, 6, 2])), "unknown_schema"),
        (header(7, bytes([2, 6])), "unknown_schema"),
        (header(2**31, bytes([1])), "not_protobuf"),
        (header(2**31, bytes([2, 1])), "not_protobuf"),
        (header(2**31, bytes([40])), "not_protobuf"),
        (header(2**31, b"\xff\xff\xff\xff\xff\xff"), "not_protobuf"),
        (b"\x01" + header(2**31, bytes([2, 6]))[1:], "not_protobuf"),
        (b"", "not_protobuf"),
    ],
)
def test_a_header_names_the_type_by_its_path(head: bytes, reason: str | None) -> None:
    payload = PayloadFormatAndSchemas(PayloadFormat.PROTOBUF, PROTO_BY_ID, header=True)
    found = reasons([head + BODY], payload)
    assert found == (["bad_type"] if reason == "unknown" else [reason])


@pytest.mark.parametrize("short", [b"", b"\x00", b"\x00\x00\x00\x00"])
def test_less_than_a_header_is_no_payload(short: bytes) -> None:
    assert reasons([short, header(8), header(7)], PayloadFormatAndSchemas(PayloadFormat.AVRO, BY_ID, header=True)) == [
        "not_avro",
        "unknown_schema",
        "not_avro",
    ]


def test_messages_of_many_schemas_keep_their_order() -> None:
    wider = avro_schema([*AVRO_ROW, {"name": "extra", "type": "long"}])
    text = avro_schema(type="string")
    schemas = ConfiguredSchemas(
        by_id=tuple((i, (json.dumps(s).encode(),)) for i, s in enumerate([avro_schema(), wider, text]))
    )
    values: list[bytes | None] = []
    for seq in range(30):
        body = GOOD | {"seq": seq}
        row = body["rows"][0] | {"extra": seq} | dict.fromkeys(set(COLUMNS) - {"price", "status"})
        datum = {0: lambda b=body: avro(b), 1: lambda b=body, r=row: avro(b | {"rows": [r]}, wider)}.get(
            seq % 4, lambda b=body: datum_of(text, b | {"rows": []})
        )
        values.append(header(seq % 4) + datum())
    chunk = decoded(values, PayloadFormatAndSchemas(PayloadFormat.AVRO, schemas, header=True))
    assert chunk["seq"].to_pylist() == [None if seq % 4 == 3 else seq for seq in range(30)]
    assert [row[0]["_rescued"] for row in chunk["changes"].to_pylist()[1::4]] == [
        f'{{"extra":{s}}}' for s in range(1, 30, 4)
    ]


def test_a_schema_of_declared_columns_is_read_in_bulk_and_only_what_fails_a_check_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = []
    monkeypatch.setattr(
        "sessionlake.protocol.binary.parse_decoded_message", lambda plain, *_, **__: looked_at.append(plain["seq"])
    )
    for payload, encoded in ((PLAIN_AVRO, avro), (PLAIN_PROTOBUF, lambda body: protobuf(body, random.Random(2)))):
        values: list[bytes | None] = [encoded(GOOD | {"seq": seq, "ts": NOW}) for seq in range(5)]
        decode_messages_to_chunk(raw(values), rules(payload))
        assert looked_at == []


def test_a_block_of_nothing_decodes_to_an_empty_chunk() -> None:
    assert decoded([], PLAIN_AVRO).num_rows == decoded([], PLAIN_PROTOBUF).num_rows == 0


def test_a_large_block_is_decoded_piece_by_piece_to_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [avro(GOOD | {"seq": seq}) for seq in range(50)] + [b"x"]
    whole = said(decoded(values, PLAIN_AVRO))
    monkeypatch.setattr("sessionlake.protocol.binary._SLICE_BYTES", 100)
    assert said(decoded(values, PLAIN_AVRO)) == whole
