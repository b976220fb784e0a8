"""Finds the messages of a session in a lake with feeds, where the session's id is inside the messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.session_rows import MessageRows
from sessionlake.errors import UsageError
from sessionlake.feeds.chunks import FeedDecoder
from sessionlake.ledger.entries import OffsetRange
from sessionlake.silver.fold.pack import BRONZE_COLUMNS, convert_times_to_milliseconds
from sessionlake.streaming.payloads import build_feed_decoder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FOUND = pa.schema([("partition", pa.int32()), ("offset", pa.int64()), ("others", pa.list_(pa.string()))])
_FOUND_DDL = "partition int, offset bigint, others array<string>"
_SHOWN = 5


@dataclass(frozen=True)
class _MessageFinder:
    """A `mapInArrow` function: takes rows of `bronze.messages`, and yields a row for each message of a session.

    Attributes:
        decoder: Decodes the messages.
        session: Id of the session.
    """

    decoder: FeedDecoder
    session: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            raw = convert_times_to_milliseconds(pa.Table.from_batches([batch]))
            parts = self.decoder.decode(raw)
            sessions: dict[int, list[str]] = {}
            for message, session in zip(parts.message.tolist(), parts.chunk["session_id"].to_pylist(), strict=True):
                sessions.setdefault(message, []).append(session)
            own = [message for message, ids in sessions.items() if self.session in ids]
            found = [raw[name].take(pa.array(own, pa.int64())).combine_chunks() for name in ("partition", "offset")]
            others = [sorted({one for one in sessions[message] if one != self.session}) for message in own]
            yield pa.RecordBatch.from_arrays([*found, pa.array(others, _FOUND.field("others").type)], schema=_FOUND)


def find_messages(spark: SparkSession, lake: Lake, topic: str, session_id: str) -> pa.Table:
    """Returns a row for each message of a session in bronze.

    Its columns are `partition`, `offset` and `others`: the ids of other sessions in the same message.

    All messages of the topic are decoded. Erased and unreadable messages have no session, so they are never returned.

    Raises:
        ValueError: The configuration has no feeds. The Kafka key is the session's id then.
    """
    from pyspark.sql import functions as F

    decoder = build_feed_decoder(lake.settings.capture, 1)
    if decoder is None:
        raise ValueError("without feeds, the Kafka key is the session's id")
    columns = (*BRONZE_COLUMNS, "headers") if decoder.reads_headers else BRONZE_COLUMNS
    rows = lake.read(spark, MESSAGES).where(F.col("topic") == topic).select(*columns)
    return rows.mapInArrow(_MessageFinder(decoder, session_id), _FOUND_DDL).toArrow()


def refuse_shared_messages(spark: SparkSession, lake: Lake, topic: str, session_id: str) -> None:
    """Checks that no message of a session has other sessions, too: they would lose its content with the session.

    Raises:
        UsageError: A message has several sessions. The text names some of them.
    """
    shared = [row for row in find_messages(spark, lake, topic, session_id).to_pylist() if row["others"]]
    if not shared:
        return
    others = sorted({other for row in shared for other in row["others"]})
    more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
    first = shared[0]
    raise UsageError(
        f"forget: {len(shared)} messages of session {session_id!r} have rows of other sessions too "
        f"({', '.join(map(repr, others[:_SHOWN]))}{more}); the first is at partition "
        f"{first['partition']}, offset {first['offset']} of topic {topic}",
        why="Bronze erases whole messages, so these other sessions would lose data. Nothing was changed",
        fix="Let retention remove the topic's old messages (`retention` in the configuration), or "
        "change the producer to send one session per message",
    )


def find_message_ranges(spark: SparkSession, lake: Lake, topic: str, session_id: str) -> list[OffsetRange]:
    """Returns for each partition the first and last offset of the session's messages in bronze, and their number."""
    found = find_messages(spark, lake, topic, session_id)
    grouped = found.group_by("partition").aggregate([("offset", name) for name in ("min", "max", "count")])
    rows = sorted(grouped.to_pylist(), key=lambda row: row["partition"])
    return [OffsetRange(topic, r["partition"], r["offset_min"], r["offset_max"], r["offset_count"]) for r in rows]


def select_messages(spark: SparkSession, lake: Lake, topic: str, session_id: str) -> MessageRows:
    """Returns the selection of the session's messages in bronze."""
    found = find_messages(spark, lake, topic, session_id)
    return MessageRows(topic, session_id, places=found.select(["partition", "offset"]).combine_chunks())
