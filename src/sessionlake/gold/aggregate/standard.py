"""The products that every lake has."""

from __future__ import annotations

from dataclasses import replace

from sessionlake.gold.aggregate.functions import Aggregate, Count, Derived, Endmost, Extreme, Mean, Sum, Variance
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import POINT_KEY, TEXTS

_MINUTE = 60_000
_POINTS: dict[str, Aggregate | Derived] = {
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
