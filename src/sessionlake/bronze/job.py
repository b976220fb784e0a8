"""Kafka to `bronze.messages`: raw, every message exactly once, offsets accounted for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.bronze.compare import OFFSET
from sessionlake.bronze.gaps import explain_gaps
from sessionlake.bronze.offsets import planned_ranges, wait_until_seen
from sessionlake.bronze.polls import polled_bytes
from sessionlake.bronze.query import BronzeQuery, Start
from sessionlake.bronze.silences import Silences
from sessionlake.bronze.subscription import pattern
from sessionlake.bronze.topic_book import TopicBook
from sessionlake.bronze.unreadable import explain_unreadable
from sessionlake.delta.commit import fence_off, stage_append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, ERASURES, LEDGER, MESSAGES, RETAINED, TOPICS
from sessionlake.delta.storage.offset_ranges import offsets_condition
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LossError, SessionlakeError
from sessionlake.kafka.clients import (
    require_broker,
    spark_source_options,
)
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput, config_hash
from sessionlake.ledger.erasures import Erasure, erase_forgotten, read_receipts
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import last_batch
from sessionlake.ledger.silences import without_silences
from sessionlake.ledger.topics import latest_generations, read_topics
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import Rows
from sessionlake.spark.interpreted import interpreted
from sessionlake.streaming.checkpoint import way_on
from sessionlake.streaming.generations import Generation, Generations
from sessionlake.streaming.guards import refuse_fresh_checkpoint
from sessionlake.streaming.journal import require_uninterrupted
from sessionlake.streaming.losses import refuse_lost_tables
from sessionlake.streaming.manifest import note_going_on
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LAYER = BRONZE

_FEW_BYTES = 128 * 1024 * 1024
"""Of a batch's messages, as many are read into memory: the JVM holds them about three times."""
Planned = dict[TopicPartition, tuple[int, int]]


def start(
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> LayerQuery:
    """Starts the bronze job.

    Args:
        once: read what Kafka holds now, then end.
        on_batch: told of every batch that is committed.
        on_wait: told when the query waits for Kafka, and when it goes on.

    Raises:
        BrokerError: Kafka does not answer. Once the query runs, it is waited for.
        LakeError: the checkpoint is new and the tables are not.
        LossError: it is the other way round, or what is known of a topic is gone.
        TopicChangedError: a topic was deleted, created anew or cut, and the rule is `fail`.
    """
    lake = Lake(settings)
    _prepare(spark, lake)
    book, forgotten = TopicBook(spark, lake, settings), read_receipts(lake.reader(spark))
    silences = Silences(spark, lake, settings, book)
    return BronzeQuery(
        LAYER,
        Generations(settings.checkpoint(LAYER), LAYER),
        book,
        source=lambda start: (
            _source(spark, settings, start, book, forgotten),
            _BronzeBatch(lake, settings, book, silences, start.generation, on_batch),
        ),
        settle=lambda generation: _settle(spark, lake, settings, generation),
        give_up=lambda generation: _give_up(spark, lake, generation),
        trigger=settings.bronze.trigger,
        once=once,
        on_wait=on_wait or (lambda _: None),
        locate=lambda error, generation: explain_unreadable(spark, settings, error, generation, book.shifts),
    ).begin()


def _prepare(spark: SparkSession, lake: Lake) -> None:
    """Creates bronze's tables, if it may go on in the lake; see `start`."""
    settings = lake.settings
    require_uninterrupted(settings, LAYER)
    require_broker(settings)
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES, TOPICS])
    lake.ensure(spark, [MESSAGES, LEDGER, TOPICS])
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)


def _source(
    spark: SparkSession, settings: Settings, start: Start, book: TopicBook, forgotten: Sequence[Erasure]
) -> DataFrame:
    stream = (
        spark.readStream.format("kafka")
        .options(**spark_source_options(settings, polled_bytes(start.generation, book)))
        .option("subscribePattern", pattern(settings.kafka.topic_pattern, start.left_out))
        .option("startingOffsets", start.starting_offsets)
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", settings.bronze.max_offsets_per_trigger)
        .load()
    )
    return erase_forgotten(as_stored(stream, book.shifts), forgotten)


def as_stored(messages: DataFrame, shifts: Mapping[str, int]) -> DataFrame:
    """Messages of Spark's Kafka source as `bronze.messages` has them.

    Args:
        shifts: what to add to the offsets, of topics where it is not 0.
    """
    from pyspark.sql import functions as F

    offset = F.col("offset")
    if shifts:
        by_topic = F.create_map(*(F.lit(item) for pair in shifts.items() for item in pair))
        offset = offset + F.coalesce(by_topic[F.col("topic")], F.lit(0))
    return messages.select(
        "topic",
        "partition",
        offset.alias("offset"),
        "timestamp",
        F.col("timestampType").alias("timestamp_type"),
        "key",
        "value",
        "headers",
        F.current_timestamp().alias("ingested_at"),
    )


