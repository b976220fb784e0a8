"""Where each topic-partition stood after the previous batch, by the ledger: the check that no message was skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import OffsetHoleError
from sessionlake.ledger.absent import AbsentOffsets, count_covered
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.progress import last_offsets

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OffsetLog:
    """Where each topic-partition stood after the previous batch: the check that nothing was skipped.

    Args:
        ends: the last offset of each topic-partition.
        absent: counts offsets that hold no message; asked when some are missing.
    """

    def __init__(self, ends: Mapping[tuple[str, int], int] | None = None, absent: AbsentOffsets | None = None) -> None:
        self._ends = dict(ends or {})
        self._absent = absent or AbsentOffsets()

    @classmethod
    def empty(cls, spark: SparkSession, lake: Lake) -> OffsetLog:
        """The log before a layer's first batch."""
        return cls({}, AbsentOffsets(lake.reader(spark)))

    @classmethod
    def load(cls, spark: SparkSession, lake: Lake, layer: str, before: Txn | None = None) -> OffsetLog:
        """Reads the layer's ledger, up to, and without, the batch `before`."""
        reader = lake.reader(spark)
        return cls(last_offsets(reader, layer, before), AbsentOffsets(reader))

    @property
    def last_offsets(self) -> Mapping[tuple[str, int], int]:
        """Last offset taken in, by topic and partition."""
        return self._ends

    def check(self, ranges: Iterable[OffsetRange], *, allow_gaps: bool, layer: str) -> None:
        """Every range must go on where the last ended and have as many messages as offsets.

        Raises:
            OffsetHoleError: naming topic, partition and the missing or repeated offsets.
        """
        items = list(ranges)
        for item in items:
            previous = self._ends.get((item.topic, item.partition))
            place = f"{layer}: topic {item.topic}, partition {item.partition}"
            if previous is not None and item.first <= previous:
                raise OffsetHoleError(
                    f"{place}: the batch starts at offset {item.first}, but offsets up to {previous} are already in; "
                    "the topic was deleted and made anew, or the checkpoint is older than the tables"
                )
            if item.missing < 0:
                raise OffsetHoleError(
                    f"{place}: {item.messages} messages for the offsets {item.first} to {item.last}: some are in the "
                    "source table more than once; restore it to a version without them"
                )
        if not allow_gaps:
            self._refuse_gaps([item for item in items if item.missing or self._start(item) < item.first], layer)

    def _refuse_gaps(self, items: Iterable[OffsetRange], layer: str) -> None:
        """Raises if offsets before or inside the ranges are missing that are not known to hold no message."""
        wanted = {(item.topic, item.partition): (self._start(item), item.last + 1) for item in items}
        known = self._absent.overlapping(wanted)
        for item in items:
            runs, start = known[item.topic, item.partition], self._start(item)
            place = f"{layer}: topic {item.topic}, partition {item.partition}"
            if item.first - start > count_covered(runs, start, item.first):
                raise OffsetHoleError(
                    f"{place}: offsets {start} to {item.first - 1} are missing; they were deleted before they "
                    "were read. If the topic is compacted, set kafka.allow_offset_gaps: true"
                )
            inside = item.missing - count_covered(runs, item.first, item.last + 1)
            if inside > 0:
                raise OffsetHoleError(
                    f"{place}: {inside} of the offsets {item.first} to {item.last} are missing. "
                    "If the topic is compacted, set kafka.allow_offset_gaps: true"
                )

    def _start(self, item: OffsetRange) -> int:
        """The offset at which a range must begin; where nothing is known of the topic-partition, its own first."""
        return self._ends.get((item.topic, item.partition), item.first - 1) + 1

    def advance(self, ranges: Iterable[OffsetRange]) -> None:
        """Takes note of a batch that is committed."""
        for item in ranges:
            self._ends[item.topic, item.partition] = item.last
