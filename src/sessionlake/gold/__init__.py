"""Gold: tables computed from silver's changes. To declare a table of your own, use `Product` and the aggregates below.

The parts of this package, from the bottom up. Each imports only those listed before it; a pure one imports no Spark.

- `aggregate`: pure; aggregates that merge, the products made of them, and the products that every lake has
- `rules`: pure; rules as text, as trees, and evaluated on arrays
- `fold`: pure; rolling averages of one shard: state and changes in, rows out
- `enrich`: pure; reference tables and changes joined with them
- `testing`: a product tried in a unit test
- `declared`: the tables that the configuration declares, with their schemas and comments
- `changes`: `silver.session_changes` as gold reads it
- `tables`: what gold notes of its tables: which are complete, and which of their buckets are gone
- `references`: reference tables read and written, and enriched tables kept current
- `batch`: one micro-batch committed to averages, products and final rows
- `making`: tables made anew from all changes
- `alerts`: rules evaluated with each micro-batch
- `sql`: views and table functions
- `verify`: every table compared with a recomputation by plain Spark SQL
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
