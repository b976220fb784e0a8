# Databricks notebook source
# MAGIC %md
# MAGIC # Integrity
# MAGIC What was lost, where, and why: do the books balance, what was judged not to be fine, what is in quarantine,
# MAGIC which sessions are broken since when, and one message of these, looked at.
# MAGIC
# MAGIC On Databricks the widgets choose settings file, target, catalog and schemas; on a laptop, after `make demo`:
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
from sessionlake.notebook.book import Book

book = Book(globals())
book.require("silver.sessions", "silver.quarantine", "silver.integrity_events", "ops.ledger")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Do the books balance?
# MAGIC Every message that a layer took in was applied, dropped as a duplicate, put into quarantine, or is held back:
# MAGIC `unaccounted` is 0. And no offset was passed over.

# COMMAND ----------

statuses = pd.DataFrame([layer.row() for layer in layer_statuses(book.reader, book.settings)], columns=STATUS_COLUMNS)
balance = ["layer", "batches", "messages", "duplicates", "quarantined", "held", "unaccounted", "behind"]
book.show(statuses[balance])
missing = {span: count for span, count in missing_offsets(book.reader).items() if count}
print("no layer has passed over an offset" if not missing else f"offsets without a message: {missing}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What was not fine?
# MAGIC Each judgement is an event: what it was, and what was done about it.

# COMMAND ----------

events = book.table("silver.integrity_events").withColumn("kind", F.concat_ws(", ", "event", "action"))
book.show(events.groupBy("topic", "kind").count().orderBy(F.desc("count"), "topic", "kind"))
judged = events.select("topic", "kind", F.col("kafka_timestamp").alias("time")).toPandas()
if len(judged):
    judgements = pictures.losses(judged, "Judgements that were not fine")
    book.picture(judgements, "integrity_judgements")

# COMMAND ----------

# MAGIC %md
# MAGIC ## What could not be used?
# MAGIC Quarantine has these messages whole. `session_broken` are those behind a violation: a snapshot heals the
# MAGIC session.

# COMMAND ----------

quarantine = book.table("silver.quarantine")
book.show(quarantine.groupBy("topic", "reason").count().orderBy(F.desc("count"), "topic", "reason"))
own_reason = quarantine.where("reason <> 'session_broken'")
unused = own_reason.select("topic", F.col("reason").alias("kind"), F.col("kafka_timestamp").alias("time")).toPandas()
if len(unused):
    quarantined = pictures.losses(unused, "Messages in quarantine for a reason of their own")
    book.picture(quarantined, "integrity_quarantine")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Which sessions are broken, since when, and how much did that cost?

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
    book.table("silver.sessions")
    .where("status = 'broken'")
    .select(*SESSION, "messages")
    .join(isolated, SESSION, "left")
    .join(cost, SESSION, "left")
    .orderBy(F.desc("in_quarantine"), *SESSION)
)
book.show(broken)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Where is one of them?
# MAGIC The first message that was put into quarantine for a reason of its own, followed through all layers: what
# MAGIC `sessionlake trace TOPIC PARTITION OFFSET` tells.

# COMMAND ----------

first = (
    quarantine.where("reason <> 'session_broken'").orderBy("kafka_timestamp", "topic", "partition", "offset").first()
)
if first is None:
    print("nothing is in quarantine for a reason of its own")
else:
    message = trace(book.reader, book.settings, first["topic"], first["partition"], first["offset"])
    show_trace(message, OutputFormat.TABLE)
    print(bytes(first["value"] or b"")[:400])
