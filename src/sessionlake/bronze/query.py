"""Bronze's streaming query on Kafka: restarts itself when topics change and when Kafka is reachable again."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

from sessionlake.bronze.offsets import Offsets
from sessionlake.bronze.subscription import CheckpointOffsets, encode_starting_offsets
from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, OffsetHoleError, SessionlakeError
from sessionlake.streaming.generations import CheckpointGeneration, CheckpointGenerations
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Brokers learn of a topic at different times: the one that Spark asks may be seconds before or after the one we ask.
_MAX_ATTEMPTS = 5
_PAUSE_SECONDS = 1.0
# A run with `--once` waits this long for a Kafka that does not answer.
_ONCE_WAIT_SECONDS = 60.0


class BatchCommitter(Protocol):
    """Commits bronze's batches from one start of the query to its end."""

    def __call__(self, rows: DataFrame, txn: Txn) -> None:
        """Commits one batch: writes its rows to bronze with the given transaction."""

    def write_silences_if_due(self, *, at_end: bool = False) -> None:
        """Writes to bronze which topic-partitions have had no message for long, if the next check is due.

        Args:
            at_end: If true, the query has ended, and a check is always due.

        Raises:
            BrokerError: Kafka does not answer.
        """

    def reject_later_batches(self) -> None:
        """Waits until the current batch is committed. From then on, batches of the stopped query raise an error."""


@dataclass(frozen=True)
class QueryStartPlan:
    """With which checkpoint, topics and offsets bronze's query starts.

    Attributes:
        generation: Generation of the checkpoint to use.
        excluded_topics: Topics not to subscribe to.
        positions: Kafka offsets to start from, by topic-partition; None if the checkpoint already has its own.
    """

    generation: CheckpointGeneration
    excluded_topics: frozenset[str]
    positions: Offsets | None

    @property
    def starting_offsets(self) -> str:
        """The option `startingOffsets` of Spark's Kafka source. Spark uses it only for a new checkpoint."""
        # The first generation has no earlier position to resume from.
        explicit = self.generation.number and self.positions is not None
        return encode_starting_offsets(self.positions or {}) if explicit else "earliest"

    def differs_from_previous_start(self, previous: QueryStartPlan) -> bool:
        """Returns True if another generation of the checkpoint, other topics or other offsets are used than before."""
        if self.positions is not None and self.positions != previous.positions:
            return True
        return self.excluded_topics != previous.excluded_topics or self.generation.number != previous.generation.number


@dataclass
class QueryInterruption:
    """Why and when bronze's query ended, while it waits to be restarted.

    Attributes:
        error: The error that ended the query; None if it was stopped because its topics changed.
        has_waited: True if Kafka has failed to answer at least once since the query ended.
        ended_at: When the query ended, in seconds of the monotonic clock.
        next_attempt_at: When to ask Kafka again, in seconds of the monotonic clock.
    """

    error: SessionlakeError | None = None
    has_waited: bool = False
    ended_at: float = field(default_factory=time.monotonic)
    next_attempt_at: float = 0.0

    @property
    def is_temporary(self) -> bool:
        """True if the cause may end by itself: Kafka was unreachable, or did not know every topic yet."""
        return isinstance(self.error, BrokerError | OffsetHoleError)


