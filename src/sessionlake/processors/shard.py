"""A user's processor over a shard: the judged batch taken apart into sessions, lives and messages, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sessionlake.integrity.outcome import Verdict
from sessionlake.integrity.rules import RuleBook
from sessionlake.processors.api import Message, Session
from sessionlake.processors.load import ProcessorRef
from sessionlake.processors.memory import Kept, ProcessorMemory, due_of, next_due
from sessionlake.processors.messages import read_messages
from sessionlake.processors.outputs import (
    FailureAction,
    ProcessorFailure,
    ProcessorOutput,
    ProcessorReport,
    error_rows,
    write_report,
)
from sessionlake.processors.session import Life, Limits, ProcessorStoppedError, Results, Workings, workings
from sessionlake.protocol.arrow import codes, parts_of_key, session_keys
from sessionlake.protocol.chunk import write_ipc
from sessionlake.protocol.columns import Column
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.types import Payloads, TopicPartition
from sessionlake.settings.model import CaptureSettings, OnViolation, ProcessorSettings
from sessionlake.silver.fold.emit import Judged, first_violations, partition_counts


@dataclass
class MessageByMessage:
    """Calls a processor for every message of a shard; see `silver.process.ShardProcessor`.

    Attributes:
        on_error: what a failure does; None: what a violation does in the topic.
        shards: how many there are.
        loaded: the processor, once it has been.
    """

    ref: ProcessorRef
    columns: tuple[Column, ...]
    capture: CaptureSettings
    limits: Limits
    on_error: OnViolation | None
    shards: int
    loaded: Workings | None = field(default=None, repr=False)
    _rules: RuleBook | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Every worker loads the class by itself."""
        return self.__dict__ | {"_rules": None, "loaded": None}

    @property
    def rules(self) -> RuleBook:
        """The integrity rules of the topics."""
        self._rules = self._rules or RuleBook(self.capture)
        return self._rules

    @property
    def workings(self) -> Workings:
        """The processor, loaded."""
        if self.loaded is None:
            self.loaded = workings(self.ref.name, self.ref.load(), self.limits)
        return self.loaded

    def due(self, memory: bytes | None) -> Mapping[TopicPartition, int]:
        """See `ShardProcessor`."""
        return ProcessorMemory.due_of(memory)

    def process(self, memory: bytes | None, judged: Judged, malformed: pa.Table) -> tuple[bytes | None, Payloads]:
        """See `ShardProcessor`."""
        batch = _ShardBatch(self, ProcessorMemory.decode(memory), judged)
        batch.work()
        results, verdict = batch.results, judged.outcome.verdict
        verdict[results.failed] = Verdict.QUARANTINED
        tables = {
            ProcessorOutput.RECORDS: self.workings.output.table(results.records),
            ProcessorOutput.ERRORS: error_rows(self.ref.name, results.failures),
        }
        stopped = [failure for failure in results.failures if failure.action is FailureAction.STOPPED]
        report = ProcessorReport(
            partitions=partition_counts(judged, malformed),
            rows={str(kind): table.num_rows for kind, table in tables.items()},
            violations=first_violations(judged, self.rules),
            failures=sorted(stopped, key=ProcessorFailure.place)[:1],
            silences=judged.silences,
        )
        rows = [(str(kind), write_ipc(table)) for kind, table in tables.items() if table.num_rows]
        remembered = batch.memory.encode(self.ref.name, self.shards)
        return remembered, [*rows, (str(ProcessorOutput.REPORT), write_report(report))]


def processor_of(own: ProcessorSettings, capture: CaptureSettings, shards: int, ref: ProcessorRef) -> MessageByMessage:
    """The configured processor over a shard."""
    limits = Limits(own.max_state_bytes, own.max_records_per_call)
    return MessageByMessage(ref, capture.declared, capture, limits, own.on_error, shards)


class _LifeSpan(NamedTuple):
    """The messages of one life of a session that came in the batch. Times in ms.

    Attributes:
        came: stream time when the first came.
        reached: stream time when the last came.
        last: own time of the last.
    """

    life: int
    partition: int
    came: int
    reached: int
    last: int


