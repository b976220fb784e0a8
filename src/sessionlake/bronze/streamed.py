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
from sessionlake.bronze.job import LAYER, build_ledger_entry, read_operations_table_versions, read_stored_ranges_after
from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DAMAGED, LEDGER, MESSAGES, TOPICS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, OffsetHoleError
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange
from sessionlake.ledger.erasures import Erasure, erase_forgotten_messages, read_receipts
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import store_on_disk
from sessionlake.streaming.checkpoint import read_last_committed_batch, read_last_planned_batch
from sessionlake.streaming.guards import refuse_fresh_checkpoint
from sessionlake.streaming.journal import require_uninterrupted
from sessionlake.streaming.losses import refuse_lost_tables
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MESSAGE = ("topic", "partition", "offset", "timestamp", "timestamp_type", "key", "value", "headers")


class StreamSource(Protocol):
    """A source of messages that Spark reads as a stream.

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
        """Returns the stream of messages for a query with this checkpoint, in the source's own columns."""

    def has_more_messages(self, checkpoint: Path) -> bool:
        """Returns True if the source has messages after those in the checkpoint, so the query must run once more."""

    def select_messages(self, rows: DataFrame, last_offsets: Mapping[TopicPartition, int]) -> DataFrame:
        """Converts a batch's rows to the columns of `bronze.messages` without `ingested_at`, and five more.

        The further columns are `file`, `member`, `start`, `damage` and `detail`. `damage` is null unless the row
        stands for a damaged member. The others are null if the source has no files.

        Args:
            rows: Rows of the stream, in the source's own columns.
            last_offsets: The last offset of each topic-partition before the batch.
        """


def start(
    spark: SparkSession,
    settings: Settings,
    source: StreamSource,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
) -> LayerQuery:
    """Starts bronze on a source that is a plain Spark stream.

    Args:
        spark: The session that runs the query.
        settings: The configuration.
        source: The source to read.
        once: If true, the query stops after it has read what the source holds now.
        on_batch: Called with the ledger entry of every committed batch.

    Raises:
        LakeError: The checkpoint is new but the tables are not.
        LossError: The ledger has messages, but their table is gone.
    """
    require_uninterrupted(settings, LAYER)
    lake = Lake(settings)
    refuse_lost_tables(spark, lake, LAYER, [MESSAGES])
    lake.prepare_tables(spark, [MESSAGES, DAMAGED, LEDGER, TOPICS])
    refuse_fresh_checkpoint(spark, lake, settings, LAYER)
    return _StreamedQuery(
        spark, settings, source, _StreamedBatchWriter(lake, settings, source, on_batch), once=once
    ).start_query()


