"""Computes the table of a product of gold that has a source table.

The product's aggregates are over all rows of each key and bucket. If a row of a key and bucket is added or changed, the
aggregates are computed again from all of these rows. They are never updated incrementally.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.errors import ConfigError
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, TURN
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import VALUE_AS_DOUBLE, DecimalRows, Rows, build_order_column_name
from sessionlake.gold.declared.comments import build_product_comments
from sessionlake.gold.declared.tables import create_product_from_settings
from sessionlake.gold.verify.tables import compute_expected_product_rows
from sessionlake.processors.computation import (
    TableComputation,
    compute_rows_by_key,
    require_exact_types,
    require_source_columns,
    select_rows_without_nulls,
)
from sessionlake.protocol.names import INTERNAL, add_internal_prefix, is_internal_name, quote
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.settings.processors import ProductProcessor

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_INEXACT = ("float", "double")
_NUMBERS = ("tinyint", "smallint", "int", "bigint", "decimal", *_INEXACT)
_TIMES = ("timestamp", "bigint")


class ProductComputation(TableComputation):
    """Computes the aggregates of a product with a source table, one output row per key and bucket.

    Args:
        config: The settings of the processor that maintains the product.
        present: The columns of the source table and their Spark SQL types.

    Raises:
        ConfigError: The product or the columns cannot be used.
    """

    def __init__(self, config: ProductProcessor, present: Mapping[str, str]) -> None:
        self.product = create_product_from_settings(config.product, value_type=present.get(config.product.value or ""))
        if not isinstance(self.product.source, Rows):
            raise ConfigError(
                f"{config.config_key}.source: {config.product.python} is computed from silver's changes, not from a "
                "table",
                fix="Give the product in Python a `source=Rows(...)`, or remove `source` from the configuration",
            )
        self._rows, self._present = self.product.source, present
        self._require_product_columns(config)
        self.by = self.keys = self.product.row_keys
        keys = ((name, "timestamp" if name not in config.key else present[name]) for name in self.keys)
        self.columns = (
            *keys,
            *(column for column in self.product.column_types if column[0] in self.product.result_columns),
        )
        self.comments = build_product_comments(self.product)
        self.comment = f"Aggregates of the rows of {config.source}, one row for each {', '.join(self.keys)}"
        self.logic = self.product.logic_hash

    def _require_product_columns(self, config: ProductProcessor) -> None:
        rows, present = self._rows, self._present
        single = [name for name in (rows.time, rows.value) if name is not None]
        require_source_columns(config, (*config.key, *single, *rows.order, *self.product.source_columns), present)
        require_exact_types(config, "keys", config.key, present)
        require_exact_types(config, "order", rows.order, present)
        if rows.time is not None and present[rows.time] not in _TIMES:
            raise ConfigError(
                f"{config.config_key}.time: the column {rows.time} is of type {present[rows.time]}, which "
                "is not a time",
                fix="Name a column of timestamps, or of bigints in milliseconds",
            )
        if rows.value is None:
            return
        kind = present[rows.value].split("(")[0]
        if rows.numbers and kind not in _NUMBERS:
            raise ConfigError(
                f"{config.config_key}.value: the column {rows.value} is of type {kind}, not a number",
                fix="Name a column of numbers, or set `of: texts`",
            )
        if not rows.numbers and kind == "binary":
            raise ConfigError(
                f"{config.config_key}.value: the column {rows.value} is of type binary, and bytes are not "
                "always a text",
                fix="Name a column of another type, or use the column as a key",
            )
        if not rows.numbers:
            require_exact_types(config, "value", [rows.value], present)

    def select_input_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the columns of the source rows that aggregates need: the keys, the bucket's start, and the values.

        Rows without a value in a key column, or without a bucket, are dropped.
        """
        from pyspark.sql import functions as F

        keys = (F.col(quote(name)) for name in self.product.keys)
        events = (column.alias(add_internal_prefix(name)) for name, column in self._build_event_columns().items())
        found, length, ts = rows.select(*keys, *events), self.product.bucket_ms, F.col(add_internal_prefix("ts"))
        if length is not None:
            begin = F.try_subtract(ts, F.pmod(ts, F.lit(length).cast("bigint")))
            within = ts.between(FIRST_MS, LAST_MS) & (begin >= FIRST_MS)
            found = found.withColumn(START, F.when(within, F.timestamp_millis(begin)))
        return select_rows_without_nulls(found, self.by)

    def compute_rows(self, rows: DataFrame) -> DataFrame:
        """Returns the product's rows: aggregates over all source rows of each key and bucket.

        Args:
            rows: Rows from `select_input_rows`.
        """
        names = tuple(name for name, _ in self.columns)
        return compute_rows_by_key(rows, self.by, _ProductRowsFunction(self.product, names), self.columns)

    def recompute_rows_in_sql(self, rows: DataFrame) -> DataFrame:
        """Returns the product's whole table, computed in plain Spark SQL to check the stored table against it.

        Args:
            rows: All rows of the source table.
        """
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        source, fields = self._rows, [self.product.event_columns_by_key[name] for name in self.product.keys]
        keys = (F.col(quote(name)).alias(field) for name, field in zip(self.product.keys, fields, strict=True))
        events = rows.select(*keys, *(column.alias(name) for name, column in self._build_event_columns().items()))
        orders = [build_order_column_name(i) for i in range(len(source.order))]
        events = select_rows_without_nulls(events, [name for name in events.columns if name not in orders])
        if source.time is None:
            events = events.withColumn("ts", F.lit(0).cast("bigint"))
        order = [F.col("ts"), *(F.col(quote(name)).asc_nulls_last() for name in orders)]
        order += [F.col("value")] if source.value is not None else []
        order += [F.col(quote(name)) for name in self.product.source_columns]
        for name, kind in events.dtypes:
            events = events.where(~F.isnan(quote(name))) if kind in _INEXACT else events
        place = F.row_number().over(Window.partitionBy(*map(quote, fields)).orderBy(*order))
        return compute_expected_product_rows(
            events.withColumns({LIFE: F.lit(NO_LIFE), TURN: place, "ordinal": F.lit(0)}), self.product
        )

    def _build_event_columns(self) -> dict[str, Column]:
        """Returns the columns of the source table that aggregates read, by the names that aggregates have for them."""
        from pyspark.sql import functions as F

        source = self._rows
        found = {name: F.col(quote(name)) for name in self.product.source_columns}
        found |= {build_order_column_name(i): F.col(quote(name)) for i, name in enumerate(source.order)}
        if source.value is not None:
            value = F.col(quote(source.value))
            is_exact = isinstance(source, DecimalRows)
            found["value"] = value if is_exact else value.cast("double" if source.numbers else "string")
            found |= {VALUE_AS_DOUBLE: value.cast("double")} if is_exact else {}
        if source.time is not None:
            time = F.col(quote(source.time))
            found["ts"] = F.unix_millis(time) if self._present[source.time] == "timestamp" else time
        return found


@dataclass(frozen=True)
class _ProductRowsFunction:
    """A function that computes the product's rows of several keys from an Arrow table of all their source rows.

    Attributes:
        product: The product.
        names: The columns of the result.
    """

    product: Product
    names: tuple[str, ...]

    def __call__(self, rows: pa.Table) -> pa.Table:
        others = (name for name in rows.column_names if is_internal_name(name))
        values = {name.removeprefix(INTERNAL): rows[name] for name in others}
        return self.product.aggregate_source_table_rows(rows.select(self.product.keys), pa.table(values)).select(
            list(self.names)
        )
