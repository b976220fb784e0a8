"""`silver.session_changes` as gold reads it: what each change set, under the names that the pure core knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.gold.aggregate.sources import Declared, text_field, value_field
from sessionlake.lake.storage import quote

if TYPE_CHECKING:
    from pyspark.sql import Column


def declared_in(settings: Settings) -> Declared:
    """The declared columns that gold computes from."""
    columns = settings.capture.declared
    numbers = tuple(column.name for column in columns if column.numeric)
    return Declared(numbers, tuple(column.name for column in columns if column.sql == "string"))


def marks(declared: Declared) -> list[Column]:
    """The columns of a change, as `gold.fold.pack` and `gold.aggregate.sources` have them."""
    from pyspark.sql import functions as F

    return [
        *(F.col(name) for name in ("topic", "session_id", "row_id", "partition", "ordinal")),
        F.unix_millis("kafka_timestamp").alias("kafka_ms"),
        F.col("_ts").alias("ts"),
        F.col("_position").alias("position"),
        F.col("_batch").alias("batch"),
        # Integers beyond 2^53 lose their last digits.
        *(_where_set(name).cast("double").alias(value_field(i)) for i, name in enumerate(declared.numbers)),
        *(_where_set(name).alias(text_field(i)) for i, name in enumerate(declared.texts)),
    ]


def _where_set(column: str) -> Column:
    """The column's value where a change set it, else null."""
    from pyspark.sql import functions as F

    was_set = (F.col("change") == "upsert") & F.array_contains("_set", column)
    return F.when(was_set, F.col(quote(column)))
