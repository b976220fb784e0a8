"""The bronze job for archives and Kinesis, which Spark reads as plain streams. `bronze.job` reads Kafka.

There is one query with one checkpoint, and no topics to watch. Each source implements `StreamSource`. A batch is first
staged on disk, because a repeated task would read its source again. Then three commits follow, each done once: damaged
members, messages, and the ledger row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessionlake.bronze.archive.source import SKIP
from sessionlake.bronze.batch_ranges import read_stored_ranges_after_offsets
from sessionlake.bronze.job import (
    LAYER,
    build_bronze_ledger_entry,
    read_forget_and_retention_versions,
)
from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DAMAGED, LEDGER, MESSAGES, TOPICS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, OffsetHoleError
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange
from sessionlake.ledger.erasures import ErasureReceipt, erase_forgotten_messages, read_erasure_receipts_to_apply
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import store_frame_on_disk
from sessionlake.streaming.checkpoint import read_last_committed_batch, read_last_planned_batch
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.losses import refuse_lost_tables
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


class StreamSource(Protocol):
    """A source of messages other than Kafka, which Spark reads as a plain stream.

    Attributes:
        name: Name of the source in the ledger.
    """

    name: str

    def require_reachable(self) -> None:
        """Checks that the source can be read, as far as that is possible without Spark.

        Raises:
            ConfigError: The source cannot be read.
        """

    def read_stream(self, spark: SparkSession, checkpoint: Path) -> DataFrame:
        """Returns the stream of messages that follow those in a checkpoint, in the source's own columns.

        Args:
            spark: The session to read with.
            checkpoint: The folder of the query's checkpoint.
        """

    def has_unread_messages(self, checkpoint: Path) -> bool:
        """Returns True if the source has messages that the checkpoint has not read. The query must then run again."""

    def convert_batch_to_messages(self, rows: DataFrame, last_offsets: Mapping[TopicPartition, int]) -> DataFrame:
        """Converts a batch's rows to the columns of `bronze.messages` without `ingested_at`, and five more.

        The further columns are `file`, `member`, `start`, `damage` and `detail`. `damage` is null unless the row stands
        for a damaged member of an archive file. The others are null if the source has no files.

        Args:
            rows: Rows of the stream, in the source's own columns.
            last_offsets: The last offset of each topic-partition before the batch.
        """


def start_bronze_from_stream_source(
    spark: SparkSession,
    settings: Settings,
    source: StreamSource,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> LayerQuery:
    """Starts bronze on a source other than Kafka, which Spark reads as a plain stream.

    Args:
        spark: The session that runs the query.
        settings: The configuration.
        source: The source to read.
        once: If true, the query stops after it has read what the source holds now.
        on_batch: Called with the ledger entry of every committed batch.

    Raises:
        LakeError: The checkpoint is new but the tables are not.
        DataLossError: The ledger has messages, but their table is gone.
    """
    refuse_interrupted_operations(settings, LAYER)
    lake = Lake(settings)
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES])
    lake.create_or_update_tables(spark, [MESSAGES, DAMAGED, LEDGER, TOPICS])
    refuse_new_checkpoint_over_data(spark, lake, settings, LAYER)
    return _StreamSourceQuery(
        spark, settings, source, _StreamSourceBatchWriter(lake, settings, source, on_batch), once=once
    ).start_query()


class _StreamSourceQuery(LayerQuery):
    """Bronze's streaming query on a source other than Kafka.

    Under `--once`, Spark runs one batch per start. So the query restarts until nothing is left to read.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        source: StreamSource,
        batch: _StreamSourceBatchWriter,
        *,
        once: bool,
    ) -> None:
        super().__init__(LAYER, settings.checkpoint_path(LAYER))
        self._spark, self._source, self._commit = spark, source, batch
        self._trigger, self._once = settings.bronze.trigger, once
        self._stopped = False

    def start_query(self) -> LayerQuery:
        """Starts bronze's query and returns it."""
        frame = self._source.read_stream(self._spark, Path(self.checkpoint))
        return self.start(frame, self._commit, trigger=self._trigger, once=self._once)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the query ends and, under `--once`, nothing is left to read.

        Args:
            seconds: The longest time to wait; None waits without a limit.

        Returns:
            True if the query has ended; False if the time was over before.
        """
        while True:
            ended = super().wait(seconds)
            if not ended or not self._once or self._stopped or not self._has_unread_messages():
                return ended
            self.start_query()
            if seconds is not None:
                return False

    def _has_unread_messages(self) -> bool:
        checkpoint = Path(self.checkpoint)
        return read_last_planned_batch(checkpoint) != read_last_committed_batch(
            checkpoint
        ) or self._source.has_unread_messages(checkpoint)

    def stop(self) -> None:
        """Stops bronze's query for good: it is not restarted."""
        self._stopped = True
        super().stop()


