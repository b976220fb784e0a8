"""The products that every lake has: metrics per minute, hour and day, and the distinct texts of each column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from sessionlake.gold.aggregate.functions import (
    Aggregate,
    Count,
    DerivedAggregate,
    Endmost,
    Extreme,
    Mean,
    Sum,
    Variance,
)
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import POINT_KEY, TEXTS

_MINUTE = 60_000
_POINTS: dict[str, Aggregate | DerivedAggregate] = {
    "points": Count(),
    "min": Extreme("value", greatest=False),
    "max": Extreme("value", greatest=True),
    "sum": Sum("value"),
    "average": Mean("sum", "points"),
    "first": Endmost("value", last=False),
    "last": Endmost("value", last=True),
    "variance": Variance("sum", "_squares", "points"),
    "_squares": Sum("value", squared=True),
}
METRICS_1M = Product(
    "metrics_1m",
    keys=POINT_KEY,
    aggregates=_POINTS,
    bucket_ms=_MINUTE,
    comment="One row a minute of event time",
)
METRICS_1H = replace(
    METRICS_1M, name="metrics_1h", bucket_ms=60 * _MINUTE, below=METRICS_1M, comment="One row an hour of event time"
)
METRICS_1D = replace(
    METRICS_1H, name="metrics_1d", bucket_ms=1440 * _MINUTE, below=METRICS_1H, comment="One row a day of event time"
)
DISTINCT_VALUES = Product(
    "distinct_values",
    keys=("topic", "column", "value"),
    aggregates={
        "changes": Count(),
        "first_ts": Extreme("ts", greatest=False, type="bigint"),
        "last_ts": Extreme("ts", greatest=True, type="bigint"),
    },
    source=TEXTS,
    comment="Every text that a column was ever set to, when first and last in event time, and how often",
)
STANDARD = (METRICS_1M, METRICS_1H, METRICS_1D, DISTINCT_VALUES)
TIERS = (METRICS_1D, METRICS_1H, METRICS_1M)
"""The tables of metrics, those with the longest buckets first."""
MINUTE = METRICS_1M.bucket_ms or 0


@dataclass(frozen=True)
class MetricsTimeRange:
    """A range of time to read from one table of metrics: the rows whose bucket starts in it.

    Attributes:
        table: The table of metrics: per minute, per hour or per day.
        begin: Start in ms since 1970.
        end: End in ms since 1970. It is not included.
    """

    table: Product
    begin: int
    end: int


def split_time_range_by_metrics_table(
    begin: int, end: int, step: int | None = None, tables: Sequence[Product] = TIERS
) -> Iterator[MetricsTimeRange]:
    """Splits a range of time into parts, each read from one table of metrics, so that as few rows as possible are read.

    Every minute of the range is in exactly one part.

    Args:
        begin: Start in ms since 1970, a whole minute.
        end: End in ms since 1970, a whole minute. It is not included.
        step: Length of the answer's buckets in ms, whole minutes. A row that would be in two buckets of the answer is
            not read. None for one bucket over the range.
        tables: The tables of metrics that may be read, the longest buckets first. The buckets of each must divide those
            of the table before it.
    """
    if begin >= end:
        return
    tier, finer = tables[0], tables[1:]
    length = tier.bucket_ms or 0
    first, last = -(-begin // length) * length, end // length * length
    if first >= last or (step or 0) % length:
        yield from split_time_range_by_metrics_table(begin, end, step, finer)
        return
    yield from split_time_range_by_metrics_table(begin, first, step, finer)
    yield MetricsTimeRange(tier, first, last)
    yield from split_time_range_by_metrics_table(last, end, step, finer)


def create_product_of_metrics_answer(keys: Sequence[str], step: int | None) -> Product:
    """Returns a product that merges rows of the tables of metrics into the answer of a query for metrics.

    `first` and `last` are left out unless `keys` are all keys of these tables, as points of different series have no
    common order.

    Args:
        keys: Key columns of the answer.
        step: Length of the answer's buckets in ms; None for one bucket.
    """
    has_all_keys = {*keys} == {*METRICS_1M.keys}
    kept = {name: one for name, one in METRICS_1M.aggregates.items() if has_all_keys or not isinstance(one, Endmost)}
    return replace(METRICS_1M, name="answer", keys=tuple(keys), aggregates=kept, bucket_ms=step)
