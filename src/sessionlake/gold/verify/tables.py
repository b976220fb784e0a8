"""Recomputes gold's tables by plain Spark SQL and compares them. No code is shared with gold's own aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import build_feed_topics_condition
from sessionlake.delta.schemas.names import CHANGES, LATE_POINTS
from sessionlake.gold.aggregate.final import FinalTable
from sessionlake.gold.aggregate.late import APPLIED, LATE_COLUMNS, LATE_KEYS, OFFSET, WITH_PLACE
from sessionlake.gold.aggregate.product import START, START_FIELD, Product
from sessionlake.gold.aggregate.sources import DeclaredColumns, build_decimal_column_name
from sessionlake.gold.changes import (
    add_seq_order,
    build_event_source_condition_sql,
    build_late_change_filter,
    find_last_read_changes_version,
    get_value_columns,
    read_changes,
    require_all_read_changes_exist,
    select_decimal_events,
    select_events,
)
from sessionlake.gold.declared.tables import GoldTable, add_final_tables_of_products, find_final_tables
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.tables.expiry import drop_expired_spark_rows, read_expiry_times
from sessionlake.gold.verify.averages import verify_restatements
from sessionlake.gold.verify.references import compute_enriched_rows, verify_applied_references
from sessionlake.gold.verify.rules import verify_rules
from sessionlake.protocol.names import add_internal_prefix, quote
from sessionlake.protocol.years import FIRST_MS, LAST_MS
from sessionlake.settings.model import Settings
from sessionlake.spark.compare import TableComparison, build_magnitude_column_name, compare_rows
from sessionlake.spark.frames import keep_small_frame_in_one_task

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIME = add_internal_prefix("time")


def verify_gold(spark: SparkSession, settings: Settings, tables: Sequence[GoldTable]) -> list[TableComparison]:
    """Compares tables of gold with a recomputation from all changes that gold has read.

    Expired rows are not compared. The result also compares their final rows, late points, restatements, references and
    alerts. It is empty if gold has read nothing yet.

    Raises:
        LakeError: gold has read only a part of a version of silver's changes, or retention has removed changes.
    """
    lake, declared = Lake(settings), get_value_columns(settings)
    require_all_read_changes_exist(lake, spark)
    changes = read_changes(spark, lake, settings)
    if changes is None:
        return []
    select = partial(select_events, changes, declared, WITH_PLACE, with_decimals=True)
    numbers, texts = (keep_small_frame_in_one_task(select(numbers=kind)) for kind in (True, False))
    floors = read_expiry_times(lake.reader(spark), [table.table_name for table in add_final_tables_of_products(tables)])
    found, late, averages = [], [], []
    for table in tables:
        if isinstance(table, EnrichedTable):
            all_changes = lake.read(spark, CHANGES, find_last_read_changes_version(settings))
            truth = compute_enriched_rows(spark, lake, all_changes, table)
        elif isinstance(table, RollingAverage):
            truth = _compute_expected_averages(numbers, table, declared.decimals)
            averages.append(table)
        else:
            values = numbers if table.source.is_numeric else texts
            events = _select_input_rows_of_product(table, changes, declared, values)
            on_time = compute_expected_product_rows(events.where(~build_late_change_filter(table)), table)
            truth = drop_expired_spark_rows(on_time, floors.get(table.table_name, {}))
            if table.lateness_ms is not None:
                late.append(_compute_expected_late_points(events.where(build_late_change_filter(table)), table))
        rows = lake.read_small_table_into_memory(spark, table.table_name)
        found.append(compare_rows(table.table_name, table.row_keys, table.result_columns, rows, truth))
        for final in find_final_tables([table]):
            # Rows that expired in either table are not compared: in a partition that lags, a row can expire before it
            # is final.
            gone = [floors.get(one, {}) for one in (table.table_name, final.table_name)]
            rows = drop_expired_spark_rows(lake.read_small_table_into_memory(spark, final.table_name), *gone)
            truth = drop_expired_spark_rows(_compute_expected_final_rows(truth, changes, final), *gone)
            found.append(compare_rows(final.table_name, final.row_keys, table.result_columns, rows, truth))
    if late:
        stored = lake.read(spark, LATE_POINTS).join(_create_frame_of_table_names(spark, tables), "table", "left_semi")
        truth = reduce(lambda one, other: one.unionByName(other), late)
        found.append(compare_rows(LATE_POINTS, LATE_KEYS, ("ts", "stream_time", OFFSET), stored, truth))
    if averages:
        found.append(verify_restatements(spark, lake, averages, numbers))
    found += verify_applied_references(spark, lake, settings, tables)
    rules = verify_rules(spark, settings)
    return found if rules is None else [*found, rules]


def _select_input_rows_of_product(
    product: Product, changes: DataFrame, declared: DeclaredColumns, events: DataFrame
) -> DataFrame:
    """Returns the events that a product aggregates.

    Args:
        product: the product.
        changes: all changes that gold has read.
        declared: the declared columns that the changes have.
        events: all numbers that changes set, or all texts if the product aggregates texts.
    """
    column = product.source.only_decimal_column
    events = events if column is None else select_decimal_events(changes, declared, WITH_PLACE, column)
    return events.where(build_event_source_condition_sql(product.source))


def compute_expected_product_rows(events: DataFrame, product: Product) -> DataFrame:
    """Returns the rows that a product's table should have, computed from its events by Spark SQL.

    For each result that can have a rounding error, a further column says how large the summed numbers are
    (`build_magnitude_column_name`).
    """
    from pyspark.sql import functions as F

    if product.bucket_ms is not None:
        start = F.expr(f"ts - pmod(ts, {product.bucket_ms}L)")
        within = F.col("ts").between(FIRST_MS, LAST_MS) & (start >= FIRST_MS)
        events = events.where(within).withColumn(START_FIELD, F.timestamp_millis(start))
    made = {name: one.build_result_sql() for name, one in product.aggregates.items()}
    sizes = {name: one.build_rounding_error_scale_sql() for name, one in product.aggregates.items()}
    made |= {build_magnitude_column_name(name): size for name, size in sizes.items() if size is not None}
    keys = [*product.event_columns_by_key.values()]
    # Results are named last: within one aggregation, a result's name would hide an input column of the same name.
    unnamed = {add_internal_prefix(f"result:{place}"): sql for place, sql in enumerate(made.values())}
    found = events.groupBy(*map(quote, keys)).agg(*(F.expr(sql).alias(name) for name, sql in unnamed.items()))
    names = zip([*keys, *unnamed], [*product.event_columns_by_key, *made], strict=True)
    return found.select(*(F.col(quote(held)).alias(name) for held, name in names))


def _compute_expected_final_rows(rows: DataFrame, changes: DataFrame, final: FinalTable) -> DataFrame:
    """Returns the rows of a product that should be in its table of final rows.

    Args:
        rows: the rows that the product's own table should have.
        changes: all changes that gold has read. Their stream times decide which rows are final.
        final: the table of final rows.
    """
    from pyspark.sql import functions as F

    times = changes.groupBy("topic", "partition").agg(F.max(APPLIED).alias(_TIME))
    closed = F.unix_millis(START) + F.lit(final.bucket_ms + final.lateness_ms).cast("bigint") <= F.col(_TIME)
    return rows.join(times, ["topic", "partition"]).where(closed).drop(_TIME)


def _compute_expected_late_points(events: DataFrame, product: Product) -> DataFrame:
    from pyspark.sql import functions as F

    name = "metric" if product.source.is_numeric else "column"
    marks = events.withColumnsRenamed({name: "name", APPLIED: "stream_time"})
    return marks.withColumn("table", F.lit(product.table_name)).select([name for name, _ in LATE_COLUMNS])


def _create_frame_of_table_names(spark: SparkSession, tables: Sequence[GoldTable]) -> DataFrame:
    return spark.createDataFrame([(table.table_name,) for table in tables], "table string")


def _compute_expected_averages(numbers: DataFrame, series: RollingAverage, decimals: Sequence[str]) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    keys, points = [*map(quote, series.keys)], numbers.where(build_feed_topics_condition(series.topics))
    all_points = Window.partitionBy(*keys)
    line = all_points.orderBy(*map(quote, series.sort_columns))
    last = line.rowsBetween(1 - series.window_points, Window.currentRow)
    size = F.count("value").over(last)
    # The watermark is at least the smallest possible event time.
    watermark = F.coalesce(F.try_subtract(F.max("ts").over(all_points), F.lit(series.watermark_ms)), F.lit(-(2**63)))
    shown = (size >= series.minimum_points) & (F.lit(series.publishes_early) | (F.col("ts") <= watermark))
    average, magnitude = F.avg("value").over(last), F.avg(F.abs("value")).over(last)
    for place, name in enumerate(decimals):
        is_own, total = F.col("metric") == name, F.try_sum(quote(build_decimal_column_name(place))).over(last)
        average = F.when(is_own, total.cast("double") / size).otherwise(average)
        # Exact sums need no tolerance. If a sum has too many digits for SQL, any average is accepted.
        exact = F.when(total.isNull(), float("inf")).otherwise(0.0)
        magnitude = F.when(is_own, exact).otherwise(magnitude)
    average = F.when(shown, average)
    return add_seq_order(points).select(
        *map(quote, series.row_keys), "value", average.alias("average"), size.cast("int").alias("points"),
        magnitude.alias(build_magnitude_column_name("average")),
    )  # fmt: skip
