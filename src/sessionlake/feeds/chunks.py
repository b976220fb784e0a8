"""Decodes raw messages by feeds into a chunk, which has one row for each part of a message.

A message that concerns one session has one part. A message without events, because it is malformed, erased or ignored,
has one part without changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.compiled import get_compiled_reader
from sessionlake.feeds.events import SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.lists import EventLists
from sessionlake.feeds.paths import MISSING
from sessionlake.feeds.reader import KafkaRecords, find_feed_of_topic
from sessionlake.feeds.values import format_json
from sessionlake.protocol.arrow import concatenate_ranges, encode_as_codes, to_contiguous
from sessionlake.protocol.chunk import IGNORED, ChangeKind, Expectation, build_change_fields, build_chunk_schema
from sessionlake.protocol.columns import Column
from sessionlake.protocol.erased import ERASED_CODE as ERASED
from sessionlake.protocol.erased import decode_chain_places, find_erased_messages
from sessionlake.protocol.kafka_time import compute_latest_event_times, find_times_in_future
from sessionlake.protocol.message import INT64_MAX, NO_SEQ, Link, MessageType
from sessionlake.protocol.payload import Payload
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.types import Bools, Int8s, Int64s
from sessionlake.protocol.xxhash64 import compute_spark_xxhash64

_TYPES = {
    EventKind.SNAPSHOT.value: MessageType.SNAPSHOT.value,
    EventKind.UPDATE.value: MessageType.UPDATE.value,
    EventKind.HEARTBEAT.value: MessageType.HEARTBEAT.value,
    EventKind.END.value: MessageType.END.value,
    EventKind.IGNORE.value: MessageType.MALFORMED.value,
}


_NO_HEADERS: dict[str, bytes | None] = {}
_EXPECTED = {None: None, "present": Expectation.PRESENT, "absent": Expectation.ABSENT}


class DecodedParts(NamedTuple):
    """Decoded messages. A message has a part for each session that it concerns.

    Attributes:
        chunk: One row per part, ordered by message; its `clock` is the Kafka timestamp.
        message: Index of the raw message of each part.
        shard: Number of the shard of each part.
    """

    chunk: pa.Table
    message: Int64s
    shard: Int64s


@dataclass(frozen=True)
class FeedDecoder:
    """Decodes raw messages by the feeds of their topics.

    Attributes:
        feeds: The feeds; the first whose pattern matches a topic reads its messages.
        columns: The columns of all feeds.
        max_message_bytes: Longest value allowed.
        max_future_skew: In ms: how far an event time may be ahead of the message's Kafka timestamp, and a Kafka
            timestamp ahead of the time at which bronze read the message.
        shards: Number of shards.
        payload: The schemas of Avro and Protobuf; None if all feeds read JSON.
    """

    feeds: tuple[Feed, ...]
    columns: tuple[Column, ...]
    max_message_bytes: int
    max_future_skew: int
    shards: int
    payload: Payload | None = None

    @property
    def reads_headers(self) -> bool:
        """True if a feed reads the headers of Kafka messages."""
        return any(feed.reads_kafka_headers for feed in self.feeds)

    def decode(self, raw: pa.Table) -> DecodedParts:
        """Decodes messages.

        Args:
            raw: `topic string, partition int32, offset int64, kafka_ts int64 (ms), key binary, value binary,
                ingested_at int64 (ms, null if not known)`, and `headers` if a feed reads them.
        """
        raw = raw.combine_chunks()
        reasons, of_feed = self._classify_messages(raw)
        chunks, messages = [], []
        if len(erased := self._find_erased_of_chains(raw, reasons, of_feed)):
            chunk, message = _build_chunk_of_erased(raw, erased, self.columns)
            chunks.append(chunk)
            messages.append(message)
        for number, feed in enumerate(self.feeds):
            mine = np.flatnonzero((of_feed == number) & (reasons == 0))
            if not len(mine):
                continue
            lists = get_compiled_reader(feed, self.payload if feed.reads_avro_or_protobuf else None).read(
                select_records(raw, mine), max_bytes=self.max_message_bytes
            )
            for index, refusal in lists.refused.items():
                reasons[mine[index]] = CODE_OF[refusal.reason]
            self._drop_future_events(lists, raw, mine, reasons)
            if feed.has_sessions_sharing_seqs:
                _drop_repeated_chain_events(lists)
            ignored = np.ones(len(mine), np.bool_)
            ignored[lists.message] = False
            reasons[mine[ignored & (reasons[mine] == 0)]] = IGNORED
            own = mine[np.array(lists.message, np.int64)]
            chunks.append(_build_chunk_of_events(raw, own, lists, self.columns))
            messages.append(own)
        without = np.setdiff1d(np.flatnonzero(reasons), erased)
        chunks.append(_build_chunk_without_events(raw, without, reasons[without], self.columns))
        messages.append(without)
        message = np.concatenate(messages)
        chunk = pa.concat_tables(chunks)
        if (np.diff(message) < 0).any():
            order = np.argsort(message, kind="stable")
            chunk, message = chunk.take(pa.array(order)), message[order]
        chunk = chunk.combine_chunks()
        place = chunk.schema.get_field_index("part")
        part = np.arange(len(message)) - np.searchsorted(message, message)
        chunk = chunk.set_column(place, chunk.schema.field(place), pa.array(part.astype(np.int32)))
        return DecodedParts(chunk, message, self._compute_shards(chunk))

    def _classify_messages(self, raw: pa.Table) -> tuple[Int8s, Int64s]:
        """Returns per message: a reason code that is known without its value, or 0; the index of its feed, or -1."""
        code, names = encode_as_codes(raw["topic"])
        found = [find_feed_of_topic(self.feeds, name) for name in names.to_pylist()]
        numbers = np.array([-1 if feed is None else self.feeds.index(feed) for feed in found], np.int64)
        of_feed = numbers[code] if len(numbers) else code
        reasons = np.where(of_feed < 0, CODE_OF[Reason.NO_RULE], 0).astype(np.int8)
        ingested = pc.fill_null(raw["ingested_at"], INT64_MAX).to_numpy()
        reasons[find_times_in_future(raw["kafka_ts"].to_numpy(), ingested, self.max_future_skew)] = CODE_OF[
            Reason.FUTURE_KAFKA_TS
        ]
        reasons[find_erased_messages(raw["key"], raw["value"]).to_numpy()] = ERASED
        return reasons, of_feed

    def _find_erased_of_chains(self, raw: pa.Table, reasons: Int8s, of_feed: Int64s) -> Int64s:
        """Returns the indices of erased messages of feeds with chains, in which their places are kept."""
        if not (erased := np.flatnonzero(reasons == ERASED)).size:
            return erased
        has_chains = np.array([feed.has_sessions_sharing_seqs for feed in self.feeds])
        has_value = pc.is_valid(raw["value"]).to_numpy()[erased]
        return erased[has_chains[of_feed[erased]] & (of_feed[erased] >= 0) & has_value]

    def _drop_future_events(self, lists: EventLists, raw: pa.Table, indices: Int64s, reasons: Int8s) -> None:
        """Removes the events of messages with one too far ahead. `indices` has the row in `raw` of each message."""
        own = indices[np.array(lists.message, np.int64)]
        latest = compute_latest_event_times(raw["kafka_ts"].to_numpy(), self.max_future_skew)
        wrong = np.array(lists.ts, np.int64) > latest[own]
        if wrong.any():
            bad = np.unique(own[wrong])
            reasons[bad] = CODE_OF[Reason.FUTURE_TS]
            lists.keep_events((~np.isin(own, bad)).tolist())

    def _compute_shards(self, chunk: pa.Table) -> Int64s:
        """Returns the shard of each part.

        It depends on topic and session, on the topic alone if its sessions share chains, and on the offset if there is
        no session.
        """
        topic, topics = encode_as_codes(chunk["topic"])
        session, sessions = encode_as_codes(chunk["session_id"])
        shard = chunk["offset"].to_numpy() % self.shards
        names = [text.encode() for text in topics.to_pylist()]
        feeds = [find_feed_of_topic(self.feeds, name) for name in topics.to_pylist()]
        has_chains = np.array([feed is not None and feed.has_sessions_sharing_seqs for feed in feeds], np.bool_)
        of_topic = has_chains[topic] if len(topics) else np.zeros(0, np.bool_)
        if of_topic.any():
            shard[of_topic] = (compute_spark_xxhash64(names) % self.shards)[topic[of_topic]]
        known = (session >= 0) & ~of_topic
        pairs, number = np.unique(topic[known] * (len(sessions) + 1) + session[known], return_inverse=True)
        ids = [text.encode() for text in sessions.to_pylist()]
        hashes = compute_spark_xxhash64(
            [names[pair // (len(sessions) + 1)] for pair in pairs.tolist()],
            [ids[pair % (len(sessions) + 1)] for pair in pairs.tolist()],
        )
        shard[known] = (hashes % self.shards)[number.reshape(-1)]
        return shard


def _drop_repeated_chain_events(lists: EventLists) -> None:
    """Removes events that only advance a chain from messages that have another event in the same chain."""
    advanced = {
        (message, chain)
        for message, chain, kind in zip(lists.message, lists.chain, lists.kind, strict=True)
        if kind != EventKind.IGNORE.value
    }
    lists.keep_events(
        [
            kind != EventKind.IGNORE.value or (message, chain) not in advanced
            for message, chain, kind in zip(lists.message, lists.chain, lists.kind, strict=True)
        ]
    )


def select_records(raw: pa.Table, places: Int64s) -> KafkaRecords:
    """Returns the messages at some indices of a table with the columns that `FeedDecoder.decode` reads."""
    rows = raw if len(places) == raw.num_rows else raw.take(pa.array(places))
    codes, topics = encode_as_codes(rows["topic"])
    names = np.array(topics.to_pylist(), np.object_)
    partitions, offsets, clocks = (rows[name].to_numpy().tolist() for name in ("partition", "offset", "kafka_ts"))
    keys, values = (to_contiguous(rows[name]).to_numpy(zero_copy_only=False).tolist() for name in ("key", "value"))
    headers: list[Mapping[str, bytes | None]] = [_NO_HEADERS] * rows.num_rows
    if "headers" in rows.schema.names:
        headers = [{one["key"]: one["value"] for one in some or ()} for some in rows["headers"].to_pylist()]
    return KafkaRecords(names[codes].tolist(), partitions, offsets, clocks, keys, values, headers)


def _select_places(raw: pa.Table, message: Int64s) -> list[pa.Array]:
    """Returns topic, partition, offset and Kafka timestamp (ms) of the messages at some indices."""
    place = pa.array(message)
    return [
        to_contiguous(raw["topic"]).cast(pa.string()).take(place),
        *(to_contiguous(raw[name]).take(place) for name in ("partition", "offset", "kafka_ts")),
    ]


def _compute_value_sizes(raw: pa.Table, message: Int64s) -> pa.Array:
    return pc.fill_null(pc.binary_length(to_contiguous(raw["value"])).take(pa.array(message)), 0).cast(pa.int32())


def _build_chunk_without_events(
    raw: pa.Table, message: Int64s, reasons: Int8s, columns: tuple[Column, ...]
) -> pa.Table:
    """Returns a chunk with a row for each of some messages without events, given by their indices in `raw`."""
    count, heads = len(message), _select_places(raw, message)
    schema = build_chunk_schema(columns)
    arrays = {
        **dict(zip(("topic", "partition", "offset", "kafka_ts"), heads, strict=True)),
        "type": pa.array(np.full(count, MessageType.MALFORMED, np.int8)),
        "ts": pa.array(np.zeros(count, np.int64)),
        "reason": pa.array(reasons),
        "size": _compute_value_sizes(raw, message),
        "clock": heads[3],
        "link": pa.array(np.full(count, Link.INTERVAL, np.int8)),
        "changes": pa.array([[]] * count, schema.field("changes").type),
    }
    return pa.Table.from_arrays(
        [arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in schema], schema=schema
    )


def _build_chunk_of_events(raw: pa.Table, message: Int64s, lists: EventLists, columns: tuple[Column, ...]) -> pa.Table:
    """Returns a chunk with a row for each event in `lists`. `message` has the index in `raw` of its message."""
    count, heads = len(message), _select_places(raw, message)
    types = np.fromiter(map(_TYPES.__getitem__, lists.kind), np.int8, count)
    types[[number for number, scope in enumerate(lists.scope) if scope]] = MessageType.UPDATE
    link = np.where(lists.restart, Link.RESTART, np.where(lists.is_link, Link.LINK, Link.INTERVAL)).astype(np.int8)
    seq = [NO_SEQ if one is None else one for one in lists.seq]
    arrays = [
        *heads,
        pa.array(lists.session, pa.string(), mask=types == MessageType.MALFORMED),
        pa.array(types),
        pa.array(np.array(seq, np.int64), mask=np.array(seq, np.int64) == NO_SEQ),
        pa.array(lists.ts, pa.int64()),
        pa.array(np.where(types == MessageType.MALFORMED, IGNORED, 0).astype(np.int8)),
        _compute_value_sizes(raw, message),
        heads[3],
        pa.array(lists.after, pa.int64()),
        pa.array(link),
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.string())
        if _is_all_null(lists.sent)
        else pa.array([None if sent is None else format_json(sent) for sent in lists.sent], pa.string()),
        pa.array(lists.chain, pa.string()),
        _build_changes(types, lists, columns),
    ]
    return pa.Table.from_arrays(arrays, schema=build_chunk_schema(columns))


def _build_chunk_of_erased(raw: pa.Table, erased: Int64s, columns: tuple[Column, ...]) -> tuple[pa.Table, Int64s]:
    """Returns a row for each place in a chain that erased messages keep, and the index of its raw message."""
    lists = EventLists(())
    for number, value in zip(erased.tolist(), raw["value"].take(pa.array(erased)).to_pylist(), strict=True):
        for place in decode_chain_places(value):
            kind = EventKind.HEARTBEAT if place.is_heartbeat else EventKind.IGNORE
            event = SessionEvent("", kind, 0, place.seq, place.after, place.is_link, place.chain, place.restart)
            lists.add_event(number, event)
    message = np.array(lists.message, np.int64)
    chunk = _build_chunk_of_events(raw, message, lists, columns)
    for name, value in (("session_id", None), ("reason", ERASED)):
        index = chunk.schema.get_field_index(name)
        field = chunk.schema.field(index)
        chunk = chunk.set_column(index, field, pa.array([value] * len(message), field.type))
    return chunk, message


def _build_changes(types: Int8s, lists: EventLists, columns: tuple[Column, ...]) -> pa.ListArray:
    """Returns the list column of changes: for each event a clear (snapshots only), then its rows in order.

    The clear of a snapshot with a scope has the values of the scope.
    """
    scopes = [scope for scope in lists.scope if scope]
    scoped = np.array(list(map(bool, lists.scope)), np.bool_)
    cleared = ((types == MessageType.SNAPSHOT) | scoped).astype(np.int64)
    n_rows = np.array(lists.rows, np.int64)
    sizes = cleared + n_rows
    starts = np.cumsum(sizes) - sizes
    total, of_rows = int(sizes.sum()), concatenate_ranges(starts + cleared, n_rows)
    deletes = np.array([*lists.deletes, *[False] * len(scopes)], np.bool_)
    kind = np.full(total, ChangeKind.CLEAR, np.int8)
    kind[of_rows] = np.where(deletes[: len(of_rows)], ChangeKind.DELETE, ChangeKind.UPSERT)
    # Index of each change among the rows, behind which the scopes follow; -1 for a clear without a scope.
    source = np.full(total, -1, np.int64)
    source[of_rows] = np.arange(len(of_rows))
    source[starts[scoped]] = len(of_rows) + np.arange(len(scopes))
    place = pa.array(source, mask=source < 0)
    sets_all = np.append(
        np.repeat(cleared == 1, n_rows) & ~_find_repeated_rows(lists, n_rows), np.zeros(len(scopes), np.bool_)
    )
    values, flags = [], []
    of_column = dict(zip(lists.columns, lists.values, strict=True))
    for column in columns:
        cells = of_column.get(column.name)
        if cells is not None and scopes:
            cells = [*cells, *(scope.get(column.name, MISSING) for scope in scopes)]
        taken, flag = _build_column(cells, column, deletes, sets_all)
        values.append(taken.take(place))
        flags.append(pa.array(np.append(flag, False)[source]))
    none = [None] * len(scopes)
    fields = [
        pa.array(kind),
        pa.array((np.arange(total) - np.repeat(starts, sizes)).astype(np.int32)),
        pa.array([*lists.row_id, *none], pa.string()).take(place),
        pa.array([*lists.rescued, *none], pa.string()).take(place),
        pa.nulls(total, pa.int8())
        if _is_all_null(lists.expect)
        else pa.array([*(_EXPECTED[one] for one in lists.expect), *none], pa.int8()).take(place),
        *values,
        *flags,
    ]
    struct = pa.StructArray.from_arrays(fields, fields=list(build_change_fields(columns)))
    return pa.ListArray.from_arrays(pa.array(np.append(starts, total).astype(np.int32)), struct)


def _find_repeated_rows(lists: EventLists, n_rows: Int64s) -> Bools:
    """Returns a boolean for each row: True if an earlier row of its event has the same id, or if the row is deleted."""
    codes = pa.array(lists.row_id, pa.string()).dictionary_encode().indices.to_numpy().astype(np.int64)
    keys = np.repeat(np.arange(len(n_rows)), n_rows) * (int(codes.max(initial=0)) + 1) + codes
    _, first = np.unique(keys, return_index=True)
    found = np.ones(len(keys), np.bool_)
    found[first] = False
    return found | np.array(lists.deletes, np.bool_)


def _build_column(cells: list[Any] | None, column: Column, deletes: Bools, sets_all: Bools) -> tuple[pa.Array, Bools]:
    """Returns a column's values in all rows, and for each row whether the message set it.

    A snapshot sets every column: an absent one is null. A deleted row sets none.

    Args:
        cells: The values, `MISSING` in rows without the column; None if the feed does not have the column.
        column: The column.
        deletes: True for deleted rows.
        sets_all: True for rows of snapshots that are the first with their id.
    """
    if cells is None:
        return pa.nulls(len(deletes), column.arrow), sets_all
    flag = ~deletes
    if MISSING in cells or deletes.any():
        flag &= np.fromiter((cell is not MISSING for cell in cells), np.bool_, len(cells))
        cells = [None if gone or cell is MISSING else cell for cell, gone in zip(cells, deletes.tolist(), strict=True)]
    if pa.types.is_decimal(column.arrow) and any(type(cell) is str for cell in cells):
        texts = [cell if cell is None or type(cell) is str else str(cell) for cell in cells]
        return pa.array(texts, pa.string()).cast(column.arrow), flag | sets_all
    if pa.types.is_timestamp(column.arrow) and any(type(cell) is int for cell in cells):
        micros = pa.array([_to_microseconds(cell) for cell in cells], pa.int64())
        return micros.cast(column.arrow), flag | sets_all
    if column.sql == "float":
        return pa.array(cells, pa.float64()).cast(pa.float32(), safe=False), flag | sets_all
    return pa.array(cells, column.arrow), flag | sets_all


def _is_all_null(values: list[Any]) -> bool:
    return values.count(None) == len(values)


def _to_microseconds(cell: Any) -> int | None:
    """Returns a timestamp as microseconds since 1970; a number is that already."""
    if cell is None or type(cell) is int:
        return cell
    return (cell.replace(tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
