"""Publishes a table to Kafka: all its rows first, then its changes, version by version."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER
from sessionlake.delta.schemas.properties import CHANGE_FEED
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, DataLossError, LakeError, MachineSetupError
from sessionlake.kafka.clients import build_spark_kafka_options, require_reachable_broker
from sessionlake.ledger.entries import Ledger, LedgerEntry, hash_settings_of_layers
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.protocol.names import quote
from sessionlake.protocol.upserts import CHANGE, DDL, DELETE, FEED, VERSION, UpsertMessageEncoder
from sessionlake.publish.failures import PublishQuery
from sessionlake.publish.publishable import require_publishable
from sessionlake.publish.topic import BATCH_BYTES, prepare_topic, require_allowed_topic_name
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import apply_to_batches
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming.checkpoint import require_readable_checkpoint
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.source_columns import find_changed_source_column, is_checkpoint_ahead_of_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PREIMAGE = "update_preimage"
_MAX_MESSAGE_BYTES = 64 << 20
_PRODUCER = {
    # Retries neither repeat nor reorder messages within a partition, and therefore within a key.
    "kafka.enable.idempotence": "true",
    "kafka.acks": "all",
    "kafka.batch.size": str(BATCH_BYTES),
    # The topic's own limit decides how large a message may be.
    "kafka.max.request.size": str(_MAX_MESSAGE_BYTES),
    "kafka.buffer.memory": str(_MAX_MESSAGE_BYTES),
}


@dataclass(frozen=True)
class Publication:
    """A table, named with its schema, and the Kafka topic to which it is published."""

    table: str
    topic: str

    @property
    def layer(self) -> str:
        """Name of the layer under which the ledger lists the batches of this publication."""
        return f"publish:{self.table}:{self.topic}"

    @property
    def name(self) -> str:
        """Name of the checkpoint and of the lock of this publication."""
        return f"publish-{self.table}-{self.topic}"

    def require_allowed_by_settings(self, settings: Settings) -> None:
        """Checks that the table can be published, and that the topic's name is valid and not captured by bronze.

        Raises:
            UsageError: one of these conditions is not met.
        """
        require_publishable(settings, self.table)
        require_allowed_topic_name(settings, self.topic)


def start(
    spark: SparkSession,
    settings: Settings,
    publication: Publication,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> LayerQuery:
    """Starts to publish a table. The first run sends all rows, and later runs continue where the last one stopped.

    Delivery is at least once: an unfinished batch is sent again, with the same messages in the same order.

    Args:
        once: True to send all that the table has now, and then stop. False to continue with new changes.
        on_batch: a function that is called with the ledger entry of every batch that sent messages.

    Returns:
        The running query.

    Raises:
        UsageError: the table or the topic cannot be used for publishing.
        BrokerError: Kafka does not answer. Or the topic is missing, drops old messages, or has other messages.
        LakeError: the table is missing, lacks a change feed or a former column, or the checkpoint is damaged.
        MachineSetupError: `spark.speculation` is on, so Spark may run a task twice at the same time.
    """
    publication.require_allowed_by_settings(settings)
    require_reachable_broker(settings)
    checkpoint, lake = settings.checkpoint_path(publication.name), Lake(settings)
    query = PublishQuery(publication.layer, checkpoint, publication.topic)
    require_readable_checkpoint(checkpoint, publication.layer, other_fix=query.restart_hint)
    require_change_feed(spark, lake, publication.table)
    _refuse_speculation(spark)
    lake.create_or_update_tables(spark, [LEDGER])
    first = not (Path(checkpoint) / "metadata").exists()
    _require_resumable_publication(spark, lake, publication, query)
    written = prepare_topic(settings, publication.topic, is_first_run=first, restart_hint=query.restart_hint)
    if written == 0 and not first:
        if _has_ledger_entry_of_publication(spark, lake, publication.layer):
            raise BrokerError(
                f"publish: the topic {publication.topic} was deleted and created again, without its messages",
                why="Readers of the topic have lost the rows that were published before",
                fix=f"Publish the table from the start: {query.restart_hint}",
            )
        shutil.rmtree(
            checkpoint
        )  # starts from the table's current rows: its log may not reach back to its first version
    limit, feed = settings.publish.max_bytes_per_trigger, {"readChangeFeed": "true"}
    stream = lake.stream_table(spark, publication.table, limit, feed)
    batch = _PublishBatchSender(lake, settings, publication, on_batch)
    return query.start(stream, batch, trigger=settings.publish.trigger, once=once)


def _require_resumable_publication(
    spark: SparkSession, lake: Lake, publication: Publication, query: PublishQuery
) -> None:
    """Checks that publishing can resume from the table's version where the last run stopped.

    Raises:
        LakeError: a column of the table has changed since the last run.
        DataLossError: the table was restored from a backup that is older than the last run.
    """
    other = find_changed_source_column(spark, lake, publication.table, query.checkpoint)
    if other is not None:
        raise LakeError(
            f"publish: {publication.table} had a column {other} at the last publication, and no longer has it",
            why="A change feed cannot be read across such a change",
            fix=f"Publish the table from the start: {query.restart_hint}",
        )
    if is_checkpoint_ahead_of_table(spark, lake, publication.table, query.checkpoint):
        raise DataLossError(
            f"publish: versions of {publication.table} that were published already are gone, because "
            "the table was restored to an older version",
            why="The topic has rows that the table no longer has",
            fix=f"Publish the table from the start: {query.restart_hint}",
        )


class _PublishBatchSender:
    """Sends a micro-batch of a table's changes to Kafka, then writes its ledger entry."""

    def __init__(
        self,
        lake: Lake,
        settings: Settings,
        publication: Publication,
        on_batch: Callable[[LedgerEntry], None] | None,
    ) -> None:
        self._lake = lake
        self._ledger = Ledger(lake)
        self._settings = settings
        self._publication = publication
        self._table = require_publishable(settings, publication.table)
        self._on_batch = on_batch
        self._few = (
            lake.driver_limits.few_messages > 0
        )  # whether the batch before was small, which is the best guess for the next

    def __call__(self, changes: DataFrame, txn: Txn) -> None:
        started, spark, publication = datetime.now(UTC), changes.sparkSession, self._publication
        self._lake.storage.require_claims_still_held()
        inject_fault_if_requested("before:kafka")
        with disable_code_generation(spark, enabled=self._few):
            count, first, last = self._send_changes_to_kafka(changes, txn.version)
        self._few = count <= self._lake.driver_limits.few_messages
        inject_fault_if_requested("after:kafka")
        if not count:  # versions that changed no row, such as a compaction
            return
        entry = LedgerEntry(
            layer=publication.layer,
            txn=txn,
            source=publication.table,
            source_from=first,
            source_to=last,
            started_at=started,
            messages=count,
            applied=count,
            config_hash=hash_settings_of_layers(self._settings),
        )
        self._ledger.write_entry(spark, entry)
        if self._on_batch:
            self._on_batch(entry)

    def _send_changes_to_kafka(self, changes: DataFrame, batch_number: int) -> tuple[int, int, int]:
        """Sends changes to Kafka.

        Args:
            changes: rows of the table's change feed.
            batch_number: number of the micro-batch, which every message gets as a header.

        Returns:
            The number of messages, and the first and the last version of the table that the changes belong to. Both
            versions are None without messages.
        """
        from pyspark.sql import functions as F

        messages = self._create_upsert_messages(changes, batch_number).persist()
        try:
            account = messages.agg(F.count("version"), F.min("version"), F.max("version")).collect()[0]
            if account[0]:
                options = build_spark_kafka_options(self._settings) | _PRODUCER
                kafka = messages.select("key", "value", "headers").write.format("kafka").options(**options)
                kafka.option("topic", self._publication.topic).save()
        finally:
            messages.unpersist()
        return tuple(account)

    def _create_upsert_messages(self, changes: DataFrame, batch_number: int) -> DataFrame:
        """Returns one Kafka message per changed row, with the columns `key, value, headers, version`.

        All messages of a key are in one Spark task, in the order of the table's versions.
        """
        from pyspark.sql import functions as F

        key = self._table.key
        sent = self._table.list_columns_to_send(name for name in changes.columns if name not in FEED)
        tasks = changes.sparkSession.sparkContext.defaultParallelism
        written = F.col(CHANGE) != DELETE
        ordered = (
            changes.where(F.col(CHANGE) != _PREIMAGE)
            .select(*map(quote, sent), CHANGE, VERSION)
            .repartition(tasks, *map(quote, key))
            .sortWithinPartitions(VERSION, *map(quote, key), written)
        )
        return apply_to_batches(ordered, UpsertMessageEncoder(key, batch_number), DDL)


