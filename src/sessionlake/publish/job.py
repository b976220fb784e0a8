"""A table's change feed to Kafka: the whole table once, then every version's changes, in order."""

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
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, LakeError, LossError, MachineError
from sessionlake.kafka.clients import require_broker, spark_kafka_options
from sessionlake.ledger.entries import Ledger, LedgerEntry, config_hash
from sessionlake.ledger.progress import last_batch
from sessionlake.protocol.names import quote
from sessionlake.protocol.upserts import CHANGE, DDL, DELETE, FEED, VERSION, Messages
from sessionlake.publish.failures import PublishQuery
from sessionlake.publish.outlets import outlet_of
from sessionlake.publish.topic import BATCH_BYTES, prepare, require_topic
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import map_batches
from sessionlake.spark.interpreted import interpreted
from sessionlake.streaming.checkpoint import require_readable
from sessionlake.streaming.query import LayerQuery
from sessionlake.streaming.source_columns import changed_column, is_ahead_of_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PREIMAGE = "update_preimage"
_LARGEST = 64 << 20  # bytes of one message
_PRODUCER = {
    # A retry neither repeats nor overtakes: within a partition, and so within a key, the order sent is the order kept.
    "kafka.enable.idempotence": "true",
    "kafka.acks": "all",
    "kafka.batch.size": str(BATCH_BYTES),
    # How large a message may be is for the topic to say.
    "kafka.max.request.size": str(_LARGEST),
    "kafka.buffer.memory": str(_LARGEST),
}


@dataclass(frozen=True)
class Publication:
    """A table published to a topic."""

    table: str
    topic: str

    @property
    def layer(self) -> str:
        """What the ledger calls it."""
        return f"publish:{self.table}:{self.topic}"

    @property
    def name(self) -> str:
        """What its checkpoint and its lock are called."""
        return f"publish-{self.table}-{self.topic}"

    def require_allowed(self, settings: Settings) -> None:
        """Returns if the table can be published, and the topic is none that bronze captures.

        Raises:
            UsageError: naming what can be published, or what is wrong with the topic.
        """
        outlet_of(settings, self.table)
        require_topic(settings, self.topic)


