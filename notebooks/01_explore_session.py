# Databricks notebook source
# MAGIC %md
# MAGIC # Explore one session
# MAGIC The table that a capture session describes, how it came to be, and one of its metrics over time.
# MAGIC
# MAGIC On Databricks the widgets above choose the catalog, the prefix of the schemas (`dev_<user>_` in a development
# MAGIC target) and the session. On a laptop, after `make demo`:
# MAGIC
# MAGIC     EXPLORE_SESSION=<id> .venv/bin/python notebooks/01_explore_session.py
# MAGIC
# MAGIC Left empty, the session is the one with the most messages, and the row the one with the most points.

# COMMAND ----------

import os
from collections.abc import Callable
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

# What Databricks puts into a notebook; a laptop has none of them.
_dbutils: Any = globals().get("dbutils")
_display: Callable[[Any], None] | None = globals().get("display")


def parameter(name: str, default: str = "") -> str:
    """A widget's value on Databricks, else that of the environment variable `EXPLORE_<NAME>`."""
    if _dbutils is None:
        return os.environ.get(f"EXPLORE_{name.upper()}", default)
    _dbutils.widgets.text(name, default)
    return str(_dbutils.widgets.get(name))


def show(frame: DataFrame, rows: int = 50) -> None:
    """A frame as the platform's table, or as text."""
    if _display is not None:
        _display(frame.limit(rows))
    else:
        print(frame.limit(rows).toPandas().to_string(index=False), "\n")


# COMMAND ----------

TABLES = ("silver.sessions", "silver.session_rows", "silver.session_changes", "gold.rolling_average")

if "spark" in globals():
    spark: SparkSession = globals()["spark"]
    location = f"{parameter('catalog', 'main')}.{parameter('schema_prefix')}"
    output = None
else:
    from sessionlake.config import load_settings
    from sessionlake.lake.tables import Lake
    from sessionlake.runtime.spark import spark_session

    settings = load_settings()
    spark = spark_session(settings, app="explore")
    missing = sorted(set(TABLES) - set(Lake(settings).register(spark, TABLES)))
    if missing:
        raise LookupError(
            f"{settings.home} has no {', '.join(missing)}: run `make demo`, or name another home with SESSIONLAKE_HOME"
        )
    location = ""
    output = settings.home / "explore_session.png"


def table(name: str) -> DataFrame:
    """A table of the lake by its two-level name, wherever the lake is."""
    return spark.table(f"{location}{name}")


# COMMAND ----------

# MAGIC %md
# MAGIC ## The sessions
# MAGIC `broken` sessions wait for a new snapshot; `silver.integrity_events` says why.

# COMMAND ----------

sessions = table("silver.sessions").orderBy(F.desc("messages"), "topic", "session_id")
show(sessions.select("topic", "session_id", "status", "messages", "duplicates", "gaps", "late", "first_ts", "last_ts"))

# COMMAND ----------

wanted = parameter("session")
chosen = sessions.where(F.col("session_id") == wanted).first() if wanted else sessions.first()
if chosen is None:
    raise LookupError(
        f"there is no session {wanted!r} in silver.sessions: choose one of the list above"
        if wanted
        else "silver.sessions is empty: run `make demo` on a laptop, or the bronze and silver jobs on Databricks"
    )
topic, session = chosen["topic"], chosen["session_id"]
of_session: Column = (F.col("topic") == topic) & (F.col("session_id") == session)
print(f"session {session} of {topic}: {chosen['status']}, {chosen['messages']} messages")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Its table, now

# COMMAND ----------

rows = table("silver.session_rows").where(of_session).drop("topic", "session_id").orderBy("row_id")
show(rows)

# COMMAND ----------

# MAGIC %md
# MAGIC ## How it came to be
# MAGIC Every accepted change in the order it was applied: `clear` starts a snapshot; `_set` names the columns that a
# MAGIC message set, so that an absent column and one set to null are told apart.

# COMMAND ----------

changes = (
    table("silver.session_changes")
    .where(of_session)
    .drop("topic", "session_id", "partition", "_batch")
    .withColumn("time", F.timestamp_millis("_ts"))
    .orderBy("_position", "ordinal")
)
show(changes.groupBy("change").agg(F.count("*").alias("changes"), F.max("time").alias("latest")).orderBy("change"))
show(changes)

# COMMAND ----------

# MAGIC %md
# MAGIC ## One metric of one row
# MAGIC Each point as it was captured, and the rolling average that `gold.rolling_average` keeps over it and the points
# MAGIC before it in event time.

# COMMAND ----------

averages = table("gold.rolling_average").where(of_session)
for column in ("row_id", "metric"):
    if value := parameter(column.removesuffix("_id")):
        averages = averages.where(F.col(column) == value)
series = averages.groupBy("row_id", "metric").count().orderBy(F.desc("count"), "metric", "row_id").first()


def plot(points: pd.DataFrame, title: str) -> plt.Figure:
    """Points and their rolling average over event time.

    Args:
        points: `time`, `value`, `average`, `points` (how many a full window has), in event order.
    """
    figure, axes = plt.subplots(figsize=(10, 4), layout="constrained")
    axes.plot(points["time"], points["value"], ".", alpha=0.4, label="captured")
    axes.plot(points["time"], points["average"], label=f"average of {points['points'].max()} points")
    axes.set(title=title, xlabel="event time (UTC)")
    axes.legend()
    return figure


if series is None:
    print("gold.rolling_average has no such points: run the gold job, or choose a row and a metric that it has")
else:
    points = (
        averages.where((F.col("row_id") == series["row_id"]) & (F.col("metric") == series["metric"]))
        .orderBy("ts", "position", "ordinal")
        .select(F.timestamp_millis("ts").alias("time"), "value", "average", "points")
        .toPandas()
    )
    figure = plot(points, f"{series['metric']} of {series['row_id']} in {session}")
    if _display is not None:
        _display(figure)
    else:
        figure.savefig(output)
        print(f"plot: {output}")
    plt.close(figure)
