"""Gold: tables computed from silver's changes. To declare your own table, use `Product` and the aggregates below.

The packages and modules, from the bottom up. Each imports only those listed before it; those marked pure do not import
Spark.

- `aggregate`: pure; aggregates that merge, products declared with them, and the products of every lake
- `rules`: pure; rules as text and as trees, and their evaluation on arrays
- `fold`: pure; the streaming fold of one shard: state and changes in, rows out
- `enrich`: pure; reference tables, and changes joined with them
- `testing`: checks a product in a unit test
- `declared`: the tables that the configuration declares, with their schemas and comments
- `changes`: `silver.session_changes` with the columns that gold reads
- `tables`: what gold stores about its tables: which are complete, and which buckets have expired
- `references`: reads and writes reference tables, and keeps enriched tables current
- `batch`: commits one micro-batch to averages, products and final rows
- `making`: rebuilds tables from all changes
- `alerts`: evaluates rules with each micro-batch
- `sql`: views and table functions
- `verify`: compares every table with a recomputation in plain Spark SQL
- `query`: metrics over any range of time
- `job`: the stream
"""

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
