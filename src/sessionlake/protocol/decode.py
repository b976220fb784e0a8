"""Kafka values to columns: what is plainly well-formed in bulk, the rest one by one through `parse`.

Per message, Python makes the C calls of one typed JSON decode and a few attribute reads by `map`; the cost is
in the README's performance table. Only a message that the typed decoder refuses, or that fails a bulk check,
is looked at by Python code of its own.
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
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from sessionlake.protocol.arrow import codes, ranges
from sessionlake.protocol.chunk import ChangeKind, change_fields, chunk_schema
from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import NO_SEQ, Message, MessageType, MessageTypes, message_types
from sessionlake.protocol.parse import Parsed, key_reason, parse
from sessionlake.protocol.reasons import CODE_OF, Reason

Int64s = npt.NDArray[np.int64]
Int8s = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]


def _never(topic: str) -> bool:
    del topic
    return False


@dataclass(frozen=True)
class DecodeRules:
    """What decides whether a value is a message.

    Attributes:
        max_future_skew: in milliseconds.
        seq_optional: whether the messages of a topic may lack a `seq`.
    """

    columns: tuple[Column, ...]
    max_message_bytes: int
    max_future_skew: int
    seq_optional: Callable[[str], bool] = _never


@dataclass
class _Decoded:
    """Messages in input order; None where malformed, with the reason's code."""

    messages: list[Message | None]
    reasons: Int8s
    rescued: dict[int, list[str | None]]


