"""Packs the raw messages of one Spark task, before the shuffle: decodes and splits them into one chunk per shard.

It also sends every shard the timestamps and silences in the task's messages, as segments of offsets. From these the
shard computes stream time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.errors import add_failure_location_note
from sessionlake.feeds.chunks import FeedDecoder
from sessionlake.integrity.clock import (
    EarlierStreamTimes,
    OffsetSegments,
    encode_offset_segments,
    split_messages_into_offset_segments,
)
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.protocol.arrow import convert_timestamps_to_milliseconds, encode_values_as_codes
from sessionlake.protocol.chunk import encode_compressed_ipc
from sessionlake.protocol.decode import MessageDecodingRules, decode_messages_to_chunk, find_future_timestamps
from sessionlake.protocol.kafka_time import replace_times_not_counted
from sessionlake.protocol.silence import Silence, decode_silences
from sessionlake.protocol.types import Int64s

# Number of messages that are decoded at once: enough to fill an IPC stream for each shard, and few enough for memory.
BLOCK_MESSAGES = 262_144
BLOCK_BYTES = 64 * 1024 * 1024
# The error about a block names at most this many topic-partitions.
_MAX_NAMED_PARTITIONS = 3
RAW_ARROW_SCHEMA = pa.schema(
    [
        ("shard", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ingested_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""What `ShardMessagePacker` reads: the shard of each message, and the columns `BRONZE_COLUMNS`."""
BRONZE_COLUMNS = tuple(RAW_ARROW_SCHEMA.names[1:])
"""The columns of `bronze.messages` that silver reads. It also reads `headers` if a feed needs them."""
PACKED_ARROW_SCHEMA = pa.schema([("shard", pa.int32()), ("chunk", pa.binary())])


def list_bronze_columns(feeds: FeedDecoder | None) -> tuple[str, ...]:
    """Returns the columns of `bronze.messages` that decoding reads: with `headers` if a feed reads them."""
    return (*BRONZE_COLUMNS, "headers") if feeds and feeds.reads_kafka_headers else BRONZE_COLUMNS


