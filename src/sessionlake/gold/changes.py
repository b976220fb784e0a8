"""Reads `silver.session_changes` with the column names that gold's pure modules use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import build_feed_topics_condition, quote_sql_string
from sessionlake.delta.schemas.names import CHANGES, GOLD
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.late import APPLIED
from sessionlake.gold.aggregate.order import LIFE, NO_LIFE, SEQ, TURN, OnceTopics, build_session_hash_sql
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.sources import (
    DeclaredColumns,
    EventSource,
    build_decimal_column_name,
    build_number_column_name,
    build_text_column_name,
)
from sessionlake.gold.fold.series import SEQ_ORDER
from sessionlake.ledger.retained import read_removal_records_without_limits
from sessionlake.protocol.columns import is_decimal_type
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import keep_small_frame_in_one_task
from sessionlake.streaming import handover

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


def get_value_columns(settings: Settings) -> DeclaredColumns:
    """Returns the configured columns from which gold computes: numbers, texts, and decimals that products aggregate.

    The result also has the topics of each feed.
    """
    capture, columns = settings.capture, settings.capture.declared_columns
    numbers = tuple(column.name for column in columns if column.is_numeric)
    texts = tuple(column.name for column in columns if column.sql == "string")
    feeds = {one.name: capture.find_feed_topics(one.name) for one in capture.feeds}
    decimals = tuple(column.name for column in columns if is_decimal_type(column.sql))
    return DeclaredColumns(numbers, texts, feeds, decimals)


def build_change_columns(declared: DeclaredColumns, once_topics: OnceTopics) -> list[Column]:
    """Returns the Spark columns to select from `silver.session_changes`, with the names that gold uses for them.

    If any topic has the integrity class `once_topics`, the columns include the life and the seq of a change.

    Args:
        declared: The declared columns.
        once_topics: Decides which topics have the class `once_topics`.
    """
    from pyspark.sql import functions as F

    seqs = [F.col("_life").alias(LIFE), F.col("_seq").alias(SEQ)]
    return [
        *(F.col(name) for name in ("topic", "session_id", "row_id", "partition", "ordinal")),
        F.unix_millis("kafka_timestamp").alias("kafka_ms"),
        F.col("_ts").alias("ts"),
        F.unix_millis("_applied_at").alias(APPLIED),
        F.col("_position").alias("position"),
        F.col("_batch").alias("batch"),
        F.col("_offset").alias("offset"),
        *(seqs if once_topics.is_once_configured else []),
        # As a double, an integer beyond 2^53 loses its last digits.
        *(
            _build_value_if_set(name).cast("double").alias(build_number_column_name(i))
            for i, name in enumerate(declared.numbers)
        ),
        *(_build_value_if_set(name).alias(build_text_column_name(i)) for i, name in enumerate(declared.texts)),
        *(_build_value_if_set(name).alias(build_decimal_column_name(i)) for i, name in enumerate(declared.decimals)),
    ]


def select_changes(rows: DataFrame, settings: Settings, *more_columns: Column) -> DataFrame:
    """Selects the columns of silver's changes that gold uses, and adds two columns that order the changes.

    The added columns are `order:life` and `order:turn` (`gold.aggregate.order`).

    Args:
        rows: Rows of `silver.session_changes`.
        more_columns: Further columns to select.
    """
    from pyspark.sql import functions as F

    declared, once = get_value_columns(settings), OnceTopics(settings.capture)
    changes, position = rows.select(*build_change_columns(declared, once), *more_columns), F.col("position")
    if not once.is_once_configured:
        return changes.withColumns({LIFE: F.lit(NO_LIFE).cast("bigint"), TURN: position})
    is_once = F.col("topic").isin(
        once.select_once_topics([row[0] for row in rows.select("topic").distinct().collect()])
    )
    life = F.when(is_once, F.coalesce(quote(LIFE), F.lit(0))).otherwise(NO_LIFE)
    turn = F.when(is_once, F.coalesce(quote(SEQ), position)).otherwise(position)
    return changes.withColumns({LIFE: life, TURN: turn}).drop(SEQ)


def add_seq_order(events: DataFrame) -> DataFrame:
    """Adds the columns by which tables of averages order events of topics with the class `once`.

    The columns hold a hash of the session id, the life and the seq. They are null for topics of other classes.
    """
    from pyspark.sql import functions as F

    is_once = F.col(quote(LIFE)) != NO_LIFE
    of_once = (F.expr(build_session_hash_sql("session_id")), F.col(quote(LIFE)), F.col(quote(TURN)))
    return events.withColumns({name: F.when(is_once, part) for name, part in zip(SEQ_ORDER, of_once, strict=True)})


def select_events(
    changes: DataFrame,
    declared: DeclaredColumns,
    copied_columns: Sequence[str],
    *,
    numbers: bool,
    with_decimals: bool = False,
) -> DataFrame:
    """Returns one row for each number, or each text, that a change set. The value is in the column `value`.

    The name of the declared column is in `metric` for numbers, and in `column` for texts. NaN is left out.

    Args:
        changes: Changes from `select_changes`.
        declared: The declared columns.
        copied_columns: Names of the columns to copy from the change.
        numbers: True for numbers, False for texts.
        with_decimals: True to add the columns `decimal:<i>`. Each has the exact values of one decimal column, else
            null.
    """
    from pyspark.sql import functions as F

    names, field = (declared.numbers, build_number_column_name) if numbers else (declared.texts, build_text_column_name)
    called, kind = ("metric", "double") if numbers else ("column", "string")
    copied_columns = [*map(quote, copied_columns)]
    nothing = changes.limit(0).select(*copied_columns, F.lit("").alias(called), F.lit(None).cast(kind).alias("value"))
    decimals = {
        name: [quote(build_decimal_column_name(i))]
        for i, name in enumerate(declared.decimals)
        if with_decimals and numbers
    }
    parts = (
        changes.select(
            *copied_columns, F.lit(name).alias(called), F.col(quote(field(i))).alias("value"), *decimals.get(name, [])
        )
        for i, name in enumerate(names)
    )
    events = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), parts, nothing)
    events = events.where("value IS NOT NULL")
    # Adding zero turns -0.0 into 0.0, as the aggregates do.
    return events.where("NOT isnan(value)").withColumn("value", F.expr("value + 0.0D")) if numbers else events


def select_decimal_events(
    changes: DataFrame, declared: DeclaredColumns, copied_columns: Sequence[str], column: str
) -> DataFrame:
    """Returns one row for each number that a change set in one decimal column.

    The exact decimal is in the column `value`, the name of the decimal column in `metric`.

    Args:
        changes: Changes from `select_changes`.
        declared: The declared columns.
        copied_columns: Names of the columns to copy from the change.
        column: Name of the decimal column.
    """
    from pyspark.sql import functions as F

    value = F.col(quote(build_decimal_column_name(declared.decimals.index(column))))
    found = changes.select(*map(quote, copied_columns), F.lit(column).alias("metric"), value.alias("value"))
    return found.where("value IS NOT NULL")


def build_event_source_condition_sql(source: EventSource) -> str:
    """Returns the SQL condition that selects the events of a source among the rows of `select_events`."""
    only_decimal_column = (
        "true" if source.only_decimal_column is None else f"metric = {quote_sql_string(source.only_decimal_column)}"
    )
    return f"{only_decimal_column} AND {build_feed_topics_condition(source.topics)}"


def build_event_filter(product: Product) -> Column:
    """Returns the Spark condition that selects a product's events that are not late, among rows of `select_events`."""
    from pyspark.sql import functions as F

    return ~build_late_change_filter(product) & F.expr(build_event_source_condition_sql(product.source))