class _BronzeBatch:
    """Commits one micro-batch: the messages, then the ledger row."""

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        book: TopicBook,
        silences: Silences,
        generation: Generation,
        on_batch: Callable[[LedgerEntry], None] | None,
    ) -> None:
        self._lake = lake
        self._ledger = Ledger(lake)
        self._settings = settings
        self._book = book
        self._silences = silences
        self._generation = generation
        self._shifts = book.shifts
        self._on_batch = on_batch
        self._log: OffsetLog | None = None
        self._busy = threading.Lock()
        self._retired = False
        self._has_gone_on = False

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        with self._busy:
            if self._retired:
                raise SessionlakeError("bronze: the query was started anew before this batch")
            self._commit(rows, txn)

    def note_silences(self, *, at_end: bool = False) -> None:
        """Notes which topic-partitions are silent, if it is time to look; see `Batches`."""
        if self._silences.is_time() or at_end:
            found = self._silences.found()
            with self._busy:
                if not self._retired:
                    self._silences.write(found)

    def retire(self) -> None:
        """Waits for a batch under way; refuses those that come later."""
        with self._busy:
            self._retired = True

    def _commit(self, rows: DataFrame, txn: Txn) -> None:
        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        wait_until_seen(self._generation.folder, self._generation.batch_id(txn.version))
        planned = _planned(self._generation, txn.version, self._shifts)
        topics = {topic for topic, _ in planned}
        beside = versions_beside(spark, lake) if self._log is None else ()
        self._log = self._log or OffsetLog.load(spark, lake, LAYER, txn)
        before = lake.latest_version(spark, MESSAGES)
        expected = sum(end - first for first, end in planned.values())
        with (
            interpreted(spark, when=expected <= lake.limits.few_messages),
            stage_append(spark, lake, MESSAGES, self._read(rows, expected), txn) as written,
        ):
            self._book.admit(topics)  # behind the reading, and before the table has any of it
            if written.count() != expected and not self._settings.kafka.allow_offset_gaps:
                explain_gaps(spark, lake, planned, written.columns(*OFFSET), self._shifts, txn)
        commit = lake.last_commit(spark, MESSAGES)
        whole = commit.version == before + 1 and commit.rows == expected
        ranges = _ranges(planned) if whole else counted(spark, lake, planned)
        gaps = self._settings.kafka.allow_offset_gaps
        self._log.check(ranges, allow_gaps=gaps, layer=LAYER)
        others = (*self._book.unnoted(), *beside)
        entry = entry_of(self._settings, txn, ranges, commit.version, started, others=others)
        self._ledger.write(spark, entry)
        self._log.advance(ranges)
        self._silences.advance(ranges)  # first: who finds how far it is read knows by then when that was
        self._book.advance(_ranges(planned))  # offsets without a message are read, too
        if not self._has_gone_on:
            note_going_on(self._settings, LAYER)
            self._has_gone_on = True
        if self._on_batch:
            self._on_batch(entry)

    def _read(self, rows: DataFrame, expected: int) -> Rows:
        """The batch's rows: in memory if they are few and small, else to be read where they are written down.

        A topic made anew while a batch is read is noticed only behind the reading, and what is in the table by then
        cannot be taken back: silver may have read it. So rows are written down before they become part of the table.
        """
        if expected <= self._lake.limits.few_messages:
            read = _if_small(rows, _FEW_BYTES // max(expected, 1))
            if read is not None:
                return read
        # As few files as cores: one task a topic-partition would write one tiny file each.
        return rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)


def _if_small(rows: DataFrame, limit: int) -> pa.Table | None:
    """The rows, read into memory; None if one of them has more bytes than `limit`.

    How large a message is, Kafka does not say before it is decompressed: a large one is left behind as it is read.
    """
    from pyspark.sql import functions as F

    def with_header(total: Column, header: Column) -> Column:
        return total + F.length(header["key"]) + F.coalesce(F.length(header["value"]), F.lit(0))

    headers = F.when(F.col("headers").isNotNull(), F.aggregate("headers", F.lit(0), with_header))
    size = sum((F.coalesce(part, F.lit(0)) for part in (F.length("key"), F.length("value"), headers)), F.lit(0))
    is_small = size <= limit
    kept = {name: F.when(is_small, F.col(name)) for name in ("key", "value", "headers")}
    read = rows.withColumn("is_small", is_small).withColumns(kept).toArrow()
    return read.drop_columns("is_small") if pc.all(read["is_small"]).as_py() is not False else None


