"""`sessionlake verify bronze`: compares `bronze.messages` with what Kafka still holds, in slices of offsets.

Spark reads Kafka and bronze, and returns only offsets and a hash of each field to the driver. So memory is bounded by
the number of offsets in a slice. Bronze may run at the same time: the offsets to compare are fixed at the start, and
messages that Kafka's retention removes during the comparison are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.bronze.compare import FIELDS, OFFSET_COLUMNS, MessageComparison, compare_messages
from sessionlake.bronze.job import convert_to_bronze_columns
from sessionlake.bronze.overlap import KafkaBronzeOverlap, find_offsets_in_kafka_and_bronze
from sessionlake.bronze.reading import read_kafka_messages
from sessionlake.bronze.topic_book import read_kafka_topics
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, MESSAGES
from sessionlake.delta.storage.offset_ranges import (
    OffsetRanges,
    build_offsets_condition,
    slice_ranges,
    subtract_offset_intervals,
)
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import BrokerError, LakeError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.absent import (
    NO_END,
    AbsentOffsetReason,
    count_offsets_in_intervals,
    read_absent_offset_intervals,
)
from sessionlake.ledger.progress import LayerReadOffsets, read_layer_offsets
from sessionlake.ledger.retained import BronzePartitionStart, read_partition_starts, read_removal_records_without_limits
from sessionlake.ledger.topics import read_topics, select_latest_generations
from sessionlake.protocol.erased import ERASED_KEY, PARTS_ERASED_HEADER
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import parse_spark_failure

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_OFFSETS = 200_000
"""Number of offsets in a slice, roughly."""
_NEVER = 2**63 - 1


@dataclass(frozen=True)
class BronzeVerification:
    """The result of comparing `bronze.messages` with Kafka.

    Attributes:
        comparison: How many messages were compared and differ, of those that both bronze and Kafka should have.
        overlap: The offsets of these messages, and the topics and offsets that could not be compared.
        removed: Number of messages in bronze that Kafka no longer holds.
        gone: Number of messages that bronze's own retention has removed from `bronze.messages`.
    """

    comparison: MessageComparison
    overlap: KafkaBronzeOverlap
    removed: int
    gone: int = 0


def compare_bronze_with_kafka(spark: SparkSession, settings: Settings) -> BronzeVerification:
    """Compares bronze with Kafka: bronze must have each message of Kafka once and unchanged.

    A message that Kafka no longer holds, because of its retention, is counted but is not a difference.

    Raises:
        LakeError: Bronze has no messages yet.
        BrokerError: Kafka cannot be read, or a topic was deleted or created again during the comparison.
    """
    lake = Lake(settings)
    taken = read_layer_offsets(
        lake.reader(spark), BRONZE
    )  # read before `ops.topics`, which then has the offset shifts of all
    if not taken:
        raise LakeError(
            "verify bronze: bronze holds no messages yet, so there is nothing to compare with Kafka",
            fix="Run `sessionlake run bronze --once` to read what Kafka holds",
        )
    cut = read_removal_records_without_limits(lake.reader(spark)).get(MESSAGES)
    taken = _exclude_messages_removed_by_retention(taken, read_partition_starts(lake.reader(spark)))
    known = select_latest_generations(read_topics(spark, lake))
    matches = re.compile(settings.kafka.topic_pattern).fullmatch
    with closing(KafkaAdmin(spark, settings)) as admin:
        ids = admin.read_topic_ids()
        names = {span.topic for span in taken} | {name for name in ids if matches(name)}
        both = find_offsets_in_kafka_and_bronze(
            taken, known, read_kafka_topics(admin, names & ids.keys(), ids, only_stable=True)
        )
        shifts = {name: row.offset_shift for name, row in known.items() if row.offset_shift}
        absent = _count_absent_offsets_after_ranges(lake.reader(spark), taken)
        sides = _KafkaBronzeComparison(spark, lake, admin, ids, shifts)
        offsets = sum(last + 1 - first for first, last in both.ranges.values())
        skipped = read_absent_offset_intervals(
            lake.reader(spark), {p: (a, b + 1) for p, (a, b) in both.ranges.items()}, AbsentOffsetReason.SKIPPED
        )
        parts = chain.from_iterable(
            subtract_offset_intervals(part, skipped) for part in slice_ranges(both.ranges, -(-offsets // SLICE_OFFSETS))
        )
        comparison = sum((sides.compare_messages_of_ranges(part) for part in parts if part), MessageComparison())
    gone = 0 if cut is None else cut.max_missing_rows
    removed = max(0, sum(span.messages for span in taken) - gone - comparison.messages - comparison.erased)
    return BronzeVerification(comparison, replace(both, unread=both.unread - absent), removed, gone)


def _count_absent_offsets_after_ranges(reader: TableReader, bronze_ranges: Iterable[LayerReadOffsets]) -> int:
    """Returns the number of offsets after the last message of each range that are recorded as having no message.

    Args:
        reader: Reads `ops.absent_offsets`.
        bronze_ranges: First and last offset that bronze has read, per topic-partition.
    """
    behind = {(span.topic, span.partition): (span.last + 1, NO_END) for span in bronze_ranges}
    return sum(
        count_offsets_in_intervals(runs, *behind[place])
        for place, runs in read_absent_offset_intervals(reader, behind).items()
    )


def _exclude_messages_removed_by_retention(
    bronze_ranges: Iterable[LayerReadOffsets], partition_starts: Mapping[TopicPartition, BronzePartitionStart]
) -> list[LayerReadOffsets]:
    """Returns bronze's offset ranges without the messages that retention has removed from bronze.

    Args:
        bronze_ranges: First and last offset that bronze has read, per topic-partition.
        partition_starts: Where each topic-partition begins after the removal.
    """
    firsts = {place: at.last_removed + 1 for place, at in partition_starts.items()}
    return [span._replace(first=max(span.first, firsts.get((span.topic, span.partition), 0))) for span in bronze_ranges]


def hash_message_fields(messages: DataFrame) -> DataFrame:
    """Returns the columns `topic, partition, offset` of each message, and a hash of each of its other fields.

    Headers are hashed as JSON with nulls, because hashing a struct skips its nulls.
    """
    from pyspark.sql import functions as F

    headers = F.to_json("headers", {"ignoreNullFields": "false"})
    fields = (F.xxhash64(headers if name == "headers" else name).alias(name) for name in FIELDS)
    return messages.select(*OFFSET_COLUMNS, *fields)


@dataclass(frozen=True)
class _KafkaBronzeComparison:
    """Reads the same offsets from Kafka and from bronze, and compares their messages.

    Attributes:
        spark: The session to read with.
        lake: The lake of bronze.
        admin: The connection to Kafka.
        ids: Kafka's ids of the topics that are compared, by topic name; None for a topic without an id.
        shifts: Bronze's offset minus Kafka's, by topic. Topics with a shift of 0 may be absent.
    """

    spark: SparkSession
    lake: Lake
    admin: KafkaAdmin
    ids: Mapping[str, str | None]
    shifts: Mapping[str, int]

    def compare_messages_of_ranges(self, offset_ranges: OffsetRanges) -> MessageComparison:
        """Compares the messages of Kafka and bronze at these offsets.

        Args:
            offset_ranges: First and last offset by topic-partition, numbered as in `bronze.messages`.
        """
        from pyspark.sql import functions as F

        kafka = self._read_kafka_hashes(offset_ranges)
        complete_from = self._find_complete_kafka_offsets(
            offset_ranges
        )  # after Kafka was read: retention may have moved it
        held = self.lake.read(self.spark, MESSAGES).where(build_offsets_condition(offset_ranges))
        is_placeholder = F.coalesce(F.col("key") == F.lit(bytearray(ERASED_KEY)), F.lit(col=False))
        has_erased_parts = F.exists(F.coalesce("headers", F.array()), lambda one: one["key"] == PARTS_ERASED_HEADER)
        erased = held.where(is_placeholder | has_erased_parts)
        return compare_messages(
            kafka, hash_message_fields(held).toArrow(), complete_from, erased.select(*OFFSET_COLUMNS).toArrow()
        )

    def _read_kafka_hashes(self, offset_ranges: OffsetRanges) -> pa.Table:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        read = {
            place: (
                first - self._find_offset_shift(place),
                last + 1 - self._find_offset_shift(place),
            )
            for place, (first, last) in offset_ranges.items()
        }
        # Kafka's retention may remove messages during the read.
        frame = read_kafka_messages(self.spark, self.lake.settings, read, fail_on_loss=False)
        try:
            return hash_message_fields(convert_to_bronze_columns(frame, self.shifts)).toArrow()
        except (PySparkException, Py4JError) as error:
            raise BrokerError(
                f"verify bronze: Kafka's messages could not be read: {parse_spark_failure(error)}",
                fix="Check that the brokers of kafka.bootstrap_servers are reachable, and run the command again",
            ) from error

    def _find_complete_kafka_offsets(self, offset_ranges: OffsetRanges) -> dict[TopicPartition, int]:
        """Returns, by topic-partition, the offset from which Kafka still has every message, as numbered in bronze."""
        ids = self.admin.read_topic_ids()
        changed = sorted({topic for topic, _ in offset_ranges if ids.get(topic, "") != self.ids[topic]})
        if changed:
            raise BrokerError(
                "verify bronze: these topics were deleted or created again during the comparison: "
                f"{', '.join(changed)}",
                why="So it is unknown whether bronze and Kafka agree",
                fix="Run `sessionlake verify bronze` again",
            )
        if self.lake.settings.kafka.allow_offset_gaps:  # compaction may remove any
            return dict.fromkeys(offset_ranges, _NEVER)
        return {
            place: first + self._find_offset_shift(place)
            for place, (first, _) in self.admin.read_first_and_end_offsets(offset_ranges).items()
        }

    def _find_offset_shift(self, topic_partition: TopicPartition) -> int:
        return self.shifts.get(topic_partition[0], 0)
