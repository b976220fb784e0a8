# Databricks notebook source
# MAGIC %md
# MAGIC # Explore one session
# MAGIC This notebook shows the table of one capture session: as it is now, as it was at any moment, the changes that
# MAGIC led to it, and one of its metrics over time.
# MAGIC
# MAGIC On Databricks, use a cluster with the package's wheel. The widgets above set the settings file (`config`), its
# MAGIC `target`, the catalog, the prefix of the schemas (`dev_<user>_` in a development target) and the session.
# MAGIC On a laptop, run `make demo` first, then:
# MAGIC
# MAGIC     SESSIONLAKE_HOME=.sessionlake/demo NOTEBOOK_SESSION=<id> .venv/bin/python notebooks/01_explore_session.py
# MAGIC
# MAGIC By default: the session with the most messages, a moment in its middle, and the row with the most points.

# COMMAND ----------

from datetime import datetime

from pyspark.sql import functions as F

from sessionlake.errors import NotFoundError
from sessionlake.history.asof import session_as_of
from sessionlake.notebook import pictures
from sessionlake.notebook.context import NotebookContext

notebook = NotebookContext(globals())
notebook.require_tables("silver.sessions", "silver.session_rows", "silver.session_changes", "gold.rolling_average")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The sessions
# MAGIC A `broken` session waits for a new snapshot. Notebook 02 shows why it broke.

# COMMAND ----------

sessions = notebook.read_table("silver.sessions").orderBy(F.desc("messages"), "topic", "session_id")
notebook.show_rows(
    sessions.select("topic", "session_id", "status", "messages", "duplicates", "gaps", "late", "first_ts", "last_ts")
)

# COMMAND ----------

wanted = notebook.read_parameter("session")
chosen = sessions.where(F.col("session_id") == wanted).first() if wanted else sessions.first()
if chosen is None:
    raise NotFoundError(
        f"there is no session {wanted!r} in silver.sessions. Choose one of the list above"
        if wanted
        else "silver.sessions is empty. Run `make demo` on a laptop, or the bronze and silver jobs on Databricks"
    )
topic, partition, session = (chosen[name] for name in ("topic", "partition", "session_id"))
of_session = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("session_id") == session)
print(f"session {session} of {topic}, partition {partition}: {chosen['status']}, {chosen['messages']} messages")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The session's table now

# COMMAND ----------

rows = (
    notebook.read_table("silver.session_rows")
    .where(of_session)
    .drop("topic", "session_id", "partition")
    .orderBy("row_id")
)
notebook.show_rows(rows)

# COMMAND ----------

# MAGIC %md
# MAGIC ## The changes that led to it
# MAGIC All accepted changes in the order in which they were applied. `clear` starts a snapshot. `_set` lists the
# MAGIC columns that a message set, to distinguish a column that is absent from one that is null.

# COMMAND ----------

changes = (
    notebook.read_table("silver.session_changes")
    .where(of_session)
    .drop("topic", "session_id", "partition", "_batch")
    .withColumn("time", F.timestamp_millis("_ts"))
    .orderBy("_position", "ordinal")
)
notebook.show_rows(
    changes.groupBy("change").agg(F.count("*").alias("changes"), F.max("time").alias("latest")).orderBy("change")
)
notebook.show_rows(changes)

# COMMAND ----------

# MAGIC %md
# MAGIC ### Timeline
# MAGIC Each mark is a change, and each vertical line a snapshot. Integrity events are at the top, at their Kafka time.

# COMMAND ----------

events = notebook.read_table("silver.integrity_events").where(of_session)
timeline = pictures.draw_session_timeline(
    changes.select("time", "change", "row_id").toPandas(),
    events.select(F.col("kafka_timestamp").alias("time"), "event").toPandas(),
    f"{session} of {topic}",
)
notebook.show_figure(timeline, "session_timeline")

# COMMAND ----------

# MAGIC %md
# MAGIC ## The session's table at any moment
# MAGIC `moment` is a stream time such as `2026-11-21T18:18:32Z`. `session_as_of` also accepts a seq or an offset.

# COMMAND ----------

began, ended = changes.agg(F.min("_applied_at"), F.max("_applied_at")).first()
given = notebook.read_parameter("moment")
moment = datetime.fromisoformat(given) if given else began + (ended - began) / 2
then = session_as_of(notebook.settings, session, topic, ts=moment, spark=notebook.spark).to_pandas()
print(f"{len(then)} rows at {moment}; {rows.count()} now")
notebook.show_rows(then)

# COMMAND ----------

# MAGIC %md
# MAGIC ## One metric of one row
# MAGIC Each captured point, and the rolling average in `gold.rolling_average` over this point and the ones before it in
# MAGIC event time.

# COMMAND ----------

averages = notebook.read_table("gold.rolling_average").where(of_session)
for column in ("row_id", "metric"):
    if value := notebook.read_parameter(column.removesuffix("_id")):
        averages = averages.where(F.col(column) == value)
series = averages.groupBy("row_id", "metric").count().orderBy(F.desc("count"), "metric", "row_id").first()
if series is None:
    print("gold.rolling_average has no such points. Run the gold job, or choose a row and a metric that it has")
else:
    points = (
        averages.where((F.col("row_id") == series["row_id"]) & (F.col("metric") == series["metric"]))
        .orderBy("ts", "_life", "_seq", "position", "ordinal")
        .select(F.timestamp_millis("ts").alias("time"), "value", "average", "points")
        .toPandas()
    )
    metric = pictures.draw_rolling_averages(points, f"{series['metric']} of {series['row_id']} in {session}")
    notebook.show_figure(metric, "session_metric")