class _ShardBatch:
    """Works through the sessions that have messages, or for which it is time, in the order of their keys."""

    def __init__(self, owner: MessageByMessage, memory: ProcessorMemory, judged: Judged) -> None:
        self._owner, self.memory, self._judged = owner, memory, judged
        self._now = judged.clock.now
        self.memory.begin_time(judged.clock.first_known_times)
        self._keys = session_keys(judged.messages)
        self._holding = set(self._keys.filter(pa.array(judged.outcome.verdict == Verdict.HELD)).to_pylist())
        self.results = Results()

    def work(self) -> None:
        """Gives every session of the shard its messages and timers of the batch."""
        spans = self._life_spans()
        applied = _Applied(self._applied())
        for key in sorted({*self._due(), *self._released_or_come()}):
            with suppress(
                ProcessorStoppedError
            ):  # the batch is not committed: what becomes of the rest does not matter
                self._follow(key, spans.get(key, []), applied)
        self.memory.due = self._next_due()

    def _follow(self, key: str, spans: list[_LifeSpan], applied: _Applied) -> None:
        """Follows a session from life to life."""
        topic, _, session_id = parts_of_key(key)
        kept = self.memory.sessions.pop(key, None)
        if kept is not None and (not spans or spans[0].life != kept.life):
            spans = [_LifeSpan(kept.life, kept.partition, kept.last, kept.last, kept.last), *spans]
        for span, following in zip_longest(spans, spans[1:]):
            if kept is None or kept.life != span.life:
                kept = Kept(self._owner.workings.processor.version, b"", span.life, span.partition, span.last)
            kept.last, kept.partition = span.last, span.partition
            life = self._life(Session(topic, session_id, span.partition), kept)
            for index, message in applied.of(key, span.life):
                life.take(index, message)
            now = self._now[topic, span.partition]
            if following is not None:
                life.end(following.came, span.reached)
            elif now > life.over_after:
                life.end(now, span.reached)
            else:
                life.pass_time(now)
                if life.begun or key in self._holding:
                    self.memory.sessions[key] = kept

    def _life(self, session: Session, kept: Kept) -> Life:
        rules = self._owner.rules.of(session.topic)
        policy = self._owner.on_error or rules.on_violation
        return Life(self._owner.workings, session, kept, policy, rules.session_timeout, self.results)

    # -- what the batch brings

    def _life_spans(self) -> dict[str, list[_LifeSpan]]:
        """Of every session of which messages came, its lives in the batch, in order."""
        judged, released = self._judged, self._judged.released
        arrived = np.flatnonzero(judged.outcome.reason != CODE_OF[Reason.SKIPPED])
        arrived = arrived[arrived >= released]
        owner = codes(self._keys)[0][arrived]
        life = judged.outcome.life[arrived]
        starts = np.flatnonzero(np.append(True, (np.diff(owner) != 0) | (np.diff(life) != 0))[: len(arrived)])
        first, last = arrived[starts], arrived[np.append(starts[1:], len(arrived))[: len(starts)] - 1]
        columns = (
            life[starts].tolist(),
            judged.messages["partition"].to_numpy()[last].tolist(),
            judged.came[first - released].tolist(),
            judged.came[last - released].tolist(),
            judged.times[last - released].tolist(),
        )
        found: dict[str, list[_LifeSpan]] = {}
        for key, *span in zip(self._keys.take(pa.array(first)).to_pylist(), *columns, strict=True):
            found.setdefault(key, []).append(_LifeSpan(*span))
        return found

    def _applied(self) -> Iterator[tuple[str, int, int, Message]]:
        """Key, life, index and message of all that is applied, by key and order of application."""
        outcome = self._judged.outcome
        applied = np.flatnonzero(outcome.verdict == Verdict.APPLIED)
        owner, keys = codes(self._keys.take(pa.array(applied)))
        names = keys.to_pylist()
        rank = np.empty(len(names), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        order = np.lexsort((outcome.position[applied], rank[owner]))
        found = read_messages(self._judged.messages, applied[order], outcome, self._owner.columns)
        for code, (index, message) in zip(owner[order].tolist(), found, strict=True):
            yield names[code], int(outcome.life[index]), index, message

    def _released_or_come(self) -> set[str]:
        return set(self._keys.unique().to_pylist())

    # -- what time brings

    def _due(self) -> list[str]:
        """Sessions that have something to do because of the time alone."""
        if all(time >= self._now.get(lane, time) for lane, time in self.memory.due.items()):
            return []
        sessions = self.memory.sessions.items()
        found = ((key, *due_of(key, kept, self._timeout_of(parts_of_key(key)[0]))) for key, kept in sessions)
        return [key for key, lane, time in found if time < self._now[lane]]

    def _next_due(self) -> dict[TopicPartition, int]:
        return next_due(self.memory.sessions, self._timeout_of)

    def _timeout_of(self, topic: str) -> int:
        return self._owner.rules.of(topic).session_timeout


class _Applied:
    """Applied messages, handed out life by life in the order in which they come."""

    def __init__(self, messages: Iterator[tuple[str, int, int, Message]]) -> None:
        self._messages = messages
        self._head = next(messages, None)

    def of(self, key: str, life: int) -> Iterator[tuple[int, Message]]:
        """The applied messages of one life; those left of lives before it are passed over."""
        while self._head is not None and self._head[:2] < (key, life):
            self._head = next(self._messages, None)
        while self._head is not None and self._head[:2] == (key, life):
            yield self._head[2:]
            self._head = next(self._messages, None)
