"""Gold: tables computed from silver's changes. To declare your own table, use `Product` and the aggregates below.

The packages and modules, from the bottom up. Each imports only modules that are listed before it. Modules marked pure
do not import Spark.

- `aggregate`: pure; aggregates that can be merged batch by batch, products declared with them, and the products of
  every lake
- `rules`: pure; alert rules as text and as trees, and their evaluation on arrays
- `fold`: pure; the streaming fold of one shard: takes its state and changes, returns rows and the next state
- `enrich`: pure; reference tables, and changes joined with them
- `testing`: checks a product in a unit test
- `declared`: the tables that the configuration declares, with their schemas and comments
- `changes`: reads `silver.session_changes` with the columns that gold needs
- `tables`: what gold stores about its tables: which are complete, and which buckets have expired
- `references`: reads and writes reference tables, and keeps enriched tables current
- `batch`: commits one micro-batch to the tables of averages, products and final rows
- `rebuilding`: rebuilds tables from all changes
- `alerts`: evaluates rules with each micro-batch
- `sql`: views and table functions
- `verify`: compares every table with a recomputation in plain Spark SQL
- `query`: metrics over any range of time
- `job`: the stream
"""

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
from sessionlake.gold.aggregate.sources import POINTS, TEXTS, Rows

__all__ = [
    "POINTS",
    "TEXTS",
    "Aggregate",
    "Count",
    "DerivedAggregate",
    "Endmost",
    "Extreme",
    "Mean",
    "Product",
    "Rows",
    "Sum",
    "Variance",
]