def _settle(spark: SparkSession, lake: Lake, settings: Settings, generation: Generation) -> bool:
    """Gives the last batch its ledger row if it is in the table and died before that; whether it is in the table.

    Raises:
        LossError: the ledger knows later batches of this checkpoint.
        OffsetHoleError: the batch in the table does not go on where the one before it ended.
    """
    if generation.app_id is None:
        return False
    recorded, batch = require_as_new(spark, lake, generation), generation.newest
    if batch is None or recorded == batch:
        return batch is not None
    shifts = {topic: row.offset_shift for topic, row in latest_generations(read_topics(spark, lake)).items()}
    ranges = counted(spark, lake, _planned(generation, batch, shifts))
    if not ranges:
        return False
    txn = Txn(generation.app_id, batch)
    log = OffsetLog.load(spark, lake, LAYER, txn)
    log.check(ranges, allow_gaps=settings.kafka.allow_offset_gaps, layer=LAYER)
    version = lake.latest_version(spark, MESSAGES)
    Ledger(lake).write(spark, entry_of(settings, txn, ranges, version, datetime.now(UTC)))
    return True


def require_as_new(spark: SparkSession, lake: Lake, generation: Generation) -> int | None:
    """The last batch of the query that the ledger knows.

    Raises:
        LossError: it is later than all that the checkpoint knows.
    """
    recorded = last_batch(lake.reader(spark), LAYER, generation.app_id)
    if recorded is not None and recorded >= generation.next_batch:
        raise LossError(
            f"the checkpoint {generation.folder} goes on with batch {generation.next_batch}, the tables hold batches "
            f"up to {recorded}: it is older than they are",
            fix=way_on(LAYER),
        )
    return recorded


def _give_up(spark: SparkSession, lake: Lake, generation: Generation) -> None:
    """Sees to it that the last planned batch never comes into the tables: its messages are planned anew.

    A process from which bronze was taken over may have it at hand. Where a generation has none yet, that is the last
    one of the generation before.
    """
    last = generation.next_batch - 1
    if generation.app_id is not None and last >= 0 and lake.storage.token(LAYER):
        fence_off(spark, lake, [MESSAGES], Txn(generation.app_id, last))


def _planned(generation: Generation, batch: int, shifts: Mapping[str, int]) -> Planned:
    """Offsets `[first, end)` that the batch adds to the table, by topic and partition."""
    read = planned_ranges(generation.folder, generation.batch_id(batch))
    return {
        (topic, partition): (first + shifts.get(topic, 0), end + shifts.get(topic, 0))
        for (topic, partition), (first, end) in read.items()
    }


def counted(spark: SparkSession, lake: Lake, planned: Planned) -> tuple[OffsetRange, ...]:
    """Ranges by what the table holds: after a replay, or where some offsets have no message.

    Each ends at its last message, where every layer that reads the table comes to, too.
    """
    from pyspark.sql import functions as F

    asked = {place: (first, end - 1) for place, (first, end) in planned.items()}
    held = lake.read(spark, MESSAGES).where(offsets_condition(asked)).groupBy("topic", "partition")
    rows = held.agg(F.max("offset"), F.count("*")).collect() if asked else []
    return tuple(
        OffsetRange(topic, partition, asked[topic, partition][0], last, messages)
        for topic, partition, last, messages in sorted(rows)
    )


def ranges_behind(spark: SparkSession, lake: Lake, ends: Mapping[TopicPartition, int]) -> tuple[OffsetRange, ...]:
    """What the table holds behind the last offset of each topic-partition, whatever tells of it elsewhere."""
    from pyspark.sql import functions as F

    known = spark.createDataFrame(
        [(*place, end) for place, end in ends.items()], "topic string, partition int, end long"
    )
    rows = without_silences(lake.read(spark, MESSAGES)).join(F.broadcast(known), ["topic", "partition"], "left")
    later = rows.where("end IS NULL OR offset > end").groupBy("topic", "partition")
    found = later.agg(F.min("offset"), F.max("offset"), F.count("*")).collect()
    return tuple(OffsetRange(*row) for row in sorted(found))


def _ranges(planned: Planned) -> tuple[OffsetRange, ...]:
    return tuple(
        OffsetRange(topic, partition, first, end - 1, end - first)
        for (topic, partition), (first, end) in planned.items()
    )


def versions_beside(spark: SparkSession, lake: Lake) -> tuple[TableOutput, ...]:
    """The versions of tables that others write: the first entry of a start tells them, so a copy of before is known."""
    there = (table for table in (ERASURES, RETAINED) if lake.exists(spark, table))
    return tuple(TableOutput(table, lake.latest_version(spark, table), 0) for table in there)


def entry_of(
    settings: Settings,
    txn: Txn,
    ranges: tuple[OffsetRange, ...],
    version: int,
    started: datetime,
    *,
    source: str = "kafka",
    others: tuple[TableOutput, ...] = (),
) -> LedgerEntry:
    """What the ledger says of messages taken in.

    Args:
        version: of the table, with them.
        others: tables whose versions it tells, beside that one's.
    """
    messages = sum(item.messages for item in ranges)
    return LedgerEntry(
        layer=LAYER,
        txn=txn,
        source=source,
        started_at=started,
        offsets=ranges,
        outputs=(TableOutput(MESSAGES, version, messages), *others),
        messages=messages,
        applied=messages,
        config_hash=config_hash(settings),
    )
