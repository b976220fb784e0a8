# Databricks notebook source
# MAGIC %md
# MAGIC # Your own processor and product
# MAGIC There are two ways to add logic. A **processor** is a typed class that receives each judged message of a session
# MAGIC and has a state and timers. A **product** is a gold table that the configuration declares. This notebook tries
# MAGIC both on data of the lake and writes nothing.
# MAGIC
# MAGIC On Databricks, the widgets set the settings file, target, catalog, schemas and topic. On a laptop, run `make
# MAGIC demo` first, then:
# MAGIC
# MAGIC     SESSIONLAKE_HOME=.sessionlake/demo .venv/bin/python notebooks/04_own_logic.py

# COMMAND ----------

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

import pandas as pd
import yaml
from pyspark.sql import functions as F

from sessionlake.errors import NotFoundError
from sessionlake.gold.changes import get_value_columns, select_changes
from sessionlake.gold.declared.tables import list_declared_products
from sessionlake.gold.rebuilding.tables import recompute_rows
from sessionlake.notebook import pictures
from sessionlake.notebook.context import NotebookContext
from sessionlake.processors import Emitted, Message, Processor, Timer
from sessionlake.processors.testing import Sent, run
from sessionlake.settings.gold import ProductSettings
from sessionlake.settings.section import OnViolation

MOST_MESSAGES = 3_000

notebook = NotebookContext(globals())
notebook.require_tables("bronze.messages", "silver.sessions", "silver.session_changes")

# COMMAND ----------

# MAGIC %md
# MAGIC ## A processor
# MAGIC When was each session busy? The processor's state has two numbers, and a timer in stream time ends a busy time
# MAGIC after a pause without rows. The result depends only on the state and the messages, so batches, crashes and
# MAGIC replays do not change it.

# COMMAND ----------


@dataclass
class Busy:
    """Times of a busy session, in ms of stream time.

    Attributes:
        since: Start of the current busy time; None while the session is quiet.
        last: Time of the last message with rows.
    """

    since: int | None = None
    last: int = 0


class BusyTimes(Processor[Busy]):
    """Emits one row per busy time of a session: a time in which rows arrive without a pause.

    Args:
        quiet_ms: Length of a pause, in ms of stream time.
    """

    state = Busy
    output: ClassVar = {"busy_from": "timestamp", "busy_until": "timestamp"}

    def __init__(self, quiet_ms: int) -> None:
        self._quiet_ms = quiet_ms

    def on_message(self, state: Busy, message: Message) -> Iterable[Emitted]:
        if message.rows:
            state.since = message.stream_time if state.since is None else state.since
            state.last = message.stream_time
            yield Timer(message.stream_time + self._quiet_ms, "quiet")

    def on_timeout(self, state: Busy, _timer: Timer) -> Iterable[Emitted]:
        if state.since is not None:
            yield {"busy_from": state.since, "busy_until": state.last}
        state.since = None


# COMMAND ----------

# MAGIC %md
# MAGIC The processor is tried as in a unit test, with messages from bronze: the first ones of one topic-partition.
# MAGIC `run` processes them as one batch and one by one, and fails if the results differ.

# COMMAND ----------

messages = notebook.read_table("bronze.messages").where("topic IS NOT NULL")  # rows without a topic record silences
if wanted := notebook.read_parameter("topic"):
    messages = messages.where(F.col("topic") == wanted)
largest = messages.groupBy("topic", "partition").count().orderBy(F.desc("count"), "topic", "partition").first()
if largest is None:
    raise NotFoundError("bronze.messages has no such messages. Run the bronze job, or choose a topic that it has")
topic = largest["topic"]
taken = (
    messages.where((F.col("topic") == topic) & (F.col("partition") == largest["partition"]))
    .orderBy("offset")
    .limit(MOST_MESSAGES)
    .select("key", "value", F.unix_millis("timestamp").alias("time"))
    .collect()
)
sent = [
    Sent(bytes(row["key"]).decode(errors="replace"), bytes(row["value"]), row["time"]) for row in taken if row["key"]
]
capture = notebook.settings.capture.model_copy(update={"on_violation": OnViolation.ISOLATE})
result = run(BusyTimes(quiet_ms=int(notebook.read_parameter("quiet_ms", "150"))), sent, capture=capture)
busy = pd.DataFrame(
    {
        "lane": [row["session_id"] for row in result.rows],
        "begin": pd.to_datetime([row["busy_from"] for row in result.rows], unit="ms", utc=True),
        "end": pd.to_datetime([row["busy_until"] for row in result.rows], unit="ms", utc=True),
    }
)
print(f"{len(sent)} messages of {topic}: {result.counts}; {len(busy)} busy times")
notebook.show_rows(busy, 10)

# COMMAND ----------

if len(busy):
    intervals = pictures.draw_stream_time_intervals(busy, f"When the sessions of {topic} were busy")
    notebook.show_figure(intervals, "own_busy_times")

# COMMAND ----------

# MAGIC %md
# MAGIC To run it permanently, put the class into a module that is installed where the jobs run, and name it in
# MAGIC `sessionlake.yml`:
# MAGIC
# MAGIC     processors: [{name: busy_times, class: "busy:BusyTimes", options: {quiet_ms: 150}}]
# MAGIC
# MAGIC `sessionlake run processor busy_times` then fills `silver.busy_times`, exactly once. If you change the type of
# MAGIC the state, increase `version` and add a `migrate` method.

# COMMAND ----------

# MAGIC %md
# MAGIC ## A product
# MAGIC The product is declared as in `sessionlake.yml` and computed over all of `silver.session_changes`. These are the
# MAGIC rows that gold would first write to its table.

# COMMAND ----------

DECLARED = """
name: by_metric
keys: [topic, metric]
bucket: 1 minute
aggregates: {points: count, low: min, high: max, mean: mean, spread: variance}
"""
own = ProductSettings.model_validate(yaml.safe_load(DECLARED))
gold = notebook.settings.gold.model_copy(update={"products": (own,)})
product = list_declared_products(notebook.settings.model_copy(update={"gold": gold}))[-1]
changes = select_changes(notebook.read_table("silver.session_changes"), notebook.settings)
preview = recompute_rows(changes, product, get_value_columns(notebook.settings))
shown = preview.select(*product.row_keys, *own.aggregates).orderBy(*product.row_keys)
notebook.show_rows(shown)

# COMMAND ----------

# MAGIC %md
# MAGIC Add it to `gold: {products: [...]}` in the configuration, and gold keeps the table current from its next start,
# MAGIC including late points. `sessionlake verify gold` compares it too, and `sessionlake explain gold.by_metric` shows
# MAGIC the messages behind a figure.
