"""Gold: a table of one's own is a `Product`, out of aggregates that merge."""

from sessionlake.gold.aggregate.functions import (
    Aggregate,
    Count,
    Derived,
    Endmost,
    Extreme,
    Mean,
    Sum,
    Variance,
)
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import POINTS, TEXTS, Rows

__all__ = [
    "POINTS",
    "TEXTS",
    "Aggregate",
    "Count",
    "Derived",
    "Endmost",
    "Extreme",
    "Mean",
    "Product",
    "Rows",
    "Sum",
    "Variance",
]
