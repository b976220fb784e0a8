"""Starts and stops the streaming query of a layer, the same way for every layer, and explains its errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, SessionlakeError
from sessionlake.settings.section import milliseconds
from sessionlake.spark.callbacks import create_jvm_connection_closer
from sessionlake.streaming.checkpoint import read_last_committed_batch
from sessionlake.streaming.errors import convert_to_layer_error
from sessionlake.streaming.stores import close_state_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

BatchFunction = Callable[["DataFrame", Txn], None]
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_STATE_FILE = re.compile(r"\.?(\d+)(_[\w-]+)?\.(changelog|zip|delta|snapshot)(\.crc)?")
_UNFINISHED = re.compile(r"\..+\.tmp(\.crc)?")


class _BatchRunner:
    """The function that Spark calls for every micro-batch, from one start of a query to its end.

    Args:
        batch: Commits one micro-batch, given its rows and its transaction.
        txn: Returns the transaction of a batch, given the id of Spark's query and Spark's number of the batch.

    Attributes:
        raised: The error of a failed batch; None if none has failed.
    """

    def __init__(self, batch: BatchFunction, txn: Callable[[str, int], Txn]) -> None:
        self._batch: BatchFunction | None = batch
        self._txn = txn
        self._end_thread: Callable[[], None] | None = None
        self.raised: BaseException | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._batch is None:
            raise RuntimeError("the query has ended")
        if self._end_thread is None:
            self._end_thread = create_jvm_connection_closer(rows.sparkSession)
        try:
            self._batch(rows, self._txn(_read_query_id(rows), batch_id))
        except BaseException as error:
            self.raised = error
            raise

    def stop_running_batches(self) -> BaseException | None:
        """Ends the calls by Spark and frees what they use.

        Returns the error of a failed batch; None if none has failed.

        Spark's query references this object, and the code that commits batches usually references the query. Such a
        cycle is half in Python and half in the JVM, so neither garbage collector can free it. The thread in which Spark
        called the batches does not end by itself either.
        """
        raised, self.raised, self._batch, self._txn = self.raised, None, None, Txn
        if self._end_thread is not None:
            self._end_thread()
        return raised


def _read_query_id(rows: DataFrame) -> str:
    found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:  # without the id, Delta could not recognise a repeated batch
        raise LakeError(
            "Spark does not say which query a batch belongs to (sql.streaming.queryId is missing)",
            why="Without it, a repeated batch would be written twice. Nothing was written",
            fix="Run the layer again; if the error stays, use a supported version of Spark",
        )
    return str(found)


class LayerQuery:
    """The streaming query of a layer.

    If it fails, its methods raise the first error as a `SessionlakeError` for the operator.

    Args:
        layer: The layer's name.
        checkpoint: The folder of the checkpoint.
    """

    def __init__(self, layer: str, checkpoint: str) -> None:
        self.layer = layer
        self.checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._spark: SparkSession | None = None
        self._run: _BatchRunner | None = None
        self._raised: BaseException | None = None

    def start(
        self,
        frame: DataFrame,
        batch: BatchFunction,
        *,
        trigger: timedelta,
        once: bool,
        txn: Callable[[str, int], Txn] = Txn,
    ) -> LayerQuery:
        """Starts the streaming query, which calls `batch(frame, txn)` for every micro-batch.

        Can be called again after its end.

        Args:
            frame: The streaming frame to read.
            batch: Commits one micro-batch.
            trigger: The time between micro-batches.
            once: True processes the rows that the source has now, and then ends the query. False runs until `stop`.
            txn: Returns the transaction of a batch, given the id of Spark's query and Spark's number of the batch.

        Returns:
            This object.

        Raises:
            SessionlakeError: The query cannot start.
        """
        self._stop_running_batches()
        self._spark, run = frame.sparkSession, _BatchRunner(batch, txn)
        self._run = run
        self._raised = None
        if "FileSystemBased" in str(frame.sparkSession.conf.get(_FILE_MANAGER, "")):
            discard_abandoned_states(Path(self.checkpoint))

        writer = frame.writeStream.foreachBatch(run.__call__).queryName(self.layer)
        writer = writer.option("checkpointLocation", self.checkpoint)
        timed = (
            writer.trigger(availableNow=True)
            if once
            else writer.trigger(processingTime=f"{milliseconds(trigger)} milliseconds")
        )
        try:
            self._query = timed.start()
        except Exception as error:
            raise self._explain_query_error(error) from error
        return self

    @property
    def query(self) -> StreamingQuery:
        """Spark's own object of the query that was started last."""
        if self._query is None:
            raise RuntimeError("the query was not started")
        return self._query

    @property
    def is_active(self) -> bool:
        """True while the streaming query runs."""
        return self.query.isActive

    def stop(self) -> None:
        """Stops the streaming query at once.

        The current batch is not finished: tables that already have its rows keep them.
        """
        if self._query is not None:
            self._query.stop()
            self._stop_running_batches()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until the streaming query ends.

        Args:
            seconds: The longest time to wait; None waits without a limit.

        Returns:
            True if the query has ended; False if the time was over before.

        Raises:
            SessionlakeError: The query failed.
        """
        try:
            ended = self.query.awaitTermination(None if seconds is None else max(seconds, 0.001)) or seconds is None
        except Exception as error:
            self._stop_running_batches()
            raise self._explain_query_error(error) from error
        if not self.query.isActive:
            self._stop_running_batches()
        if self._raised is not None:
            raise self._explain_query_error(self._raised) from self._raised
        return bool(ended)

    def check_query_health(self) -> None:
        """Checks that the streaming query runs, or has ended as planned.

        Raises:
            SessionlakeError: The query failed, or code outside sessionlake stopped it.
        """
        if not self.is_active and self.wait(0):
            raise SessionlakeError(
                f"{self.layer}: its streaming query was stopped from outside, not by sessionlake",
                why="What was committed stays; nothing is lost",
                fix="Run the layer again",
            )

    def process_all_available(self) -> None:
        """Waits until the streaming query has committed all rows that the source has now.

        Raises:
            SessionlakeError: The query failed before.
        """
        try:
            self.query.processAllAvailable()
        except Exception:
            self.wait()  # raises the same error with an explanation
            raise

    def _stop_running_batches(self) -> None:
        if self._run is not None:
            self._raised, self._run = self._run.stop_running_batches(), None
            if self._spark is not None and self._query is not None:
                close_state_stores(self._spark, self._query, Path(self.checkpoint))

    def _explain_query_error(self, error: BaseException) -> SessionlakeError:
        if isinstance(self._raised, SessionlakeError):
            return self._raised
        return convert_to_layer_error(error, self.layer, self.checkpoint)


def discard_abandoned_states(checkpoint: Path) -> None:
    """Deletes state files of batches that were never committed. The query must not be running.

    Spark's manager of local files, which `spark.session` configures, silently keeps an existing file when it should
    write another one of the same name. If a batch is computed again, after a decision or with other settings, it would
    then keep the state of the failed attempt.

    Args:
        checkpoint: The folder of the query's checkpoint.
    """
    last = read_last_committed_batch(checkpoint)
    committed = 0 if last is None else last + 1  # batch n leaves state version n + 1
    for file in (checkpoint / "state").rglob("*"):
        version = _STATE_FILE.fullmatch(file.name)
        if (version and int(version[1]) > committed) or _UNFINISHED.fullmatch(file.name):
            file.unlink()
