# Databricks notebook source
# MAGIC %md
# MAGIC # Gold
# MAGIC This notebook shows rolling averages, buckets of a minute, an hour and a day, and the texts that columns had.
# MAGIC
# MAGIC On Databricks, the widgets set the settings file, target, catalog, schemas, topic and metric. On a laptop, run
# MAGIC `make demo` first, then:
# MAGIC
# MAGIC     SESSIONLAKE_HOME=.sessionlake/demo .venv/bin/python notebooks/03_gold.py

# COMMAND ----------

from functools import reduce
from operator import and_

from pyspark.sql import functions as F

from sessionlake.errors import NotFoundError
from sessionlake.notebook import pictures
from sessionlake.notebook.context import NotebookContext

TIERS = {"minutes": "gold.metrics_1m", "hours": "gold.metrics_1h", "days": "gold.metrics_1d"}
SERIES = ["topic", "session_id", "row_id", "metric"]

notebook = NotebookContext(globals())
notebook.require_tables("gold.rolling_average", "gold.distinct_values", *TIERS.values())

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which series are there?
# MAGIC A series is one numeric column of one row of one session. These are the series with the most points.

# COMMAND ----------

minutes = notebook.read_table("gold.metrics_1m")
for column in ("topic", "metric"):
    if value := notebook.read_parameter(column):
        minutes = minutes.where(F.col(column) == value)
per_series = minutes.groupBy(*SERIES).agg(
    F.sum("points").alias("points"),
    F.count("*").alias("minutes"),
    F.min("min").alias("least"),
    F.max("max").alias("greatest"),
    (F.sum("sum") / F.sum("points")).alias("mean"),
)
busiest = per_series.orderBy(F.desc("points"), *SERIES)
notebook.show_rows(busiest, 10)
series = busiest.first()
if series is None:
    raise NotFoundError("gold.metrics_1m has no such series. Run the gold job, or choose a topic and a metric it has")
of_series = reduce(and_, (F.col(column) == series[column] for column in SERIES))
title = f"{series['metric']} of {series['row_id']} in {series['session_id']}"

# COMMAND ----------

# MAGIC %md
# MAGIC ## The rolling average
# MAGIC Each average is over one point and the ones before it in event time. A late point is inserted in its place, and
# MAGIC the later averages are corrected. So late points never make an average wrong.

# COMMAND ----------

points = (
    notebook.read_table("gold.rolling_average")
    .where(of_series)
    .orderBy("ts", "_life", "_seq", "position", "ordinal")
    .select(F.timestamp_millis("ts").alias("time"), "value", "average", "points")
    .toPandas()
)
rolling = pictures.draw_rolling_averages(points, title)
notebook.show_figure(rolling, "gold_rolling_average")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Minutes, hours, days
# MAGIC The same points in the latest buckets of each length, with minimum, maximum and average.

# COMMAND ----------

found = {
    name: notebook.read_table(table).where(of_series).orderBy("window_start").toPandas()
    for name, table in TIERS.items()
}
tiers = pictures.draw_series_by_bucket_length(found, title)
notebook.show_figure(tiers, "gold_tiers")

# COMMAND ----------

# MAGIC %md
# MAGIC ### Does each hour agree with its minutes?
# MAGIC It must, for every series. Only the last digits of a sum may differ, because the order of additions differs.
# MAGIC `sessionlake verify gold` compares every table with plain SQL over silver.

# COMMAND ----------

hours = notebook.read_table("gold.metrics_1h").select(*SERIES, "window_start", "points", "min", "max", "sum")
summed = (
    notebook.read_table("gold.metrics_1m")
    .groupBy(*SERIES, F.date_trunc("hour", "window_start").alias("window_start"))
    .agg(
        F.sum("points").alias("m_points"),
        F.min("min").alias("m_min"),
        F.max("max").alias("m_max"),
        F.sum("sum").alias("m_sum"),
        F.sum(F.abs("sum")).alias("size"),
    )
)
apart = hours.join(summed, [*SERIES, "window_start"], "full").where(
    "NOT (points <=> m_points AND min <=> m_min AND max <=> m_max) OR abs(sum - m_sum) > 1e-9 * size"
)
disagreeing = apart.count()
print(f"{hours.count()} hours; {disagreeing} disagree with their minutes")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which texts did columns have?

# COMMAND ----------

texts = notebook.read_table("gold.distinct_values").select(
    "topic",
    "column",
    "value",
    "changes",
    F.timestamp_millis("first_ts").alias("first"),
    F.timestamp_millis("last_ts").alias("last"),
)
notebook.show_rows(texts.orderBy("topic", "column", F.desc("changes"), "value"))
