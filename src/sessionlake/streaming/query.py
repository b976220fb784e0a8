"""Running a streaming query: started the same way by every layer, with its errors told plainly."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, SessionlakeError
from sessionlake.settings.model import milliseconds
from sessionlake.spark.callbacks import callback_thread_closer
from sessionlake.streaming.checkpoint import last_committed
from sessionlake.streaming.errors import explain
from sessionlake.streaming.stores import close_stores

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

Batch = Callable[["DataFrame", Txn], None]
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_STATE_FILE = re.compile(r"\.?(\d+)(_[\w-]+)?\.(changelog|zip|delta|snapshot)(\.crc)?")
_UNFINISHED = re.compile(r"\..+\.tmp(\.crc)?")


class _Run:
    """What Spark calls for every micro-batch of one start of a query.

    Attributes:
        raised: the error of a batch.
    """

    def __init__(self, batch: Batch, txn: Callable[[str, int], Txn]) -> None:
        self._batch: Batch | None = batch
        self._txn = txn
        self._end_thread: Callable[[], None] | None = None
        self.raised: BaseException | None = None

    def __call__(self, rows: DataFrame, batch_id: int) -> None:
        if self._batch is None:
            raise RuntimeError("the query has ended")
        if self._end_thread is None:
            self._end_thread = callback_thread_closer(rows.sparkSession)
        try:
            self._batch(rows, self._txn(_query_id(rows), batch_id))
        except BaseException as error:
            self.raised = error
            raise

    def end(self) -> BaseException | None:
        """Lets go of all that the batches need, and returns the error of one.

        Spark's query keeps this callable, and who commits batches mostly knows the query: neither Python nor Java can
        tell that such a ring, half in each of them, is of use to nobody any more. Nor does the thread end by itself in
        which all batches were called.
        """
        raised, self.raised, self._batch, self._txn = self.raised, None, None, Txn
        if self._end_thread is not None:
            self._end_thread()
        return raised


def _query_id(rows: DataFrame) -> str:
    found = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if not found:  # by it, Delta tells batches of queries apart
        raise LakeError("Spark does not say which query a batch is of (sql.streaming.queryId): nothing was written")
    return str(found)


class LayerQuery:
    """A running layer: a streaming query whose first error is kept as it was raised."""

    def __init__(self, layer: str, checkpoint: str) -> None:
        self.layer = layer
        self.checkpoint = checkpoint
        self._query: StreamingQuery | None = None
        self._spark: SparkSession | None = None
        self._run: _Run | None = None
        self._raised: BaseException | None = None

    def start(
        self,
        frame: DataFrame,
        batch: Batch,
        *,
        trigger: timedelta,
        once: bool,
        txn: Callable[[str, int], Txn] = Txn,
    ) -> LayerQuery:
        """Starts `batch(frame, txn)` for every micro-batch; again after it has ended, too.

        Args:
            txn: makes a batch's transaction of the id of Spark's query and Spark's number of the batch.
        """
        self._let_go()
        self._spark, run = frame.sparkSession, _Run(batch, txn)
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
            raise self._explain(error) from error
        return self

    @property
    def query(self) -> StreamingQuery:
        """Spark's own handle."""
        if self._query is None:
            raise RuntimeError("the query was not started")
        return self._query

    @property
    def active(self) -> bool:
        """Whether it still runs."""
        return self.query.isActive

    def stop(self) -> None:
        """Ends the query after the batch under way has been given up; what it committed stays."""
        if self._query is not None:
            self._query.stop()
            self._let_go()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end; True if it has ended.

        Raises:
            SessionlakeError: what ended it, in one text for the operator.
        """
        try:
            ended = self.query.awaitTermination(None if seconds is None else max(seconds, 0.001)) or seconds is None
        except Exception as error:
            self._let_go()
            raise self._explain(error) from error
        if not self.query.isActive:
            self._let_go()
        if self._raised is not None:
            raise self._explain(self._raised) from self._raised
        return bool(ended)

    def check(self) -> None:
        """Raises the error of a query that has stopped."""
        if not self.active and self.wait(0):
            raise SessionlakeError(f"{self.layer} was ended from outside: run it again")

    def drain(self) -> None:
        """Waits until everything that its source holds now is committed.

        Raises:
            SessionlakeError: what stopped it before.
        """
        try:
            self.query.processAllAvailable()
        except Exception:
            self.wait()  # says it better
            raise

    def _let_go(self) -> None:
        if self._run is not None:
            self._raised, self._run = self._run.end(), None
            if self._spark is not None and self._query is not None:
                close_stores(self._spark, self._query, Path(self.checkpoint))

    def _explain(self, error: BaseException) -> SessionlakeError:
        if isinstance(self._raised, SessionlakeError):
            return self._raised
        return explain(error, self.layer, self.checkpoint)


def discard_abandoned_states(checkpoint: Path) -> None:
    """Removes what batches that were never committed have left in the state store; the query must not run.

    Spark's manager of local files (see `spark.session`) keeps the file that is there when another of its name is
    written, and says nothing. A batch that is made once more, after a decision or with other settings, would leave the
    state of the attempt that failed.
    """
    last = last_committed(checkpoint)
    committed = 0 if last is None else last + 1  # the state that batch n leaves is version n + 1
    for file in (checkpoint / "state").rglob("*"):
        version = _STATE_FILE.fullmatch(file.name)
        if (version and int(version[1]) > committed) or _UNFINISHED.fullmatch(file.name):
            file.unlink()