class _StreamedQuery(LayerQuery):
    """The streaming query. Under `--once` Spark runs one batch per start, so it restarts until nothing is left."""

    def __init__(
        self, spark: SparkSession, settings: Settings, source: StreamSource, batch: _StreamedBatchWriter, *, once: bool
    ) -> None:
        super().__init__(LAYER, settings.checkpoint(LAYER))
        self._spark, self._source, self._commit = spark, source, batch
        self._trigger, self._once = settings.bronze.trigger, once
        self._stopped = False

    def start_query(self) -> LayerQuery:
        """Starts the query and returns it."""
        frame = self._source.read_stream(self._spark, Path(self.checkpoint))
        return self.start(frame, self._commit, trigger=self._trigger, once=self._once)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the query ends and, under `--once`, nothing is left to read.

        Returns True if it has ended, False if the time was over before.

        Args:
            seconds: The longest time to wait; None waits without a limit.
        """
        while True:
            ended = super().wait(seconds)
            if not ended or not self._once or self._stopped or not self._has_more_messages():
                return ended
            self.start_query()
            if seconds is not None:
                return False

    def _has_more_messages(self) -> bool:
        checkpoint = Path(self.checkpoint)
        return read_last_planned_batch(checkpoint) != read_last_committed_batch(
            checkpoint
        ) or self._source.has_more_messages(checkpoint)

    def stop(self) -> None:
        """Stops the query. It is not restarted."""
        self._stopped = True
        super().stop()


def refuse_other_source(spark: SparkSession, lake: Lake, name: str) -> None:
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
            f"bronze: bronze.source is {name}, but the messages so far came from {', '.join(other)}",
            why="The two sources number messages differently, so their offsets cannot be in one table",
            fix="Set `bronze.source` back, or capture into another home or other schemas",
        )


class _StreamedBatchWriter:
    """Commits micro-batches: first damaged members, then the messages, then the ledger row."""

    def __init__(
        self, lake: Lake, settings: Settings, source: StreamSource, on_batch: Callable[[LedgerEntry], None] | None
    ) -> None:
        self._lake, self._settings, self._source = lake, settings, source
        self._ledger = Ledger(lake)
        self._on_batch = on_batch
        self._log: OffsetLog | None = None
        self._forgotten: list[Erasure] = []

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        other_versions = read_operations_table_versions(spark, lake) if self._log is None else ()
        if self._log is None:  # read once: forgetting a session requires that bronze has stopped
            self._log, self._forgotten = (
                OffsetLog.load_from_ledger(spark, lake, LAYER, txn),
                read_receipts(lake.reader(spark)),
            )
        log = self._log
        with store_on_disk(self._source.select_messages(rows, log.last_offsets)) as read:
            sound = read.where(F.col("damage").isNull())
            extents = _list_extents(sound)
            _refuse_repeated_offsets(sound, extents, log.last_offsets)
            ranges = _to_offset_ranges(extents)
            log.require_consecutive_ranges(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=LAYER)
            damaged = read.where(F.col("damage").isNotNull())
            if not damaged.isEmpty():
                append_rows(spark, lake, DAMAGED, _select_damaged_rows(damaged), txn)
            stored = sound.select(*_MESSAGE, F.current_timestamp().alias("ingested_at"))
            messages = erase_forgotten_messages(stored, self._forgotten)
            before = lake.latest_version(spark, MESSAGES)
            # Silver may read the files of a commit in any order, so no topic-partition may be in two of them.
            cores = spark.sparkContext.defaultParallelism
            append_rows(spark, lake, MESSAGES, messages.repartition(cores, "topic", "partition"), txn)
        commit = lake.last_commit(spark, MESSAGES)
        if commit.version != before + 1 or commit.rows != sum(item.messages for item in ranges):
            # The table already had the batch, and the source may give other messages now. So the table decides.
            ranges = read_stored_ranges_after(spark, lake, log.last_offsets)
        entry = build_ledger_entry(
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


class _OffsetExtent(NamedTuple):
    """The first and last offset, and the number of messages, of a topic-partition in one member of an archive file.

    If the source has no files, they are those of a topic-partition in the batch, and `file` and `member` are None.
    """

    topic: str
    partition: int
    first: int
    last: int
    messages: int
    file: str | None
    member: str | None


def _list_extents(sound: DataFrame) -> list[_OffsetExtent]:
    """Returns an extent for each topic-partition and archive member in a batch of undamaged rows.

    They are sorted by topic, partition, file name and first offset.
    """
    from pyspark.sql import functions as F

    found = sound.groupBy("topic", "partition", "file", "member").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("messages")
    )
    rows = found.select(*_OffsetExtent._fields).collect()
    return sorted(
        (_OffsetExtent(*row) for row in rows), key=lambda extent: (*extent[:2], extent.file or "", extent.first)
    )


def _to_offset_ranges(extents: Iterable[_OffsetExtent]) -> tuple[OffsetRange, ...]:
    found: dict[TopicPartition, OffsetRange] = {}
    for extent in extents:
        known = found.get(extent[:2], OffsetRange(*extent[:4], 0))
        first, last = min(known.first, extent.first), max(known.last, extent.last)
        found[extent[:2]] = OffsetRange(*extent[:2], first, last, known.messages + extent.messages)
    return tuple(found.values())


def _refuse_repeated_offsets(
    sound: DataFrame, extents: Iterable[_OffsetExtent], last_offsets: Mapping[TopicPartition, int]
) -> None:
    """Checks that the offsets of each topic-partition rise from file to file, and that bronze has none of them yet.

    Args:
        sound: The batch's rows without damaged members.
        extents: The batch's extents, in the order of files.
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
        if extent.first <= last_offsets.get(place, -1) or _repeats_offsets(sound, extent):
            raise OffsetHoleError(
                f"{LAYER}: member {extent.member} of {extent.file} has offsets {extent.first} to {extent.last} of "
                f"topic {extent.topic}, partition {extent.partition}, but offsets up to {up_to} are already in bronze "
                "or in an earlier file",
                why="Offsets must rise from file to file. Nothing of this batch was committed",
                fix=f"Rename the file to {extent.file}{SKIP} so that bronze skips it, and run bronze again. Add "
                "messages of it that bronze lacks in a new file",
            )


def _repeats_offsets(sound: DataFrame, extent: _OffsetExtent) -> bool:
    """Returns True if an offset of the extent occurs twice in the batch, the second time in the extent's file.

    Extents can overlap although no offset is repeated: two members of a topic-partition can have alternating offsets.
    """
    from pyspark.sql import functions as F

    among = F.col("offset").between(extent.first, extent.last)
    mine = sound.where((F.col("topic") == extent.topic) & (F.col("partition") == extent.partition) & among)
    found = mine.groupBy("offset").agg(F.count("*").alias("times"), F.max("file").alias("file"))
    return not found.where((F.col("times") > 1) & (F.col("file") == extent.file)).isEmpty()
