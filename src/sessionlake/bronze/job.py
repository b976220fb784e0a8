"""The bronze job that reads Kafka: writes raw messages to `bronze.messages` once each, and checks their offsets.

Other sources than Kafka are read by `bronze.streamed`. The query's restarts are in `bronze.query`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.bronze.batch_ranges import (
    list_planned_ranges,
    read_planned_offsets,
    read_stored_ranges_of_batch,
)
from sessionlake.bronze.compare import OFFSET_COLUMNS
from sessionlake.bronze.gaps import record_transaction_gaps
from sessionlake.bronze.offsets import wait_for_planned_batch_files
from sessionlake.bronze.polls import choose_max_bytes_per_poll
from sessionlake.bronze.query import BronzeQuery, QueryStartPlan
from sessionlake.bronze.silences import SilenceWriter
from sessionlake.bronze.subscription import build_topic_pattern
from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.bronze.unreadable import build_unreadable_message_error
from sessionlake.delta.commit import commit_staged_rows, make_delta_skip_transaction
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, ERASURES, LEDGER, MESSAGES, RETAINED, TOPICS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import DataLossError, SessionlakeError
from sessionlake.kafka.clients import build_spark_source_options, require_reachable_broker
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput, hash_settings_of_layers
from sessionlake.ledger.erasures import ErasureReceipt, erase_forgotten_messages, read_erasure_receipts_to_apply
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.ledger.topics import read_topics, select_latest_generations
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import Rows
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint
from sessionlake.streaming.generations import CheckpointGeneration, CheckpointGenerations
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.losses import refuse_lost_tables
from sessionlake.streaming.manifest import forget_message_that_stopped_layer
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

LAYER = BRONZE

_IN_MEMORY_BYTES = 128 * 1024 * 1024
"""Limit for reading a batch into memory, in bytes of messages. The JVM has about three copies of each byte."""


def start_kafka_job(
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> LayerQuery:
    """Starts the bronze job, which copies messages from Kafka to `bronze.messages`.

    Args:
        spark: The session that runs the query.
        settings: The configuration.
        once: If true, the query stops after it has read what Kafka holds now.
        on_batch: Called with the ledger entry of every committed batch.
        on_wait: Called with a text for the operator when the query starts to wait for Kafka and when it resumes.

    Raises:
        BrokerError: Kafka does not answer at the start. A running query waits for Kafka instead.
        LakeError: The checkpoint is new but the tables are not.
        DataLossError: The checkpoint is not new but a table is gone, or `ops.topics` lacks a known topic.
        TopicChangedError: A topic was deleted, created again or cut, and `kafka.on_topic_change` is `fail`.
    """
    lake = Lake(settings)
    _create_bronze_tables(spark, lake)
    topic_register, erasure_receipts = TopicRegister(spark, lake, settings), read_erasure_receipts_to_apply(lake, spark)
    silences = SilenceWriter(spark, lake, settings, topic_register)
    return BronzeQuery(
        LAYER,
        CheckpointGenerations(settings.checkpoint_path(LAYER), LAYER),
        topic_register,
        source=lambda start: (
            _read_kafka_stream(spark, settings, start, topic_register, erasure_receipts),
            _BronzeBatchWriter(lake, settings, topic_register, silences, start.generation, on_batch),
        ),
        record_planned=lambda generation: _record_last_batch(spark, lake, settings, generation),
        reject_planned=lambda generation: _reject_last_planned_batch(spark, lake, generation),
        trigger=settings.bronze.trigger,
        once=once,
        on_wait=on_wait or (lambda _: None),
        find_unreadable=lambda why, source: build_unreadable_message_error(
            spark, settings, why, source, topic_register.offset_shifts
        ),
    ).start_query()


def _create_bronze_tables(spark: SparkSession, lake: Lake) -> None:
    """Creates bronze's tables if they do not exist. Raises LakeError if the checkpoint does not fit them."""
    settings = lake.settings
    refuse_interrupted_operations(settings, LAYER)
    require_reachable_broker(settings)
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES, TOPICS])
    lake.create_or_update_tables(spark, [MESSAGES, LEDGER, TOPICS])
    refuse_new_checkpoint_over_data(spark, lake, settings, LAYER)