def decode(raw: pa.Table, rules: DecodeRules, *, fast: bool = True) -> pa.Table:
    """Decodes a table of raw messages into a chunk (see `chunk.chunk_schema`), row for row.

    Args:
        raw: `topic string, partition int32, offset int64, kafka_ts int64 (ms), key binary, value binary`. The
            chunk's clock is the message's own timestamp: who sees a whole stretch puts in the stretch's.
        fast: False sends every message through the slow path; the result is the same.
    """
    types = message_types(rules.columns)
    with _no_garbage_collection():
        decoded = _decode_values(raw, rules, types, fast=fast)
        return _assemble(raw, decoded, rules)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """A block's messages hold no cycles; letting the collector walk them doubles the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _decode_values(raw: pa.Table, rules: DecodeRules, types: MessageTypes, *, fast: bool) -> _Decoded:
    values = raw["value"].to_pylist()
    latest = raw["kafka_ts"].to_numpy() + rules.max_future_skew
    reasons = _key_reasons(raw["key"])
    sizes = pc.fill_null(pc.binary_length(raw["value"]), 0).to_numpy()
    out = _Decoded(_decode_all(values, types) if fast else [None] * len(values), reasons, {})
    optional = _optional(raw["topic"], rules)
    if fast:
        _decode_seqless(out.messages, values, optional, types)
        _unset(out.messages, np.flatnonzero(sizes > rules.max_message_bytes))
        _unset(out.messages, _suspects(out.messages, latest, types))
    for index in _missing(out.messages):
        _look_closely(out, index, values[index], int(latest[index]), rules, types, seq_optional=bool(optional[index]))
    _unset(out.messages, np.flatnonzero(reasons))
    return out


def _decode_all(values: Sequence[bytes | None], types: MessageTypes) -> list[Message | None]:
    """Typed decode of every value; None where the decoder refuses."""
    out: list[Message | None] = []
    rest = iter(values)
    decode_one = types.decoder.decode
    while len(out) < len(values):
        try:
            out.extend(map(decode_one, rest))  # type: ignore[arg-type]
        except (msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError):
            out.append(None)  # `extend` kept what came before, and `rest` stands behind the refused value
    return out


def _optional(topics: pa.ChunkedArray, rules: DecodeRules) -> Bools:
    """Which messages may lack a seq; each distinct topic is asked once."""
    code, names = codes(topics)
    answers = np.array([rules.seq_optional(name) for name in names.to_pylist()], np.bool_)
    return answers[code] if len(answers) else np.zeros(len(topics), np.bool_)


def _decode_seqless(
    messages: list[Message | None], values: Sequence[bytes | None], optional: Bools, types: MessageTypes
) -> None:
    if not optional.any():
        return
    decode_one = types.seqless_decoder.decode
    for index in _missing(messages):
        if optional[index]:
            with suppress(msgspec.MsgspecError, UnicodeDecodeError, TypeError, RecursionError):
                messages[index] = decode_one(values[index])  # type: ignore[arg-type]


def _missing(messages: Sequence[Message | None]) -> Iterable[int]:
    return (index for index, message in enumerate(messages) if message is None) if None in messages else ()


def _unset(messages: list[Message | None], indices: Iterable[Any]) -> None:
    for index in indices:
        messages[index] = None


def _key_reasons(keys: pa.ChunkedArray) -> Int8s:
    """Reason codes by key; each distinct key is looked at once."""
    encoded = pc.dictionary_encode(keys, null_encoding="encode").combine_chunks()
    if isinstance(encoded, pa.ChunkedArray):
        encoded = (
            encoded.chunk(0) if encoded.num_chunks else pa.DictionaryArray.from_arrays(pa.array([], pa.int32()), [])
        )
    verdicts = [CODE_OF[Reason.BAD_KEY] if key_reason(key) else 0 for key in encoded.dictionary.to_pylist()]
    return np.array(verdicts, np.int8)[encoded.indices.to_numpy()] if verdicts else np.zeros(len(keys), np.int8)


def _suspects(messages: list[Message | None], latest: Int64s, types: MessageTypes) -> Int64s:
    """Indices of decoded messages that bulk checks cannot pass: future times, repeated row ids, float overflow."""
    index = np.fromiter((i for i, m in enumerate(messages) if m is not None), np.int64) if None in messages else None
    good = messages if index is None else [m for m in messages if m is not None]
    if not good:
        return np.zeros(0, np.int64)
    bad = _attribute(good, "ts") > (latest if index is None else latest[index])
    rows = list(map(attrgetter("rows"), good))
    counts = np.fromiter(map(len, rows), np.int64, len(rows))
    owner = np.repeat(np.arange(len(good)), counts)
    bad[_owners_of_repeated_ids(rows, counts)] = True
    for i, column in enumerate(types.columns):
        if column.sql == "float":
            values = _floats(list(map(attrgetter(f"c{i}"), chain.from_iterable(rows))))
            with np.errstate(over="ignore"):
                bad[owner[np.isinf(values.astype(np.float32))]] = True
    found = np.flatnonzero(bad)
    return found if index is None else index[found]


def _attribute(messages: Sequence[Message], name: str) -> Int64s:
    return np.fromiter(map(attrgetter(name), messages), np.int64, len(messages))


def _floats(values: list[Any]) -> npt.NDArray[np.float64]:
    return np.array([v if isinstance(v, float) else 0.0 for v in values], np.float64)


def _owners_of_repeated_ids(rows: list[Any], counts: Int64s) -> Int64s:
    """Messages with the same id twice in one `rows`; messages of one row cannot have any."""
    several = np.flatnonzero(counts > 1)
    if not len(several):
        return several
    ids = pa.array([row.id for index in several.tolist() for row in rows[index]], pa.string())
    codes = ids.dictionary_encode().indices.to_numpy().astype(np.int64)
    places = np.repeat(several, counts[several]) * (int(codes.max()) + 1) + codes
    places.sort()
    repeated = places[1:][places[1:] == places[:-1]]
    return np.unique(repeated // (int(codes.max()) + 1))


def _look_closely(
    out: _Decoded,
    index: int,
    value: bytes | None,
    latest: int,
    rules: DecodeRules,
    types: MessageTypes,
    *,
    seq_optional: bool,
) -> None:
    if out.reasons[index]:
        return
    found = parse(value, types, latest_ts=latest, max_bytes=rules.max_message_bytes, seq_optional=seq_optional)
    if not isinstance(found, Parsed):
        out.reasons[index] = CODE_OF[found]
        return
    out.messages[index] = found.message
    if found.rescued is not None:
        out.rescued[index] = found.rescued


def _assemble(raw: pa.Table, decoded: _Decoded, rules: DecodeRules) -> pa.Table:
    malformed = decoded.reasons != 0
    good: list[Message] = [m for m in decoded.messages if m is not None] if malformed.any() else decoded.messages
    heads = {
        name: _spread(np.fromiter(map(attrgetter(attribute), good), dtype, len(good)), malformed, fill)
        for name, attribute, dtype, fill in (
            ("type", "code", np.int8, MessageType.MALFORMED),
            ("seq", "seq", np.int64, NO_SEQ),
            ("ts", "ts", np.int64, 0),
        )
    }
    bad_key = decoded.reasons == CODE_OF[Reason.BAD_KEY]
    keys = raw["key"].combine_chunks()
    if bad_key.any():
        keys = pc.if_else(pa.array(bad_key), pa.scalar(None, keys.type), keys)
    columns = [
        raw["topic"].cast(pa.string()),
        raw["partition"],
        raw["offset"],
        raw["kafka_ts"],
        keys.cast(pa.string()),
        pa.array(heads["type"]),
        pa.array(heads["seq"], mask=heads["seq"] == NO_SEQ),
        pa.array(heads["ts"]),
        pa.array(decoded.reasons),
        pc.fill_null(pc.binary_length(raw["value"]), 0).cast(pa.int32()),
        raw["kafka_ts"],
        _changes(good, malformed, decoded.rescued, rules.columns),
    ]
    return pa.Table.from_arrays(columns, schema=chunk_schema(rules.columns))


def _spread(values: npt.NDArray[Any], malformed: Bools, fill: int) -> npt.NDArray[Any]:
    if not malformed.any():
        return values
    whole = np.full(len(malformed), fill, values.dtype)
    whole[~malformed] = values
    return whole


def _changes(
    good: list[Message], malformed: Bools, rescued: dict[int, list[str | None]], columns: tuple[Column, ...]
) -> pa.ListArray:
    """The list column: per message a clear (snapshots), its rows, its deleted ids."""
    rows = list(map(attrgetter("rows"), good))
    deleted = list(map(attrgetter("deleted"), good))
    cleared = np.fromiter(map(attrgetter("code"), good), np.int8, len(good)) == MessageType.SNAPSHOT
    n_rows = np.fromiter(map(len, rows), np.int64, len(good))
    n_deleted = np.fromiter(map(len, deleted), np.int64, len(good))
    lengths = cleared + n_rows + n_deleted
    starts = np.cumsum(lengths) - lengths
    total = int(lengths.sum())
    of_rows = ranges(starts + cleared, n_rows)
    of_deleted = ranges(starts + cleared + n_rows, n_deleted)

    kind = np.full(total, ChangeKind.CLEAR, np.int8)
    kind[of_rows] = ChangeKind.UPSERT
    kind[of_deleted] = ChangeKind.DELETE
    flat = list(chain.from_iterable(rows))
    ids = list(map(attrgetter("id"), flat))
    row_of_change = None if total == len(flat) else _inverse(of_rows, total)
    if row_of_change is None:
        row_ids = pa.array(ids, pa.string())
    else:
        ids.extend(chain.from_iterable(deleted))
        row_ids = pa.array(ids, pa.string()).take(_inverse(np.concatenate([of_rows, of_deleted]), total))
    snapshot_row = np.repeat(cleared, n_rows)
    values, flags = [], []
    for i, column in enumerate(columns):
        value, flag = _column(list(map(attrgetter(f"c{i}"), flat)), snapshot_row, column)
        values.append(value if row_of_change is None else value.take(row_of_change))
        whole = np.zeros(total, np.bool_)
        whole[of_rows] = flag
        flags.append(pa.array(whole))
    fields = [
        pa.array(kind),
        pa.array((np.arange(total) - np.repeat(starts, lengths)).astype(np.int32)),
        row_ids,
        _rescued(rescued, malformed, n_rows, of_rows, total),
        *values,
        *flags,
    ]
    struct = pa.StructArray.from_arrays(fields, fields=list(change_fields(columns)))
    ends = np.concatenate([[0], np.cumsum(_spread(lengths, malformed, 0))]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), struct)


def _column(values: list[Any], snapshot_row: Bools, column: Column) -> tuple[pa.Array, Bools]:
    """One declared column over all rows: its values, and whether the message set them (a snapshot sets all)."""
    flag = np.ones(len(values), np.bool_)
    if UNSET in values:
        flag = np.fromiter((v is not UNSET for v in values), np.bool_, len(values))
        values = [None if v is UNSET else v for v in values]
    if column.sql == "float":
        return pa.array(values, pa.float64()).cast(pa.float32(), safe=False), flag | snapshot_row
    return pa.array(values, column.arrow), flag | snapshot_row


def _rescued(
    rescued: dict[int, list[str | None]], malformed: Bools, n_rows: Int64s, of_rows: Int64s, total: int
) -> pa.Array:
    if not rescued:
        return pa.nulls(total, pa.string())
    texts = np.full(total, None, object)
    first_row = np.cumsum(n_rows) - n_rows
    rank = np.cumsum(~malformed) - 1
    for index, found in rescued.items():
        start = first_row[rank[index]]
        texts[of_rows[start : start + len(found)]] = found
    return pa.array(texts, pa.string())


def _inverse(places: Int64s, total: int) -> pa.Array:
    """For each place, the index of the item that goes there; null where none does."""
    indices = np.full(total, -1, np.int64)
    indices[places] = np.arange(len(places))
    return pa.array(indices, mask=indices < 0)
