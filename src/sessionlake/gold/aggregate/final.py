"""Rows of a product that are final, and the table that each of them is appended to once.

What comes for a bucket is too late from a stream time on that is its end and the product's lateness (see
`gold.aggregate.late`). Once its topic-partition's stream time has come so far, nothing changes the row any more: by the
same measure, so that neither a batch's cuts nor a clock has a say in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sessionlake.gold.aggregate.late import NEVER, first_kept, latest
from sessionlake.gold.aggregate.product import APPEND, Product, starts
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.protocol.arrow import row_codes
from sessionlake.protocol.types import Int64s, TopicPartition

BATCH = "_batch"
"""The batch of gold by which a row was final, or, of one that was made anew, the last that it is made of."""
Limits = Mapping[TopicPartition, int]
"""Of each topic-partition a time, in ms: mostly that from which on buckets are open; those before it are final."""


@dataclass(frozen=True)
class FinalTable:
    """The table of a product's rows that are final: its keys and results, less what only keeps the rows up."""

    product: Product

    @property
    def name(self) -> str:
        """In the schema `gold`."""
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
        """The columns that tell its rows apart."""
        return self.product.row_keys

    @property
    def results(self) -> tuple[str, ...]:
        """Its results' columns."""
        return self.product.results

    @property
    def bucket_ms(self) -> int:
        """Length of the buckets in milliseconds."""
        return self.product.bucket_ms or 1

    @property
    def retention_ms(self) -> int | None:
        """How long its rows stay: as long as the product's."""
        return self.product.retention_ms

    @property
    def lateness_ms(self) -> int:
        """How long after its bucket's end, in stream time, an event may come."""
        return self.product.lateness_ms or 0

    @property
    def comment(self) -> str:
        """For the table's description."""
        return f"Rows of {self.product.table} that are final, each appended once"

    @property
    def shown(self) -> tuple[tuple[str, str], ...]:
        """The columns that it has of the product's, and their Spark SQL types."""
        shown = {*self.product.row_keys, *self.product.results}
        return tuple(column for column in self.product.columns if column[0] in shown)

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """Its columns and their Spark SQL types, in order."""
        return (*self.shown, (BATCH, "bigint"))

    def limits(self, times: Limits) -> dict[TopicPartition, int]:
        """From where on buckets are open at these stream times, in ms; `NEVER` says nothing."""
        known = {place: time for place, time in times.items() if time > NEVER}
        return {place: first_kept(time, self.bucket_ms, self.lateness_ms) for place, time in known.items()}

    def limits_after(self, last: Limits) -> dict[TopicPartition, int]:
        """From where on buckets are open, in ms, given the last that is appended of each topic-partition."""
        return {place: start + self.bucket_ms for place, start in last.items()}


@dataclass
class Closing:
    """Up to where rows of one table are appended, for the one gold that does so.

    Attributes:
        since: by batches before the next one.
        found: by all that the table has, as the next batch may be done once more, and its rows be there.
    """

    final: FinalTable
    since: Limits
    found: Limits

    def until(self, times: Limits) -> dict[TopicPartition, int]:
        """Up to where rows are due, of topic-partitions of which some may be.

        Args:
            times: stream times of all changes since the last batch that something was due with, in ms.
        """
        return {place: end for place, end in self.final.limits(times).items() if end > self.since.get(place, NEVER)}

    def advance(self, until: Limits) -> None:
        """Takes note that they are appended."""
        self.since, self.found = latest(latest(self.since, self.found), until), {}


def final_table(product: Product) -> FinalTable | None:
    """Where the product's final rows are appended; None if they are not."""
    return FinalTable(product) if product.output == APPEND else None


def newly_final(rows: pa.Table, since: Limits, until: Limits) -> pa.Table:
    """The rows that are final by `until` and were not by `since`.

    Args:
        rows: with `topic`, `partition` and `window_start`.
    """
    start = starts(rows)
    return rows.filter(pa.array((start >= limits_of_rows(rows, since)) & (start < limits_of_rows(rows, until))))


def limits_of_rows(rows: pa.Table, limits: Limits) -> Int64s:
    """The limit of each row's topic-partition; `NEVER` if it has none."""
    code, (topics, partitions) = row_codes(rows["topic"], rows[PARTITION])
    places = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
    known: Int64s = np.array([limits.get(place, NEVER) for place in places], np.int64)
    return known[code] if len(code) else np.zeros(0, np.int64)
