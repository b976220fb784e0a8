"""From silver's append-only tables to `session_rows` and `sessions`, by MERGE, at a pace of its own.

`session_changes` is already exact when it is appended; MERGE costs seconds whatever it merges. So merging
runs beside the stream and takes all batches that have come since its last time at once: the net change of
each row, where the last writer of each column counts, and clears and deletes are writers of absence.
"""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.lake.commit import Txn, merge
from sessionlake.lake.ledger import LEDGER, LedgerEntry, Output, config_hash, write
from sessionlake.lake.tables import Lake, quote
from sessionlake.protocol.columns import RESCUED
from sessionlake.protocol.columns import Column as DeclaredColumn
from sessionlake.silver.job import CHANGES, PROGRESS
from sessionlake.silver.job import LAYER as STREAM
from sessionlake.silver.net import MARKS, NetChanges, net_ddl

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame, SparkSession

LAYER = "silver_tables"
ROWS = "silver.session_rows"
SESSIONS = "silver.sessions"
_KEY = ("topic", "session_id", "row_id")
# One merge takes in at most this many messages (or one batch, if that is larger): its memory is bounded.
_MERGE_MESSAGES = 2_000_000
# Cleared sessions up to this number are looked up by name, which lets Delta skip files.
_NAMED_SESSIONS = 500


class TableMerger:
    """Keeps `session_rows` and `sessions` up with the silver stream."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark.newSession()  # MERGE sets its transaction in the session: nobody else may use it
        self._lake = Lake(settings)
        self._settings = settings
        self._lake.ensure(self._spark, [CHANGES, PROGRESS, ROWS, SESSIONS, LEDGER])
        self._spark.conf.set("spark.databricks.delta.merge.materializeSource", "none")
        self._stop = threading.Event()
        self._news = threading.Event()
        self._thread: threading.Thread | None = None
        self.error: BaseException | None = None

    def announce(self, batch: int) -> None:
        """Says that the stream has committed a batch."""
        del batch
        self._news.set()

    def start(self) -> TableMerger:
        """Merges in the background until `stop`, no sooner than the merge interval after the last time."""
        self._thread = threading.Thread(target=self._run, name="silver-tables", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Ends the background merging after the merge under way."""
        self._stop.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join()

    def catch_up(self) -> int:
        """Merges everything committed so far; returns the number of merges."""
        done = 0
        while self._merge_next():
            done += 1
        return done

    def _run(self) -> None:
        pause = self._settings.silver.merge_interval.total_seconds()
        try:
            self.catch_up()
            while not self._stop.is_set():
                self._news.wait()
                self._news.clear()
                begun = time.monotonic()
                self.catch_up()
                self._stop.wait(max(0.0, pause - (time.monotonic() - begun)))
        except BaseException as error:  # noqa: BLE001 - handed to whoever runs the job
            self.error = error

    def _merge_next(self) -> bool:
        pending = self._pending()
        if pending is None:
            return False
        app_id, first, last, messages = pending
        started, txn = datetime.now(UTC), Txn(f"{app_id}:{LAYER}", last)
        outputs = (self._merge_sessions(first, last, txn), self._merge_rows(first, last, txn))
        entry = LedgerEntry(
            layer=LAYER,
            txn=txn,
            source=CHANGES,
            source_from=first,
            source_to=last,
            started_at=started,
            outputs=outputs,
            messages=messages,
            config_hash=config_hash(self._settings),
        )
        write(self._spark, self._lake, entry)
        return True

    def _pending(self) -> tuple[str, int, int, int] | None:
        """The stream's application id, the next batches to merge (first, last), and their messages."""
        from pyspark.sql import functions as F

        ledger = self._lake.read(self._spark, LEDGER)
        merged = ledger.where(F.col("layer") == LAYER).agg(F.coalesce(F.max("source_to"), F.lit(-1)).alias("last"))
        waiting = ledger.where(F.col("layer") == STREAM).crossJoin(merged).where("batch_id > last")
        rows = waiting.select("app_id", "batch_id", "messages").orderBy("batch_id").collect()
        if not rows:
            return None
        taken, messages = 1, rows[0]["messages"]
        while taken < len(rows) and messages + rows[taken]["messages"] <= _MERGE_MESSAGES:
            messages += rows[taken]["messages"]
            taken += 1
        return rows[0]["app_id"], rows[0]["batch_id"], rows[taken - 1]["batch_id"], messages

    def _merge_sessions(self, first: int, last: int, txn: Txn) -> Output:
        latest = latest_progress(self._between(PROGRESS, first, last))
        same = "t.topic = s.topic AND t.session_id = s.session_id"
        merge(self._lake, SESSIONS, latest, same, lambda m: m.whenMatchedUpdateAll().whenNotMatchedInsertAll(), txn)
        commit = self._lake.last_commit(self._spark, SESSIONS)
        return Output(SESSIONS, commit.version, commit.rows)

    def _merge_rows(self, first: int, last: int, txn: Txn) -> Output:
        from pyspark.sql import functions as F

        columns = self._settings.capture.declared
        # MERGE reads its source twice: it is computed once, here, and leaves its plan behind.
        net = self._net_changes(first, last).localCheckpoint()
        rows = net.where(F.col("row_id").isNotNull())
        gone = self._absent_rows(net)
        source = rows if gone is None else rows.unionByName(gone, allowMissingColumns=True)
        same = " AND ".join(f"t.{name} = s.{name}" for name in _KEY)
        merge(self._lake, ROWS, source, same, lambda builder: _row_clauses(builder, columns), txn)
        commit = self._lake.last_commit(self._spark, ROWS)
        return Output(ROWS, commit.version, commit.rows)

    def _net_changes(self, first: int, last: int) -> DataFrame:
        from pyspark.sql import functions as F

        columns = self._settings.capture.declared
        read = (*_KEY, *(column.name for column in columns), RESCUED, *MARKS, "change", "_set", "_position", "ordinal")
        changes = self._between(CHANGES, first, last).select(*(quote(name) for name in read))
        tasks = self._spark.sparkContext.defaultParallelism
        by_session = changes.repartition(tasks, F.col("topic"), F.col("session_id"))
        return by_session.mapInArrow(NetChanges(columns), net_ddl(columns))

    def _between(self, table: str, first: int, last: int) -> DataFrame:
        from pyspark.sql import functions as F

        return self._lake.read(self._spark, table).where(F.col("_batch").between(first, last))

    def _absent_rows(self, net: DataFrame) -> DataFrame | None:
        """Deletes for rows that a cleared session still has in the table and its new snapshot does not."""
        from pyspark.sql import functions as F

        session = ["topic", "session_id"]
        clears = net.where(F.col("row_id").isNull()).select(*session)
        named = clears.limit(_NAMED_SESSIONS + 1).collect()
        if not named:
            return None
        held = self._lake.read(self._spark, ROWS).select(*_KEY)
        if len(named) <= _NAMED_SESSIONS:
            held = held.where(F.col("session_id").isin([row["session_id"] for row in named]))
        gone = held.join(F.broadcast(clears), session, "left_semi").join(net.select(*_KEY), [*_KEY], "left_anti")
        return gone.withColumn("_delete", F.lit(True))  # noqa: FBT003 - a literal column


