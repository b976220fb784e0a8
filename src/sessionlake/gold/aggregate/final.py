"""The rows of a product that are final, and the table to which each of them is appended once.

A change is too late for a bucket once stream time has reached the bucket's end plus the product's lateness
(`gold.aggregate.late`). From then on, nothing changes the bucket's rows: they are final. Both follow from the changes
alone, so neither the batches nor a clock has an influence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.late import NEVER, first_live_bucket, latest
from sessionlake.gold.aggregate.product import APPEND, Product, starts
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.protocol.arrow import number_combinations
from sessionlake.protocol.types import Int64s, TopicPartition

BATCH = "_batch"
"""The batch of gold with which a row became final; for rows of a rebuild, the last batch that the rebuild includes."""
Limits = Mapping[TopicPartition, int]
"""A time by topic-partition, in ms. Mostly the start of the first open bucket: buckets before it are final."""


@dataclass(frozen=True)
class FinalTable:
    """The table of a product's final rows: its keys and results, without the columns that only serve to merge."""

    product: Product

    @property
    def name(self) -> str:
        """Its name in the schema `gold`."""
        return f"{self.product.name}_final"

    @property
    def table(self) -> str:
        """Its two-level name."""
        return f"gold.{self.name}"

    @property
    def keys(self) -> tuple[str, ...]:
        """The product's keys."""
        return self.product.keys

    @property
    def row_keys(self) -> tuple[str, ...]:
        """The columns that identify a row."""
        return self.product.row_keys

    @property
    def results(self) -> tuple[str, ...]:
        """The result columns."""
        return self.product.results

    @property
    def bucket_ms(self) -> int:
        """Length of the buckets, in ms."""
        return self.product.bucket_ms or 1

    @property
    def retention_ms(self) -> int | None:
        """How long its rows stay, in ms: as long as the product's; None for ever."""
        return self.product.retention_ms

    @property
    def lateness_ms(self) -> int:
        """How long after the end of its bucket, in stream time, an event may still arrive, in ms."""
        return self.product.lateness_ms or 0

    @property
    def comment(self) -> str:
        """The table's description."""
        return f"Rows of {self.product.table} that are final, each appended once"

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """The columns that it has from the product, with their Spark SQL types."""
        shown = {*self.product.row_keys, *self.product.results}
        return tuple(column for column in self.product.columns if column[0] in shown)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """All its columns and their Spark SQL types, in order."""
        return (*self.shown, (BATCH, "bigint"))

    def limits(self, times: Limits) -> dict[TopicPartition, int]:
        """Returns the start of the first open bucket at these stream times, in ms by topic-partition.

        Topic-partitions whose stream time is unknown (`NEVER`) are left out.
        """
        known = {place: time for place, time in times.items() if time > NEVER}
        return {place: first_live_bucket(time, self.bucket_ms, self.lateness_ms) for place, time in known.items()}

    def limits_after(self, last: Limits) -> dict[TopicPartition, int]:
        """Returns the limits, in ms, after the last appended bucket of each topic-partition."""
        return {place: start + self.bucket_ms for place, start in last.items()}


@dataclass
class AppendProgress:
    """How far the rows of one table have been appended, for the one gold process that writes.

    Attributes:
        since: Limits up to which batches before the next one appended rows.
        found: Limits of everything in the table. It may already have rows of the next batch, if that one is repeated.
    """

    final: FinalTable
    since: Limits
    found: Limits

    def due_limits(self, times: Limits) -> dict[TopicPartition, int]:
        """Returns the limits up to which rows may be due, for topic-partitions where they rise.

        Args:
            times: Stream times, in ms, of all changes since rows were last due.
        """
        return {place: end for place, end in self.final.limits(times).items() if end > self.since.get(place, NEVER)}

    def advance(self, until: Limits) -> None:
        """Records that rows have been appended up to these limits."""
        self.since, self.found = latest(latest(self.since, self.found), until), {}


def final_table(product: Product) -> FinalTable | None:
    """Returns the table to which the product's final rows are appended; None if they are not."""
    return FinalTable(product) if product.output == APPEND else None


def newly_final(rows: pa.Table, since: Limits, until: Limits) -> pa.Table:
    """Returns the rows that are final at `due_limits` but were not at `since`.

    Args:
        rows: Rows with `topic`, `partition` and `window_start`.
    """
    start = starts(rows)
    return rows.filter(pa.array((start >= limits_of_rows(rows, since)) & (start < limits_of_rows(rows, until))))


def limits_of_rows(rows: pa.Table, limits: Limits) -> Int64s:
    """Returns the limit of each row's topic-partition; `NEVER` if it has none."""
    code, (topics, partitions) = number_combinations(rows["topic"], rows[PARTITION])
    places = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
    known: Int64s = np.array([limits.get(place, NEVER) for place in places], np.int64)
    return known[code] if len(code) else np.zeros(0, np.int64)
