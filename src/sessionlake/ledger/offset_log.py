"""Checks that a layer's batches skip no offset and read none twice, by comparing each batch with the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import OffsetHoleError
from sessionlake.ledger.absent import AbsentOffsetFinder, count_offsets_in_intervals
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.progress import read_last_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GAP_FIX = (
    "If the topic is compacted, that is normal: set `kafka.allow_offset_gaps: true`. Otherwise accept the "
    "loss with the same setting: the layer then continues without them. What a producer sends again gets new offsets"
)
"""What to do about messages that were deleted before they were read."""


class OffsetLog:
    """Knows the last offset that a layer has read of each topic-partition. Checks that the next batch continues there.

    Args:
        ends: the last offset read, by topic and partition; None if nothing was read.
        absent: finds offsets that have no message. It is asked only if a batch lacks offsets.
    """

    def __init__(
        self, ends: Mapping[tuple[str, int], int] | None = None, absent: AbsentOffsetFinder | None = None
    ) -> None:
        self._ends = dict(ends or {})
        self._absent = absent or AbsentOffsetFinder()

    @classmethod
    def create_empty(cls, spark: SparkSession, lake: Lake) -> OffsetLog:
        """Returns the offset log of a layer that has read nothing yet."""
        return cls({}, AbsentOffsetFinder(lake.reader(spark)))

    @classmethod
    def load_from_ledger(cls, spark: SparkSession, lake: Lake, layer: str, before: Txn | None = None) -> OffsetLog:
        """Returns the offset log of a layer, read from the ledger.

        Args:
            spark: the session to read with.
            lake: the lake that has the ledger.
            layer: the layer's name.
            before: a batch that its query will run again. This batch and later ones are left out. None to leave out
                none.
        """
        reader = lake.reader(spark)
        return cls(read_last_offsets(reader, layer, before), AbsentOffsetFinder(reader))

    @property
    def last_offsets(self) -> Mapping[tuple[str, int], int]:
        """The last offset that the layer has read, by topic and partition."""
        return self._ends

    def require_consecutive_ranges(self, ranges: Iterable[OffsetRange], *, allow_gaps: bool, layer: str) -> None:
        """Checks the offset ranges of a batch before the batch is committed.

        Each range must start after the last offset read of its topic-partition and contain no message twice. Without
        `allow_gaps`, an offset may lack a message only if bronze or Kafka's topic history explains why.

        Args:
            ranges: the ranges, at most one for each topic-partition.
            allow_gaps: True if offsets may be missing, as in compacted topics.
            layer: name of the layer, for error texts.

        Raises:
            OffsetHoleError: offsets are missing or repeated. The text names layer, topic, partition and offsets.
        """
        items = list(ranges)
        for item in items:
            previous = self._ends.get((item.topic, item.partition))
            place = f"{layer}: topic {item.topic}, partition {item.partition}"
            if previous is not None and item.first <= previous:
                raise OffsetHoleError(
                    f"{place}: the batch starts at offset {item.first}, but offsets up to {previous} were read before",
                    why="The topic was deleted and created again, or the checkpoint is older than the tables",
                    fix="Restore the newest checkpoint. If the topic was created again, set "
                    "`kafka.on_topic_change: restart`, and run bronze again",
                )
            if item.missing_messages < 0:
                raise OffsetHoleError(
                    f"{place}: there are {item.messages} messages at the offsets {item.first} to {item.last}",
                    why="Some messages are in the source table more than once",
                    fix="Restore the source table to a version without the duplicates (RESTORE TABLE)",
                )
        if not allow_gaps:
            self._refuse_unexplained_gaps(
                [
                    item
                    for item in items
                    if item.missing_messages or self._find_expected_first_offset(item) < item.first
                ],
                layer,
            )

    def _refuse_unexplained_gaps(self, ranges: Iterable[OffsetRange], layer: str) -> None:
        """Checks that `ops.absent_offsets` or `ops.topics` explains every offset that has no message.

        Args:
            ranges: the offset ranges in which, or before which, offsets are missing.
            layer: name of the layer, for error texts.

        Raises:
            OffsetHoleError: an offset is missing for an unknown reason.
        """
        wanted = {
            (item.topic, item.partition): (self._find_expected_first_offset(item), item.last + 1) for item in ranges
        }
        known = self._absent.find_absent_offset_intervals(wanted)
        for item in ranges:
            runs, start = known[item.topic, item.partition], self._find_expected_first_offset(item)
            place = f"{layer}: topic {item.topic}, partition {item.partition}"
            if item.first - start > count_offsets_in_intervals(runs, start, item.first):
                raise OffsetHoleError(
                    f"{place}: offsets {start} to {item.first - 1} are missing",
                    why="Their messages were deleted before they were read",
                    fix=GAP_FIX,
                )
            inside = item.missing_messages - count_offsets_in_intervals(runs, item.first, item.last + 1)
            if inside > 0:
                raise OffsetHoleError(
                    f"{place}: of the offsets {item.first} to {item.last}, {inside} are missing",
                    why="Their messages were deleted before they were read",
                    fix=GAP_FIX,
                )

    def _find_expected_first_offset(self, offset_range: OffsetRange) -> int:
        """Returns one past the last offset read of the range's topic-partition.

        If none was read, returns the range's first offset.
        """
        return self._ends.get((offset_range.topic, offset_range.partition), offset_range.first - 1) + 1

    def record_committed_ranges(self, ranges: Iterable[OffsetRange]) -> None:
        """Remembers the last offsets of a committed batch, so that the next batch is checked against them."""
        for item in ranges:
            self._ends[item.topic, item.partition] = item.last
