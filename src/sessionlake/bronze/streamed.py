"""Bronze from a source that is a stream of Spark's and nothing more: one query, one checkpoint, no topics to watch.

What a source has to say of itself is `Streamed`. A batch is written down first, since a task that is repeated reads
its source once more; then what cannot be used, the messages, and the ledger's row are committed, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from operator import eq
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from sessionlake.bronze.archive.source import SKIP
from sessionlake.bronze.job import LAYER, entry_of, ranges_behind, versions_beside
from sessionlake.delta.commit import append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DAMAGED, LEDGER, MESSAGES, TOPICS
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, OffsetHoleError
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange
from sessionlake.ledger.erasures import Erasure, erase_forgotten, read_receipts
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.kafka import SourceKind
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import on_disk
from sessionlake.streaming.checkpoint import last_committed, last_planned
from sessionlake.streaming.guards import refuse_fresh_checkpoint
from sessionlake.streaming.journal import require_uninterrupted
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

        Those of files have their `file` and `member`.

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
    require_uninterrupted(settings, LAYER)
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
        self._ledger = Ledger(lake)
        self._on_batch = on_batch
        self._log: OffsetLog | None = None
        self._forgotten: list[Erasure] = []

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        from pyspark.sql import functions as F

        started, spark, lake = datetime.now(UTC), rows.sparkSession, self._lake
        beside = versions_beside(spark, lake) if self._log is None else ()
        if self._log is None:  # whoever forgets a session has bronze end first
            self._log, self._forgotten = OffsetLog.load(spark, lake, LAYER, txn), read_receipts(lake.reader(spark))
        log = self._log
        with on_disk(self._source.messages(rows, log.last_offsets)) as read:
            sound = read.where(F.col("damage").isNull())
            extents = _extents(sound)
            _refuse_repeated(sound, extents, log.last_offsets)
            ranges = _ranges(extents)
            log.check(ranges, allow_gaps=self._settings.allows_offset_gaps, layer=LAYER)
            damaged = read.where(F.col("damage").isNotNull())
            if not damaged.isEmpty():
                append(spark, lake, DAMAGED, _damaged(damaged), txn)
            stored = sound.select(*_MESSAGE, F.current_timestamp().alias("ingested_at"))
            messages = erase_forgotten(stored, self._forgotten)
            before = lake.latest_version(spark, MESSAGES)
            # Silver may take the files of a commit in any order: no topic-partition is in two of them.
            cores = spark.sparkContext.defaultParallelism
            append(spark, lake, MESSAGES, messages.repartition(cores, "topic", "partition"), txn)
        commit = lake.last_commit(spark, MESSAGES)
        if commit.version != before + 1 or commit.rows != sum(item.messages for item in ranges):
            # The table had the batch before: what that was its source may not tell any more.
            ranges = ranges_behind(spark, lake, log.last_offsets)
        entry = entry_of(self._settings, txn, ranges, commit.version, started, source=self._source.name, others=beside)
        self._ledger.write(spark, entry)
        log.advance(ranges)
        if self._on_batch:
            self._on_batch(entry)


def _damaged(rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    own = [F.col(name) for name in ("file", "member", "start", "topic", "partition", "damage", "detail")]
    return rows.select(*own, F.current_timestamp().alias("found_at")).coalesce(1)


class _Extent(NamedTuple):
    """What a member of a file has of a topic-partition; without files, all that a batch has of it."""

    topic: str
    partition: int
    first: int
    last: int
    messages: int
    file: str | None
    member: str | None


def _extents(sound: DataFrame) -> list[_Extent]:
    """By topic-partition, in the order of their files' names."""
    from pyspark.sql import functions as F

    found = sound.groupBy("topic", "partition", "file", "member").agg(
        F.min("offset").alias("first"), F.max("offset").alias("last"), F.count("*").alias("messages")
    )
    rows = found.select(*_Extent._fields).collect()
    return sorted((_Extent(*row) for row in rows), key=lambda own: (*own[:2], own.file or "", own.first))


def _ranges(extents: Iterable[_Extent]) -> tuple[OffsetRange, ...]:
    found: dict[TopicPartition, OffsetRange] = {}
    for own in extents:
        known = found.get(own[:2], OffsetRange(*own[:4], 0))
        first, last = min(known.first, own.first), max(known.last, own.last)
        found[own[:2]] = OffsetRange(*own[:2], first, last, known.messages + own.messages)
    return tuple(found.values())


def _refuse_repeated(sound: DataFrame, extents: Iterable[_Extent], ends: Mapping[TopicPartition, int]) -> None:
    """Stops a batch whose files have messages that are in already, or lie before what is in.

    Args:
        ends: the last offset of each topic-partition before the batch.

    Raises:
        OffsetHoleError: naming a file and its member.
    """
    reached = dict(ends)
    for own in extents:
        place = own.topic, own.partition
        up_to = reached.get(place, -1)
        reached[place] = max(up_to, own.last)
        if own.file is None or own.first > up_to:
            continue
        if own.first <= ends.get(place, -1) or _has_again(sound, own):
            raise OffsetHoleError(
                f"{LAYER}: member {own.member} of {own.file} has offsets {own.first} to {own.last} of topic "
                f"{own.topic}, partition {own.partition}, but offsets up to {up_to} are already in, or in files before "
                "it: they rise from file to file. Nothing of this batch was committed. Have the file passed over: "
                f"rename it {own.file}{SKIP}, and run again; what of it is yet to come, give in another"
            )


def _has_again(sound: DataFrame, own: _Extent) -> bool:
    """Whether its file has an offset that comes before it in the batch: members of a topic-partition may take turns."""
    from pyspark.sql import functions as F

    among = F.col("offset").between(own.first, own.last)
    mine = sound.where((F.col("topic") == own.topic) & (F.col("partition") == own.partition) & among)
    found = mine.groupBy("offset").agg(F.count("*").alias("times"), F.max("file").alias("file"))
    return not found.where((F.col("times") > 1) & (F.col("file") == own.file)).isEmpty()