def refuse_messages_of_other_source(spark: SparkSession, lake: Lake, name: str) -> None:
    """Checks that all messages in bronze came from this source, because each source numbers offsets in its own way.

    Args:
        spark: The session to read the ledger with.
        lake: The lake that has the ledger.
        name: Name of the configured source.

    Raises:
        LakeError: Bronze has messages from another source. The text names both sources.
    """
    if name == SourceKind.KAFKA and not lake.exists(spark, DAMAGED):
        return  # no other source was used; this spares reading the ledger at each start
    entries = lake.reader(spark).read_rows(LEDGER, ("layer", eq, LAYER), columns=["source"])
    if other := sorted({entry["source"] for entry in entries} & {*SourceKind} - {name}):
        raise LakeError(
            f"bronze: bronze.source is {name}, but the messages in bronze came from {', '.join(other)}",
            why="The two sources number messages differently, so their offsets cannot be in one table",
            fix="Set `bronze.source` back to its former value, or capture the new source into another "
            "home (SESSIONLAKE_HOME) or other schemas (schema_prefix)",
        )


class _StreamSourceBatchWriter:
    """Commits bronze's micro-batches: first the damaged members of archives, then the messages, then the ledger row.

    Args:
        lake: The lake of bronze.
        settings: The configuration.
        source: The source of the stream.
        on_batch: Called with the ledger entry of every committed batch; None to call nothing.
    """

    def __init__(
        self, lake: Lake, settings: Settings, source: StreamSource, on_batch: Callable[[LedgerEntry], None] | None
    ) -> None:
        self._lake, self._settings, self._source = lake, settings, source
        self._ledger = Ledger(lake)
        self._on_batch = on_batch
        self._log: OffsetLog | None = None
        self._forgotten: list[ErasureReceipt] = []

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        other_versions = read_forget_and_retention_versions(spark, lake) if self._log is None else ()
        if self._log is None:  # read once: forgetting a session requires that bronze has stopped
            self._log, self._forgotten = (
                OffsetLog.load_from_ledger(spark, lake, LAYER, txn),
                read_erasure_receipts_to_apply(lake, spark),
            )
        log = self._log
        with store_frame_on_disk(self._source.convert_batch_to_messages(rows, log.last_offsets)) as read:
            sound = read.where(F.col("damage").isNull())
            extents = _list_partition_offset_bounds(sound)
            _refuse_repeated_offsets(sound, extents, log.last_offsets)
            ranges = _merge_offset_bounds_into_ranges(extents)
            log.require_consecutive_ranges(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=LAYER)
            damaged = read.where(F.col("damage").isNotNull())
            if not damaged.isEmpty():
                append_rows(spark, lake, DAMAGED, _select_damaged_rows(damaged), txn)
            stored = sound.select(*_MESSAGE, F.current_timestamp().alias("ingested_at"))
            messages = erase_forgotten_messages(stored, self._forgotten)
            before = lake.latest_version(spark, MESSAGES)
            # Silver may read the files of a commit in any order, so no topic-partition may be in two of them.
            cores = spark.sparkContext.defaultParallelism
            commit = append_rows(spark, lake, MESSAGES, messages.repartition(cores, "topic", "partition"), txn)
        if commit.version != before + 1 or commit.rows != sum(item.messages for item in ranges):
            # The table already had the batch, and the source may give other messages now. So the table decides.
            ranges = read_stored_ranges_after_offsets(spark, lake, log.last_offsets)
        entry = build_bronze_ledger_entry(
            self._settings,
            txn,
            ranges,
            commit.version,
            started,
            source=self._source.name,
            other_outputs=other_versions,
        )
        self._ledger.write_entry(spark, entry)
        log.record_committed_ranges(ranges)
        if self._on_batch:
            self._on_batch(entry)


