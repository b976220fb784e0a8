"""Decodes Kafka messages into a chunk: well-formed messages in bulk, the others singly by `protocol.parse`.

For a well-formed JSON message, Python only calls a typed decoder in C and reads a few attributes by `map`. A message is
parsed singly if the typed decoder refuses it or if it fails a check of the whole column.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import encode_values_as_codes
from sessionlake.protocol.assemble import MessageColumns, build_chunk_of_messages, convert_messages_to_columns
from sessionlake.protocol.binary import decode_avro_or_protobuf
from sessionlake.protocol.bulk import MessagePrechecks
from sessionlake.protocol.columns import Column
from sessionlake.protocol.erased import ERASED_CODE as ERASED
from sessionlake.protocol.erased import find_placeholders_of_erased_messages
from sessionlake.protocol.kafka_time import (
    compute_latest_event_times,
    find_kafka_times_in_future,
    find_reason_to_refuse_kafka_time,
)
from sessionlake.protocol.message import (
    INT64_MAX,
    Message,
    MessageStructsAndDecoders,
    build_message_structs_and_decoders,
)
from sessionlake.protocol.parse import ParsedMessage, find_reason_to_refuse_key, parse_message_value
from sessionlake.protocol.payload import PayloadFormatAndSchemas
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.types import Bools, Float64s, Int8s, Int64s


def _is_seq_optional_by_default(topic: str) -> bool:
    del topic
    return False


@dataclass(frozen=True)
class MessageDecodingRules:
    """The rules that decide whether a Kafka message is well-formed.

    Attributes:
        columns: The declared columns.
        max_message_bytes: The largest allowed size of a message's value, in bytes.
        max_future_skew: In ms: how far an event time may be ahead of the message's Kafka timestamp, and a Kafka
            timestamp ahead of the time at which bronze read the message.
        seq_optional: Called with a topic's name. Returns True if messages of the topic may lack a `seq`.
        payload: Format and schemas of messages that are not JSON; None for JSON.
    """

    columns: tuple[Column, ...]
    max_message_bytes: int
    max_future_skew: int
    seq_optional: Callable[[str], bool] = _is_seq_optional_by_default
    payload: PayloadFormatAndSchemas | None = None


@dataclass
class _DecodedMessages:
    """The result of decoding raw messages, in their order.

    Attributes:
        messages: The decoded messages; None for malformed ones.
        reasons: Reason code of each message; 0 if it is well-formed.
        rescued: For messages with undeclared columns, by the message's index: the JSON text of each row's undeclared
            columns, or None.
    """

    messages: list[Message | None]
    reasons: Int8s
    rescued: dict[int, list[str | None]]


def decode_messages_to_chunk(raw: pa.Table, rules: MessageDecodingRules, *, in_bulk: bool = True) -> pa.Table:
    """Decodes a table of raw messages into a chunk with one row per raw message.

    The chunk's column `clock` is each message's own Kafka timestamp. It is replaced later, when messages are packed by
    shard.

    Args:
        raw: `topic string, partition int32, offset int64, kafka_ts int64 (ms), key binary, value binary, ingested_at
            int64 (ms, null if not known)`.
        rules: The rules that decide whether a message is well-formed.
        in_bulk: False to parse every message singly. The result is the same.
    """
    types = build_message_structs_and_decoders(rules.columns)
    with _pause_garbage_collection():
        if rules.payload is not None:
            prechecks = MessagePrechecks(
                _find_reasons_before_decoding(raw, rules, in_bulk=in_bulk),
                _compute_latest_event_times(raw, rules),
                _find_messages_with_optional_seq(raw["topic"], rules),
            )
            return _mark_erased_messages(
                decode_avro_or_protobuf(raw, prechecks, rules.payload, types, in_bulk=in_bulk), raw
            )
        decoded = _decode_values(raw, rules, types, in_bulk=in_bulk)
        return _mark_erased_messages(
            build_chunk_of_messages(
                raw, decoded.reasons, _convert_decoded_to_columns(decoded, rules.columns), rules.columns
            ),
            raw,
        )


def _mark_erased_messages(chunk: pa.Table, raw: pa.Table) -> pa.Table:
    """Marks the placeholders of erased messages in a chunk: their reason becomes the code `ERASED`."""
    if not pc.any(pc.equal(chunk["reason"], CODE_OF[Reason.BAD_KEY])).as_py():
        return chunk
    place = chunk.schema.get_field_index("reason")
    erased = pa.scalar(ERASED, pa.int8())
    reasons = pc.if_else(find_placeholders_of_erased_messages(raw["key"], raw["value"]), erased, chunk["reason"])
    return chunk.set_column(place, chunk.schema.field(place), reasons)


@contextmanager
def _pause_garbage_collection() -> Iterator[None]:
    """Turns Python's garbage collector off in a block.

    It would double the time, and decoded messages have no cycles.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decode_values(
    raw: pa.Table, rules: MessageDecodingRules, types: MessageStructsAndDecoders, *, in_bulk: bool
) -> _DecodedMessages:
    """Decodes JSON messages: in bulk where possible, else singly.

    Args:
        in_bulk: False to parse every message singly.
    """
    values = raw["value"].to_pylist()
    latest = _compute_latest_event_times(raw, rules)
    reasons = _find_header_reasons(raw, rules, in_bulk=in_bulk)
    sizes = pc.fill_null(pc.binary_length(raw["value"]), 0).to_numpy()
    out = _DecodedMessages(_decode_clearly_well_formed(values, types) if in_bulk else [None] * len(values), reasons, {})
    optional = _find_messages_with_optional_seq(raw["topic"], rules)
    if in_bulk:
        _decode_messages_without_seq(out.messages, values, optional, types)
        _replace_messages_by_none(out.messages, np.flatnonzero(sizes > rules.max_message_bytes))
        _replace_messages_by_none(out.messages, _find_indices_of_possibly_malformed(out.messages, latest, types))
    for index in _list_indices_of_undecoded(out.messages):
        _parse_one_message(
            out, index, values[index], int(latest[index]), rules, types, seq_optional=bool(optional[index])
        )
    _replace_messages_by_none(out.messages, np.flatnonzero(reasons))
    return out


