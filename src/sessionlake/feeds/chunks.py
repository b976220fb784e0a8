"""Decodes raw messages by feeds into a chunk, which has one row for each part of a message.

A message that concerns one session has one part. A message without events, because it is malformed, erased or ignored,
has one part without changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.changes_column import build_changes_column, is_all_null
from sessionlake.feeds.compiled import get_compiled_feed_reader
from sessionlake.feeds.events import SessionEvent
from sessionlake.feeds.feed import EventKind, Feed
from sessionlake.feeds.lists import ColumnarEvents
from sessionlake.feeds.reader import KafkaRecordColumns, find_feed_of_topic
from sessionlake.feeds.values import format_json
from sessionlake.protocol.arrow import convert_to_contiguous_array, encode_values_as_codes
from sessionlake.protocol.chunk import IGNORED, build_chunk_schema
from sessionlake.protocol.columns import Column
from sessionlake.protocol.erased import ERASED_CODE as ERASED
from sessionlake.protocol.erased import decode_chain_places, find_placeholders_of_erased_messages
from sessionlake.protocol.kafka_time import compute_latest_event_times, find_kafka_times_in_future
from sessionlake.protocol.message import INT64_MAX, NO_SEQ, MessageType, SeqLink
from sessionlake.protocol.payload import PayloadFormatAndSchemas
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.types import Int8s, Int64s
from sessionlake.protocol.xxhash64 import compute_spark_xxhash64

_TYPES = {
    EventKind.SNAPSHOT.value: MessageType.SNAPSHOT.value,
    EventKind.UPDATE.value: MessageType.UPDATE.value,
    EventKind.HEARTBEAT.value: MessageType.HEARTBEAT.value,
    EventKind.END.value: MessageType.END.value,
    EventKind.IGNORE.value: MessageType.MALFORMED.value,
}


_NO_HEADERS: dict[str, bytes | None] = {}


class DecodedMessageParts(NamedTuple):
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
    payload: PayloadFormatAndSchemas | None = None

    @property
    def reads_kafka_headers(self) -> bool:
        """True if a feed reads the headers of Kafka messages."""
        return any(feed.reads_kafka_headers for feed in self.feeds)

    def decode(self, raw: pa.Table) -> DecodedMessageParts:
        """Decodes messages.

        Args:
            raw: `topic string, partition int32, offset int64, kafka_ts int64 (ms), key binary, value binary,
                ingested_at int64 (ms, null if not known)`, and `headers` if a feed reads them.
        """
        raw = raw.combine_chunks()
        reasons, of_feed = self._find_early_reasons_and_feeds(raw)
        chunks, messages = [], []
        if len(erased := self._find_erased_messages_with_seqs(raw, reasons, of_feed)):
            chunk, message = _build_chunk_of_erased_messages(raw, erased, self.columns)
            chunks.append(chunk)
            messages.append(message)
        for number, feed in enumerate(self.feeds):
            mine = np.flatnonzero((of_feed == number) & (reasons == 0))
            if not len(mine):
                continue
            lists = get_compiled_feed_reader(feed, self.payload if feed.reads_avro_or_protobuf else None).read_records(
                select_kafka_records(raw, mine), max_bytes=self.max_message_bytes
            )
            for index, refusal in lists.refused.items():
                reasons[mine[index]] = CODE_OF[refusal.reason]
            self._refuse_messages_with_future_events(lists, raw, mine, reasons)
            if feed.has_sessions_sharing_seqs:
                _drop_redundant_ignored_events(lists)
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
        return DecodedMessageParts(chunk, message, self._compute_shards(chunk))

    def _find_early_reasons_and_feeds(self, raw: pa.Table) -> tuple[Int8s, Int64s]:
        """Returns per message: a reason code that is known without its value, or 0; the index of its feed, or -1."""
        code, names = encode_values_as_codes(raw["topic"])
        found = [find_feed_of_topic(self.feeds, name) for name in names.to_pylist()]
        numbers = np.array([-1 if feed is None else self.feeds.index(feed) for feed in found], np.int64)
        of_feed = numbers[code] if len(numbers) else code
        reasons = np.where(of_feed < 0, CODE_OF[Reason.NO_RULE], 0).astype(np.int8)
        ingested = pc.fill_null(raw["ingested_at"], INT64_MAX).to_numpy()
        reasons[find_kafka_times_in_future(raw["kafka_ts"].to_numpy(), ingested, self.max_future_skew)] = CODE_OF[
            Reason.FUTURE_KAFKA_TS
        ]
        reasons[find_placeholders_of_erased_messages(raw["key"], raw["value"]).to_numpy()] = ERASED
        return reasons, of_feed

    def _find_erased_messages_with_seqs(self, raw: pa.Table, reasons: Int8s, of_feed: Int64s) -> Int64s:
        """Returns the indices of erased messages of feeds with chains, in which their places are kept."""
        if not (erased := np.flatnonzero(reasons == ERASED)).size:
            return erased
        has_chains = np.array([feed.has_sessions_sharing_seqs for feed in self.feeds])
        has_value = pc.is_valid(raw["value"]).to_numpy()[erased]
        return erased[has_chains[of_feed[erased]] & (of_feed[erased] >= 0) & has_value]

    def _refuse_messages_with_future_events(
        self, events: ColumnarEvents, raw: pa.Table, message_indices: Int64s, reasons: Int8s
    ) -> None:
        """Refuses messages that have an event too far ahead, and removes their events.

        `message_indices` has the row in `raw` of each message.
        """
        own = message_indices[np.array(events.message, np.int64)]
        latest = compute_latest_event_times(raw["kafka_ts"].to_numpy(), self.max_future_skew)
        wrong = np.array(events.ts, np.int64) > latest[own]
        if wrong.any():
            bad = np.unique(own[wrong])
            reasons[bad] = CODE_OF[Reason.FUTURE_TS]
            events.keep_only_events((~np.isin(own, bad)).tolist())

    def _compute_shards(self, chunk: pa.Table) -> Int64s:
        """Returns the shard of each part.

        It depends on topic and session, on the topic alone if its sessions share chains, and on the offset if there is
        no session.
        """
        topic, topics = encode_values_as_codes(chunk["topic"])
        session, sessions = encode_values_as_codes(chunk["session_id"])
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


def _drop_redundant_ignored_events(events: ColumnarEvents) -> None:
    """Removes events that only advance a chain from messages that have another event in the same chain."""
    advanced = {
        (message, chain)
        for message, chain, kind in zip(events.message, events.chain, events.kind, strict=True)
        if kind != EventKind.IGNORE.value
    }
    events.keep_only_events(
        [
            kind != EventKind.IGNORE.value or (message, chain) not in advanced
            for message, chain, kind in zip(events.message, events.chain, events.kind, strict=True)
        ]
    )


def select_kafka_records(raw: pa.Table, message_indices: Int64s) -> KafkaRecordColumns:
    """Returns the messages at some indices of a table with the columns that `FeedDecoder.decode` reads."""
    rows = raw if len(message_indices) == raw.num_rows else raw.take(pa.array(message_indices))
    codes, topics = encode_values_as_codes(rows["topic"])
    names = np.array(topics.to_pylist(), np.object_)
    partitions, offsets, clocks = (rows[name].to_numpy().tolist() for name in ("partition", "offset", "kafka_ts"))
    keys, values = (
        convert_to_contiguous_array(rows[name]).to_numpy(zero_copy_only=False).tolist() for name in ("key", "value")
    )
    headers: list[Mapping[str, bytes | None]] = [_NO_HEADERS] * rows.num_rows
    if "headers" in rows.schema.names:
        headers = [{one["key"]: one["value"] for one in some or ()} for some in rows["headers"].to_pylist()]
    return KafkaRecordColumns(names[codes].tolist(), partitions, offsets, clocks, keys, values, headers)


def _select_topic_offset_and_time_columns(raw: pa.Table, message_indices: Int64s) -> list[pa.Array]:
    """Returns topic, partition, offset and Kafka timestamp (ms) of the messages at some indices."""
    place = pa.array(message_indices)
    return [
        convert_to_contiguous_array(raw["topic"]).cast(pa.string()).take(place),
        *(convert_to_contiguous_array(raw[name]).take(place) for name in ("partition", "offset", "kafka_ts")),
    ]


def _compute_value_sizes(raw: pa.Table, message_indices: Int64s) -> pa.Array:
    return pc.fill_null(
        pc.binary_length(convert_to_contiguous_array(raw["value"])).take(pa.array(message_indices)), 0
    ).cast(pa.int32())


def _build_chunk_without_events(
    raw: pa.Table, message_indices: Int64s, reasons: Int8s, columns: tuple[Column, ...]
) -> pa.Table:
    """Returns a chunk with a row for each of some messages without events, given by their indices in `raw`."""
    count, heads = len(message_indices), _select_topic_offset_and_time_columns(raw, message_indices)
    schema = build_chunk_schema(columns)
    arrays = {
        **dict(zip(("topic", "partition", "offset", "kafka_ts"), heads, strict=True)),
        "type": pa.array(np.full(count, MessageType.MALFORMED, np.int8)),
        "ts": pa.array(np.zeros(count, np.int64)),
        "reason": pa.array(reasons),
        "size": _compute_value_sizes(raw, message_indices),
        "clock": heads[3],
        "link": pa.array(np.full(count, SeqLink.INTERVAL, np.int8)),
        "changes": pa.array([[]] * count, schema.field("changes").type),
    }
    return pa.Table.from_arrays(
        [arrays[field.name] if field.name in arrays else pa.nulls(count, field.type) for field in schema], schema=schema
    )


def _build_chunk_of_events(
    raw: pa.Table, message_indices: Int64s, events: ColumnarEvents, columns: tuple[Column, ...]
) -> pa.Table:
    """Returns a chunk with a row for each event. `message_indices` has the index in `raw` of each event's message."""
    count, heads = len(message_indices), _select_topic_offset_and_time_columns(raw, message_indices)
    types = np.fromiter(map(_TYPES.__getitem__, events.kind), np.int8, count)
    types[[number for number, scope in enumerate(events.scope) if scope]] = MessageType.UPDATE
    link = np.where(
        events.restart,
        SeqLink.RESTART,
        np.where(events.is_link, SeqLink.LINK, SeqLink.INTERVAL),
    ).astype(np.int8)
    seq = [NO_SEQ if one is None else one for one in events.seq]
    arrays = [
        *heads,
        pa.array(events.session, pa.string(), mask=types == MessageType.MALFORMED),
        pa.array(types),
        pa.array(np.array(seq, np.int64), mask=np.array(seq, np.int64) == NO_SEQ),
        pa.array(events.ts, pa.int64()),
        pa.array(np.where(types == MessageType.MALFORMED, IGNORED, 0).astype(np.int8)),
        _compute_value_sizes(raw, message_indices),
        heads[3],
        pa.array(events.after, pa.int64()),
        pa.array(link),
        pa.nulls(count, pa.int32()),
        pa.nulls(count, pa.string())
        if is_all_null(events.sent)
        else pa.array([None if sent is None else format_json(sent) for sent in events.sent], pa.string()),
        pa.array(events.chain, pa.string()),
        build_changes_column(types, events, columns),
    ]
    return pa.Table.from_arrays(arrays, schema=build_chunk_schema(columns))


def _build_chunk_of_erased_messages(
    raw: pa.Table, message_indices: Int64s, columns: tuple[Column, ...]
) -> tuple[pa.Table, Int64s]:
    """Returns a row for each place in a chain that erased messages keep, and the index of its raw message."""
    lists = ColumnarEvents(())
    for number, value in zip(
        message_indices.tolist(), raw["value"].take(pa.array(message_indices)).to_pylist(), strict=True
    ):
        for place in decode_chain_places(value):
            kind = EventKind.HEARTBEAT if place.is_heartbeat else EventKind.IGNORE
            event = SessionEvent("", kind, 0, place.seq, place.after, place.is_link, place.chain, place.restart)
            lists.add_event_without_rows(number, event)
    message = np.array(lists.message, np.int64)
    chunk = _build_chunk_of_events(raw, message, lists, columns)
    for name, value in (("session_id", None), ("reason", ERASED)):
        index = chunk.schema.get_field_index(name)
        field = chunk.schema.field(index)
        chunk = chunk.set_column(index, field, pa.array([value] * len(message), field.type))
    return chunk, message