class BronzeQuery(LayerQuery):
    """A streaming query over the topics that are active in `ops.topics`. It restarts itself when topics change.

    Spark's source cannot change its subscription while it runs. Inactive topics are excluded when the query starts. A
    change that cannot wait restarts the query: a topic was deleted, was created again, or has new messages after it was
    inactive. A restart takes a second or two and loses nothing. If the checkpoint cannot resume at the offsets that are
    needed, the query starts in a new generation of the checkpoint.

    If Kafka is unreachable, the query restarts as soon as Kafka answers, however long that takes.

    Args:
        layer: Name of the layer, for texts.
        generations: The current and former generations of bronze's checkpoint.
        topic_register: State, ids and offsets of bronze's topics.
        source: Returns for a `QueryStartPlan` the Spark stream to read, and the function that commits its batches.
        record_planned: Called with a generation. Returns True if the messages of its last planned batch are in the
            tables, and then writes the batch's ledger row if it is missing.
        reject_planned: Called with a generation whose last planned batch is not in the tables. Makes the tables reject
            this batch from now on.
        trigger: Time between two batches.
        once: If true, the query stops after it has read what Kafka holds now.
        on_wait: Called with a text when the query starts to wait for Kafka and when it resumes.
        find_unreadable: Called with the error that ended the query, and the generation. Returns an error that names the
            message which Spark could not read; None if no message was the reason.
    """

    def __init__(
        self,
        layer: str,
        generations: CheckpointGenerations,
        topic_register: TopicRegister,
        *,
        source: Callable[[QueryStartPlan], tuple[DataFrame, BatchCommitter]],
        record_planned: Callable[[CheckpointGeneration], bool],
        reject_planned: Callable[[CheckpointGeneration], None],
        trigger: timedelta,
        once: bool,
        on_wait: Callable[[str], None],
        find_unreadable: Callable[[BaseException, CheckpointGeneration], SessionlakeError | None] = lambda *_: None,
    ) -> None:
        super().__init__(layer, str(generations.current_generation.folder))
        self._generations = generations
        self._book = topic_register
        self._source = source
        self._record_planned = record_planned
        self._reject_planned = reject_planned
        self._trigger, self._once = trigger, once
        self._on_wait = on_wait
        self._find_unreadable = find_unreadable
        self._is_unreachable = False
        self._batches: BatchCommitter | None = None
        self._planned_start: QueryStartPlan | None = None
        self._interruption: QueryInterruption | None = None
        self._attempts = 0
        self._last_attempt: tuple[int, int | None] | None = None
        self._stopped = False

    def start_query(self) -> BronzeQuery:
        """Starts bronze's query and returns it.

        Raises:
            TopicChangedError: A topic changed, and `kafka.on_topic_change` is `fail`.
        """
        try:
            self._plan_next_start()
            self._start_planned_query()
        except BaseException:
            self._book.close()
            raise
        return self

    def check_query_health(self) -> None:
        """Restarts bronze's query if it has ended or its topics require it.

        Otherwise writes silences if a check is due.

        Raises:
            SessionlakeError: The query has failed and cannot be restarted.
        """
        if self._interruption is None and self.is_active and self.needs_restart_for_topics():
            super().stop()
            self._interruption = QueryInterruption()
        if self._interruption is None:
            super().check_query_health()
            self._write_silences_if_due()
        else:
            self._try_restart(self._interruption)

    def wait(self, seconds: float | None = None) -> bool:
        """Waits until bronze's query ends for good, and restarts it as often as needed.

        Args:
            seconds: The longest time to wait; None waits without a limit.

        Returns:
            True if the query has ended; False if the time was over before.
        """
        while True:
            if self._interruption is None:
                try:
                    ended = super().wait(seconds)
                except SessionlakeError as error:
                    if self._stopped:
                        raise
                    self._interruption = QueryInterruption(error)
                else:
                    if ended:
                        self._write_silences_if_due(at_end=True)
                        self._book.close()
                    return ended
            self._try_restart(self._interruption)
            if self._interruption is not None:
                time.sleep(_PAUSE_SECONDS if seconds is None else min(seconds, _PAUSE_SECONDS))
            if seconds is not None:
                return False

    def process_all_available(self) -> None:
        """Waits until all messages that Kafka holds now are in bronze."""
        while True:
            if self._interruption is not None:
                self.wait(_PAUSE_SECONDS)
                continue
            try:
                self.query.processAllAvailable()
            except Exception:
                if not self.wait(0):
                    continue
                raise
            if self._interruption is None:
                return

    def stop(self) -> None:
        """Stops bronze's query for good: it is not restarted."""
        self._stopped = True
        super().stop()
        if self._batches is not None:
            self._batches.reject_later_batches()
        self._book.close()

    def _explain_query_error(self, error: BaseException) -> SessionlakeError:
        explained = super()._explain_query_error(error)
        if self._planned_start is None or isinstance(self._raised, SessionlakeError):
            return explained
        return self._find_unreadable(self._raised or error, self._planned_start.generation) or explained

    def needs_restart_for_topics(self) -> bool:
        """Returns True if topics have changed so that bronze's query must restart.

        Returns False if Kafka does not answer.
        """
        try:
            needs_restart = self._book.needs_new_subscription()
        except BrokerError as unanswered:
            self._report_kafka_unreachable(unanswered)
            return False
        if not self._book.is_kafka_unreachable:
            self._report_that_kafka_answers_again()
        return needs_restart

    def _write_silences_if_due(self, *, at_end: bool = False) -> None:
        if self._batches is not None and not self._stopped:
            with suppress(BrokerError):  # the next check tries again
                self._batches.write_silences_if_due(at_end=at_end)

    def _try_restart(self, interruption: QueryInterruption) -> None:
        """Restarts bronze's query if Kafka answers and the topics allow it. Asks Kafka once a second at most.

        Args:
            interruption: Why and when the query ended.

        Raises:
            BrokerError: Kafka has not answered for too long under `--once`.
            SessionlakeError: A restart does not help: the query failed for another reason than its topics or Kafka.
            TopicChangedError: A topic changed, and `kafka.on_topic_change` is `fail`.
        """
        if time.monotonic() < interruption.next_attempt_at:
            return
        interruption.next_attempt_at = time.monotonic() + _PAUSE_SECONDS
        try:
            if not self._can_restart_now(interruption):
                return
        except BaseException:
            self._book.close()
            raise
        self._interruption = None
        self._report_that_kafka_answers_again()
        self._start_planned_query()

    def _can_restart_now(self, interruption: QueryInterruption) -> bool:
        """Returns True if bronze's query can restart now, False if Kafka does not answer.

        Args:
            interruption: Why and when the query ended.

        Raises:
            SessionlakeError: The query cannot be restarted, for example because its error has another reason.
        """
        failed = self._planned_start
        try:
            self._book.raise_if_kafka_unreachable()
            again = self._plan_next_start() or (interruption.is_temporary and interruption.has_waited)
            if not again and self._should_retry_failed_start(interruption, failed):
                time.sleep(_PAUSE_SECONDS)
                self._plan_next_start()
                again = True
        except BrokerError as unanswered:
            if interruption.error is not None and not interruption.is_temporary:
                raise interruption.error from None
            self._report_kafka_unreachable(unanswered)
            interruption.has_waited = True
            if self._once and time.monotonic() - interruption.ended_at > _ONCE_WAIT_SECONDS:
                raise
            return False
        if interruption.error is not None and not again:
            raise interruption.error
        return True

    def _should_retry_failed_start(self, interruption: QueryInterruption, failed_start: QueryStartPlan | None) -> bool:
        """Returns True if a failed start is worth another attempt, although neither topics nor checkpoint changed.

        Brokers learn of topics at different times, so the one that Spark asked may not have known all of them. Spark
        also fails if the starting offsets of a new generation name other topic-partitions than the broker lists.

        Args:
            interruption: Why and when the query ended.
            failed_start: The plan of the start that failed; None if the query had not started.
        """
        start = self._planned_start
        if start is None:
            return False
        number, failed_in = start.generation.number, None if failed_start is None else failed_start.generation.number
        begins = number == failed_in and number > 0 and start.positions is not None
        if not (interruption.is_temporary or begins):
            return False
        at = number, start.generation.last_planned_batch
        self._attempts = self._attempts + 1 if self._last_attempt == at else 1
        self._last_attempt = at
        return self._attempts <= _MAX_ATTEMPTS

    def _report_kafka_unreachable(self, unanswered: BrokerError) -> None:
        if not self._is_unreachable:
            self._is_unreachable = True
            self._on_wait(f"{self.layer} waits for Kafka: {unanswered}")

    def _report_that_kafka_answers_again(self) -> None:
        if self._is_unreachable:
            self._is_unreachable = False
            self._on_wait(f"Kafka answers; {self.layer} resumes")

    def _plan_next_start(self) -> bool:
        """Plans the next start of bronze's query from `ops.topics`, Kafka and the checkpoint.

        Returns:
            True if changes of topics make this start differ from the previous one, or if it is the first.
        """
        if self._batches is not None:
            self._batches.reject_later_batches()
        generation = self._generations.current_generation
        self._generations.remove_superseded_generations()
        settled = self._record_planned(generation)
        self._book.update_topics_from_kafka()
        excluded_topics, positions = self._book.list_topics_to_exclude(), self._book.list_next_offsets()
        offsets = CheckpointOffsets(generation.folder)
        has_started, is_unchanged = offsets.has_started, False
        if not has_started and generation.number:
            self._reject_planned(generation)  # the process that began the generation may have died before this step
        ends = {} if offsets.pending_batch is None else self._book.read_kafka_ends()
        if has_started and not offsets.would_resume_at(positions, ends, is_last_batch_stored=settled):
            is_unchanged = settled and offsets.ends_pending_batch_at(positions)
            previous, has_started = generation, False
            generation = self._generations.create_next_generation(previous.next_batch, previous.app_id)
            if not settled:
                self._reject_planned(previous)
                if self._record_planned(previous):  # another process has committed it meanwhile
                    return self._plan_next_start()
        before = self._planned_start
        self._planned_start = QueryStartPlan(generation, excluded_topics, None if has_started else positions)
        return before is None or (not is_unchanged and self._planned_start.differs_from_previous_start(before))

    def _start_planned_query(self) -> None:
        if self._planned_start is None:
            raise RuntimeError("The start of the query was not planned")
        frame, self._batches = self._source(self._planned_start)
        generation = self._planned_start.generation
        self.checkpoint = str(generation.folder)
        self.start(frame, self._batches, trigger=self._trigger, once=self._once, txn=generation.build_batch_txn)