def _read_kafka_stream(
    spark: SparkSession,
    settings: Settings,
    start: QueryStartPlan,
    topic_register: TopicRegister,
    erasure_receipts: Sequence[ErasureReceipt],
) -> DataFrame:
    stream = (
        spark.readStream.format("kafka")
        .options(**build_spark_source_options(settings, choose_max_bytes_per_poll(start.generation, topic_register)))
        .option("subscribePattern", build_topic_pattern(settings.kafka.topic_pattern, start.excluded_topics))
        .option("startingOffsets", start.starting_offsets)
        .option("failOnDataLoss", "true")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", settings.bronze.max_offsets_per_trigger)
        .load()
    )
    return erase_forgotten_messages(convert_to_bronze_columns(stream, topic_register.offset_shifts), erasure_receipts)


def convert_to_bronze_columns(messages: DataFrame, offset_shifts: Mapping[str, int]) -> DataFrame:
    """Converts rows of Spark's Kafka source to the columns of `bronze.messages`.

    Args:
        messages: Rows of Spark's Kafka source.
        offset_shifts: Number to add to Kafka's offsets of a topic, by its name. Topics with a shift of 0 may be absent.
    """
    from pyspark.sql import functions as F

    offset = F.col("offset")
    if offset_shifts:
        by_topic = F.create_map(*(F.lit(item) for pair in offset_shifts.items() for item in pair))
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


