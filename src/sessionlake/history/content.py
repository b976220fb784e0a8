"""Decodes one message of bronze with the current configuration, to show what it says and why it cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.storage.far_times import convert_time_to_ms
from sessionlake.feeds.events import DecodedMessage, MessageRefusal
from sessionlake.feeds.payload import PayloadReader
from sessionlake.feeds.reader import KafkaRecord, find_feed_of_topic, read_record
from sessionlake.history.fate import MessageContent
from sessionlake.protocol.arrow import HEADERS
from sessionlake.protocol.chunk import IGNORED
from sessionlake.protocol.decode import decode_messages_to_chunk
from sessionlake.protocol.erased import ERASED_CODE as ERASED
from sessionlake.protocol.message import MessageType
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings
from sessionlake.streaming.payloads import build_feed_decoder, build_message_decode_rules, read_feeds_payload_format

_RAW = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("kafka_ts", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("ingested_at", pa.int64()),
        ("headers", HEADERS),
    ]
)
READ = ("topic", "partition", "offset", "timestamp", "key", "value", "ingested_at", "headers")
"""Columns of `bronze.messages` from which a message is decoded."""


@dataclass(frozen=True)
class FeedReadingExplanation:
    """How a feed reads a message: by which rules, or why it refuses the message.

    Attributes:
        feed: Name of the feed.
        rules: Numbers of the rules that read the message or its parts; empty if a decoder class reads it.
        path: Path of the value for which the message is refused; None if it is not refused.
        why: Why it is refused, with the value; None if it is not refused.
    """

    feed: str
    rules: tuple[int, ...] = ()
    path: str | None = None
    why: str | None = None


def decode_message_parts(bronze_row: Row, settings: Settings) -> list[MessageContent]:
    """Returns the content of a row of `bronze.messages`, as one item for each session that the message concerns.

    A message in the form of sessionlake has one item.

    Args:
        bronze_row: The row, with the columns in `READ`.
        settings: The configuration.
    """
    ingested = None if bronze_row["ingested_at"] is None else convert_time_to_ms(bronze_row["ingested_at"])
    row = bronze_row | {"kafka_ts": convert_time_to_ms(bronze_row["timestamp"]), "ingested_at": ingested}
    table, feeds = pa.Table.from_pylist([row], _RAW), build_feed_decoder(settings.capture, 1)
    rules = build_message_decode_rules(settings.capture)
    chunk = (
        decode_messages_to_chunk(table.drop_columns("headers"), rules) if feeds is None else feeds.decode(table).chunk
    )
    return list(_convert_decoded_chunk_to_contents(chunk))


def decode_first_message_part(bronze_row: Row, settings: Settings) -> MessageContent:
    """Returns the content of a row of `bronze.messages`; if the message concerns several sessions, for the first."""
    return decode_message_parts(bronze_row, settings)[0]


def _convert_decoded_chunk_to_contents(chunk: pa.Table) -> Iterator[MessageContent]:
    counts = pc.list_value_length(chunk["changes"]).to_pylist()
    for message, changes in zip(chunk.drop_columns("changes").to_pylist(), counts, strict=True):
        if message["reason"]:
            ignored, erased = message["reason"] == IGNORED, message["reason"] == ERASED
            yield MessageContent(session_id=message["session_id"], erased=erased, ignored=ignored)
            continue
        kind = MessageType(message["type"]).name.lower()
        seq = message["seq"] if message["seq"] is not None and message["seq"] >= 0 else None
        yield MessageContent(kind, seq, message["ts"], message["session_id"], changes)


def explain_how_feed_reads_message(bronze_row: Row, settings: Settings) -> FeedReadingExplanation | None:
    """Returns how a row of `bronze.messages` is read by the feed of its topic; None if the topic has no feed."""
    capture = settings.capture
    feed = find_feed_of_topic([feed.build() for feed in capture.feeds], bronze_row["topic"])
    if feed is None:
        return None
    headers = {header["key"]: header["value"] for header in bronze_row["headers"] or ()}
    place = (
        bronze_row["topic"],
        bronze_row["partition"],
        bronze_row["offset"],
        convert_time_to_ms(bronze_row["timestamp"]),
        bronze_row["key"],
        bronze_row["value"],
    )
    payload = read_feeds_payload_format(capture)
    found = read_record(
        feed,
        KafkaRecord(*place, headers),
        max_bytes=capture.max_message_bytes,
        payload=None if payload is None else PayloadReader(payload),
    )
    if isinstance(found, MessageRefusal):
        return FeedReadingExplanation(feed.name, path=found.path, why=found.why)
    assert isinstance(found, DecodedMessage)  # noqa: S101 - the only other type
    return FeedReadingExplanation(feed.name, found.rules)