def _compute_latest_event_times(raw: pa.Table, rules: MessageDecodingRules) -> Int64s:
    """Returns for each message the highest event time in ms that is accepted: Kafka's timestamp + `max_future_skew`."""
    return compute_latest_event_times(raw["kafka_ts"].to_numpy(), rules.max_future_skew)


def _find_header_reasons(raw: pa.Table, rules: MessageDecodingRules, *, in_bulk: bool) -> Int8s:
    """Returns the reason code of each message whose key or Kafka timestamp is not usable; 0 for the others."""
    reasons = _find_refusal_reasons_of_keys(raw["key"])
    wrong = find_future_timestamps(raw, rules) if in_bulk else _find_future_timestamps_singly(raw, rules)
    reasons[(reasons == 0) & wrong] = CODE_OF[Reason.FUTURE_KAFKA_TS]
    return reasons


def find_future_timestamps(raw: pa.Table, rules: MessageDecodingRules) -> Bools:
    """Returns a boolean for each message: True if its Kafka timestamp is too far after bronze has read it."""
    ingested = pc.fill_null(raw["ingested_at"], INT64_MAX).to_numpy()
    return find_kafka_times_in_future(raw["kafka_ts"].to_numpy(), ingested, rules.max_future_skew)


def _find_future_timestamps_singly(raw: pa.Table, rules: MessageDecodingRules) -> Bools:
    """Returns the same booleans as `find_future_timestamps`, but checks one message after the other."""
    times = zip(raw["kafka_ts"].to_pylist(), raw["ingested_at"].to_pylist(), strict=True)
    found = (
        find_reason_to_refuse_kafka_time(said, ingested, rules.max_future_skew) is not None for said, ingested in times
    )
    return np.fromiter(found, np.bool_, raw.num_rows)