def _select_damaged_rows(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    columns = [F.col(name) for name in ("file", "member", "start", "topic", "partition", "damage", "detail")]
    return rows.select(*columns, F.current_timestamp().alias("found_at")).coalesce(1)


class _PartitionOffsetBounds(NamedTuple):
    """The offsets of a topic-partition in one member of an archive file, as far as a batch has read it.

    If the source has no files, they are the offsets of a topic-partition in the batch, and `file` and `member` are
    None.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The lowest offset.
        last: The highest offset.
        messages: Number of messages.
        file: Path of the archive file.
        member: Name or number of the member in the file.
    """

    topic: str
    partition: int
    first: int
    last: int
    messages: int
    file: str | None
    member: str | None


def _list_partition_offset_bounds(undamaged_rows: DataFrame) -> list[_PartitionOffsetBounds]:
    """Returns the first and last offset of each topic-partition in each archive member of a batch.

    They are sorted by topic, partition, file name and first offset.

    Args:
        undamaged_rows: The batch's rows without damaged members.
    """
    from pyspark.sql import functions as F

    found = undamaged_rows.groupBy("topic", "partition", "file", "member").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("messages")
    )
    rows = found.select(*_PartitionOffsetBounds._fields).collect()
    return sorted(
        (_PartitionOffsetBounds(*row) for row in rows),
        key=lambda extent: (*extent[:2], extent.file or "", extent.first),
    )


def _merge_offset_bounds_into_ranges(extents: Iterable[_PartitionOffsetBounds]) -> tuple[OffsetRange, ...]:
    found: dict[TopicPartition, OffsetRange] = {}
    for extent in extents:
        known = found.get(extent[:2], OffsetRange(*extent[:4], 0))
        first, last = min(known.first, extent.first), max(known.last, extent.last)
        found[extent[:2]] = OffsetRange(*extent[:2], first, last, known.messages + extent.messages)
    return tuple(found.values())


def _refuse_repeated_offsets(
    undamaged_rows: DataFrame, extents: Iterable[_PartitionOffsetBounds], last_offsets: Mapping[TopicPartition, int]
) -> None:
    """Checks that the offsets of each topic-partition rise from file to file, and that bronze has none of them yet.

    Args:
        undamaged_rows: The batch's rows without damaged members.
        extents: The offsets of each topic-partition in each archive member, in the order of files.
        last_offsets: The last offset of each topic-partition before the batch.

    Raises:
        OffsetHoleError: An offset is repeated or does not rise. The text names the file and its member.
    """
    reached = dict(last_offsets)
    for extent in extents:
        place = extent.topic, extent.partition
        up_to = reached.get(place, -1)
        reached[place] = max(up_to, extent.last)
        if extent.file is None or extent.first > up_to:
            continue
        if extent.first <= last_offsets.get(place, -1) or _has_repeated_offset(undamaged_rows, extent):
            raise OffsetHoleError(
                f"{LAYER}: member {extent.member} of {extent.file} has offsets {extent.first} to {extent.last} of "
                f"topic {extent.topic}, partition {extent.partition}, but offsets up to {up_to} are already in bronze "
                "or in an earlier file",
                why="Offsets of a topic-partition must rise from file to file, or messages would be in "
                "bronze twice. Nothing of this batch was committed",
                fix=f"Rename the file to {extent.file}{SKIP} so that bronze skips it, and run bronze again. "
                "If the file also has messages that bronze lacks, add these in a new file",
            )


def _has_repeated_offset(undamaged_rows: DataFrame, extent: _PartitionOffsetBounds) -> bool:
    """Returns True if an offset occurs twice in the batch, the second time in the file of `extent`.

    The offsets of two members can overlap although none is repeated, such as 1, 3, 5 and 2, 4, 6.
    """
    from pyspark.sql import functions as F

    among = F.col("offset").between(extent.first, extent.last)
    mine = undamaged_rows.where((F.col("topic") == extent.topic) & (F.col("partition") == extent.partition) & among)
    found = mine.groupBy("offset").agg(F.count("*").alias("times"), F.max("file").alias("file"))
    return not found.where((F.col("times") > 1) & (F.col("file") == extent.file)).isEmpty()