@dataclass(frozen=True)
class ShardMessagePacker:
    """A function for `mapInArrow` that decodes raw messages and packs them by shard: `shard int, chunk binary`.

    Its input has the columns `shard int32` and `bronze_columns`. A row without a topic has silences instead of a
    message. With feeds, the shard is not the input's: it depends on the sessions in the messages.
    """

    rules: MessageDecodingRules
    shard_count: int
    feeds: FeedDecoder | None = None
    """Decodes messages by feeds; None if all messages have the form of sessionlake."""
    topic_pattern: str = ".*"
    """Pattern of whole topic names; messages of other topics are skipped."""
    earlier_times: EarlierStreamTimes = field(default_factory=StreamTimesAtBatchEnds)
    """Looks up stream times from before the batch; by default there are none, as for a first batch."""
    extra_silences: tuple[Silence, ...] = ()
    """Silences of the batch that are not in its rows."""

    @property
    def bronze_columns(self) -> tuple[str, ...]:
        """The columns of `bronze.messages` that the packer reads."""
        return list_bronze_columns(self.feeds)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the packed messages of a Spark task, in blocks of limited size."""
        block: list[pa.RecordBatch] = []
        messages = size = 0
        for batch in self._select_topics(batches):
            block.append(batch)
            messages += batch.num_rows
            size += batch.nbytes
            if messages >= BLOCK_MESSAGES or size >= BLOCK_BYTES:
                yield self.pack_message_block(pa.Table.from_batches(block))
                block, messages, size = [], 0, 0
        if messages:
            yield self.pack_message_block(pa.Table.from_batches(block))

    def _select_topics(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yields the batches without messages of topics that `topic_pattern` does not match."""
        if self.topic_pattern == ".*":
            yield from batches
            return
        for batch in batches:
            names = batch.column("topic").unique()
            wanted = [name for name in names.to_pylist() if name is None or self._matches_topic(name)]
            selected = batch.filter(pc.is_in(batch.column("topic"), value_set=pa.array(wanted, names.type)))
            if selected.num_rows:
                yield selected

    def _matches_topic(self, topic: str) -> bool:
        return re.fullmatch(self.topic_pattern, topic) is not None

    def pack_message_block(self, raw_messages: pa.Table) -> pa.RecordBatch:
        """Packs one block of messages: a chunk for each shard with messages.

        Its errors name the messages of the block.
        """
        try:
            return self._decode_and_pack(raw_messages)
        except Exception as error:
            add_failure_location_note(error, _describe_block(raw_messages))
            raise

    def _decode_and_pack(self, raw_messages: pa.Table) -> pa.RecordBatch:
        silences, raw_messages = self._separate_silences(raw_messages)
        if self.feeds is None:
            raw_messages = raw_messages.take(pa.array(np.argsort(raw_messages["shard"].to_numpy(), kind="stable")))
        raw_messages = convert_times_to_milliseconds(raw_messages.combine_chunks())
        timestamps = replace_times_not_counted(
            raw_messages["kafka_ts"].to_numpy(), find_future_timestamps(raw_messages, self.rules)
        )
        segments, clock = _build_segments(raw_messages, timestamps, self.earlier_times, silences)
        if self.feeds is None:
            chunk, shards = decode_messages_to_chunk(raw_messages, self.rules), raw_messages["shard"].to_numpy()
        else:
            chunk, message, shards = self.feeds.decode(raw_messages)
            order = np.argsort(shards, kind="stable")
            chunk, shards, clock = chunk.take(pa.array(order)), shards[order], clock[message[order]]
        place = chunk.schema.get_field_index("clock")
        chunk = chunk.set_column(place, chunk.schema.field(place), pa.array(clock))
        starts = np.flatnonzero(np.diff(shards, prepend=-1))
        ends = np.append(starts[1:], len(shards))[: len(starts)]
        packed = [
            encode_compressed_ipc(chunk.slice(a, b - a)) for a, b in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        numbers = np.concatenate([shards[starts], np.arange(self.shard_count)])
        payloads = [*packed, *[encode_offset_segments(segments)] * self.shard_count]
        return pa.record_batch(
            [pa.array(numbers, pa.int32()), pa.array(payloads, pa.binary())], schema=PACKED_ARROW_SCHEMA
        )

    def _separate_silences(self, rows: pa.Table) -> tuple[list[Silence], pa.Table]:
        """Returns the silences of these rows and of `extra_silences`, and the rows that are messages."""
        silences = [*self.extra_silences]
        if rows["topic"].null_count:
            silences += decode_silences(rows.filter(rows["topic"].is_null())["value"].to_pylist())
            rows = rows.filter(rows["topic"].is_valid())
        return [silence for silence in silences if self._matches_topic(silence.topic)], rows


def _describe_block(raw_messages: pa.Table) -> str:
    """Returns the first and last offset of the first topic-partitions in a block, as text for an error."""
    raw_messages = raw_messages.filter(raw_messages["topic"].is_valid())
    ranges = raw_messages.group_by(["topic", "partition"], use_threads=False).aggregate(
        [("offset", "min"), ("offset", "max")]
    )
    rows = sorted(
        ranges.select(["topic", "partition", "offset_min", "offset_max"]).to_pylist(), key=_get_partition_sort_key
    )
    named = [
        f"topic {row['topic']}, partition {row['partition']}, offsets {row['offset_min']} to {row['offset_max']}"
        for row in rows[:_MAX_NAMED_PARTITIONS]
    ]
    return "; ".join(named) + (
        f"; {len(rows) - _MAX_NAMED_PARTITIONS} more" if len(rows) > _MAX_NAMED_PARTITIONS else ""
    )


def _get_partition_sort_key(row: dict[str, Any]) -> tuple[str, int]:
    return row["topic"], row["partition"]


def convert_times_to_milliseconds(raw_messages: pa.Table) -> pa.Table:
    """Converts the timestamps in rows of `bronze.messages` to ms since 1970.

    The column `timestamp` becomes `kafka_ts`.
    """
    for name, now in (("timestamp", "kafka_ts"), ("ingested_at", "ingested_at")):
        raw_messages = raw_messages.set_column(
            raw_messages.schema.get_field_index(name), now, convert_timestamps_to_milliseconds(raw_messages[name])
        )
    return raw_messages


def _build_segments(
    chunk: pa.Table, timestamps: Int64s, earlier_times: EarlierStreamTimes, silences: Sequence[Silence]
) -> tuple[OffsetSegments, Int64s]:
    """Cuts messages into segments of consecutive offsets.

    Returns them, and the highest timestamp in them at each message.
    """
    topic, topics = encode_values_as_codes(chunk["topic"])
    width = int(chunk["partition"].to_numpy().max(initial=0)) + 1
    lanes, lane = np.unique(topic * width + chunk["partition"].to_numpy(), return_inverse=True)
    names = [(topics[code // width].as_py(), code % width) for code in lanes.tolist()]
    return split_messages_into_offset_segments(
        lane.reshape(-1), names, chunk["offset"].to_numpy(), timestamps, earlier_times, silences
    )