def require_change_feed(spark: SparkSession, lake: Lake, table: str) -> None:
    """Checks that a table has a change feed, Delta's record of the rows that each version changes.

    Raises:
        LakeError: the table has no change feed, or does not exist.
    """
    if not lake.exists(spark, table):
        raise LakeError(
            f"publish: the table {table} does not exist yet", fix="Run `sessionlake run all --once`, which fills it"
        )
    if lake.storage.read_properties(spark, table).get(CHANGE_FEED) == "true":
        return
    if table.startswith(f"{GOLD}."):
        raise LakeError(
            f"publish: {table} records no changes yet (it has no change feed)",
            fix="Run `sessionlake run gold --once`, which switches the change feed on when it starts",
        )
    raise LakeError(
        f"publish: {table} was created without a change feed, so its changes are not recorded",
        fix="Switch the change feed on for later versions with `ALTER TABLE "
        f"{lake.to_sql_identifier(table)} SET TBLPROPERTIES ({CHANGE_FEED} = true)`",
    )


def _refuse_speculation(spark: SparkSession) -> None:
    """Checks that Spark does not run tasks speculatively, because a second copy of a task could reorder messages.

    Raises:
        MachineSetupError: `spark.speculation` is on.
    """
    if spark.conf.get("spark.speculation", "false") == "true":
        raise MachineSetupError(
            "publish: spark.speculation is on",
            why="A task that runs twice at the same time could send the changes of a key in another order",
            fix="Set the Spark option `spark.speculation` to false",
        )


def _has_ledger_entry_of_publication(spark: SparkSession, lake: Lake, layer: str) -> bool:
    return read_last_batch_number(lake.reader(spark), layer) is not None
