"""`sessionlake verify bronze`: `bronze.messages` compared with what Kafka still holds, slice after slice of offsets.

Both sides are read by Spark, which brings no message to the driver but its offset and a hash of each field: memory is
bounded by the slice, whatever the messages' size. Bronze may run meanwhile: what it has taken in is settled at the
start, and what Kafka's retention removes while it is compared is seen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.bronze.compare import FIELDS, OFFSET, Compared, compare
from sessionlake.bronze.job import as_stored
from sessionlake.bronze.overlap import Overlap, overlap
from sessionlake.bronze.reading import messages_within
from sessionlake.bronze.topic_book import seen_topics
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, MESSAGES
from sessionlake.delta.storage.offset_ranges import OffsetRanges, offsets_condition, slice_ranges, subtract_runs
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import BrokerError, LakeError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.absent import NO_END, Reason, count_covered, recorded_runs
from sessionlake.ledger.progress import Span, offset_spans
from sessionlake.ledger.retained import Beginning, beginnings, read_heads
from sessionlake.ledger.topics import latest_generations, read_topics
from sessionlake.protocol.erased import KEY as ERASED_KEY
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.spark.failures import failure_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SLICE_OFFSETS = 200_000
"""About how many are compared at a time."""
_NEVER = 2**63 - 1


@dataclass(frozen=True)
class VerifiedBronze:
    """The outcome.

    Attributes:
        compared: the messages that both sides should have.
        overlap: where they are, and why there are no more.
        removed: how many messages of bronze Kafka holds no longer.
        gone: how many retention has removed from bronze.
    """

    compared: Compared
    overlap: Overlap
    removed: int
    gone: int = 0


def verify(spark: SparkSession, settings: Settings) -> VerifiedBronze:
    """Compares bronze with Kafka: each message that Kafka holds is in bronze once, as it is, and no other is.

    Raises:
        LakeError: there is nothing to compare.
        BrokerError: Kafka cannot be read, or a topic was deleted or made anew meanwhile.
    """
    lake = Lake(settings)
    taken = offset_spans(
        lake.reader(spark), BRONZE
    )  # before the topics: whose offsets are shifted is then known of all
    if not taken:
        raise LakeError("bronze holds no messages yet: `sessionlake run bronze --once` takes in what Kafka holds")
    cut = read_heads(lake.reader(spark)).get(MESSAGES)
    taken = _left(taken, beginnings(lake.reader(spark)))
    known = latest_generations(read_topics(spark, lake))
    matches = re.compile(settings.kafka.topic_pattern).fullmatch
    with closing(KafkaAdmin(spark, settings)) as admin:
        ids = admin.topic_ids()
        names = {span.topic for span in taken} | {name for name in ids if matches(name)}
        both = overlap(taken, known, seen_topics(admin, names & ids.keys(), ids, committed=True))
        shifts = {name: row.offset_shift for name, row in known.items() if row.offset_shift}
        absent = _absent_behind(lake.reader(spark), taken)
        sides = _Sides(spark, lake, admin, ids, shifts)
        offsets = sum(last + 1 - first for first, last in both.ranges.values())
        skipped = recorded_runs(
            lake.reader(spark), {p: (a, b + 1) for p, (a, b) in both.ranges.items()}, Reason.SKIPPED
        )
        parts = chain.from_iterable(
            subtract_runs(part, skipped) for part in slice_ranges(both.ranges, -(-offsets // SLICE_OFFSETS))
        )
        compared = sum((sides.compare(part) for part in parts if part), Compared())
    gone = 0 if cut is None else cut.gone
    removed = max(0, sum(span.messages for span in taken) - gone - compared.messages - compared.erased)
    return VerifiedBronze(compared, replace(both, unread=both.unread - absent), removed, gone)


def _absent_behind(reader: TableReader, taken: Iterable[Span]) -> int:
    """How many offsets behind bronze's last messages it has read that hold none."""
    behind = {(span.topic, span.partition): (span.last + 1, NO_END) for span in taken}
    return sum(count_covered(runs, *behind[place]) for place, runs in recorded_runs(reader, behind).items())


def _left(taken: Iterable[Span], gone: Mapping[TopicPartition, Beginning]) -> list[Span]:
    """What bronze has taken in, from where it begins."""
    firsts = {place: at.last_removed + 1 for place, at in gone.items()}
    return [span._replace(first=max(span.first, firsts.get((span.topic, span.partition), 0))) for span in taken]


def hashed(messages: DataFrame) -> DataFrame:
    """Messages as `bronze.messages` has them, with a hash in the place of each field.

    Hashing skips nulls inside of a value, and binary values in JSON are base64: headers are hashed as JSON with nulls.
    """
    from pyspark.sql import functions as F

    headers = F.to_json("headers", {"ignoreNullFields": "false"})
    fields = (F.xxhash64(headers if name == "headers" else name).alias(name) for name in FIELDS)
    return messages.select(*OFFSET, *fields)


@dataclass(frozen=True)
class _Sides:
    """Kafka and bronze.

    Attributes:
        ids: of the topics that are compared.
        shifts: offset in bronze less that in Kafka, of topics where it is not 0.
    """

    spark: SparkSession
    lake: Lake
    admin: KafkaAdmin
    ids: Mapping[str, str | None]
    shifts: Mapping[str, int]

    def compare(self, part: OffsetRanges) -> Compared:
        """Compares a slice."""
        from pyspark.sql import functions as F

        kafka = self._kafka(part)
        complete_from = self._complete_from(part)  # behind the reading
        held = self.lake.read(self.spark, MESSAGES).where(offsets_condition(part))
        erased = held.where((F.col("key") == F.lit(bytearray(ERASED_KEY))) & F.col("value").isNull())
        return compare(kafka, hashed(held).toArrow(), complete_from, erased.select(*OFFSET).toArrow())

    def _kafka(self, part: OffsetRanges) -> pa.Table:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        read = {
            place: (first - self._shift(place), last + 1 - self._shift(place)) for place, (first, last) in part.items()
        }
        # Retention may remove messages meanwhile.
        frame = messages_within(self.spark, self.lake.settings, read, fail_on_loss=False)
        try:
            return hashed(as_stored(frame, self.shifts)).toArrow()
        except (PySparkException, Py4JError) as error:
            raise BrokerError(f"Kafka's messages could not be read: {failure_of(error)}") from error

    def _complete_from(self, part: OffsetRanges) -> dict[TopicPartition, int]:
        """The offset from which on Kafka holds everything that it ever did, of each topic-partition."""
        ids = self.admin.topic_ids()
        changed = sorted({topic for topic, _ in part if ids.get(topic, "") != self.ids[topic]})
        if changed:
            raise BrokerError(f"deleted or made anew while it was compared: {', '.join(changed)}; run it again")
        if self.lake.settings.kafka.allow_offset_gaps:  # compaction may remove any
            return dict.fromkeys(part, _NEVER)
        return {place: first + self._shift(place) for place, (first, _) in self.admin.offsets(part).items()}

    def _shift(self, place: TopicPartition) -> int:
        return self.shifts.get(place[0], 0)
