"""One session before a processor: its messages and timers in the one order that stream time gives them.

These hold, whatever the batches:

- A timer set for T fires before the first message that is applied when stream time is past T; of several, the earliest
  fires first, then by name.
- A session's life is over when a message begins a new one, or stream time is more than twice the session timeout past
  its last message: until then a message might still take its expiry back. If it has not ended, `on_timeout` is told
  once, with the moment at which it expired: last message + session timeout. Then state and timers go.
- A call that raises, yields what does not fit, or leaves too big a state, has done nothing: no record, no timer, and
  the state is as it was before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sessionlake.processors.api import NEVER, Emitted, Message, Processor, Session, Timer
from sessionlake.processors.memory import Kept, StateCodec
from sessionlake.processors.output import Origin, OutputColumns
from sessionlake.processors.outputs import FailureAction, ProcessorFailure
from sessionlake.settings.model import OnViolation

_TIMER_BYTES = 9


@dataclass(frozen=True)
class Limits:
    """How much a session may keep, and one call may emit; more is a failure."""

    state_bytes: int
    records_per_call: int


@dataclass(frozen=True)
class Workings:
    """A processor and all that calling it takes."""

    name: str
    processor: Processor[Any]
    codec: StateCodec
    output: OutputColumns
    limits: Limits


def workings(name: str, processor: Processor[Any], limits: Limits) -> Workings:
    """Puts together what calling a processor takes."""
    return Workings(name, processor, StateCodec(name, processor), OutputColumns(processor.output), limits)


@dataclass
class Results:
    """The records and failures of one shard's batch.

    Attributes:
        failed: indices of the messages that the processor did not take.
    """

    records: list[tuple[Origin, msgspec.Struct]] = field(default_factory=list)
    failures: list[ProcessorFailure] = field(default_factory=list)
    failed: list[int] = field(default_factory=list)


class ProcessorStoppedError(Exception):
    """Raised inside the fold at a failure under `fail`, by then among the results: nothing is worked on after it."""


class Life:
    """Gives a processor the messages, timers and expiry of one life of a session, and keeps its state.

    Args:
        kept: what was kept of it, changed in place; its state is decoded when first needed.
        timeout: the session timeout, ms.
    """

    def __init__(
        self, workings: Workings, session: Session, kept: Kept, policy: OnViolation, timeout: int, results: Results
    ) -> None:
        self._workings, self._session, self._policy = workings, session, policy
        self.kept = kept
        self._timeout = timeout
        self._results = results
        self._state: Any = None

    def take(self, index: int, message: Message) -> None:
        """Gives the processor the session's next message, after the timers that stream time has passed.

        Raises:
            ProcessorStoppedError: the job must stop here.
        """
        kept = self.kept
        self.pass_time(message.stream_time)
        kept.position, kept.offset, kept.ordinal = message.position, message.offset, 0
        kept.ended |= message.type == "end"
        if kept.stopped is not None:
            said = f"not worked on: the processor was stopped for the session at offset {kept.stopped}"
            self._fail("message", message.stream_time, FailureAction.SKIPPED, said)
            self._results.failed.append(index)
        elif not self._call("message", message.stream_time, lambda state: self._processor.on_message(state, message)):
            self._results.failed.append(index)

    def pass_time(self, now: int) -> None:
        """Fires the timers that stream time `now` is past.

        Raises:
            ProcessorStoppedError: the job must stop here.
        """
        while self.kept.timers:
            at, name = min((at, name) for name, at in self.kept.timers.items())
            if at >= now:
                return
            del self.kept.timers[name]
            self._fire("timer", Timer(at, name), after=at)

    @property
    def begun(self) -> bool:
        """Whether any message was applied."""
        return self.kept.position != -1

    @property
    def over_after(self) -> int:
        """Stream time past which the life is over though no message comes."""
        return self.kept.last + 2 * self._timeout

    def end(self, now: int, reached: int) -> None:
        """Ends the life: stream time `now` has shown that it is over.

        Args:
            reached: stream time when its last message came, which may bear an old timestamp and so be over at once.

        Raises:
            ProcessorStoppedError: the job must stop here.
        """
        self.pass_time(min(now, max(reached, self.over_after + 1)))
        self.kept.timers = {}
        if self.begun and not self.kept.ended and self.kept.stopped is None:
            self._fire("expiry", Timer(self.kept.last + self._timeout, expired=True), after=NEVER)

    def _fire(self, event: str, timer: Timer, *, after: int) -> None:
        self._call(event, timer.at, lambda state: self._processor.on_timeout(state, timer), after=after)

    # -- one call

    @property
    def _processor(self) -> Processor[Any]:
        return self._workings.processor

    def _call(
        self, event: str, time: int, work: Callable[[Any], Iterable[Emitted] | None], *, after: int | None = None
    ) -> bool:
        """Calls the processor; returns whether it did its work.

        What is stored is read back, so that a call never sees what would not survive the end of a batch.

        Args:
            after: timers must be set for later than this.
        """
        kept, codec = self.kept, self._workings.codec
        if self._state is None and kept.state:
            self._state = codec.read(kept.state, kept.version, self._session.session_id)
        try:
            state = self._processor.initial(self._session) if self._state is None else self._state
            records, timers = self._emitted(work(state), after)
            timers = {name: at for name, at in (kept.timers | timers).items() if at != NEVER}
            stored = codec.write(state)
            self._refuse_too_big(len(stored) + sum(len(name) + _TIMER_BYTES for name in timers))
            self._state = codec.read_back(stored)
        except Exception as error:  # noqa: BLE001 (a processor is its user's code)
            self._state = None
            self._failed(event, time, error)
            return False
        kept.state, kept.version, kept.timers = stored, self._processor.version, timers
        for record in records:
            self._results.records.append((self._place(time), record))
            kept.ordinal += 1
        return True

    def _emitted(
        self, emitted: Iterable[Emitted] | None, after: int | None
    ) -> tuple[list[msgspec.Struct], dict[str, int]]:
        """Splits what a call yields into checked records and timers."""
        records: list[msgspec.Struct] = []
        timers: dict[str, int] = {}
        limit = self._workings.limits.records_per_call
        for count, item in enumerate(emitted or (), start=1):
            if count > limit:
                raise OverflowError(f"more than {limit} records of one call: max_records_per_call allows no more")
            if isinstance(item, Timer):
                timers[item.name] = _checked(item, after)
            else:
                records.append(self._workings.output.check(item))
        return records, timers

    def _refuse_too_big(self, size: int) -> None:
        limit = self._workings.limits.state_bytes
        if size > limit:
            raise OverflowError(
                f"the session's state has {size} bytes, max_state_bytes allows {limit}: keep less of it, or raise it"
            )

    # -- failures

    def _failed(self, event: str, time: int, error: Exception) -> None:
        said = f"{type(error).__name__}: {error}"
        if self._policy is OnViolation.FAIL:
            self._fail(event, time, FailureAction.STOPPED, said)
            raise ProcessorStoppedError
        if self._policy is OnViolation.RECORD:
            self._fail(event, time, FailureAction.RECORDED, said)
            return
        self._fail(event, time, FailureAction.ISOLATED, said)
        self.kept.stopped, self.kept.state, self.kept.timers = self.kept.offset, b"", {}

    def _fail(self, event: str, time: int, action: FailureAction, said: str) -> None:
        self._results.failures.append(ProcessorFailure.at(self._place(time), event, action, said))
        self.kept.ordinal += 1

    def _place(self, time: int) -> Origin:
        kept, session = self.kept, self._session
        return Origin(session.topic, session.session_id, kept.partition, kept.offset, kept.position, kept.ordinal, time)


def _checked(timer: Timer, after: int | None) -> int:
    """A timer's time.

    Raises:
        TypeError: time or name are of another type.
        ValueError: it is no time, or not later than `after`.
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
