"""Bronze's streaming query, which is stopped and started again in the same process when its topics change."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from sessionlake.bronze.offsets import Offsets
from sessionlake.bronze.subscription import QueryOffsets, starting_offsets
from sessionlake.bronze.topic_book import TopicBook
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, OffsetHoleError, SessionlakeError
from sessionlake.streaming.generations import Generation, Generations
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Brokers learn of a topic one after the other: the one that Spark asks may know it some seconds after, or before, ours.
_TRIES = 5
_PAUSE_SECONDS = 1.0
# So long a run with an end waits for a Kafka that does not answer.
_ONCE_SECONDS = 60.0


class Batches(Protocol):
    """What commits the batches of one start of the query."""

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        """Commits one."""

    def note_silences(self, *, at_end: bool = False) -> None:
        """Notes which topic-partitions are silent, now and then.

        Args:
            at_end: whether the query has ended, so that it is now or never.

        Raises:
            BrokerError: Kafka does not answer.
        """

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


@dataclass
class Halt:
    """A query that does not run, and is to run again.

    Attributes:
        error: what has ended it; None if it was stopped for its topics' sake.
        waited: whether Kafka did not answer since.
        began: when it halted; seconds of a clock that is never set.
        next_look: when to look at Kafka again.
    """

    error: SessionlakeError | None = None
    waited: bool = False
    began: float = field(default_factory=time.monotonic)
    next_look: float = 0.0

    @property
    def of_kafka(self) -> bool:
        """Whether it may have ended by what passes: Kafka was away, or did not know of every topic yet."""
        return isinstance(self.error, BrokerError | OffsetHoleError)


class BronzeQuery(LayerQuery):
    """A query over the topics that `ops.topics` has as active.

    Spark's source cannot change what it subscribes to while it runs. So topics are pruned when the query starts, and
    a change that cannot wait (a deleted topic, one made anew, one that speaks again) stops and starts it: a matter of
    a second or two, in which nothing is lost. Where its checkpoint does not go on at the offsets that are called for,
    it is started in another generation of it.

    Kafka may be away: what has failed for that is started again when Kafka answers, however long that takes.

    Args:
        source: makes the stream and what commits it.
        settle: told of a generation whose last planned batch may be half done; whether that is in the tables.
        give_up: told of one whose last planned batch is not in the tables, and is not to come into them any more.
        on_wait: told when it waits for Kafka, and when it goes on.
        locate: asked of what has ended a query of this generation; the error that names a message, if one is why.
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
        on_wait: Callable[[str], None],
        locate: Callable[[BaseException, Generation], SessionlakeError | None] = lambda *_: None,
    ) -> None:
        super().__init__(layer, str(generations.current.folder))
        self._generations = generations
        self._book = book
        self._source = source
        self._settle = settle
        self._give_up = give_up
        self._trigger, self._once = trigger, once
        self._on_wait = on_wait
        self._locate = locate
        self._away = False
        self._batches: Batches | None = None
        self._next: Start | None = None
        self._halt: Halt | None = None
        self._tries = 0
        self._tried: tuple[int, int | None] | None = None
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
        """Raises the error of a query that has stopped for good; whatever else it calls for is done beside it."""
        if self._halt is None and self.active and self._disturbed():
            super().stop()
            self._halt = Halt()
        if self._halt is None:
            super().check()
            self._note_silences()
        else:
            self._go_on(self._halt)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for its end; True if it has ended. Kafka's absence is not the end, nor a change that a rule covers."""
        while True:
            if self._halt is None:
                try:
                    ended = super().wait(seconds)
                except SessionlakeError as error:
                    if self._stopped:
                        raise
                    self._halt = Halt(error)
                else:
                    if ended:
                        self._note_silences(at_end=True)
                        self._book.close()
                    return ended
            self._go_on(self._halt)
            if self._halt is not None:
                time.sleep(_PAUSE_SECONDS if seconds is None else min(seconds, _PAUSE_SECONDS))
            if seconds is not None:
                return False

    def drain(self) -> None:
        """Waits until everything that Kafka holds now is committed."""
        while True:
            if self._halt is not None:
                self.wait(_PAUSE_SECONDS)
                continue
            try:
                self.query.processAllAvailable()
            except Exception:
                if not self.wait(0):
                    continue
                raise
            if self._halt is None:
                return

    def stop(self) -> None:
        """Ends it for good."""
        self._stopped = True
        super().stop()
        if self._batches is not None:
            self._batches.retire()
        self._book.close()

    def _explain(self, error: BaseException) -> SessionlakeError:
        told = super()._explain(error)
        if self._next is None or isinstance(self._raised, SessionlakeError):
            return told
        return self._locate(self._raised or error, self._next.generation) or told

    def _disturbed(self) -> bool:
        """Whether topics call for another start; False if Kafka does not say, which the query may well outlast."""
        try:
            disturbed = self._book.disturbed()
        except BrokerError as unanswered:
            self._say_away(unanswered)
            return False
        if not self._book.away:
            self._say_back()
        return disturbed

    def _note_silences(self, *, at_end: bool = False) -> None:
        if self._batches is not None and not self._stopped:
            with suppress(BrokerError):  # there is time
                self._batches.note_silences(at_end=at_end)

    def _go_on(self, halt: Halt) -> None:
        """Starts the query again if Kafka answers by now, and its topics are no reason against that.

        Raises:
            BrokerError: Kafka has not answered for too long under `--once`.
            SessionlakeError: the query has failed, and its topics are not why; or the rule is to stop.
        """
        if time.monotonic() < halt.next_look:
            return
        halt.next_look = time.monotonic() + _PAUSE_SECONDS
        try:
            if not self._called_for(halt):
                return
        except BaseException:
            self._book.close()
            raise
        self._halt = None
        self._say_back()
        self._launch()

    def _called_for(self, halt: Halt) -> bool:
        """Whether to start again; False as long as Kafka does not answer. Raises what is to be the end."""
        failed = self._next
        try:
            self._book.require_answer()
            again = self._fit() or (halt.of_kafka and halt.waited)
            if not again and self._may_try_again(halt, failed):
                time.sleep(_PAUSE_SECONDS)
                self._fit()
                again = True
        except BrokerError as unanswered:
            if halt.error is not None and not halt.of_kafka:
                raise halt.error from None
            self._say_away(unanswered)
            halt.waited = True
            if self._once and time.monotonic() - halt.began > _ONCE_SECONDS:
                raise
            return False
        if halt.error is not None and not again:
            raise halt.error
        return True

    def _may_try_again(self, halt: Halt, failed: Start | None) -> bool:
        """Whether to try a start once more that has failed, though topics and checkpoint are as they were.

        Brokers learn of topics one after the other: the one that Spark asked may not have known of all of them. Nor
        does Spark begin a generation whose starting offsets are not those of just the topic-partitions that it finds.
        """
        start = self._next
        if start is None:
            return False
        number, failed_in = start.generation.number, None if failed is None else failed.generation.number
        begins = number == failed_in and number > 0 and start.positions is not None
        if not (halt.of_kafka or begins):
            return False
        at = number, start.generation.last_planned_batch
        self._tries = self._tries + 1 if self._tried == at else 1
        self._tried = at
        return self._tries <= _TRIES

    def _say_away(self, unanswered: BrokerError) -> None:
        if not self._away:
            self._away = True
            self._on_wait(f"{self.layer} waits for Kafka: {unanswered}")

    def _say_back(self) -> None:
        if self._away:
            self._away = False
            self._on_wait(f"Kafka answers; {self.layer} goes on")

    def _fit(self) -> bool:
        """Brings topics, subscription and checkpoint together; whether topics call for another start than the last."""
        if self._batches is not None:
            self._batches.retire()
        generation = self._generations.current
        self._generations.remove_superseded()
        settled = self._settle(generation)
        self._book.look()
        left_out, positions = self._book.prune(), self._book.positions()
        offsets = QueryOffsets(generation.folder)
        begun, as_before = offsets.begun, False
        if not begun and generation.number:
            self._give_up(generation)  # a process may have died before it did so
        ends = {} if offsets.pending is None else self._book.kafka_ends()
        if begun and not offsets.goes_on_at(positions, ends, settled=settled):
            as_before = settled and offsets.ended_at(positions)
            left, begun = generation, False
            generation = self._generations.start_new(left.next_batch, left.app_id)
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
        generation = self._next.generation
        self.checkpoint = str(generation.folder)
        self.start(frame, self._batches, trigger=self._trigger, once=self._once, txn=generation.txn)
