"""Runs a user's processor on the judged messages of one shard's batch, session by session, life by life."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sessionlake.integrity.outcome import MessageVerdict
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.processors.api import Message, Session
from sessionlake.processors.load import ProcessorClassReference
from sessionlake.processors.messages import read_applied_messages
from sessionlake.processors.outputs import (
    FailureAction,
    ProcessorFailure,
    ProcessorOutput,
    ProcessorReport,
    create_error_rows,
    encode_processor_report,
)
from sessionlake.processors.session import (
    LoadedProcessor,
    ProcessorBatchResults,
    ProcessorLimits,
    ProcessorStoppedError,
    SessionLifeProcessor,
    create_loaded_processor,
)
from sessionlake.processors.shard_state import (
    ProcessorShardState,
    SessionState,
    compute_due_time_of_session,
    find_next_due_time_by_partition,
)
from sessionlake.protocol.arrow import build_session_key_of_each_row, encode_values_as_codes, split_session_key
from sessionlake.protocol.chunk import encode_ipc
from sessionlake.protocol.columns import Column
from sessionlake.protocol.reasons import CODE_OF, Reason
from sessionlake.protocol.types import Payloads, TopicPartition
from sessionlake.settings.model import CaptureSettings, ProcessorSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver.fold.emit import JudgedBatch, count_messages_by_partition, list_first_stopping_violation


@dataclass
class MessageProcessor:
    """Passes every applied message of a shard to a user's processor, one batch at a time.

    Attributes:
        ref: Identifies the processor's class.
        columns: The declared columns of messages.
        capture: The capture settings.
        limits: The largest state, and the most records of a call.
        on_error: What to do if a call fails. None to do what the topic's `on_violation` says.
        shards: The number of shards.
        loaded: The loaded processor; None until it is first used.
    """

    ref: ProcessorClassReference
    columns: tuple[Column, ...]
    capture: CaptureSettings
    limits: ProcessorLimits
    on_error: OnViolation | None
    shards: int
    loaded: LoadedProcessor | None = field(default=None, repr=False)
    _rules: JudgingRuleLookup | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, object]:
        """Returns the attributes that are sent to workers. Workers load the processor's class themselves."""
        return self.__dict__ | {"_rules": None, "loaded": None}

    @property
    def rule_lookup(self) -> JudgingRuleLookup:
        """The integrity rules of each topic."""
        self._rules = self._rules or JudgingRuleLookup(self.capture)
        return self._rules

    @property
    def loaded_processor(self) -> LoadedProcessor:
        """The processor instance. Its class is loaded on first use."""
        if self.loaded is None:
            self.loaded = create_loaded_processor(self.ref.name, self.ref.load_processor(), self.limits)
        return self.loaded

    def list_next_due_times(self, state: bytes | None) -> Mapping[TopicPartition, int]:
        """Returns, by topic-partition, the stream time in ms after which a session is due even without a message.

        A session is due when stream time alone makes a timer fire or its life end.

        Args:
            state: The encoded `ProcessorShardState` of the shard; None before the first batch.
        """
        return ProcessorShardState.read_due_times(state)

    def process_judged_batch(
        self, state: bytes | None, judged: JudgedBatch, malformed: pa.Table
    ) -> tuple[bytes | None, Payloads]:
        """Passes the applied messages of a shard's batch to the processor.

        Args:
            state: The encoded `ProcessorShardState` of the shard; None before the first batch.
            judged: The judged messages.
            malformed: The messages that could not be decoded.

        Returns:
            The new encoded memory, and the results of the shard: records, failures and a report.
        """
        batch = _ShardBatchProcessor(self, ProcessorShardState.decode_processor_state(state), judged)
        batch.process_sessions()
        results, verdict = batch.results, judged.outcome.verdict
        verdict[results.failed_messages] = MessageVerdict.QUARANTINED
        tables = {
            ProcessorOutput.RECORDS: self.loaded_processor.output.create_output_table(results.records),
            ProcessorOutput.ERRORS: create_error_rows(self.ref.name, results.failures),
        }
        stopped = [failure for failure in results.failures if failure.action is FailureAction.STOPPED]
        report = ProcessorReport(
            partitions=count_messages_by_partition(judged, malformed),
            rows={str(kind): table.num_rows for kind, table in tables.items()},
            violations=list_first_stopping_violation(judged, self.rule_lookup),
            failures=sorted(stopped, key=ProcessorFailure.sort_key)[:1],
            silences=judged.silences,
        )
        rows = [(str(kind), encode_ipc(table)) for kind, table in tables.items() if table.num_rows]
        remembered = batch.memory.encode_processor_state(self.ref.name, self.shards)
        return remembered, [*rows, (str(ProcessorOutput.REPORT), encode_processor_report(report))]


