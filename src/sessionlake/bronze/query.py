"""Bronze's streaming query, which is stopped and started again in the same process when its topics change."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from sessionlake.bronze.subscription import QueryOffsets
from sessionlake.bronze.topics import TopicBook
from sessionlake.errors import BrokerError, SessionlakeError
from sessionlake.lake.txn import Txn
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Batches(Protocol):
    """What commits the batches of one start of the query."""

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        """Commits one."""

    def retire(self) -> None:
        """Waits for a batch under way; refuses those that come later."""


class BronzeQuery(LayerQuery):
    """A query over the topics that `ops.topics` has as active.

    Spark's source cannot change what it subscribes to while it runs. So topics are pruned when the query starts, and
    a change that cannot wait (a deleted topic, one made anew, one that speaks again) stops and starts it: a matter of
    a second or two, in which nothing is lost.

    Args:
        source: makes the stream and what commits it, for topics to leave out.
        settle: told of the batch that was planned last and may be half done; whether it is in the tables.
    """

    def __init__(
        self,
        layer: str,
        checkpoint: str,
        book: TopicBook,
        *,
        source: Callable[[frozenset[str]], tuple[DataFrame, Batches]],
        settle: Callable[[int | None], bool],
        trigger: timedelta,
        once: bool,
    ) -> None:
        super().__init__(layer, checkpoint)
        self._book = book
        self._source = source
        self._settle = settle
        self._pace = trigger, once
        self._batches: Batches | None = None
        self._left_out: frozenset[str] = frozenset()
        self._stopped = False

    def begin(self) -> BronzeQuery:
        """Starts it.

        Raises:
            TopicChangedError: by the rule `fail`.
        """
        try:
            self._fit()
            self._launch()
        except BaseException:
            self._book.close()
            raise
        return self

    def check(self) -> None:
        """Raises the error of a query that has stopped, and starts it again if its topics call for that."""
        if self.active and self._disturbed():
            super().stop()
            self._fit()
            self._launch()
            return
        super().check()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end; True if it has ended. A change of topics that a rule covers is not the end."""
        while True:
            try:
                ended = super().wait(seconds)
            except SessionlakeError as error:
                self._resume(error)
                if seconds is not None:
                    return False
                continue
            if ended:
                self._book.close()
            return ended

    def drain(self) -> None:
        """Waits until everything that Kafka holds now is committed."""
        while True:
            try:
                self.query.processAllAvailable()
            except Exception:
                if not self.wait(0):
                    continue
                raise
            return

    def stop(self) -> None:
        """Ends it for good."""
        self._stopped = True
        super().stop()
        if self._batches is not None:
            self._batches.retire()
        self._book.close()

    def _disturbed(self) -> bool:
        try:
            return self._book.disturbed()
        except BrokerError:
            return False  # if that lasts, the query itself will fail, and says so

    def _resume(self, error: SessionlakeError) -> None:
        """Starts again what has failed, if it failed because of its topics and the rule says how to go on.

        Raises:
            SessionlakeError: it did not, or the rule is to stop.
        """
        try:
            changed = not self._stopped and self._fit()
        except BrokerError:
            changed = False
        except BaseException:
            self._book.close()
            raise
        if not changed:
            self._book.close()
            raise error
        self._launch()

    def _fit(self) -> bool:
        """Brings topics, subscription and checkpoint together; whether anything is other than at the last start."""
        if self._batches is not None:
            self._batches.retire()
        offsets = QueryOffsets(self.checkpoint)
        settled = offsets.begun and self._settle(offsets.newest)
        self._book.look()
        left_out = self._book.prune()
        moved = offsets.begun and self._move(offsets, settled=settled)
        changed = moved or left_out != self._left_out
        self._left_out = left_out
        return changed

    def _move(self, offsets: QueryOffsets, *, settled: bool) -> bool:
        """Makes the checkpoint go on where it must; whether it did not yet."""
        wanted, start = self._book.positions(), offsets.start()
        if settled and offsets.pending is not None:
            start = offsets.end()
        # What Spark does not know it reads from offset 0 on, or fails.
        if start.keys() <= wanted.keys() and all(start.get(place, 0) == at for place, at in wanted.items()):
            return False
        if offsets.pending is not None:
            offsets.conclude(done=settled)
        offsets.go_on_from(wanted)
        return True

    def _launch(self) -> None:
        frame, self._batches = self._source(self._left_out)
        trigger, once = self._pace
        self.start(frame, self._batches, trigger=trigger, once=once)
