# Databricks notebook source
# MAGIC %md
# MAGIC # Integrity
# MAGIC What was lost, where, and why? This notebook shows whether all messages are accounted for, the integrity events,
# MAGIC the quarantine, the broken sessions, and the path of one quarantined message through the layers.
# MAGIC
# MAGIC On Databricks, the widgets set the settings file, target, catalog and schemas. On a laptop, run `make demo`
# MAGIC first, then:
# MAGIC
# MAGIC     SESSIONLAKE_HOME=.sessionlake/demo .venv/bin/python notebooks/02_integrity.py

# COMMAND ----------

import pandas as pd
from pyspark.sql import functions as F

from sessionlake.cli.show import OutputFormat
from sessionlake.cli.trace import show_trace
from sessionlake.history.missing import missing_offsets
from sessionlake.history.status import STATUS_COLUMNS, layer_statuses
from sessionlake.history.trace import trace
from sessionlake.notebook import pictures
from sessionlake.notebook.context import NotebookContext

notebook = NotebookContext(globals())
notebook.require_tables("silver.sessions", "silver.quarantine", "silver.integrity_events", "ops.ledger")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Is every message accounted for?
# MAGIC Every message that a layer read was applied, dropped as a duplicate, or quarantined, or it is held back. So
# MAGIC `unaccounted` must be 0. No offset may be skipped.

# COMMAND ----------

statuses = pd.DataFrame(
    [layer.to_tuple() for layer in layer_statuses(notebook.reader, notebook.settings)], columns=STATUS_COLUMNS
)
balance = ["layer", "batches", "messages", "duplicates", "quarantined", "held", "unaccounted", "behind"]
notebook.show_rows(statuses[balance])
missing = {span: count for span, count in missing_offsets(notebook.reader).items() if count}
print("no layer has skipped an offset" if not missing else f"offsets without a message: {missing}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which integrity events occurred?
# MAGIC Each event has a kind, such as a gap or a duplicate, and the action that silver took.

# COMMAND ----------

events = notebook.read_table("silver.integrity_events").withColumn("kind", F.concat_ws(", ", "event", "action"))
notebook.show_rows(events.groupBy("topic", "kind").count().orderBy(F.desc("count"), "topic", "kind"))
judged = events.select("topic", "kind", F.col("kafka_timestamp").alias("time")).toPandas()
if len(judged):
    judgements = pictures.draw_counts_by_kind_and_topic(judged, "Integrity events")
    notebook.show_figure(judgements, "integrity_judgements")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which messages are in quarantine?
# MAGIC The quarantine has the unchanged messages. `session_broken` means that the message followed a violation in its
# MAGIC session; the next snapshot repairs the session.

# COMMAND ----------

quarantine = notebook.read_table("silver.quarantine")
notebook.show_rows(quarantine.groupBy("topic", "reason").count().orderBy(F.desc("count"), "topic", "reason"))
own_reason = quarantine.where("reason <> 'session_broken'")
unused = own_reason.select("topic", F.col("reason").alias("kind"), F.col("kafka_timestamp").alias("time")).toPandas()
if len(unused):
    quarantined = pictures.draw_counts_by_kind_and_topic(
        unused, "Messages in quarantine, without those of broken sessions"
    )
    notebook.show_figure(quarantined, "integrity_quarantine")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which sessions are broken, since when, and how many messages are in quarantine?

# COMMAND ----------

SESSION = ["topic", "partition", "session_id"]
isolated = (
    events.where("action = 'isolated'")
    .groupBy(*SESSION)
    .agg(F.max_by(F.struct("event", "offset", "expected_seq", "actual_seq", "kafka_timestamp"), "offset").alias("last"))
    .select(*SESSION, "last.*")
)
cost = quarantine.groupBy(*SESSION).agg(F.count("*").alias("in_quarantine"))
broken = (
    notebook.read_table("silver.sessions")
    .where("status = 'broken'")
    .select(*SESSION, "messages")
    .join(isolated, SESSION, "left")
    .join(cost, SESSION, "left")
    .orderBy(F.desc("in_quarantine"), *SESSION)
)
notebook.show_rows(broken)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Follow one message through the layers
# MAGIC The first quarantined message whose own content or order was wrong. `sessionlake trace TOPIC PARTITION OFFSET`
# MAGIC shows the same.

# COMMAND ----------

first = (
    quarantine.where("reason <> 'session_broken'").orderBy("kafka_timestamp", "topic", "partition", "offset").first()
)
if first is None:
    print("no message is in quarantine, except those of broken sessions")
else:
    message = trace(notebook.reader, notebook.settings, first["topic"], first["partition"], first["offset"])
    show_trace(message, OutputFormat.TABLE)
    print(bytes(first["value"] or b"")[:400])