def build_late_change_filter(product: Product) -> Column:
    """Returns the Spark condition that selects the changes that are too late for a product.

    The condition refers to the columns of `select_changes`.
    """
    from pyspark.sql import functions as F

    return F.expr(build_late_change_condition_sql(product))


def build_late_change_condition_sql(product: Product) -> str:
    """Returns the SQL condition that selects the changes that are too late for a product.

    The condition refers to the columns of `select_changes`.
    """
    if product.lateness_ms is None:
        return "false"
    length, passed = int(product.bucket_ms or 1), f"({APPLIED} - {int(product.lateness_ms)}L)"
    # For the earliest times, the start of the bucket does not fit into a bigint.
    begins = f"coalesce(try_subtract(ts, pmod(ts, {length}L)), ts)"
    return f"coalesce({begins} < {passed} - pmod({passed}, {length}L), false)"


def _build_value_if_set(column: str) -> Column:
    """Returns a Spark column with a declared column's value where the change set it, else null."""
    from pyspark.sql import functions as F

    was_set = (F.col("change") == "upsert") & F.array_contains("_set", column)
    return F.when(was_set, F.col(quote(column)))


def read_changes(spark: SparkSession, lake: Lake, settings: Settings) -> DataFrame | None:
    """Returns all changes that gold has processed, with the columns of `select_changes`; None before the first batch.

    Raises:
        LakeError: Gold has read only a part of a version of `silver.session_changes`.
    """
    version = find_last_read_changes_version(settings)
    if version is None:
        return None
    return keep_small_frame_in_one_task(select_changes(lake.read(spark, CHANGES, version), settings))


def require_all_read_changes_exist(lake: Lake, spark: SparkSession) -> None:
    """Checks that every change that gold has processed still exists in silver.

    Raises:
        LakeError: Retention has removed some changes.
    """
    found = read_removal_records_without_limits(lake.reader(spark)).get(CHANGES)
    if found is not None and found.max_missing_rows:
        raise LakeError(
            f"{found.removal_description}",
            why="Gold cannot compute again what it had computed from these rows",
            fix="Keep gold's tables: they still have what was computed. To verify or rebuild gold later, give "
            "maintain.retention a longer time from now on",
        )


def refuse_rebuild_from_fewer_changes(lake: Lake, spark: SparkSession) -> None:
    """Checks that all changes from which gold computed its tables still exist in silver.

    Raises:
        LakeError: Retention has removed some changes, so that a rebuilt table would begin later than now.
    """
    try:
        require_all_read_changes_exist(lake, spark)
    except LakeError as error:
        raise LakeError(
            f"{error}",
            fix="Add `--shorten-gold` to compute it from the changes that are left; it then begins later",
        ) from error


def find_last_read_changes_version(settings: Settings) -> int | None:
    """Returns the version of `silver.session_changes` up to which gold has read; None before gold's first batch.

    Raises:
        LakeError: Gold has read only a part of a version, or it stopped during a batch.
    """
    return handover.read_last_processed_version(settings, GOLD)
