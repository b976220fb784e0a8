"""Decoding: the bulk path and the one that looks closely agree on any bytes, and the truth agrees with both."""

from __future__ import annotations

import json
import random
import time
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sessionlake.protocol.chunk import build_set_flag_name, build_value_field_name
from sessionlake.protocol.decode import MessageDecodingRules, decode_messages_to_chunk
from sessionlake.protocol.jsontext import InvalidJsonError, parse_json
from sessionlake.protocol.reasons import CODES
from sessionlake.settings.model import CaptureSettings
from sessionlake_lab.truth import KafkaMessage
from sessionlake_lab.truth import text as truth_text
from sessionlake_lab.truth.reading import MalformedMessageError, MessageParser
from support.folding import INT64_MAX, truth_rules
from support.malformed import MALFORMED
from support.seeds import examples, seeds
from support.streams import COLUMNS, MAX_BYTES, SKEW, WILD, StreamMaker

NOW = 1_700_000_000_000
CAPTURE = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES)
RULES = MessageDecodingRules(CAPTURE.declared_columns, MAX_BYTES, SKEW)
PARSER = MessageParser(truth_rules(CAPTURE))
KINDS = ("clear", "upsert", "delete")


def raw(messages: list[KafkaMessage]) -> pa.Table:
    columns = list(zip(*messages, strict=True)) if messages else [()] * 7
    types = (pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.binary(), pa.binary(), pa.int64())
    names = ("topic", "partition", "offset", "kafka_ts", "key", "value", "ingested_at")
    return pa.table({n: pa.array(c, t) for n, c, t in zip(names, columns, types, strict=True)})


def numbered(values: list[bytes | None]) -> list[KafkaMessage]:
    return [KafkaMessage("t", 0, offset, NOW, b"s", value) for offset, value in enumerate(values)]


def said(chunk: pa.Table) -> list[object]:
    """What each message of a chunk says, as text: -0.0 is not 0.0."""
    return [repr(_said(row)) for row in chunk.to_pylist()]


def _said(row: dict[str, Any]) -> object:
    if row["reason"]:
        return str(CODES[row["reason"]])
    return row["type"], row["seq"], row["ts"], [_change(change) for change in row["changes"]]


def _change(change: dict[str, Any]) -> tuple[object, ...]:
    values = {
        name: change[build_value_field_name(i)] for i, name in enumerate(COLUMNS) if change[build_set_flag_name(i)]
    }
    unset = [i for i in range(len(COLUMNS)) if not change[build_set_flag_name(i)]]
    assert all(change[build_value_field_name(i)] is None for i in unset)
    return KINDS[change["change"]], change["ordinal"], change["row_id"], values, change["_rescued"]


def told(message: KafkaMessage) -> str:
    """The same from the truth."""
    try:
        found = PARSER.parse_message(message, message.timestamp)
    except MalformedMessageError as error:
        return repr(error.reason)
    parts: list[tuple[Any, ...]] = [("clear", None, {}, None)] if found.kind == "snapshot" else []
    parts += [
        ("upsert", row.row_id, {n: row.values[n] for n in COLUMNS if n in row.values}, row.rescued)
        for row in found.rows
    ]
    parts += [("delete", row_id, {}, None) for row_id in found.deleted]
    kind = ("snapshot", "update", "heartbeat", "end").index(found.kind)
    changes = [(change, ordinal, *rest) for ordinal, (change, *rest) in enumerate(parts)]
    return repr((kind, found.seq, found.ts, changes))


def assert_decoded_alike(messages: list[KafkaMessage]) -> None:
    fast, slow = (
        decode_messages_to_chunk(raw(messages), RULES),
        decode_messages_to_chunk(raw(messages), RULES, in_bulk=False),
    )
    assert said(fast) == said(slow)
    assert said(fast) == [told(message) for message in messages]


@pytest.mark.parametrize("seed", seeds(10, 40))
def test_faulty_streams_decode_alike_in_bulk_and_one_by_one(seed: int) -> None:
    assert_decoded_alike(StreamMaker(random.Random(seed), WILD).make(60))


@pytest.mark.parametrize("seed", seeds(10, 40))
def test_mutated_messages_decode_alike_in_bulk_and_one_by_one(seed: int) -> None:
    rnd = random.Random(seed)
    values = [mutated(rnd, m.value or b"") for m in StreamMaker(rnd, WILD).make(80)]
    assert_decoded_alike(numbered(values))


TOKENS = [b'"', b"\\", b"\\u", b"\\ud83d", b"0", b"-", b"e9", b"1e400", b".", b"{", b"}", b"[", b"]", b",", b":", b" "]
TOKENS += [
    b"null",
    b"true",
    b"NaN",
    b"\x00",
    b"\xff",
    b"\xc3",
    b"\xed\xa0\x80",
    b"rows",
    b'"id"',
    b'"seq":',
    b"99999999999",
]


def mutated(rnd: random.Random, value: bytes) -> bytes:
    for _ in range(rnd.randint(1, 3)):
        at, length = rnd.randrange(len(value) + 1), rnd.choice([0, 0, 1, 3])
        value = value[:at] + rnd.choice([b"", *TOKENS]) + value[at + length :]
    return value


