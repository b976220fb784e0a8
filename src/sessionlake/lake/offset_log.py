"""Where each topic-partition stood after the previous batch, by the ledger: the check that no message was skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from sessionlake.errors import OffsetHoleError
from sessionlake.lake.ledger import OffsetRange
from sessionlake.lake.progress import ends
from sessionlake.lake.tables import Lake
from sessionlake.lake.topics import Jumps, jumped, jumps, read_topics
from sessionlake.lake.txn import Txn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class OffsetLog:
    """Where each topic-partition stood after the previous batch: the check that nothing was skipped.

    Args:
        ends: the last offset of each topic-partition.
        jumps: offsets that were passed over between generations of a topic; asked for when some are missing.
    """

    def __init__(self, ends: Mapping[tuple[str, int], int] | None = None, jumps: Callable[[], Jumps] = dict) -> None:
        self._ends = dict(ends or {})
        self._jumps = jumps

    @classmethod
    def empty(cls, spark: SparkSession, lake: Lake) -> OffsetLog:
        """The log before a layer's first batch."""
        return cls({}, lambda: jumps(read_topics(spark, lake)))

    @classmethod
    def load(cls, spark: SparkSession, lake: Lake, layer: str, before: Txn | None = None) -> OffsetLog:
        """Reads the layer's ledger, up to, and without, the batch `before`."""
        return cls(ends(lake.reader(spark), layer, before), lambda: jumps(read_topics(spark, lake)))

    @property
    def ends(self) -> Mapping[tuple[str, int], int]:
        """Last offset taken in, by topic and partition."""
        return self._ends

    def check(self, ranges: Iterable[OffsetRange], *, allow_gaps: bool, layer: str) -> None:
        """Every range must go on where the last ended and have as many messages as offsets.

        Raises:
            OffsetHoleError: naming topic, partition and the missing or repeated offsets.
        """
        for item in ranges:
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
            if allow_gaps:
                continue
            before, inside = self._unexplained(item, previous)
            if before and previous is not None:
                raise OffsetHoleError(
                    f"{place}: offsets {previous + 1} to {item.first - 1} are missing; they were deleted before they "
                    "were read. If the topic is compacted or written in transactions, set kafka.allow_offset_gaps: true"
                )
            if inside:
                raise OffsetHoleError(
                    f"{place}: {inside} of the offsets {item.first} to {item.last} are missing. "
                    "If the topic is compacted or written in transactions, set kafka.allow_offset_gaps: true"
                )

    def _unexplained(self, item: OffsetRange, previous: int | None) -> tuple[int, int]:
        """Offsets missing before and inside a range, less those between two generations of the topic."""
        before = 0 if previous is None else item.first - previous - 1
        if not before and not item.missing:
            return 0, 0
        place, known = (item.topic, item.partition), self._jumps()
        over = jumped(known, place, item.first - before, item.first), jumped(known, place, item.first, item.last + 1)
        return before - over[0], item.missing - over[1]

    def advance(self, ranges: Iterable[OffsetRange]) -> None:
        """Takes note of a batch that is committed."""
        for item in ranges:
            self._ends[item.topic, item.partition] = item.last
