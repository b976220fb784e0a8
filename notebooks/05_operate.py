# Databricks notebook source
# MAGIC %md
# MAGIC # Operate
# MAGIC How far behind is each layer? What did its batches read? What is in silver's state? Does a session's table match
# MAGIC its changes?
# MAGIC
# MAGIC On Databricks, the widgets set the settings file, target, catalog, schemas and the checkpoints' volume. On a
# MAGIC laptop, run `make demo` first, then:
# MAGIC
# MAGIC     SESSIONLAKE_HOME=.sessionlake/demo .venv/bin/python notebooks/05_operate.py

# COMMAND ----------

import pandas as pd
from pyspark.sql import functions as F

from sessionlake.history.asof import session_as_of
from sessionlake.history.batch_as_of import as_of_batch
from sessionlake.history.report.batches import find_latest_batches
from sessionlake.history.report.pace import compute_lags, compute_throughput
from sessionlake.history.state import STATS, compute_shard_state_stats
from sessionlake.history.status import STATUS_COLUMNS, layer_statuses
from sessionlake.notebook import pictures
from sessionlake.notebook.context import NotebookContext
from sessionlake.silver.states import read_shard_states

notebook = NotebookContext(globals())
notebook.require_tables("silver.sessions", "silver.session_rows", "ops.ledger")

# COMMAND ----------

# MAGIC %md
# MAGIC ## How far behind is each layer?
# MAGIC `behind` counts what the layer's source has and the layer has not read yet. `age_seconds` is the time since its
# MAGIC last commit.

# COMMAND ----------

layers = layer_statuses(notebook.reader, notebook.settings)
statuses = pd.DataFrame([layer.to_tuple() for layer in layers], columns=STATUS_COLUMNS)
progress = ["layer", "batches", "last_batch", "messages", "rows", "behind", "committed_at", "age_seconds"]
notebook.show_rows(statuses[progress])

# COMMAND ----------

# MAGIC %md
# MAGIC ## The ledger
# MAGIC The ledger has one row per batch of each layer: the offsets or versions it read, and the rows and table versions
# MAGIC it wrote.

# COMMAND ----------

ledger = notebook.read_table("ops.ledger").withColumn(
    "seconds", F.round((F.unix_millis("committed_at") - F.unix_millis("started_at")) / 1000, 2)
)
counts = ["messages", "applied", "duplicates", "quarantined", "held"]
notebook.show_rows(
    ledger.select("layer", "batch_id", *counts, "seconds", "committed_at").orderBy(F.desc("committed_at")), 20
)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Silver's state
# MAGIC The state has a cursor for each session and not its rows: the next seq, the missing seqs, and messages that are
# MAGIC held back.

# COMMAND ----------

stats = [
    compute_shard_state_stats(shard, state) for shard, state in read_shard_states(notebook.spark, notebook.settings)
]
states = pd.DataFrame(stats, columns=list(STATS)).sort_values("shard")
totals = states.drop(columns="shard").sum()
print(f"{len(states)} shards: {', '.join(f'{value} {name}' for name, value in totals.items())}")
notebook.show_rows(states.sort_values("bytes", ascending=False), 10)

# COMMAND ----------

# MAGIC %md
# MAGIC ## Recent batches
# MAGIC Lag and throughput in the latest hour with batches, or in the latest day.

# COMMAND ----------

until = max((layer.committed_at for layer in layers if layer.committed_at is not None), default=None)
names = [layer.layer for layer in layers]
batches = [] if until is None else find_latest_batches(notebook.reader, names, until)
behind = compute_lags(batches, {layer.layer: layer.behind or 0 for layer in layers})
paces = compute_throughput(batches, names)
for lag in behind:
    print(f"{lag.layer}: {lag.now:.1f} s behind bronze; median {lag.median:.1f} s, at most {lag.most:.1f} s")
pace = pictures.draw_lag_throughput_and_state_size(behind, paces, stats)
notebook.show_figure(pace, "operate_pace")

# COMMAND ----------

# MAGIC %md
# MAGIC ## Replay one session
# MAGIC The session's changes up to its last offset must give the table that the merges maintain. `sessionlake verify
# MAGIC silver` checks this for all sessions, starting from bronze, and `rebuild silver` replaces the tables with the
# MAGIC result. On Databricks, run `sessionlake remote run operate -- verify silver`.

# COMMAND ----------

chosen = notebook.read_table("silver.sessions").orderBy(F.desc("messages"), "topic", "session_id").first()
topic, partition, session = (chosen[name] for name in ("topic", "partition", "session_id"))
moment = {"partition": partition, "offset": chosen["last_offset"]}
replayed = session_as_of(notebook.settings, session, topic, **moment, spark=notebook.spark)
of_session = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col("session_id") == session)
live = notebook.read_table("silver.session_rows").where(of_session)
kept = live.select(*replayed.column_names).orderBy("row_id").toArrow()
agree = replayed.sort_by("row_id").to_pylist() == kept.to_pylist()
print(f"session {session} of {topic}: {replayed.num_rows} rows replayed, {kept.num_rows} in the table; equal: {agree}")

# COMMAND ----------

# MAGIC %md
# MAGIC ## All tables as of one batch
# MAGIC The ledger records the table versions of each batch. This reads all tables as they were after half of silver's
# MAGIC batches, so that they are consistent with each other.

# COMMAND ----------

last = next(layer.last_batch for layer in layers if layer.layer == "silver") or 0
point = as_of_batch(notebook.spark, notebook.settings, last // 2)
for table in ("silver.session_changes", "silver.session_rows"):
    print(f"as of batch {point.batch}: {point.read_table(notebook.spark, table).count()} rows of {table}")