class _BronzeBatchWriter:
    """Commits bronze's micro-batches from one start of the query to its end: first the messages, then the ledger row.

    Args:
        lake: The lake of bronze.
        settings: The configuration.
        topic_register: State, ids and offsets of bronze's topics.
        silences: Finds silent topic-partitions and writes silences.
        generation: Generation of the checkpoint that the query uses.
        on_batch: Called with the ledger entry of every committed batch; None to call nothing.
    """

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        topic_register: TopicRegister,
        silences: SilenceWriter,
        generation: CheckpointGeneration,
        on_batch: Callable[[LedgerEntry], None] | None,
    ) -> None:
        self._lake = lake
        self._ledger = Ledger(lake)
        self._settings = settings
        self._book = topic_register
        self._silences = silences
        self._generation = generation
        self._shifts = topic_register.offset_shifts
        self._on_batch = on_batch
        self._log: OffsetLog | None = None
        self._commit_lock = threading.Lock()
        self._retired = False
        self._is_resumption_noted = False

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        with self._commit_lock:
            if self._retired:
                raise SessionlakeError(
                    "bronze: its query was restarted, and the new query repeats this batch. Nothing is lost"
                )
            self._commit_batch(rows, txn)

    def write_silences_if_due(self, *, at_end: bool = False) -> None:
        """Writes to bronze which topic-partitions have had no message for long, if the next check is due.

        Args:
            at_end: If true, the query has ended, and a check is always due.
        """
        if self._silences.is_silence_check_due() or at_end:
            silences = self._silences.find_silences()
            with self._commit_lock:
                if not self._retired:
                    self._silences.write_silences(silences)

    def reject_later_batches(self) -> None:
        """Waits until the current batch is committed. From then on, batches of the stopped query raise an error."""
        with self._commit_lock:
            self._retired = True

    def _commit_batch(self, rows: DataFrame, txn: Txn) -> None:
        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        wait_for_planned_batch_files(self._generation.folder, self._generation.to_spark_batch_id(txn.version))
        planned = read_planned_offsets(self._generation, txn.version, self._shifts)
        topics = {topic for topic, _ in planned}
        other_versions = read_forget_and_retention_versions(spark, lake) if self._log is None else ()
        self._log = self._log or OffsetLog.load_from_ledger(spark, lake, LAYER, txn)
        before = lake.latest_version(spark, MESSAGES)
        expected = sum(end - first for first, end in planned.values())
        with (
            disable_code_generation(spark, enabled=expected <= lake.driver_limits.few_messages),
            lake.storage.stage_rows(spark, MESSAGES, self._load_batch_rows(rows, expected)) as staged,
        ):
            self._book.record_topics_of_batch(
                topics
            )  # after the rows were read, and before any of them is in the table
            if staged.count_rows() != expected and not self._settings.kafka.allow_offset_gaps:
                record_transaction_gaps(spark, lake, planned, staged.read_columns(*OFFSET_COLUMNS), self._shifts, txn)
            commit = commit_staged_rows(lake, MESSAGES, staged, txn)
        is_first_write = commit.version == before + 1 and commit.rows == expected
        ranges = list_planned_ranges(planned) if is_first_write else read_stored_ranges_of_batch(spark, lake, planned)
        self._log.require_consecutive_ranges(ranges, allow_gaps=self._settings.kafka.allow_offset_gaps, layer=LAYER)
        others = (*self._book.take_topics_output_for_ledger(), *other_versions)
        entry = build_bronze_ledger_entry(self._settings, txn, ranges, commit.version, started, other_outputs=others)
        self._ledger.write_entry(spark, entry)
        self._log.record_committed_ranges(ranges)
        # The silences come first: another thread that sees the new position must also see the time of its last message.
        self._silences.remember_read_offsets(ranges)
        self._book.remember_read_offsets(list_planned_ranges(planned))  # offsets without a message count as read, too
        if not self._is_resumption_noted:
            forget_message_that_stopped_layer(self._settings, LAYER)
            self._is_resumption_noted = True
        if self._on_batch:
            self._on_batch(entry)

    def _load_batch_rows(self, rows: DataFrame, expected_count: int) -> Rows:
        """Returns the batch's rows: an Arrow table if they are few and small, else a Spark frame.

        All rows are read before the commit. Only then it is known whether a topic was created again during the read.
        Rows that are already in the table could not be removed, because silver may have read them.

        Args:
            rows: The batch's rows.
            expected_count: Number of offsets that Spark planned for the batch.
        """
        if expected_count <= self._lake.driver_limits.few_messages:
            read = _read_rows_if_small(rows, _IN_MEMORY_BYTES // max(expected_count, 1))
            if read is not None:
                return read
        # One file per core: a task per topic-partition would write one tiny file each.
        return rows.coalesce(rows.sparkSession.sparkContext.defaultParallelism)


def _read_rows_if_small(rows: DataFrame, max_row_bytes: int) -> pa.Table | None:
    """Reads the rows into memory; returns None if one of them has more than `max_row_bytes` bytes.

    The key, value and headers of a row that is too large are never read into memory.
    """
    from pyspark.sql import functions as F

    def add_bytes_of_header(total: Column, header: Column) -> Column:
        return total + F.length(header["key"]) + F.coalesce(F.length(header["value"]), F.lit(0))

    headers = F.when(F.col("headers").isNotNull(), F.aggregate("headers", F.lit(0), add_bytes_of_header))
    size = sum((F.coalesce(part, F.lit(0)) for part in (F.length("key"), F.length("value"), headers)), F.lit(0))
    is_small = size <= max_row_bytes
    kept = {name: F.when(is_small, F.col(name)) for name in ("key", "value", "headers")}
    read = rows.withColumn("is_small", is_small).withColumns(kept).toArrow()
    return read.drop_columns("is_small") if pc.all(read["is_small"]).as_py() is not False else None


def _record_last_batch(spark: SparkSession, lake: Lake, settings: Settings, generation: CheckpointGeneration) -> bool:
    """Returns True if the messages of the last planned batch are in `bronze.messages`.

    Writes its ledger row if that is missing.

    A crash between the commit of the messages and that of the ledger row leaves a batch without its row.

    Args:
        spark: The session to read and write with.
        lake: The lake of bronze.
        settings: The configuration.
        generation: Generation of the checkpoint that has the batch.

    Raises:
        DataLossError: The ledger has later batches of this checkpoint.
        OffsetHoleError: The batch in the table does not start where the previous one ended.
    """
    if generation.app_id is None:
        return False
    recorded, batch = refuse_outdated_checkpoint(spark, lake, generation), generation.last_planned_batch
    if batch is None or recorded == batch:
        return batch is not None
    shifts = {topic: row.offset_shift for topic, row in select_latest_generations(read_topics(spark, lake)).items()}
    ranges = read_stored_ranges_of_batch(spark, lake, read_planned_offsets(generation, batch, shifts))
    if not ranges:
        return False
    txn = Txn(generation.app_id, batch)
    log = OffsetLog.load_from_ledger(spark, lake, LAYER, txn)
    log.require_consecutive_ranges(ranges, allow_gaps=settings.kafka.allow_offset_gaps, layer=LAYER)
    version = lake.latest_version(spark, MESSAGES)
    Ledger(lake).write_entry(spark, build_bronze_ledger_entry(settings, txn, ranges, version, datetime.now(UTC)))
    return True


def refuse_outdated_checkpoint(spark: SparkSession, lake: Lake, generation: CheckpointGeneration) -> int | None:
    """Checks that the ledger has no batch that is later than the last one in the checkpoint.

    Returns:
        The number of the last batch of this query in the ledger; None if it has none.

    Raises:
        DataLossError: The ledger has such a batch: the checkpoint is older than the tables.
    """
    recorded = read_last_batch_number(lake.reader(spark), LAYER, generation.app_id)
    if recorded is not None and recorded >= generation.next_batch:
        raise DataLossError(
            f"The next batch of the checkpoint {generation.folder} is {generation.next_batch}, but the tables already "
            f"hold batches up to {recorded}",
            why="The checkpoint is older than the tables, for example restored from a backup, so bronze "
            "would read messages a second time",
            fix=build_checkpoint_recovery_hint(LAYER),
        )
    return recorded


def _reject_last_planned_batch(spark: SparkSession, lake: Lake, generation: CheckpointGeneration) -> None:
    """Makes `bronze.messages` reject the last planned batch, because its messages are planned again in another batch.

    A process that has lost its lease may still have the batch in memory and try to commit it. If the generation has no
    batch yet, the last batch of the previous generation is rejected.
    """
    last = generation.next_batch - 1
    if generation.app_id is not None and last >= 0 and lake.storage.get_fencing_token(LAYER):
        make_delta_skip_transaction(spark, lake, [MESSAGES], Txn(generation.app_id, last))


def read_forget_and_retention_versions(spark: SparkSession, lake: Lake) -> tuple[TableOutput, ...]:
    """Returns the current versions of `bronze.erasures` and `ops.retained`, which `forget` and retention write.

    The first ledger entry after a start records them, so that an older copy of these tables is noticed later.
    """
    existing = (table for table in (ERASURES, RETAINED) if lake.exists(spark, table))
    return tuple(TableOutput(table, lake.latest_version(spark, table), 0) for table in existing)


def build_bronze_ledger_entry(
    settings: Settings,
    txn: Txn,
    ranges: tuple[OffsetRange, ...],
    table_version: int,
    started_at: datetime,
    *,
    source: str = "kafka",
    other_outputs: tuple[TableOutput, ...] = (),
) -> LedgerEntry:
    """Returns the ledger entry of one of bronze's batches.

    Args:
        settings: The configuration.
        txn: The batch's transaction.
        ranges: The offsets that the batch added to `bronze.messages`.
        table_version: Version of `bronze.messages` that the batch created.
        started_at: Wall-clock time at which the batch started.
        source: Name of the source that was read.
        other_outputs: Versions of further tables to record in the entry.
    """
    messages = sum(item.messages for item in ranges)
    return LedgerEntry(
        layer=LAYER,
        txn=txn,
        source=source,
        started_at=started_at,
        offsets=ranges,
        outputs=(TableOutput(MESSAGES, table_version, messages), *other_outputs),
        messages=messages,
        applied=messages,
        config_hash=hash_settings_of_layers(settings),
    )