def start(
    spark: SparkSession,
    settings: Settings,
    publication: Publication,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> LayerQuery:
    """Starts to publish a table: first all its rows, or from where the last run ended.

    Delivery is at least once: a batch that did not end is sent again, the same messages in the same order.

    Args:
        once: send what the table holds now, then end.
        on_batch: told of every batch that sent something.

    Raises:
        UsageError: as `Publication.require_allowed`.
        BrokerError: Kafka does not answer, or the topic does not serve (see `topic.prepare`).
        LakeError: the table is missing, keeps no change feed or has other columns, or the checkpoint is damaged.
        MachineError: Spark may run a task twice at once.
    """
    publication.require_allowed(settings)
    require_broker(settings)
    checkpoint, lake = settings.checkpoint(publication.name), Lake(settings)
    query = PublishQuery(publication.layer, checkpoint, publication.topic)
    require_readable(checkpoint, publication.layer, instead=query.anew)
    require_feed(spark, lake, publication.table)
    _refuse_speculation(spark)
    lake.ensure(spark, [LEDGER])
    first = not (Path(checkpoint) / "metadata").exists()
    _require_same(spark, lake, publication, query)
    written = prepare(settings, publication.topic, first=first, anew=query.anew)
    if written == 0 and not first:
        if _has_sent(spark, lake, publication.layer):
            raise BrokerError(
                f"publish: topic {publication.topic} was made anew, without what was published to it: {query.anew}"
            )
        shutil.rmtree(checkpoint)  # it sends what the table holds now: whose log may no longer reach back to its begin
    limit, feed = settings.publish.max_bytes_per_trigger, {"readChangeFeed": "true"}
    stream = lake.stream(spark, publication.table, limit, feed)
    batch = _PublishBatch(lake, settings, publication, on_batch)
    return query.start(stream, batch, trigger=settings.publish.trigger, once=once)


def _require_same(spark: SparkSession, lake: Lake, publication: Publication, query: PublishQuery) -> None:
    """Returns if the table can be read on from where it was published to.

    Raises:
        LakeError: a column of it is another since.
        LossError: it was put back from a backup.
    """
    other = changed_column(spark, lake, publication.table, query.checkpoint)
    if other is not None:
        raise LakeError(
            f"publish: {publication.table} had a column {other} when it was published last, and has it not so any "
            f"more: a change feed is not read across that. To have a topic with the table as it is, {query.anew}"
        )
    if is_ahead_of_table(spark, lake, publication.table, query.checkpoint):
        raise LossError(
            f"publish: versions of {publication.table} that were published are gone: it was put back from a backup",
            fix=f"To have a topic with the table as it is, {query.anew}",
        )


class _PublishBatch:
    """Sends one micro-batch, then writes the ledger row."""

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
        self._outlet = outlet_of(settings, publication.table)
        self._on_batch = on_batch
        self._few = (
            lake.limits.few_messages > 0
        )  # whether the batch before was small, which is the best guess for the next

    def __call__(self, changes: DataFrame, txn: Txn) -> None:
        started, spark, publication = datetime.now(UTC), changes.sparkSession, self._publication
        self._lake.storage.require_claims()
        fault_point("before:kafka")
        with interpreted(spark, when=self._few):
            count, first, last = self._send(changes, txn.version)
        self._few = count <= self._lake.limits.few_messages
        fault_point("after:kafka")
        if not count:  # versions that changed no row, as a compaction
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
            config_hash=config_hash(self._settings),
        )
        self._ledger.write(spark, entry)
        if self._on_batch:
            self._on_batch(entry)

    def _send(self, changes: DataFrame, batch: int) -> tuple[int, int, int]:
        """Number of messages, first and last version."""
        from pyspark.sql import functions as F

        messages = self._messages(changes, batch).persist()
        try:
            account = messages.agg(F.count("version"), F.min("version"), F.max("version")).collect()[0]
            if account[0]:
                options = spark_kafka_options(self._settings) | _PRODUCER
                kafka = messages.select("key", "value", "headers").write.format("kafka").options(**options)
                kafka.option("topic", self._publication.topic).save()
        finally:
            messages.unpersist()
        return tuple(account)

    def _messages(self, changes: DataFrame, batch: int) -> DataFrame:
        """Every key in one task, its versions in order: what keeps their order in Kafka."""
        from pyspark.sql import functions as F

        key = self._outlet.key
        sent = self._outlet.columns(name for name in changes.columns if name not in FEED)
        tasks = changes.sparkSession.sparkContext.defaultParallelism
        written = F.col(CHANGE) != DELETE
        ordered = (
            changes.where(F.col(CHANGE) != _PREIMAGE)
            .select(*map(quote, sent), CHANGE, VERSION)
            .repartition(tasks, *map(quote, key))
            .sortWithinPartitions(VERSION, *map(quote, key), written)
        )
        return map_batches(ordered, Messages(key, batch), DDL)


def require_feed(spark: SparkSession, lake: Lake, table: str) -> None:
    """Returns if a table has a change feed.

    Raises:
        LakeError: it has not, or is not there.
    """
    if not lake.exists(spark, table):
        raise LakeError(f"publish: {table} is not there yet: fill it with `sessionlake run all --once`")
    if lake.storage.properties(spark, table).get(CHANGE_FEED) == "true":
        return
    if table.startswith(f"{GOLD}."):
        raise LakeError(
            f"publish: {table} has no change feed yet: gold switches it on as it starts: `sessionlake run gold --once`"
        )
    raise LakeError(
        f"publish: {table} was made without a change feed. Switch it on, for the versions from there on, with "
        f"ALTER TABLE {lake.identifier(table)} SET TBLPROPERTIES ({CHANGE_FEED} = true)"
    )


def _refuse_speculation(spark: SparkSession) -> None:
    """A second copy of a task could still send a key's older version when the first has sent the newer."""
    if spark.conf.get("spark.speculation", "false") == "true":
        raise MachineError("publish: spark.speculation is on and would mix up the order of changes: switch it off")


def _has_sent(spark: SparkSession, lake: Lake, layer: str) -> bool:
    return last_batch(lake.reader(spark), layer) is not None
