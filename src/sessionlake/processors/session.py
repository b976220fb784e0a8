"""Runs a processor for one life of a session: messages, timers and expiry, in the order of stream time.

These rules hold, however messages are split into batches:

- A timer set for T fires before the first message that is applied at a stream time after T. If several timers are due,
  the earliest fires first. Timers with the same time fire in the order of their names.
- A life is over when a message starts a new life. It is also over when stream time is more than twice the session
  timeout after the session's last message. Until then a message may still continue the session.
- If a life is over without an `end`, `on_timeout` is called once with the time of expiry: the time of the last message
  plus the session timeout. Then state and timers are dropped.
- A call has no effect if it raises, yields a wrong record, or leaves too big a state. Its records and timers are
  dropped, and the state is as it was before the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sessionlake.processors.api import NEVER, Emitted, Message, Processor, Session, Timer
from sessionlake.processors.output import OutputColumns, RecordOrigin
from sessionlake.processors.outputs import FailureAction, ProcessorFailure
from sessionlake.processors.shard_state import SessionState, SessionStateCodec
from sessionlake.settings.section import OnViolation

_TIMER_BYTES = 9


@dataclass(frozen=True)
class ProcessorLimits:
    """Limits for one call of a processor. A call that exceeds one of them fails.

    Attributes:
        state_bytes: Largest state of a session, in bytes.
        records_per_call: Most records and timers that one call may yield.
    """

    state_bytes: int
    records_per_call: int


@dataclass(frozen=True)
class LoadedProcessor:
    """An instance of a user's processor class, with what is needed to store states and to check records.

    Attributes:
        name: The processor's name in the configuration.
        processor: The instance.
        codec: Encodes and decodes states of sessions.
        output: The columns that records must fit.
        limits: The largest state, and the most records of a call.
    """

    name: str
    processor: Processor[Any]
    codec: SessionStateCodec
    output: OutputColumns
    limits: ProcessorLimits


def create_loaded_processor(name: str, processor: Processor[Any], limits: ProcessorLimits) -> LoadedProcessor:
    """Returns a processor instance together with its state codec, output columns and limits."""
    return LoadedProcessor(name, processor, SessionStateCodec(name, processor), OutputColumns(processor.output), limits)


@dataclass
class ProcessorBatchResults:
    """What a processor yielded for the messages of one shard in one batch.

    Attributes:
        records: The output records, each with its origin.
        failures: The failed calls.
        failed_messages: Row indices of the messages that the processor did not process.
    """

    records: list[tuple[RecordOrigin, msgspec.Struct]] = field(default_factory=list)
    failures: list[ProcessorFailure] = field(default_factory=list)
    failed_messages: list[int] = field(default_factory=list)


class ProcessorStoppedError(Exception):
    """A call of the processor failed and the job must stop, so the rest of the shard is not processed.

    The failure was added to the results before. This error never leaves the package.
    """


class SessionLifeProcessor:
    """One life of a session: passes its messages, timers and expiry to the processor, and keeps its state.

    Args:
        loaded: The processor.
        session: The session's identity.
        session_state: The stored state, which is changed in place. Its bytes are decoded when first needed.
        policy: What to do if a call fails.
        timeout: The session timeout, in ms.
        results: Receives the records and failures.
    """

    def __init__(
        self,
        loaded: LoadedProcessor,
        session: Session,
        session_state: SessionState,
        policy: OnViolation,
        timeout: int,
        results: ProcessorBatchResults,
    ) -> None:
        self._loaded, self._session, self._policy = loaded, session, policy
        self.session_state = session_state
        self._timeout = timeout
        self._results = results
        self._state: Any = None

    def process_message(self, index: int, message: Message) -> None:
        """Fires the timers that are due, then passes the session's next message to the processor.

        Args:
            index: Row index of the message in the batch.
            message: The message.

        Raises:
            ProcessorStoppedError: A call failed, and the job must stop.
        """
        session_state = self.session_state
        self.fire_timers(message.stream_time)
        session_state.position, session_state.offset, session_state.ordinal = message.position, message.offset, 0
        session_state.ended |= message.type == "end"
        if session_state.stopped is not None:
            error_text = f"not processed: the processor was stopped for the session at offset {session_state.stopped}"
            self._record_failure("message", message.stream_time, FailureAction.SKIPPED, error_text)
            self._results.failed_messages.append(index)
        elif not self._call_processor(
            "message", message.stream_time, lambda state: self._user_processor.on_message(state, message)
        ):
            self._results.failed_messages.append(index)

    def fire_timers(self, now: int) -> None:
        """Fires the timers that are set for an earlier stream time than `now` (ms), in the order of their times.

        Raises:
            ProcessorStoppedError: A call failed, and the job must stop.
        """
        while self.session_state.timers:
            at, name = min((at, name) for name, at in self.session_state.timers.items())
            if at >= now:
                return
            del self.session_state.timers[name]
            self._fire_timer("timer", Timer(at, name), after=at)

    @property
    def has_applied_message(self) -> bool:
        """True if a message of this life was applied."""
        return self.session_state.position != -1

    @property
    def expires_after_stream_time(self) -> int:
        """The stream time in ms after which the life is over, even without another message."""
        return self.session_state.last + 2 * self._timeout

    def end_session_life(self, now: int, last_arrival: int) -> None:
        """Ends the life: fires the timers that are still due, and reports the expiry if there was no `end`.

        Args:
            now: The stream time in ms at which it became known that the life is over.
            last_arrival: Stream time in ms when the life's last message arrived. If that message has an old timestamp,
                the life may be over at once.

        Raises:
            ProcessorStoppedError: A call failed, and the job must stop.
        """
        self.fire_timers(min(now, max(last_arrival, self.expires_after_stream_time + 1)))
        self.session_state.timers = {}
        if self.has_applied_message and not self.session_state.ended and self.session_state.stopped is None:
            self._fire_timer("expiry", Timer(self.session_state.last + self._timeout, expired=True), after=NEVER)

    def _fire_timer(self, event: str, timer: Timer, *, after: int) -> None:
        self._call_processor(event, timer.at, lambda state: self._user_processor.on_timeout(state, timer), after=after)

    # -- one call

    @property
    def _user_processor(self) -> Processor[Any]:
        return self._loaded.processor

    def _call_processor(
        self, event: str, time: int, call: Callable[[Any], Iterable[Emitted] | None], *, after: int | None = None
    ) -> bool:
        """Calls the user's processor, and adds its records and timers to the results. Returns False if the call failed.

        The new state is encoded and decoded again. So a call never sees values that are lost when the state is stored.

        Args:
            event: `message`, `timer` or `expiry`.
            time: Stream time of the call, in ms.
            call: Calls the processor with the state.
            after: New timers must be set for a later time than this, in ms. None for no limit.

        Raises:
            ProcessorStoppedError: The call failed, and the job must stop.
        """
        session_state, codec = self.session_state, self._loaded.codec
        if self._state is None and session_state.state:
            self._state = codec.decode_and_migrate_state(
                session_state.state, session_state.version, self._session.session_id
            )
        try:
            state = self._user_processor.initial(self._session) if self._state is None else self._state
            records, timers = self._split_records_and_timers(call(state), after)
            timers = {name: at for name, at in (session_state.timers | timers).items() if at != NEVER}
            stored = codec.encode_state(state)
            self._require_state_within_limit(len(stored) + sum(len(name) + _TIMER_BYTES for name in timers))
            self._state = codec.decode_state_of_current_version(stored)
        except Exception as error:  # noqa: BLE001 (a processor is its user's code)
            self._state = None
            self._handle_processor_failure(event, time, error)
            return False
        session_state.state, session_state.version, session_state.timers = stored, self._user_processor.version, timers
        for record in records:
            self._results.records.append((self._create_record_origin(time), record))
            session_state.ordinal += 1
        return True

    def _split_records_and_timers(
        self, emitted: Iterable[Emitted] | None, after: int | None
    ) -> tuple[list[msgspec.Struct], dict[str, int]]:
        """Splits what a call yields into checked output records, and the times of timers (ms) by their names.

        Args:
            emitted: The records and timers of the call.
            after: Timers must be set for a later time than this, in ms. None for no limit.

        Raises:
            OverflowError: There are more records and timers than allowed.
            TypeError: A record is no mapping, or a timer has a wrong type.
            ValueError: A record does not fit the output columns, or a timer's time is not allowed.
        """
        records: list[msgspec.Struct] = []
        timers: dict[str, int] = {}
        limit = self._loaded.limits.records_per_call
        for count, item in enumerate(emitted or (), start=1):
            if count > limit:
                raise OverflowError(f"more than {limit} records of one call, the limit of max_records_per_call")
            if isinstance(item, Timer):
                timers[item.name] = _require_future_timer_time(item, after)
            else:
                records.append(self._loaded.output.convert_record_to_struct(item))
        return records, timers

    def _require_state_within_limit(self, size: int) -> None:
        limit = self._loaded.limits.state_bytes
        if size > limit:
            raise OverflowError(
                f"the session's state has {size} bytes, max_state_bytes allows {limit}: keep less of it, or raise it"
            )

    # -- failures

    def _handle_processor_failure(self, event: str, time: int, error: Exception) -> None:
        error_text = f"{type(error).__name__}: {error}"
        if self._policy is OnViolation.FAIL:
            self._record_failure(event, time, FailureAction.STOPPED, error_text)
            raise ProcessorStoppedError
        if self._policy is OnViolation.RECORD:
            self._record_failure(event, time, FailureAction.RECORDED, error_text)
            return
        self._record_failure(event, time, FailureAction.ISOLATED, error_text)
        self.session_state.stopped, self.session_state.state, self.session_state.timers = (
            self.session_state.offset,
            b"",
            {},
        )

    def _record_failure(self, event: str, time: int, action: FailureAction, error_text: str) -> None:
        self._results.failures.append(
            ProcessorFailure.create_failure_row(self._create_record_origin(time), event, action, error_text)
        )
        self.session_state.ordinal += 1

    def _create_record_origin(self, time: int) -> RecordOrigin:
        session_state, session = self.session_state, self._session
        return RecordOrigin(
            session.topic,
            session.session_id,
            session_state.partition,
            session_state.offset,
            session_state.position,
            session_state.ordinal,
            time,
        )


def _require_future_timer_time(timer: Timer, after: int | None) -> int:
    """Returns the time of a timer that the processor yielded, in ms, after checking the timer.

    Args:
        timer: The timer.
        after: The timer must be set for a later time than this, in ms. None for no limit.

    Raises:
        TypeError: The time or the name has a wrong type.
        ValueError: The time is out of range, or not later than `after`.
    """
    if type(timer.at) is not int or not isinstance(timer.name, str):
        raise TypeError(f"a timer has a time in whole milliseconds and a name, found {timer!r:.100}")
    timer.name.encode()  # finds text that is not Unicode
    if not -NEVER <= timer.at <= NEVER:
        raise ValueError(f"a timer's time is an int64, found {timer.at}")
    if after is not None and timer.at <= after and timer.at != NEVER:
        after_what = "the session is over" if after == NEVER else f"the timer that sets it fired at {after}"
        raise ValueError(f"a timer cannot be set for {timer.at}: {after_what}")
    return timer.at
