"""Folds bronze in batch, slice by slice, with the same fold as the stream.

A slice is a range of consecutive offsets of every topic-partition. Each slice starts from the states after the previous
one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.offset_ranges import OffsetRanges, build_offsets_condition, slice_ranges
from sessionlake.errors import LakeError
from sessionlake.integrity.clock import BEGINNING
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.ledger.entries import hash_settings_of_layers
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.silences import drop_silences, select_silences
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import PartitionMessageCounts, ShardReport
from sessionlake.silver.job import build_stop_error, list_offset_ranges, sum_partition_counts
from sessionlake.silver.packing import pack_messages
from sessionlake.silver.stream_times import list_stream_times_after_batch, require_continued_stream_times
from sessionlake.streaming.folded import FoldedBatch, collect_fold_reports
from sessionlake.streaming.sharded import PACKED_SCHEMA, ShardFold, fold_messages_in_batch_job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_MESSAGES = 1_000_000
SLICE_BYTES = 1 << 30

R = TypeVar("R", bound=ShardReport)


@dataclass(frozen=True)
class FoldedSlice(Generic[R]):
    """The result of folding one slice.

    Attributes:
        number: The slice's number, from 0.
        folded: The output of the fold, such as changes and events.
        reports: The report of each shard about what it has folded.
        partitions: The counts of messages of each topic-partition, by how they were judged.
        states: The shards' states after the slice: `shard int, chunk binary`.
    """

    number: int
    folded: FoldedBatch
    reports: list[R]
    partitions: list[PartitionMessageCounts]
    states: DataFrame


@dataclass(frozen=True)
class BronzeSliceReplayer(Generic[R]):
    """Divides bronze into slices and folds them one after another.

    Attributes:
        doing: What the slices are folded for, such as "a rebuild of silver", for error texts.
        report: The value of the column `kind` in the fold's output rows that are reports of shards.
        read: Decodes a shard's report.
        ends: The last offset to read, by topic-partition; other topic-partitions are left out. None means all messages.
        messages: About how many messages a slice has; None means `SLICE_MESSAGES`.
        topics: A pattern for the whole names of the topics to read.
        unread: Silences after offsets up to `ends` that the layer has not read yet. They are left out.
    """

    doing: str
    report: str
    read: Callable[[bytes], R]
    ends: Mapping[TopicPartition, int] | None = None
    messages: int | None = None
    topics: str = ".*"
    unread: Collection[Silence] = ()

    def fold_bronze_slices(
        self, spark: SparkSession, settings: Settings, source: DataFrame, function: ShardFold
    ) -> Iterator[FoldedSlice[R]]:
        """Folds bronze slice by slice, and yields each result.

        Process a result completely before you request the next one.

        Args:
            source: The rows of `bronze.messages` to fold.
            function: The fold of one shard.

        Raises:
            LakeError: Under `fail`, a violation has no decision.
            OffsetHoleError: Bronze lacks messages, or has some twice.
        """
        lake = Lake(settings)
        log, times = OffsetLog.create_empty(spark, lake), StreamTimesAtBatchEnds()
        source, silences = drop_silences(source), self._select_silences_to_read(select_silences(source))
        states = spark.createDataFrame([], PACKED_SCHEMA)
        for number, part in enumerate(self._divide_into_slices(source)):
            in_slice = {
                silence
                for silence in silences
                if silence.topic_partition in part and silence.behind <= part[silence.topic_partition][1]
            }
            silences -= in_slice
            packed = self._pack_messages_by_shard(
                settings, source.where(build_offsets_condition(part)), times, in_slice
            )
            shards = fold_messages_in_batch_job(packed, states, function).localCheckpoint()
            emitted = shards.where("kind <> 'state'").select("kind", "payload")
            folded, written = collect_fold_reports(emitted, self.report, lake.driver_limits.inline_bytes)
            reports = [self.read(report) for report in written]
            self._refuse_undecided_violations(settings, reports)
            partitions = sum_partition_counts([*reports])
            self._check_and_record_slice_offsets(log, partitions, allow_gaps=settings.allows_offset_gaps)
            times = times.add_stream_times(list_stream_times_after_batch(partitions, reports))
            states = shards.where("kind = 'state'").selectExpr("shard", "payload AS chunk")
            yield FoldedSlice(number, folded, reports, partitions, states)

    def _select_silences_to_read(self, silences: Iterable[Silence]) -> set[Silence]:
        """Selects the silences to read.

        If `ends` limits the offsets, those that the layer has not read are left out.
        """
        if self.ends is None:
            return set(silences)
        ends = self.ends
        return {
            silence
            for silence in silences
            if silence.behind <= ends.get(silence.topic_partition, BEGINNING) and silence not in self.unread
        }

    def _divide_into_slices(self, source: DataFrame) -> Iterator[OffsetRanges]:
        """Yields the offset ranges of each slice. Every topic-partition is divided into the same number of ranges."""
        from pyspark.sql import functions as F

        # The few messages after `ends` are counted too: slices then are a little smaller.
        columns = F.min("offset"), F.max("offset"), F.count("*"), F.sum(F.length("value"))
        ranges: dict[TopicPartition, tuple[int, int]] = {}
        messages = weight = 0
        for topic, partition, first, last, count, size in source.groupBy("topic", "partition").agg(*columns).collect():
            if self.ends is not None and self.ends.get((topic, partition), first - 1) < first:
                continue
            ranges[topic, partition] = first, last if self.ends is None else min(last, self.ends[topic, partition])
            messages += count
            weight += size or 0
        number = max(1, -(-messages // (self.messages or SLICE_MESSAGES)), -(-weight // SLICE_BYTES))
        yield from slice_ranges(ranges, number)

    def _pack_messages_by_shard(
        self, settings: Settings, messages: DataFrame, times: StreamTimesAtBatchEnds, silences: Iterable[Silence]
    ) -> DataFrame:
        """Decodes messages, and packs them by shard into rows with Arrow chunks."""
        return pack_messages(messages, settings, self.topics, times, tuple(silences))

    def _refuse_undecided_violations(self, settings: Settings, reports: Sequence[ShardReport]) -> None:
        """Raises a `LakeError` if a shard has reported a violation that needs a decision."""
        violation = build_stop_error([*reports])
        if violation is not None:
            raise LakeError(
                f"{self.doing}, with the present configuration, stops at {violation.violation_text}",
                why="Silver did not stop there before, so it judged the messages with other settings. "
                "Nothing was changed",
                fix="Use the former configuration (ops.ledger has the config_hash of each batch; the present one is "
                f"{hash_settings_of_layers(settings)}), or set capture.on_violation to isolate or record",
            )

    def _check_and_record_slice_offsets(
        self, log: OffsetLog, partitions: list[PartitionMessageCounts], *, allow_gaps: bool
    ) -> None:
        """Checks that a slice's offsets continue those of the previous slice, and records them."""
        ranges = list_offset_ranges(partitions)
        log.require_consecutive_ranges(ranges, allow_gaps=allow_gaps, layer=self.doing)
        require_continued_stream_times(self.doing, partitions, log.last_offsets)
        log.record_committed_ranges(ranges)