def _find_reasons_before_decoding(raw: pa.Table, rules: MessageDecodingRules, *, in_bulk: bool) -> Int8s:
    """Returns the reason code of each message whose key, Kafka timestamp or size is not allowed; 0 for the others."""
    reasons = _find_header_reasons(raw, rules, in_bulk=in_bulk)
    sizes = pc.fill_null(pc.binary_length(raw["value"]), 0).to_numpy()
    reasons[(reasons == 0) & (sizes > rules.max_message_bytes)] = CODE_OF[Reason.TOO_LARGE]
    return reasons


def _decode_clearly_well_formed(
    values: Sequence[bytes | None], types: MessageStructsAndDecoders
) -> list[Message | None]:
    """Decodes every value with the decoder for well-formed messages. None for a value that it refuses."""
    out: list[Message | None] = []
    rest = iter(values)
    decode_one = types.decoder.decode
    while len(out) < len(values):
        try:
            out.extend(map(decode_one, rest))  # type: ignore[arg-type]  # None raises the TypeError that is caught
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError):
            out.append(None)  # `extend` kept the messages before it, and `rest` continues after the refused value
    return out


def _find_messages_with_optional_seq(topics: pa.ChunkedArray, decoding_rules: MessageDecodingRules) -> Bools:
    """Returns a boolean for each message: True if it may lack a seq. The rule is called once per topic."""
    topic_codes, names = encode_values_as_codes(topics)
    answers = np.array([decoding_rules.seq_optional(name) for name in names.to_pylist()], np.bool_)
    return answers[topic_codes] if len(answers) else np.zeros(len(topics), np.bool_)


def _decode_messages_without_seq(
    messages: list[Message | None], values: Sequence[bytes | None], optional: Bools, types: MessageStructsAndDecoders
) -> None:
    """Decodes messages without a `seq`, for topics where it is optional. Writes them into `messages`, in place.

    Args:
        messages: The messages decoded so far; None for those that could not be decoded with a `seq`.
        values: The values of all messages.
        optional: True for messages that may lack a `seq`.
        types: The message structs of the declared columns.
    """
    if not optional.any():
        return
    decode_one = types.seqless_decoder.decode
    for index in _list_indices_of_undecoded(messages):
        if optional[index]:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError):
                messages[index] = decode_one(values[index])  # type: ignore[arg-type]  # None raises the TypeError that is caught


def _list_indices_of_undecoded(messages: Sequence[Message | None]) -> Iterable[int]:
    """Returns the indices of the messages that are None."""
    return (index for index, message in enumerate(messages) if message is None) if None in messages else ()


def _replace_messages_by_none(messages: list[Message | None], indices: Iterable[Any]) -> None:
    """Sets the messages at these indices to None."""
    for index in indices:
        messages[index] = None


def _find_refusal_reasons_of_keys(keys: pa.ChunkedArray) -> Int8s:
    """Returns the reason code of each message key, 0 if it is usable. Each distinct key is checked once."""
    encoded = pc.dictionary_encode(keys, null_encoding="encode").combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = (
            encoded.chunk(0) if encoded.num_chunks else pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), [])
        )
    verdicts = [
        CODE_OF[Reason.BAD_KEY] if find_reason_to_refuse_key(key) else 0 for key in encoded.dictionary.to_pylist()
    ]
    return np.array(verdicts, np.int8)[encoded.indices.to_numpy()] if verdicts else np.zeros(len(keys), np.int8)


