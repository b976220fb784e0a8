"""Values of Sparkplug B with and without data types, nested values, and what the specification forbids."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import pytest

from sessionlake.feeds.events import MessageRefusal
from sessionlake.feeds.table import SessionTable
from support.feed_cases import feed
from support.protobuf_bytes import protobuf
from unit.test_feed_presets_binary import DEVICE, NODE, PLANT, event_of, metric, payload, spb, values_of

INT, LONG, BYTES = 10, 11, 16
COLUMNS = {"device": "string", "metric": "string", "historical": "boolean", "value": "variant", "datatype": "string"}


def table_of(*messages: tuple[bytes, bytes, bytes], **changed: Any) -> SessionTable:
    """The table after messages: key, type and payload."""
    given = feed(PLANT, **changed)
    table = SessionTable(given)
    for key, kind, value in messages:
        table.apply_event(event_of(spb(given, key, kind, value)))
    return table


def cells(table: SessionTable, *names: str) -> dict[str, tuple[Any, ...]]:
    return {row["metric"]: tuple(row[name] for name in names) for row in table.rows.values()}


@pytest.mark.parametrize(
    ("field", "sent", "is_known"),
    [
        (INT, 127, True),
        (INT, 128, False),  # Int8 of -128
        (INT, 255, False),
        (INT, 256, True),
        (INT, 32_767, True),
        (INT, 32_768, False),  # Int16 of -32,768
        (INT, 65_535, False),
        (INT, 65_536, True),
        (INT, 2**31 - 1, True),
        (INT, 2**31, False),
        (LONG, 255, True),
        (LONG, 2**63 - 1, True),
        (LONG, 2**63, False),
    ],
)
def test_an_integer_without_a_data_type_that_may_be_negative_is_kept_as_it_was_sent(
    field: int, sent: int, is_known: bool
) -> None:
    table = table_of((NODE, b"NDATA", payload(metric((field, sent), name="m"), seq=1)))
    name = {INT: "int_value", LONG: "long_value"}[field]
    found = (str(sent), float(sent) if sent < 2**53 else None, None)
    assert cells(table, "value", "number", "untyped")["m"] == (
        found if is_known else (None, None, json.dumps({name: sent}, separators=(",", ":")))
    )


@pytest.mark.parametrize(
    ("datatype", "sent", "value"),
    [
        (1, (INT, 255), "-1"),
        (1, (INT, 2**32 - 1), "-1"),  # all bits of the field
        (2, (INT, 2**32 - 2**15), "-32768"),
        (3, (INT, 2**32 - 1), "-1"),
        (3, (LONG, 2**64 - 1), "-1"),
        (4, (LONG, 2**63), "-9223372036854775808"),
        (4, (INT, 2**32 - 1), "4294967295"),
        (5, (INT, 255), "255"),
        (6, (INT, 65_535), "65535"),
        (7, (INT, 2**31), "2147483648"),
        (8, (LONG, 2**64 - 1), "18446744073709551615"),
        (13, (LONG, 2**63), "9223372036854775808"),
        (17, (BYTES, b"\1"), '"AQ=="'),
        (22, (BYTES, b"\xff\2"), "[-1,2]"),
        (26, (BYTES, b"\xff\2"), "[255,2]"),
        (30, (BYTES, struct.pack("<2f", 1, float("nan"))), '[1.0,"NaN"]'),
        (31, (BYTES, struct.pack("<d", float("-inf"))), '["-Infinity"]'),
        (33, (BYTES, b"a\0\0"), '["a",""]'),
        (33, (BYTES, b""), "[]"),
    ],
)
@pytest.mark.parametrize("datatype_in_data", [True, False])
def test_a_value_is_read_by_its_data_type_or_that_of_the_birth(
    datatype: int, sent: tuple[int, Any], value: str, datatype_in_data: bool
) -> None:
    typed = {"datatype": datatype} if datatype_in_data else {}
    table = table_of(
        (DEVICE, b"DBIRTH", payload(metric(name="m", alias=3, datatype=datatype, null=True), seq=0)),
        (DEVICE, b"DDATA", payload(metric(sent, alias=3, **typed), seq=1)),
        (DEVICE, b"DDATA", payload(metric(sent, alias=3, historical=True, **typed), seq=2)),
    )
    assert {row["historical"]: (row["value"], row["untyped"]) for row in table.rows.values()} == {
        False: (value, None), True: (value, None),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("datatype", "sent"),
    [(1, (INT, 300)), (2, (INT, 2**31)), (23, (BYTES, b"123")), (33, (BYTES, b"a\0b")), (32, (BYTES, b"\1"))],
)
def test_a_value_that_does_not_fit_its_data_type_is_refused_or_kept_as_it_was_sent(datatype, sent):
    born = metric(name="m", datatype=datatype, null=True)
    assert isinstance(
        spb(feed(PLANT), NODE, b"NDATA", payload(metric(sent, name="m", datatype=datatype), seq=1)), MessageRefusal
    )
    if sent[1] == 300:  # without a data type in the message, this is no Int8 for certain
        return
    table = table_of((NODE, b"NBIRTH", payload(born, seq=0)), (NODE, b"NDATA", payload(metric(sent, name="m"), seq=1)))
    value, untyped = cells(table, "value", "untyped")["m"]
    assert (value, untyped is None) == (None, False)


def test_the_type_unknown_is_none_and_a_type_of_a_later_version_is_kept_with_the_value_as_sent():
    table = table_of(
        (
            NODE,
            b"NBIRTH",
            payload(metric((INT, 1), name="a", datatype=1), metric((INT, 1), name="b", datatype=1), seq=0),
        ),
        (NODE, b"NDATA", payload(metric((INT, 255), name="a", datatype=0), seq=1)),
        (NODE, b"NDATA", payload(metric((INT, 255), name="b", datatype=99), seq=2)),
    )
    assert cells(table, "datatype", "value", "untyped") == {
        "a": ("Int8", "-1", None), "b": ("99", None, '{"int_value":255}'),
    }  # fmt: skip


def test_a_death_of_an_earlier_birth_changes_nothing():
    def birth(number: int) -> bytes:
        return payload(metric((LONG, number), name="bdSeq", datatype=8, alias=0), seq=0)

    def death(*number: int) -> bytes:
        return payload(*(metric((INT, one), name="bdSeq") for one in number))

    born, data = (NODE, b"NBIRTH", birth(200)), (DEVICE, b"DBIRTH", payload(metric((INT, 1), name="m"), seq=1))
    assert len(table_of(born, data, (NODE, b"NDEATH", death(199))).rows) == 2
    assert table_of(born, data, (NODE, b"NDEATH", death(200))).rows == {}
    assert table_of(born, data, (NODE, b"NDEATH", death())).rows == {}
    assert table_of(data, (NODE, b"NDEATH", death(200))).rows == {}  # the birth is not known


def test_names_that_look_like_aliases_have_rows_of_their_own():
    metrics = [metric((INT, 1), name="7"), metric((INT, 2), name="x", alias=7), metric((INT, 3), name='"7"')]
    table = table_of((NODE, b"NBIRTH", payload(*metrics, seq=0)))
    assert cells(table, "name", "value") == {'"7"': ("7", "1"), "7": ("x", "2"), '"\\"7\\""': ('"7"', "3")}


def test_properties_are_kept_and_the_quality_is_that_of_the_last_value():
    def quality(*values: tuple[int, Any]) -> bytes:
        return protobuf((1, "Quality"), (1, "unit"), (2, protobuf(*values)), (2, protobuf((1, 12), (8, "°C"))))

    inner = protobuf((1, "low"), (2, protobuf((1, 3), (3, 2**32 - 1))))
    nested = protobuf((1, "range"), (2, protobuf((1, 20), (9, inner))), (1, "raw"), (2, protobuf((3, 255))))
    table = table_of(
        (
            NODE,
            b"NBIRTH",
            payload(metric((INT, 1), name="a", datatype=3) + protobuf((9, quality((1, 3), (3, 500)))), seq=0),
        ),
        (NODE, b"NDATA", payload(metric((INT, 1), name="b") + protobuf((9, quality((3, 192)))), seq=1)),
        (NODE, b"NDATA", payload(metric((INT, 1), name="c") + protobuf((9, nested)), seq=2)),
    )
    assert cells(table, "quality", "properties") == {
        "a": (500, '{"Quality":500,"unit":"°C"}'), "b": (192, '{"Quality":192,"unit":"°C"}'),
        "c": (None, '{"range":{"low":-1},"raw":{"int_value":255}}'),
    }  # fmt: skip
    (event,) = [event_of(spb(feed(PLANT), NODE, b"NDATA", payload(metric((INT, 2), name="a"), seq=3)))]
    table.apply_event(event)
    assert cells(table, "quality", "properties")["a"] == (None, '{"Quality":500,"unit":"°C"}')


def test_members_of_templates_and_data_sets_are_read_by_their_own_types():
    members = [(2, metric((INT, 255), name="x", datatype=1)), (2, metric((INT, 255), name="y"))]
    template = protobuf((1, "v1"), *members, (3, protobuf((1, "p"), (2, 3), (3, 2**32 - 2))), (4, "Motor"), (5, False))
    row = protobuf((1, protobuf((1, 255))), (1, protobuf((1, 255))), (1, protobuf()))
    data_set = protobuf((1, 3), (2, "a"), (2, "b"), (2, "c"), (3, 1), (3, 5), (3, 12), (4, row))
    without_types = protobuf((1, 1), (2, "a"), (4, protobuf((1, protobuf((1, 255))))))
    assert [None if value is None else json.loads(value) for value in values_of(
        metric((18, template), name="t", datatype=19), metric((17, data_set), name="d", datatype=16),
        metric((17, without_types), name="e"),
    )] == [
        {
            "version": "v1", "template_ref": "Motor", "is_definition": False,
            "metrics": [{"name": "x", "datatype": "Int8", "value": -1}, {"name": "y", "value": {"int_value": 255}}],
            "parameters": [{"name": "p", "datatype": "Int32", "value": -2}],
        },
        [{"a": -1, "b": 255, "c": None}],
        [{"a": {"int_value": 255}}],
    ]  # fmt: skip


TWICE = protobuf(
    (1, 2), (2, "a"), (2, "a"), (3, 3), (3, 3), (4, protobuf((1, protobuf((1, 1))), (1, protobuf((1, 2)))))
)


@pytest.mark.parametrize(
    ("key", "kind", "value", "why"),
    [
        (NODE, b"NDATA", payload(seq=256), "seq 256, which is above 255"),
        (NODE, b"DDATA", payload(seq=1), "a message DDATA has no device"),
        (NODE + b"/", b"DBIRTH", payload(seq=1), "a message DBIRTH has no device"),
        (DEVICE, b"NBIRTH", payload(seq=0), "a message NBIRTH has a device"),
        (b"spBv1.0/%s/\xff", b"NDATA", payload(seq=1), "the Kafka key is no MQTT topic of Sparkplug"),
        (NODE, b"NBIRTH", payload(*(metric((INT, 1), name=name, alias=4) for name in "ab"), seq=0),
         "the metrics 'a' and 'b' have the same alias 4"),
        (NODE, b"NDATA", payload(metric((17, TWICE), name="d", datatype=16), seq=1), "two columns with the same name"),
    ],
)  # fmt: skip
def test_what_would_mix_up_rows_is_refused(key, kind, value, why):
    found = spb(feed(PLANT), key, kind, value)
    assert isinstance(found, MessageRefusal)
    assert why in found.why


def compressed(value: bytes, algorithm: str | None, seq: int) -> bytes:
    """A payload around a compressed one, in the form of Eclipse Tahu."""
    wbits = {None: 15, "DEFLATE": 15, "GZIP": 31, "LZ4": 15}[algorithm]
    packed = zlib.compressobj(wbits=wbits)
    named = [] if algorithm is None else [metric((15, algorithm), name="algorithm", datatype=12)]
    return payload(*named, seq=seq) + protobuf((4, "SPBV1.0_COMPRESSED"), (5, packed.compress(value) + packed.flush()))


@pytest.mark.parametrize("algorithm", [None, "DEFLATE", "GZIP"])
def test_a_compressed_payload_is_read(algorithm: str | None) -> None:
    birth = payload(metric((INT, 1), name="m", datatype=3), metric((INT, 2), name="n", datatype=3), seq=0)
    data = payload(metric((INT, 7), name="m", datatype=3), seq=1)
    table = table_of(
        (NODE, b"NBIRTH", compressed(birth, algorithm, 0)), (NODE, b"NDATA", compressed(data, algorithm, 1))
    )
    assert cells(table, "value") == {"m": ("7",), "n": ("2",)}
    assert (table.messages, table.gaps) == (2, 0)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (compressed(b"", "LZ4", 0), "compressed by 'LZ4', which is not one of DEFLATE, GZIP"),
        (payload(seq=0) + protobuf((4, "SPBV1.0_COMPRESSED"), (5, zlib.compress(b"")[:-3])), "is incomplete"),
        (compressed(payload() + protobuf((5, bytes(11 << 20))), None, 0), "or has more than 10,485,760 bytes"),
        (payload(metric((BYTES, struct.pack("<I", 2_000_000) + bytes(250_000)), name="a", datatype=32), seq=0),
         "an array has more than 1,000,000 elements"),
    ],
)  # fmt: skip
def test_a_payload_that_cannot_be_unpacked_within_the_limits_is_refused(value: bytes, why: str) -> None:
    found = spb(feed(PLANT), NODE, b"NBIRTH", value)
    assert isinstance(found, MessageRefusal)
    assert why in found.why


def test_with_other_columns_a_value_without_its_data_type_is_refused_or_completed():
    sent = payload(metric((INT, 255), name="m"), seq=1)
    found = spb(feed(PLANT, columns=COLUMNS), NODE, b"NDATA", sent)
    assert isinstance(found, MessageRefusal)
    assert "of metric m means nothing without its data type; declare the columns untyped and datatype" in found.why
    birth = (NODE, b"NBIRTH", payload(metric((INT, 1), name="m", datatype=1), seq=0))
    table = table_of(birth, (NODE, b"NDATA", sent), columns=COLUMNS | {"untyped": "variant"})
    assert cells(table, "value", "untyped") == {"m": ("-1", None)}
    assert table_of(birth, (NODE, b"NDEATH", payload(metric((INT, 1), name="bdSeq"))), columns=COLUMNS).rows == {}
