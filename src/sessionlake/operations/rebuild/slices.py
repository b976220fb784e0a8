"""Bronze folded in batch, slice after slice in offset order, as its stream folds it: each slice hands its states on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.offset_ranges import OffsetRanges, offsets_condition, slice_ranges
from sessionlake.errors import LakeError
from sessionlake.integrity.clock import BEGINNING
from sessionlake.integrity.stream_times import StreamTimes
from sessionlake.ledger.entries import config_hash
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.silences import silences_in, without_silences
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.pack import BRONZE_COLUMNS, Packer
from sessionlake.silver.fold.schemas import PartitionCounts, ShardReport
from sessionlake.silver.job import ranges_of, total, violation_of
from sessionlake.silver.stream_times import ends_of, require_continued
from sessionlake.streaming.folded import Folded, collect
from sessionlake.streaming.payloads import rules_of
from sessionlake.streaming.sharded import PACKED_SCHEMA, ShardFold, fold_slice

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_MESSAGES = 1_000_000
SLICE_BYTES = 1 << 30

R = TypeVar("R", bound=ShardReport)


@dataclass(frozen=True)
class Slice(Generic[R]):
    """A range of offsets of every topic-partition, folded.

    Attributes:
        number: the first is 0.
        partitions: the counts of each topic-partition.
        states: the shards' states after it: `shard int, chunk binary`.
    """

    number: int
    folded: Folded
    reports: list[R]
    partitions: list[PartitionCounts]
    states: DataFrame


@dataclass(frozen=True)
class Slices(Generic[R]):
    """How bronze is cut into slices and folded.

    Attributes:
        doing: for errors, as in "a rebuild of silver".
        report: the kind of payload that is a shard's report, and `read`, which decodes one.
        ends: last offset to take in of each topic-partition; all others are left out. By default everything.
        messages: about how many to take in at a time.
        topics: pattern of whole names of those that are wanted.
        unread: silences behind `ends` that whoever has taken in messages up to there has not read.
    """

    doing: str
    report: str
    read: Callable[[bytes], R]
    ends: Mapping[TopicPartition, int] | None = None
    messages: int | None = None
    topics: str = ".*"
    unread: Collection[Silence] = ()

    def folded(self, spark: SparkSession, settings: Settings, source: DataFrame, fold: ShardFold) -> Iterator[Slice[R]]:
        """Folds slice after slice; what is made of one must be done with before the next is asked for.

        Args:
            source: rows of `bronze.messages`.

        Raises:
            LakeError: under `fail`, at a place that nobody has decided about.
            OffsetHoleError: bronze lacks messages, or has some more than once.
        """
        lake = Lake(settings)
        log, times = OffsetLog.empty(spark, lake), StreamTimes()
        source, silences = without_silences(source), self._taken_in(silences_in(source))
        states = spark.createDataFrame([], PACKED_SCHEMA)
        for number, part in enumerate(self._cut(source)):
            told = {one for one in silences if one.place in part and one.behind <= part[one.place][1]}
            silences -= told
            packed = self._packed(settings, source.where(offsets_condition(part)), times, told)
            shards = fold_slice(packed, states, fold).localCheckpoint()
            emitted = shards.where("kind <> 'state'").select("kind", "payload")
            folded, written = collect(emitted, self.report, lake.limits.inline_bytes)
            reports = [self.read(report) for report in written]
            self._refuse_violations(settings, reports)
            partitions = total([*reports])
            self._take_note(log, partitions, allow_gaps=settings.allows_offset_gaps)
            times = times.noted(ends_of(partitions, reports))
            states = shards.where("kind = 'state'").selectExpr("shard", "payload AS chunk")
            yield Slice(number, folded, reports, partitions, states)

    def _taken_in(self, silences: Iterable[Silence]) -> set[Silence]:
        """Those up to `ends`: one behind the last message may be there, and not be read yet."""
        if self.ends is None:
            return set(silences)
        ends = self.ends
        return {one for one in silences if one.behind <= ends.get(one.place, BEGINNING) and one not in self.unread}

    def _cut(self, source: DataFrame) -> Iterator[OffsetRanges]:
        """Cuts every topic-partition's offsets into the same number of ranges."""
        from pyspark.sql import functions as F

        # Counted, and weighed, are messages behind `ends`, too: there are few.
        columns = F.min("offset"), F.max("offset"), F.count("*"), F.sum(F.length("value"))
        held: dict[TopicPartition, tuple[int, int]] = {}
        messages = weight = 0
        for topic, partition, first, last, count, size in source.groupBy("topic", "partition").agg(*columns).collect():
            if self.ends is not None and self.ends.get((topic, partition), first - 1) < first:
                continue
            held[topic, partition] = first, last if self.ends is None else min(last, self.ends[topic, partition])
            messages += count
            weight += size or 0
        number = max(1, -(-messages // (self.messages or SLICE_MESSAGES)), -(-weight // SLICE_BYTES))
        yield from slice_ranges(held, number)

    def _packed(
        self, settings: Settings, messages: DataFrame, times: StreamTimes, silences: Iterable[Silence]
    ) -> DataFrame:
        from pyspark.sql import functions as F

        shards = settings.silver.shards
        shard = F.pmod(F.xxhash64("topic", "key"), F.lit(shards)).cast("int").alias("shard")
        raw = messages.select(shard, *BRONZE_COLUMNS)
        packer = Packer(rules_of(settings.capture), shards, self.topics, times, tuple(silences))
        return raw.mapInArrow(packer, PACKED_SCHEMA)

    def _refuse_violations(self, settings: Settings, reports: Sequence[ShardReport]) -> None:
        violation = violation_of([*reports])
        if violation is not None:
            raise LakeError(
                f"{self.doing} under this configuration would stop at {violation.place}. Nothing was changed. "
                "Use the configuration that it was made by (its batches' config_hash is in ops.ledger, this one is "
                f"{config_hash(settings)}), or set capture.on_violation to isolate or record"
            )

    def _take_note(self, log: OffsetLog, whole: list[PartitionCounts], *, allow_gaps: bool) -> None:
        """Notes a slice, which must go on where the one before it ended."""
        ranges = ranges_of(whole)
        log.check(ranges, allow_gaps=allow_gaps, layer=self.doing)
        require_continued(self.doing, whole, log.last_offsets)
        log.advance(ranges)