def _find_indices_of_possibly_malformed(
    messages: list[Message | None], latest: Int64s, types: MessageStructsAndDecoders
) -> Int64s:
    """Returns the indices of decoded messages that may be malformed. They must be parsed singly.

    They have an event time after `latest`, the same row id twice, or a number beyond the range of a float.
    """
    index = np.fromiter((i for i, m in enumerate(messages) if m is not None), np.int64) if None in messages else None
    good = messages if index is None else [m for m in messages if m is not None]
    if not good:
        return np.zeros(0, np.int64)
    bad = _read_integer_attribute(good, "ts") > (latest if index is None else latest[index])
    rows = list(map(attrgetter("rows"), good))
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    owner = np.repeat(np.arange(len(good)), counts)
    bad[_find_messages_with_repeated_row_ids(rows, counts)] = True
    for i, column in enumerate(types.columns):
        if column.sql == "float":
            values = _replace_non_floats_by_zero(list(map(attrgetter(f"c{i}"), chain.from_iterable(rows))))
            with np.errstate(over="ignore"):
                bad[owner[np.isinf(values.astype(np.float32))]] = True
    found = np.flatnonzero(bad)
    return found if index is None else index[found]


def _read_integer_attribute(messages: Sequence[Message], attribute: str) -> Int64s:
    """Returns an integer attribute of each message."""
    return np.fromiter(map(attrgetter(attribute), messages), np.int64, len(messages))


def _replace_non_floats_by_zero(values: list[Any]) -> Float64s:
    return np.array([v if isinstance(v, float) else 0.0 for v in values], np.float64)


def _find_messages_with_repeated_row_ids(rows: list[Any], row_counts: Int64s) -> Int64s:
    """Returns the indices of messages that have two rows with the same id.

    Args:
        rows: The rows of each message.
        row_counts: The number of rows of each message.
    """
    several = np.flatnonzero(row_counts > 1)
    if not len(several):
        return several
    ids = pa.array([row.id for index in several.tolist() for row in rows[index]], pa.string())
    codes = ids.dictionary_encode().indices.to_numpy().astype(np.int64)
    places = np.repeat(several, row_counts[several]) * (int(codes.max()) + 1) + codes
    places.sort()
    repeated = places[1:][places[1:] == places[:-1]]
    return np.unique(repeated // (int(codes.max()) + 1))


def _parse_one_message(
    decoded: _DecodedMessages,
    message_index: int,
    value: bytes | None,
    latest: int,
    rules: MessageDecodingRules,
    types: MessageStructsAndDecoders,
    *,
    seq_optional: bool,
) -> None:
    """Parses one value, and stores the message or its reason in `decoded`.

    A message that has a reason already is skipped.

    Args:
        decoded: The result, updated in place.
        message_index: The message's index.
        value: The message's value.
        latest: The highest event time (ms) that it may have.
        rules: The rules that decide whether it is well-formed.
        types: The message structs of the declared columns.
        seq_optional: True if it may lack a seq.
    """
    if decoded.reasons[message_index]:
        return
    found = parse_message_value(
        value, types, latest_ts=latest, max_bytes=rules.max_message_bytes, seq_optional=seq_optional
    )
    if not isinstance(found, ParsedMessage):
        decoded.reasons[message_index] = CODE_OF[found]
        return
    decoded.messages[message_index] = found.message
    if found.rescued is not None:
        decoded.rescued[message_index] = found.rescued


def _convert_decoded_to_columns(decoded: _DecodedMessages, columns: tuple[Column, ...]) -> MessageColumns:
    """Returns the fields of the well-formed messages as arrays."""
    malformed = decoded.reasons != 0
    if not malformed.any():
        rescued = [decoded.rescued.get(i) for i in range(len(malformed))] if decoded.rescued else []
        return convert_messages_to_columns(decoded.messages, rescued, columns)
    good = [(i, message) for i, message in enumerate(decoded.messages) if message is not None]
    rescued = [decoded.rescued.get(i) for i, _ in good] if decoded.rescued else []
    return convert_messages_to_columns([message for _, message in good], rescued, columns)