def latest_progress(progress: DataFrame) -> DataFrame:
    """The last row of each session out of several batches of `session_progress`."""
    from pyspark.sql import functions as F

    fields = [name for name in progress.columns if name not in {"topic", "session_id", "_batch"}]
    last = progress.groupBy("topic", "session_id").agg(F.max_by(F.struct(*fields), "_batch").alias("last"))
    return last.select("topic", "session_id", "last.*")


def _row_clauses(builder: DeltaMergeBuilder, columns: tuple[DeclaredColumn, ...]) -> DeltaMergeBuilder:
    fixed: dict[str, str | Column] = {name: f"s.{name}" for name in (RESCUED, *MARKS)}
    kept: dict[str, str | Column] = {
        quote(c.name): f"CASE WHEN s._written[{i}] THEN s.{quote(c.name)} ELSE t.{quote(c.name)} END"
        for i, c in enumerate(columns)
    }
    new: dict[str, str | Column] = {quote(c.name): f"s.{quote(c.name)}" for c in columns}
    keys: dict[str, str | Column] = {name: f"s.{name}" for name in _KEY}
    return (
        builder.whenMatchedDelete("s._delete")
        .whenMatchedUpdate(set=kept | fixed)
        .whenNotMatchedInsert("NOT s._delete", values=keys | new | fixed)
    )