@pytest.mark.parametrize("maker", MALFORMED, ids=lambda maker: maker.__qualname__)
def test_every_kind_of_malformed_message_gets_the_truth_s_reason(maker: Any) -> None:
    rnd = random.Random(1)
    made = [maker(rnd, {"type": "update", "seq": 1, "ts": NOW, "rows": [{"id": "a"}]}, NOW) for _ in range(200)]
    keys = [b"s" if broken.key is Ellipsis else broken.key for broken in made]
    values = [broken.value for broken in made]
    assert_decoded_alike(
        [KafkaMessage("t", 0, i, NOW, k, v) for i, (k, v) in enumerate(zip(keys, values, strict=True))]
    )


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from([2**31, -(2**31), 2**15, 127, 128, INT64_MAX, INT64_MAX + 1, 3.5e38, 1.0, "7", "a", ""]),
    st.text(max_size=5),
)
rows = st.lists(
    st.fixed_dictionaries(
        {"id": st.sampled_from(["a", "b", "ä", ""]) | scalars}, optional=dict.fromkeys([*COLUMNS, "other"], scalars)
    ),
    max_size=3,
)
bodies = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["snapshot", "update", "update", "heartbeat", "end", "x"]),
        "seq": st.integers(0, 9) | scalars,
        "ts": st.integers(NOW - 9, NOW + SKEW + 1) | scalars,
    },
    optional={"rows": rows | scalars, "deleted": st.lists(st.text(max_size=2) | scalars, max_size=2) | scalars},
)


@settings(examples(usual=60, in_all=600), derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(bodies, max_size=8))
def test_nearly_valid_messages_decode_alike_in_bulk_and_one_by_one(found: list[dict[str, Any]]) -> None:
    assert_decoded_alike(numbered([json.dumps(body).encode() for body in found]))


@settings(derandomize=True)
@given(st.lists(st.none() | st.binary(max_size=40), max_size=6))
def test_arbitrary_bytes_decode_alike_in_bulk_and_one_by_one(values: list[bytes | None]) -> None:
    assert_decoded_alike(numbered(values))


DIGITS = st.text("0123456789", min_size=1, max_size=40)
spelled_numbers = st.builds(
    lambda sign, whole, part, exp: f"{sign}{int(whole)}{part}{exp}",
    st.sampled_from(["", "-"]),
    DIGITS,
    st.just("") | DIGITS.map(lambda d: f".{d}"),
    st.just("") | st.integers(-400, 400).map(lambda e: f"e{e}"),
)


@settings(examples(usual=120, in_all=1200), derandomize=True)
@given(spelled_numbers, st.sampled_from([name for name in COLUMNS if name not in {"status", "flag"}]))
def test_a_number_is_rounded_alike_however_it_is_spelled(number: str, column: str) -> None:
    text = f'{{"type":"update","seq":0,"ts":0,"rows":[{{"id":"a","{column}":{number}}}]}}'
    assert_decoded_alike(numbered([text.encode()]))


@pytest.mark.parametrize("levels", [63, 64, 900, 5_000, 100_000])
@pytest.mark.parametrize("tail", ["", "]"])
def test_text_is_too_deep_beyond_64_levels_whether_or_not_it_is_json(levels: int, tail: str) -> None:
    wide = MessageDecodingRules(RULES.columns, 10**7, SKEW)
    value = f'{{"type":"heartbeat","seq":0,"ts":0,"x":{"[" * levels}{"]" * levels}{tail}}}'.encode()
    [found] = said(decode_messages_to_chunk(raw(numbered([value])), wide))
    shallow = repr("not_json") if tail else repr((2, 0, 0, []))
    assert found == (shallow if levels == 63 else repr("too_deep"))


pieces = st.lists(st.sampled_from(["[" * 30, "{" * 5, "[", "]" * 20, "}", '"', "\\", '\\"', "a", "\n"]), max_size=12)


@settings(examples(usual=300, in_all=3000), derandomize=True)
@given(pieces.map("".join))
def test_what_nests_too_deeply_is_what_the_independent_truth_says(text: str) -> None:
    found = {}
    for name, read in (("ours", parse_json), ("truth", truth_text.parse_json)):
        try:
            read(text)
            found[name] = "fine"
        except (InvalidJsonError, truth_text.NotJsonError, truth_text.JsonTooDeepError) as error:
            is_too_deep = isinstance(error, truth_text.JsonTooDeepError) or getattr(error, "reason", "") == "too_deep"
            found[name] = "too_deep" if is_too_deep else "not_json"
    assert found["ours"] == found["truth"]


@pytest.mark.parametrize("piece", ["[", '{"a":', "[],", '""', '\\"[', '"\\\\"', "\\"])
def test_ten_megabytes_of_brackets_or_quotes_are_refused_at_once(piece: str) -> None:
    started = time.process_time()
    with pytest.raises(InvalidJsonError):
        parse_json(piece * (10 * 2**20 // len(piece)) + "x")
    assert time.process_time() - started < 4  # it took 17 s and more; a loaded machine is slow, not that slow


def test_a_block_of_nothing_decodes_to_an_empty_chunk() -> None:
    assert decode_messages_to_chunk(raw([]), RULES).num_rows == 0


def test_a_repeated_id_is_found_in_its_own_message_alone() -> None:
    twice = b'{"type":"update","seq":0,"ts":0,"rows":[{"id":"a"},{"id":"b"},{"id":"a"}]}'
    once = b'{"type":"update","seq":0,"ts":0,"rows":[{"id":"a"},{"id":"b"}]}'
    assert decode_messages_to_chunk(raw(numbered([once, twice, once])), RULES)["reason"].to_pylist()[::2] == [0, 0]
    assert_decoded_alike(numbered([once, twice, once]))
