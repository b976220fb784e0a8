"""Creates gold's views and table functions for SQL, and defines `metrics_between(since, until)`.

`metrics_between` returns the metrics of every series over any range of time. It reads whole days from the table of
metrics per day, whole hours from the one per hour, and only the rest per minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import METRICS_BETWEEN, RETAINED
from sessionlake.delta.table_function import create_table_function
from sessionlake.gold.aggregate.functions import ORDER
from sessionlake.gold.aggregate.standard import (
    METRICS_1D,
    METRICS_1H,
    METRICS_1M,
    TIERS,
    create_product_of_metrics_answer,
)
from sessionlake.gold.sql.figures_with import create_sql_function_figures_with
from sessionlake.gold.sql.views import DEFINITIONS, create_sql_function_data_quality_since, create_views

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Reads the range's whole days (UTC), then the whole hours that are left, then the minutes. Variances are merged around
# the common mean, so that nothing cancels (Chan, Golub and LeVeque).
_BODY = """
WITH parts AS (
  SELECT {columns} FROM {days} WHERE window_start >= {first_day} AND window_start < {end_day}
  UNION ALL
  SELECT {columns} FROM {hours} WHERE window_start >= {first_hour} AND window_start < {end_hour}
    AND NOT (window_start >= {first_day} AND window_start < {end_day})
  UNION ALL
  SELECT {columns} FROM {minutes} WHERE window_start >= {first_minute} AND window_start < {end_minute}
    AND NOT (window_start >= {first_hour} AND window_start < {end_hour})
), cuts AS (
  SELECT topic, {gone} AS gone FROM ({floors}) AS floors
), centered AS (
  SELECT *, sum(sum) OVER (PARTITION BY {keys}) / sum(points) OVER (PARTITION BY {keys}) AS mean
  FROM parts LEFT JOIN cuts USING (topic)
)
SELECT {keys}, sum(points) AS points, min(min) AS min, max(max) AS max, sum(sum) AS sum,
  sum(sum) / sum(points) AS average, min_by(first, {first_at}) AS first, max_by(last, {last_at}) AS last,
  CASE WHEN sum(points) > 1 AND count_if(points > 1 AND variance IS NULL) = 0
    THEN (sum(coalesce(variance, 0) * (points - 1)) + sum(points * (average - mean) * (average - mean)))
      / (sum(points) - 1)
  END AS variance,
  NOT coalesce(max(gone), false) AS whole
FROM centered GROUP BY {keys}
"""
# `_FLOORS` selects, by topic, the last expired time of each table of metrics. `_GONE` tells from these times whether
# the function reads an expired bucket. A query in a SQL warehouse cannot learn that in any other way.
_FLOORS = """SELECT topic, max(`limit`) FILTER (WHERE `table` = '{days}') AS day,
  max(`limit`) FILTER (WHERE `table` = '{hours}') AS hour, max(`limit`) FILTER (WHERE `table` = '{minutes}') AS minute
  FROM {retained} WHERE `limit` IS NOT NULL AND `table` IN ('{days}', '{hours}', '{minutes}') GROUP BY topic"""
_NO_FLOORS = "SELECT 'none' AS topic, 0L AS day, 0L AS hour, 0L AS minute WHERE false"
_GONE = """CASE
    WHEN {first_day} < {end_day} AND unix_millis({first_day}) <= floors.day THEN true
    WHEN {first_day} < {end_day} AND {first_hour} < {first_day} AND unix_millis({first_hour}) <= floors.hour THEN true
    WHEN {first_day} < {end_day} AND {end_day} < {end_hour} AND unix_millis({end_day}) <= floors.hour THEN true
    WHEN {first_day} >= {end_day} AND {first_hour} < {end_hour} AND unix_millis({first_hour}) <= floors.hour THEN true
    WHEN {first_hour} < {end_hour} AND {first_minute} < {first_hour}
      AND unix_millis({first_minute}) <= floors.minute THEN true
    WHEN {first_hour} < {end_hour} AND {end_hour} < {end_minute} AND unix_millis({end_hour}) <= floors.minute THEN true
    WHEN {first_hour} >= {end_hour} AND {first_minute} < {end_minute}
      AND unix_millis({first_minute}) <= floors.minute THEN true
    ELSE false END"""
_FIRST = "timestamp_micros(unix_micros({function}.since) + pmod(-unix_micros({function}.since), {length}))"
_END = "timestamp_micros(unix_micros({function}.until) - pmod(unix_micros({function}.until), {length}))"


def create_sql_function_metrics_between(spark: SparkSession, lake: Lake) -> str:
    """Creates the SQL table function `metrics_between(since TIMESTAMP, until TIMESTAMP)`, and returns its name.

    The function's column `whole` is true if no bucket of the range has expired.

    Raises:
        LakeError: Spark refuses to create the function, for example because a privilege is missing.
    """
    answer = create_product_of_metrics_answer(METRICS_1M.keys, None)
    tiers = {"day": METRICS_1D, "hour": METRICS_1H, "minute": METRICS_1M}
    edges = {
        f"{edge}_{name}": text.format(function=METRICS_BETWEEN, length=(tier.bucket_ms or 0) * 1000)
        for name, tier in tiers.items()
        for edge, text in (("first", _FIRST), ("end", _END))
    }
    floors = _NO_FLOORS
    if lake.exists(spark, RETAINED):
        named = {f"{name}s": tier.table_name for name, tier in tiers.items()}
        floors = _FLOORS.format(retained=lake.to_sql_identifier(RETAINED), **named)
    body = _BODY.format(
        floors=floors,
        gone=_GONE.format(**edges),
        columns=", ".join(name for name, _ in METRICS_1M.column_types),
        keys=", ".join(answer.row_keys),
        **{f"{end}_at": f"struct({', '.join(f'_{end}_{part}' for part, _, _ in ORDER)})" for end in ("first", "last")},
        **{f"{name}s": lake.to_sql_identifier(tier.table_name) for name, tier in tiers.items()},
        **edges,
    )
    types = dict(answer.column_types)
    columns = (
        ", ".join(f"{name} {types[name]}" for name in (*answer.row_keys, *answer.result_columns)) + ", whole BOOLEAN"
    )
    parameters = "since TIMESTAMP, until TIMESTAMP"
    return create_table_function(spark, lake, f"gold.{METRICS_BETWEEN}", parameters, columns, body)


def create_views_and_functions(spark: SparkSession, lake: Lake) -> None:
    """Creates gold's views and table functions in a catalog, for SQL warehouses, and the tables that they read.

    Does nothing for local tables, for which each Spark session creates its own views and functions.

    Raises:
        LakeError: Spark refuses to create them, for example because a privilege is missing.
    """
    if not lake.storage.functions_persist:
        return
    read = [table for view in DEFINITIONS.values() for table in view.reads.values()]
    read += [*(tier.table_name for tier in TIERS), RETAINED]
    lake.create_or_update_tables(spark, [table for table in dict.fromkeys(read) if not lake.exists(spark, table)])
    create_views(spark, lake)
    create_sql_function_data_quality_since(spark, lake)
    create_sql_function_metrics_between(spark, lake)
    create_sql_function_figures_with(spark, lake)
