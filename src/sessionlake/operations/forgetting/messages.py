"""Finds the messages of a session in a lake with feeds, where the session's id is inside the messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.session_rows import SessionMessageSelection
from sessionlake.errors import UsageError
from sessionlake.ledger.entries import OffsetRange
from sessionlake.operations.forgetting.eraser import SessionEraser
from sessionlake.silver.fold.pack import list_bronze_columns
from sessionlake.streaming.payloads import build_feed_decoder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FOUND = pa.schema(
    [("partition", pa.int32()), ("offset", pa.int64()), ("is_shared", pa.bool_()), ("refused", pa.string())]
)
_FOUND_DDL = "partition int, offset bigint, is_shared boolean, refused string"
_ERASED_DDL = "topic string, partition int, offset bigint, value binary, is_shared boolean"
_ERASED = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("value", pa.binary()),
        ("is_shared", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class _SessionMessageFinder:
    """A `mapInArrow` function: takes rows of `bronze.messages`, and yields a row for each message of a session.

    Attributes:
        eraser: Erases the session.
        tries: True to try to erase each message, so that `refused` says why that is not possible.
    """

    eraser: SessionEraser
    tries: bool

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            own, is_shared = self.eraser.find_messages_of_session(batch)
            refused = self.eraser.erase_session_in_messages(batch.take(pa.array(own))).refused if self.tries else {}
            yield pa.RecordBatch.from_arrays(
                [
                    *(batch.column(name).take(pa.array(own)) for name in ("partition", "offset")),
                    pa.array(is_shared, pa.bool_()),
                    pa.array([refused.get(number) for number in range(len(own))], pa.string()),
                ],
                schema=_FOUND,
            )


@dataclass(frozen=True)
class SessionMessageEraser:
    """Erases a session in its messages: a `delta.storage.session_rows.EraseMessages`.

    Attributes:
        eraser: Erases the session.
    """

    eraser: SessionEraser

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of `bronze.messages` that are needed."""
        return list_bronze_columns(self.eraser.decoder)

    def erase_messages(self, messages: pa.RecordBatch) -> pa.RecordBatch:
        """Returns place, new value and `is_shared` of each message. All messages must be of the session."""
        erased = self.eraser.erase_session_in_messages(messages.select(list(self.columns)))
        if erased.refused or len(erased.message) != messages.num_rows:
            raise ValueError(f"messages that could be erased before: {erased.refused}")
        places = (messages.column(name) for name in ("topic", "partition", "offset"))
        values = pa.array(erased.value, pa.binary()), pa.array(erased.is_shared, pa.bool_())
        return pa.RecordBatch.from_arrays([*places, *values], schema=_ERASED)

    def erase_messages_in_spark_frame(self, messages: DataFrame) -> DataFrame:
        """Does the same for a Spark frame of messages."""
        return messages.select(*self.columns).mapInArrow(self._erase_batches, _ERASED_DDL)

    def _erase_batches(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(self.erase_messages, batches)


def _build_session_eraser(lake: Lake, session_id: str) -> SessionEraser:
    decoder = build_feed_decoder(lake.settings.capture, 1)
    if decoder is None:
        raise ValueError("without feeds, the Kafka key is the session's id")
    return SessionEraser(decoder, session_id)


def find_session_messages_in_bronze(
    spark: SparkSession, lake: Lake, topic: str, session_id: str, *, tries_erasing: bool = False
) -> pa.Table:
    """Returns partition and offset of each message of a session, and under `is_shared` whether it has others, too.

    All messages of the topic are decoded. Erased messages, and those that cannot be read, have no session.

    Args:
        tries_erasing: True to find out under `refused` why a message cannot be erased; null if it can.
    """
    from pyspark.sql import functions as F

    eraser = _build_session_eraser(lake, session_id)
    rows = lake.read(spark, MESSAGES).where(F.col("topic") == topic).select(*SessionMessageEraser(eraser).columns)
    return rows.mapInArrow(_SessionMessageFinder(eraser, tries_erasing), _FOUND_DDL).toArrow()


def refuse_inseparable_messages(spark: SparkSession, lake: Lake, topic: str, session_id: str) -> None:
    """Checks that the session can be erased in all its messages without a loss for other sessions.

    Raises:
        UsageError: From a message with several sessions, this one cannot be removed. The text says why.
    """
    found = find_session_messages_in_bronze(spark, lake, topic, session_id, tries_erasing=True)
    refused = found.filter(pc.is_valid(found["refused"])).sort_by([("partition", "ascending"), ("offset", "ascending")])
    if not refused.num_rows:
        return
    first = refused.slice(0, 1).to_pylist()[0]
    raise UsageError(
        f"forget: {refused.num_rows} messages of session {session_id!r} also have other sessions, and this one cannot "
        f"be removed from them. The first is at partition {first['partition']}, offset {first['offset']} of topic "
        f"{topic}: {first['refused']}",
        why="Without the whole message, the other sessions would lose data. Nothing was changed",
        fix="Let retention remove the topic's old messages (`retention` in the configuration), or have the producer "
        "send one session per message",
    )


def find_message_offset_ranges_of_session(
    spark: SparkSession, lake: Lake, topic: str, session_id: str
) -> list[OffsetRange]:
    """Returns for each partition the first and last offset of the session's messages in bronze, and their number."""
    found = find_session_messages_in_bronze(spark, lake, topic, session_id)
    grouped = found.group_by("partition").aggregate([("offset", name) for name in ("min", "max", "count")])
    rows = sorted(grouped.to_pylist(), key=lambda row: row["partition"])
    return [OffsetRange(topic, r["partition"], r["offset_min"], r["offset_max"], r["offset_count"]) for r in rows]


def select_session_messages_in_bronze(
    spark: SparkSession, lake: Lake, topic: str, session_id: str
) -> SessionMessageSelection:
    """Returns the selection of the session's messages in bronze."""
    found = find_session_messages_in_bronze(spark, lake, topic, session_id)
    places = found.select(["partition", "offset"]).combine_chunks()
    return SessionMessageSelection(
        topic, session_id, places=places, eraser=SessionMessageEraser(_build_session_eraser(lake, session_id))
    )
