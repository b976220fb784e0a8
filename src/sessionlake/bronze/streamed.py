"""Bronze from a source that is a stream of Spark's and nothing more: one query, one checkpoint, no topics to watch.

What a source has to say of itself is `Streamed`. A batch is written down first, since a task that is repeated reads
its source once more; then what cannot be used, the messages, and the ledger's row are committed, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sessionlake.bronze.job import LAYER, entry_of
from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.kafka_settings import SourceKind
from sessionlake.lake.commit import append
from sessionlake.lake.erasures import Erasure, blanked, erasures
from sessionlake.lake.ledger import LedgerEntry, OffsetRange, write
from sessionlake.lake.names import DAMAGED, LEDGER, MESSAGES, TOPICS
from sessionlake.lake.offset_log import OffsetLog
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.protocol.types import TopicPartition
from sessionlake.runtime.frames import on_disk
from sessionlake.streaming.checkpoint import last_committed, last_planned
from sessionlake.streaming.guards import refuse_fresh_checkpoint, refuse_half_changed
from sessionlake.streaming.losses import refuse_lost_tables
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


class Streamed(Protocol):
    """A source of messages.

    Attributes:
        name: as the ledger has it.
    """

    name: str

    def require(self) -> None:
        """Returns if it can be read at all, as far as that is seen without Spark.

        Raises:
            ConfigError: it cannot be.
        """

    def stream(self, spark: SparkSession, checkpoint: Path) -> DataFrame:
        """Its messages, in columns of its own, for a query that has, or will have, this checkpoint."""

    def has_more(self, checkpoint: Path) -> bool:
        """Whether there is more than a query that took in what was there has taken: it is started once more then."""

    def messages(self, rows: DataFrame, ends: Mapping[TopicPartition, int]) -> DataFrame:
        """A batch's rows as `bronze.messages` has them, without `ingested_at`, and `damage` where one is none.

        Args:
            ends: the last offset of each topic-partition before the batch.
        """


def start(
    spark: SparkSession,
    settings: Settings,
    source: Streamed,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> LayerQuery:
    """Starts bronze.

    Raises:
        LakeError: the checkpoint is new and the tables are not, or they were filled from another source.
        LossError: messages were taken in, and their table is gone.
    """
    refuse_half_changed(settings)
    lake = Lake(settings)
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES])
    lake.ensure(spark, [MESSAGES, DAMAGED, LEDGER, TOPICS])
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    return _Query(spark, settings, source, _Batch(lake, settings, source, on_batch), once=once).begin()


class _Query(LayerQuery):
    """The query; one that is to end is started again until nothing is left: Spark gives it one batch alone."""

    def __init__(self, spark: SparkSession, settings: Settings, source: Streamed, batch: _Batch, *, once: bool) -> None:
        super().__init__(LAYER, settings.checkpoint(LAYER))
        self._spark, self._source, self._commit = spark, source, batch
        self._trigger, self._once = settings.bronze.trigger, once
        self._stopped = False

    def begin(self) -> LayerQuery:
        """Starts it."""
        frame = self._source.stream(self._spark, Path(self.checkpoint))
        return self.start(frame, self._commit, trigger=self._trigger, once=self._once)

    def wait(self, seconds: float | None = None) -> bool:
        """See `LayerQuery.wait`."""
        while True:
            ended = super().wait(seconds)
            if not ended or not self._once or self._stopped or not self._has_more():
                return ended
            self.begin()
            if seconds is not None:
                return False

    def _has_more(self) -> bool:
        checkpoint = Path(self.checkpoint)
        return last_planned(checkpoint) != last_committed(checkpoint) or self._source.has_more(checkpoint)

    def stop(self) -> None:
        """See `LayerQuery.stop`."""
        self._stopped = True
        super().stop()


def refuse_other_source(spark: SparkSession, lake: Lake, name: str) -> None:
    """Stops a bronze whose checkpoint is of another source, and whose offsets therefore mean something else.

    Raises:
        LakeError: naming both.
    """
    if name == SourceKind.KAFKA and not lake.exists(spark, DAMAGED):
        return  # no other has begun here; to read the ledger would cost time at each start
    entries = lake.reader(spark).rows(LEDGER, ("layer", eq, LAYER), columns=["source"])
    if other := sorted({entry["source"] for entry in entries} & {*SourceKind} - {name}):
        raise LakeError(
            f"bronze: its messages came from {', '.join(other)} so far, and bronze.source is {name}: offsets of both "
            "do not go together. Set it back, or capture into another home or other schemas"
        )


class _Batch:
    """Commits one micro-batch: what cannot be used, the messages, then the ledger row."""

    def __init__(
        self, lake: Lake, settings: Settings, source: Streamed, on_batch: Callable[[LedgerEntry], None] | None
    ) -> None:
        self._lake, self._settings, self._source = lake, settings, source
        self._on_batch = on_batch
        self._log: OffsetLog | None = None
        self._forgotten: list[Erasure] = []

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        if self._log is None:  # whoever forgets a session has bronze end first
            self._log, self._forgotten = OffsetLog.load(spark, lake, LAYER, txn), erasures(lake.reader(spark))
        log = self._log
        with on_disk(self._source.messages(rows, log.ends)) as read:
            damaged = read.where(F.col("damage").isNotNull())
            if not damaged.isEmpty():
                append(spark, lake, DAMAGED, _damaged(damaged), txn)
            sound = read.where(F.col("damage").isNull())
            stored = sound.select(*_MESSAGE, F.current_timestamp().alias("ingested_at"))
            messages = blanked(stored, self._forgotten)
            ranges = _ranges(messages)
            log.check(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=LAYER)
            # Silver may take the files of a commit in any order: no topic-partition is in two of them.
            cores = spark.sparkContext.defaultParallelism
            append(spark, lake, MESSAGES, messages.repartition(cores, "topic", "partition"), txn)
        version = lake.last_commit(spark, MESSAGES).version
        entry = entry_of(self._settings, txn, ranges, version, started, source=self._source.name)
        write(spark, lake, entry)
        log.advance(ranges)
        if self._on_batch:
            self._on_batch(entry)


def _damaged(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    own = [F.col(name) for name in ("file", "member", "start", "topic", "partition", "damage", "detail")]
    return rows.select(*own, F.current_timestamp().alias("found_at")).coalesce(1)


def _ranges(messages: DataFrame) -> tuple[OffsetRange, ...]:
    from pyspark.sql import functions as F

    found = messages.groupBy("topic", "partition").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("messages")
    )
    return tuple(
        OffsetRange(row["topic"], row["partition"], row["first"], row["last"], row["messages"])
        for row in found.orderBy("topic", "partition").collect()
    )