def create_message_processor(
    config: ProcessorSettings, capture: CaptureSettings, shards: int, ref: ProcessorClassReference
) -> MessageProcessor:
    """Returns the `MessageProcessor` of a configured processor. Its class is loaded later.

    Args:
        config: The processor's settings.
        capture: The capture settings.
        shards: Number of shards of the stream.
        ref: Identifies the processor's class.
    """
    limits = ProcessorLimits(config.max_state_bytes, config.max_records_per_call)
    return MessageProcessor(ref, capture.declared_columns, capture, limits, config.on_error, shards)


class _SessionLifeInBatch(NamedTuple):
    """The part of one life of a session that is in a batch. Times in ms.

    Attributes:
        life: Offset of the life's first message, which identifies the life.
        partition: Partition of the life's last message.
        first_arrival: Stream time when the life's first message in the batch arrived.
        last_arrival: Stream time when the life's last message arrived.
        last: Kafka timestamp of the life's last message.
    """

    life: int
    partition: int
    first_arrival: int
    last_arrival: int
    last: int


class _ShardBatchProcessor:
    """Processes one batch of a shard: the sessions that have messages, and the sessions that are due.

    A session is due when stream time alone makes a timer fire or its life end. Sessions are processed in the order of
    their keys.
    """

    def __init__(self, owner: MessageProcessor, memory: ProcessorShardState, judged: JudgedBatch) -> None:
        self._owner, self.memory, self._judged = owner, memory, judged
        self._now = judged.clock.stream_times_by_partition
        self.memory.fill_in_unknown_kafka_times(judged.clock.first_stream_times_by_partition)
        self._keys = build_session_key_of_each_row(judged.messages)
        self._holding = set(self._keys.filter(pa.array(judged.outcome.verdict == MessageVerdict.HELD)).to_pylist())
        self.results = ProcessorBatchResults()

    def process_sessions(self) -> None:
        """Passes the messages and timers of every session in the batch to the processor."""
        spans = self._find_session_lives_in_batch()
        applied = _MessagesByLife(self._read_applied_messages())
        for key in sorted({*self._find_due_sessions(), *self._find_sessions_with_messages()}):
            with suppress(ProcessorStoppedError):  # then the batch is not committed, so the rest does not matter
                self._process_session(key, spans.get(key, []), applied)
        self.memory.due = self._find_next_due_time_by_partition()

    def _process_session(self, key: str, spans: list[_SessionLifeInBatch], applied: _MessagesByLife) -> None:
        """Passes a session's messages and timers in the batch to the processor, one life after the other."""
        topic, _, session_id = split_session_key(key)
        session_state = self.memory.sessions.pop(key, None)
        if session_state is not None and (not spans or spans[0].life != session_state.life):
            spans = [
                _SessionLifeInBatch(
                    session_state.life,
                    session_state.partition,
                    session_state.last,
                    session_state.last,
                    session_state.last,
                ),
                *spans,
            ]
        for span, following in zip_longest(spans, spans[1:]):
            if session_state is None or session_state.life != span.life:
                session_state = SessionState(
                    self._owner.loaded_processor.processor.version, b"", span.life, span.partition, span.last
                )
            session_state.last, session_state.partition = span.last, span.partition
            life = self._create_life_processor(Session(topic, session_id, span.partition), session_state)
            for index, message in applied.read_messages_of_life(key, span.life):
                life.process_message(index, message)
            now = self._now[topic, span.partition]
            if following is not None:
                life.end_session_life(following.first_arrival, span.last_arrival)
            elif now > life.expires_after_stream_time:
                life.end_session_life(now, span.last_arrival)
            else:
                life.fire_timers(now)
                if life.has_applied_message or key in self._holding:
                    self.memory.sessions[key] = session_state

    def _create_life_processor(self, session: Session, session_state: SessionState) -> SessionLifeProcessor:
        rules = self._owner.rule_lookup.find_judging_rules(session.topic)
        policy = self._owner.on_error or rules.on_violation
        return SessionLifeProcessor(
            self._owner.loaded_processor, session, session_state, policy, rules.session_timeout, self.results
        )

    # -- messages of the batch

    def _find_session_lives_in_batch(self) -> dict[str, list[_SessionLifeInBatch]]:
        """Returns, for each session key, the session's lives that have messages in the batch, in order."""
        judged, released = self._judged, self._judged.held_before_count
        arrived = np.flatnonzero(judged.outcome.reason != CODE_OF[Reason.SKIPPED])
        arrived = arrived[arrived >= released]
        owner = encode_values_as_codes(self._keys)[0][arrived]
        life = judged.outcome.life[arrived]
        starts = np.flatnonzero(np.append(True, (np.diff(owner) != 0) | (np.diff(life) != 0))[: len(arrived)])
        first, last = arrived[starts], arrived[np.append(starts[1:], len(arrived))[: len(starts)] - 1]
        columns = (
            life[starts].tolist(),
            judged.messages["partition"].to_numpy()[last].tolist(),
            judged.arrival_times[first - released].tolist(),
            judged.arrival_times[last - released].tolist(),
            judged.message_times[last - released].tolist(),
        )
        found: dict[str, list[_SessionLifeInBatch]] = {}
        for key, *span in zip(self._keys.take(pa.array(first)).to_pylist(), *columns, strict=True):
            found.setdefault(key, []).append(_SessionLifeInBatch(*span))
        return found

    def _read_applied_messages(self) -> Iterator[tuple[str, int, int, Message]]:
        """Yields session key, life, row index and `Message` of each applied message.

        Messages are sorted by session key, and then by order of application.
        """
        outcome = self._judged.outcome
        applied = np.flatnonzero(outcome.verdict == MessageVerdict.APPLIED)
        owner, keys = encode_values_as_codes(self._keys.take(pa.array(applied)))
        names = keys.to_pylist()
        rank = np.empty(len(names), np.int64)
        rank[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names))
        order = np.lexsort((outcome.position[applied], rank[owner]))
        found = read_applied_messages(self._judged.messages, applied[order], outcome, self._owner.columns)
        for code, (index, message) in zip(owner[order].tolist(), found, strict=True):
            yield names[code], int(outcome.life[index]), index, message

    def _find_sessions_with_messages(self) -> set[str]:
        return set(self._keys.unique().to_pylist())

    # -- sessions that are due

    def _find_due_sessions(self) -> list[str]:
        """Returns the keys of sessions whose timer fires or whose life ends in this batch even without a message."""
        if all(time >= self._now.get(lane, time) for lane, time in self.memory.due.items()):
            return []
        sessions = self.memory.sessions.items()
        found = (
            (
                key,
                *compute_due_time_of_session(key, session_state, self._find_session_timeout(split_session_key(key)[0])),
            )
            for key, session_state in sessions
        )
        return [key for key, lane, time in found if time < self._now[lane]]

    def _find_next_due_time_by_partition(self) -> dict[TopicPartition, int]:
        return find_next_due_time_by_partition(self.memory.sessions, self._find_session_timeout)

    def _find_session_timeout(self, topic: str) -> int:
        return self._owner.rule_lookup.find_judging_rules(topic).session_timeout


class _MessagesByLife:
    """The applied messages of a batch, to be read life by life. Lives must be read in the order of the messages.

    Args:
        messages: Session key, life, row index and `Message` of each applied message.
    """

    def __init__(self, messages: Iterator[tuple[str, int, int, Message]]) -> None:
        self._messages = messages
        self._head = next(messages, None)

    def read_messages_of_life(self, key: str, life: int) -> Iterator[tuple[int, Message]]:
        """Yields row index and `Message` of the applied messages of one life of a session.

        Messages of earlier lives that were not read are skipped.

        Args:
            key: The session key.
            life: Offset of the life's first message.
        """
        while self._head is not None and self._head[:2] < (key, life):
            self._head = next(self._messages, None)
        while self._head is not None and self._head[:2] == (key, life):
            yield self._head[2:]
            self._head = next(self._messages, None)
