# Databricks notebook source
# MAGIC %md
# MAGIC # Explore one session
# MAGIC The table that a capture session describes, as it is now and as it was at any moment, how it came to be, and
# MAGIC one of its metrics over time.
# MAGIC
# MAGIC On Databricks, on a cluster that has the package's wheel, the widgets above choose the settings file (`config`),
# MAGIC its `target`, the catalog, the prefix of the schemas (`dev_<user>_` in a development target) and the session.
# MAGIC On a laptop, after `make demo`:
# MAGIC
# MAGIC     SESSIONLAKE_HOME=.sessionlake/demo NOTEBOOK_SESSION=<id> .venv/bin/python notebooks/01_explore_session.py
# MAGIC
# MAGIC Left empty, the session is the one with the most messages, the moment is in its middle, and the row the one
# MAGIC with the most points.

# COMMAND ----------

from datetime import datetime

from pyspark.sql import functions as F

from sessionlake.errors import NotThereError
from sessionlake.history.asof import session_as_of
from sessionlake.notebook import pictures
from sessionlake.notebook.book import Book

book = Book(globals())
book.require("silver.sessions", "silver.session_rows", "silver.session_changes", "gold.rolling_average")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The sessions
# MAGIC `broken` sessions wait for a new snapshot; notebook 02 says why.

# COMMAND ----------

sessions = book.table("silver.sessions").orderBy(F.desc("messages"), "topic", "session_id")
book.show(
    sessions.select("topic", "session_id", "status", "messages", "duplicates", "gaps", "late", "first_ts", "last_ts")
)

# COMMAND ----------

wanted = book.parameter("session")
chosen = sessions.where(F.col("session_id") == wanted).first() if wanted else sessions.first()
if chosen is None:
    raise NotThereError(
        f"there is no session {wanted!r} in silver.sessions: choose one of the list above"
        if wanted
        else "silver.sessions is empty: run `make demo` on a laptop, or the bronze and silver jobs on Databricks"
    )
topic, partition, session = (chosen[name] for name in ("topic", "partition", "session_id"))
of_session = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("session_id") == session)
print(f"session {session} of {topic}, partition {partition}: {chosen['status']}, {chosen['messages']} messages")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Its table, now

# COMMAND ----------

rows = book.table("silver.session_rows").where(of_session).drop("topic", "session_id", "partition").orderBy("row_id")
book.show(rows)

# COMMAND ----------

# MAGIC %md
# MAGIC ## How it came to be
# MAGIC Every accepted change in the order it was applied: `clear` starts a snapshot; `_set` names the columns that a
# MAGIC message set, so that an absent column and one set to null are told apart.

# COMMAND ----------

changes = (
    book.table("silver.session_changes")
    .where(of_session)
    .drop("topic", "session_id", "partition", "_batch")
    .withColumn("time", F.timestamp_millis("_ts"))
    .orderBy("_position", "ordinal")
)
book.show(changes.groupBy("change").agg(F.count("*").alias("changes"), F.max("time").alias("latest")).orderBy("change"))
book.show(changes)

# COMMAND ----------

# MAGIC %md
# MAGIC ### Its timeline
# MAGIC A mark a change, a line where the whole table came anew. What was not fine stands above, at Kafka's time.

# COMMAND ----------

events = book.table("silver.integrity_events").where(of_session)
timeline = pictures.timeline(
    changes.select("time", "change", "row_id").toPandas(),
    events.select(F.col("kafka_timestamp").alias("time"), "event").toPandas(),
    f"{session} of {topic}",
)
book.picture(timeline, "session_timeline")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Its table at any moment
# MAGIC `moment` is stream time, as in `2026-11-21T18:18:32Z`. A seq or an offset serves, too: see `session_as_of`.

# COMMAND ----------

began, ended = changes.agg(F.min("_applied_at"), F.max("_applied_at")).first()
given = book.parameter("moment")
moment = datetime.fromisoformat(given) if given else began + (ended - began) / 2
then = session_as_of(book.settings, session, topic, ts=moment, spark=book.spark).to_pandas()
print(f"{len(then)} rows at {moment}; {rows.count()} now")
book.show(then)

# COMMAND ----------

# MAGIC %md
# MAGIC ## One metric of one row
# MAGIC Each point as it was captured, and the rolling average that `gold.rolling_average` keeps over it and the points
# MAGIC before it in event time.

# COMMAND ----------

averages = book.table("gold.rolling_average").where(of_session)
for column in ("row_id", "metric"):
    if value := book.parameter(column.removesuffix("_id")):
        averages = averages.where(F.col(column) == value)
series = averages.groupBy("row_id", "metric").count().orderBy(F.desc("count"), "metric", "row_id").first()
if series is None:
    print("gold.rolling_average has no such points: run the gold job, or choose a row and a metric that it has")
else:
    points = (
        averages.where((F.col("row_id") == series["row_id"]) & (F.col("metric") == series["metric"]))
        .orderBy("ts", "_life", "_seq", "position", "ordinal")
        .select(F.timestamp_millis("ts").alias("time"), "value", "average", "points")
        .toPandas()
    )
    metric = pictures.averages(points, f"{series['metric']} of {series['row_id']} in {session}")
    book.picture(metric, "session_metric")
