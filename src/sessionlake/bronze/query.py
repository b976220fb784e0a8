"""Bronze's streaming query, which is stopped and started again in the same process when its topics change."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from sessionlake.bronze.offsets import Offsets
from sessionlake.bronze.subscription import QueryOffsets, starting_offsets
from sessionlake.bronze.topic_book import TopicBook
from sessionlake.errors import BrokerError, OffsetHoleError, SessionlakeError
from sessionlake.lake.txn import Txn
from sessionlake.streaming.generations import Generation, Generations
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Brokers learn of a topic one after the other: the one that Spark asks may know it some seconds after, or before, ours.
_TRIES = 5
_PAUSE_SECONDS = 1.0


class Batches(Protocol):
    """What commits the batches of one start of the query."""

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        """Commits one."""

    def retire(self) -> None:
        """Waits for a batch under way; refuses those that come later."""


@dataclass(frozen=True)
class Start:
    """How the query is started.

    Attributes:
        generation: of its checkpoint.
        left_out: topics not to subscribe to.
        positions: Kafka offsets that the generation begins from; None once Spark has settled them.
    """

    generation: Generation
    left_out: frozenset[str]
    positions: Offsets | None

    @property
    def starting_offsets(self) -> str:
        """The option of Spark's source, which it looks at when a generation begins."""
        # The first generation begins before there is anything to go on from.
        explicit = self.generation.number and self.positions is not None
        return starting_offsets(self.positions or {}) if explicit else "earliest"

    def differs(self, before: Start) -> bool:
        """Whether Spark is asked for anything else than by the start before."""
        moved = self.positions is not None and self.positions != before.positions
        return moved or self.left_out != before.left_out or self.generation.number != before.generation.number


class BronzeQuery(LayerQuery):
    """A query over the topics that `ops.topics` has as active.

    Spark's source cannot change what it subscribes to while it runs. So topics are pruned when the query starts, and
    a change that cannot wait (a deleted topic, one made anew, one that speaks again) stops and starts it: a matter of
    a second or two, in which nothing is lost. Where its checkpoint does not go on at the offsets that are called for,
    it is started in another generation of it.

    Args:
        source: makes the stream and what commits it.
        settle: told of a generation whose last planned batch may be half done; whether that is in the tables.
        give_up: told of one whose last planned batch is not in the tables, and is not to come into them any more.
    """

    def __init__(
        self,
        layer: str,
        generations: Generations,
        book: TopicBook,
        *,
        source: Callable[[Start], tuple[DataFrame, Batches]],
        settle: Callable[[Generation], bool],
        give_up: Callable[[Generation], None],
        trigger: timedelta,
        once: bool,
    ) -> None:
        super().__init__(layer, str(generations.present.folder))
        self._generations = generations
        self._book = book
        self._source = source
        self._settle = settle
        self._give_up = give_up
        self._pace = trigger, once
        self._batches: Batches | None = None
        self._next: Start | None = None
        self._tries = 0
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
            self._fit_patiently()
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
            BrokerError: Kafka does not say what became of the topics that stopped it.
            SessionlakeError: it did not, or the rule is to stop.
        """
        failed, of_topics = self._next, isinstance(error, OffsetHoleError)
        fit = self._fit_patiently if of_topics else self._fit
        try:
            changed = not self._stopped and (fit() or self._begins_once_more(failed))
        except BrokerError as unanswered:
            self._book.close()
            raise (unanswered if of_topics else error) from None
        except BaseException:
            self._book.close()
            raise
        if not changed:
            self._book.close()
            raise error
        self._launch()

    def _begins_once_more(self, failed: Start | None) -> bool:
        """Whether to try again, in a moment, a generation that Spark was to begin and has not.

        It refuses starting offsets that are not those of just the topic-partitions that its broker knows.
        """
        start = self._next
        if start is None or not start.generation.number or start.positions is None or self._tries == _TRIES:
            return False
        if failed is None or failed.generation.number != start.generation.number:
            return False
        self._tries += 1
        time.sleep(_PAUSE_SECONDS)
        self._fit()
        return True

    def _fit_patiently(self) -> bool:
        """As `_fit`, of a query that was well but for its topics: a time-out of Kafka's that passes does not end it."""
        for _ in range(_TRIES - 1):
            try:
                return self._fit()
            except BrokerError:
                time.sleep(_PAUSE_SECONDS)
        return self._fit()

    def _fit(self) -> bool:
        """Brings topics, subscription and checkpoint together; whether topics call for another start than the last."""
        if self._batches is not None:
            self._batches.retire()
        generation = self._generations.present
        self._generations.remove_superseded()
        settled = self._settle(generation)
        self._book.look()
        left_out, positions = self._book.prune(), self._book.positions()
        offsets = QueryOffsets(generation.folder)
        begun, as_before = offsets.begun, False
        if begun and not offsets.goes_on_at(positions, settled=settled):
            as_before = settled and offsets.ended_at(positions)
            left, begun, self._tries = generation, False, 0
            generation = self._generations.begin(left.next_batch)
            if not settled:
                self._give_up(left)
                if self._settle(left):  # it has come meanwhile, by another process
                    return self._fit()
        before, self._next = self._next, Start(generation, left_out, None if begun else positions)
        return before is None or (not as_before and self._next.differs(before))

    def _launch(self) -> None:
        if self._next is None:
            raise RuntimeError("the query has not looked at its topics")
        frame, self._batches = self._source(self._next)
        generation, (trigger, once) = self._next.generation, self._pace
        self.checkpoint = str(generation.folder)
        self.start(frame, self._batches, trigger=trigger, once=once, txn=generation.txn)
