"""The fold of a shard: takes state and packed messages; returns the new state, and emits the rows and the report.

Pure: the result depends only on the state and the messages, not on how they were split into chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.batch import judge_batch
from sessionlake.integrity.chains import ChainGap, ChainGapFinder, list_silent_chains
from sessionlake.integrity.clock import PartitionStreamTime, ShardClock, decode_offset_segments
from sessionlake.integrity.cursor import NEVER, NO_TIME, SessionStatus, create_session_cursors
from sessionlake.integrity.cuts import Cuts, compute_next_cut_times, create_zeroed_cuts
from sessionlake.integrity.outcome import JudgingOutcome, MessageVerdict
from sessionlake.integrity.rules import DecisionKey, JudgingRuleLookup, OperatorDecision
from sessionlake.integrity.segment_times import NO_STRETCHES, StreamTimesBeforeSegments
from sessionlake.integrity.shard_batch import MessageArrays, ShardBatch
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import number_distinct_combinations, split_session_keys
from sessionlake.protocol.chunk import decode_and_join_chunks, is_chunk
from sessionlake.protocol.columns import Column
from sessionlake.protocol.types import Bools, Int64s, Payloads, TopicPartition
from sessionlake.settings.capture import CaptureSettings
from sessionlake.silver.fold.arrays import (
    build_message_arrays,
    clear_unknown_times,
    compute_arrival_times,
    find_held_session_numbers,
    sort_messages_by_session,
)
from sessionlake.silver.fold.emit import JudgedBatch
from sessionlake.silver.fold.process import ShardProcessor, SilverTableProcessor, join_shard_state, split_shard_state
from sessionlake.silver.fold.rows import SessionRowsOfShardBatch, replace_message_seqs


@dataclass
class SilverFold:
    """Folds the batches of one shard of silver: judges their messages, and emits rows and a report.

    Attributes:
        columns: The declared columns.
        capture: The settings of capture.
        decisions: Operators' decisions by message.
        snapshot_interval: The time between snapshots of a session's table, ms.
        is_vectorized: False to judge every message one by one: slower, with the same result.
        processor: Makes the payloads from judged messages. None means silver's own, which makes the tables of sessions.
    """

    columns: tuple[Column, ...]
    capture: CaptureSettings
    decisions: dict[DecisionKey, OperatorDecision] = field(default_factory=dict)
    snapshot_interval: int = 600_000
    is_vectorized: bool = True
    processor: ShardProcessor | None = None
    _rules: JudgingRuleLookup | None = field(default=None, repr=False)

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Payloads]:
        """Folds one batch of a shard. Returns the new state (None: unchanged) and the payloads to emit."""
        self._rules = self._rules or JudgingRuleLookup(self.capture, self.snapshot_interval)
        batch = decode_and_join_chunks([chunk for chunk in chunks if is_chunk(chunk)], self.columns)
        segments = [decode_offset_segments(chunk) for chunk in chunks if not is_chunk(chunk)]
        judging, memory = split_shard_state(state)
        after = ShardState.decode_shard_state(judging, self.columns)
        stretch_times = after.clock.advance_clock(segments, _list_topic_partitions(batch))
        # Every shard gets every silence, even of topic-partitions without a session. Only shard 0 reports them.
        silences = [] if shard else [silence for part in segments for silence in part.stream_times_after_silences]
        first_timed = after.replace_unknown_session_times()
        judge = ShardJudge(after, self._rules, self.decisions, stretch_times, silences, first_timed, self.columns)
        batch = judge.find_chain_gaps_and_link_messages(batch)
        processor = self.processor or SilverTableProcessor(self.columns, self._rules)
        payloads: Payloads = []
        is_due = judge.has_due_sessions or _is_any_due_time_passed(processor.list_next_due_times(memory), after.clock)
        if batch.num_rows or silences or after.clock.first_times or is_due:
            wrong = pc.not_equal(batch["reason"], 0)
            malformed = batch.filter(wrong)
            well_formed = batch.filter(pc.invert(wrong)).combine_chunks() if malformed.num_rows else batch
            judged = judge.judge_messages(well_formed, is_vectorized=self.is_vectorized)
            memory, payloads = processor.process_judged_batch(memory, judged, malformed)
        after.drop_clock_partitions_without_sessions(processor.list_next_due_times(memory))
        encoded = join_shard_state(after.encode_shard_state(self.columns), memory)
        return None if encoded == state else encoded, payloads


def _list_topic_partitions(messages: pa.Table) -> set[TopicPartition]:
    _, (topics, partitions) = number_distinct_combinations(messages["topic"], messages["partition"])
    return set(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))


def _is_any_due_time_passed(due_times: Mapping[TopicPartition, int], clock: ShardClock) -> bool:
    now = clock.stream_times_by_partition if due_times else {}
    return any(time < now.get(place, time) for place, time in due_times.items())


class ShardJudge:
    """Judges one shard's batch: finds the sessions to judge, and stores their new cursors in the shard's state."""

    def __init__(
        self,
        state: ShardState,
        rules: JudgingRuleLookup,
        decisions: dict[DecisionKey, OperatorDecision],
        stretch_times: StreamTimesBeforeSegments,
        silences: list[PartitionStreamTime],
        newly_timed_sessions: Int64s,
        columns: tuple[Column, ...],
    ) -> None:
        self._state = state
        self._newly_timed_sessions = newly_timed_sessions
        self._rules = rules
        self._decisions = decisions
        self._stretch_times = stretch_times
        self._silences = silences
        self._columns = columns
        self._chain_gaps: dict[str, list[ChainGap]] = {}

    def find_chain_gaps_and_link_messages(self, messages: pa.Table) -> pa.Table:
        """Finds gaps in the counters that sessions of the batch share. They are judged later, with their sessions.

        Args:
            messages: All messages of the batch, malformed and ignored ones too.

        Returns:
            The messages with `link` and `seq` as their chains show.
        """
        if not pc.count(messages["chain"]).as_py():
            return messages
        known = {*self._state.keys.to_pylist()}
        follower = ChainGapFinder(self._state.chains, self._rules, known, self._chain_gaps)
        return follower.find_gaps_and_link_messages(messages, self._read_stream_times)

    def _read_stream_times(self, messages: pa.Table) -> Int64s:
        """Returns the stream time at each message, ms."""
        return compute_arrival_times(
            messages, self._find_clock_indices(messages), self._stretch_times, self._state.clock
        )

    @property
    def has_due_sessions(self) -> bool:
        """True if stream time alone requires to judge a session, cut its table, mark it as expired or forget it."""
        cursors = self._state.cursors
        if self._list_silent_chains():
            return True
        if not len(cursors):
            return False
        silence, timeout = self._measure_idle_times()
        to_mark = (silence > timeout) & (cursors["marked"] == 0) & (cursors["status"] != SessionStatus.ENDED)
        due = compute_next_cut_times(cursors["changed_at"], self._rules.snapshot_interval)
        to_cut = (due <= self._state.clock.partition_stream_times[cursors["lane"]]) | (
            (silence > timeout) & (due != NEVER)
        )
        return bool(
            (to_mark | to_cut | (silence > 2 * timeout)).any() or len(self._find_due_sessions(np.zeros(0, np.int64)))
        )

    def judge_messages(self, messages: pa.Table, *, is_vectorized: bool) -> JudgedBatch:
        """Judges well-formed messages, and the sessions without messages that are due by stream time."""
        messages, owner, keys = sort_messages_by_session(messages)
        places = self._state.find_cursor_indices(keys)
        silent = self._find_due_sessions(places)
        keys = pa.concat_arrays([keys, self._state.keys.take(pa.array(silent))])
        places, names = np.append(places, silent), split_session_keys(keys)
        held, held_bounds = self._remove_held_messages(keys, messages.schema)
        combined = pa.concat_tables([held, messages]).combine_chunks() if held.num_rows else messages
        rows = SessionRowsOfShardBatch(combined, names[0].to_pylist(), self._rules, self._columns)
        batch = ShardBatch(
            new_messages=build_message_arrays(
                messages, owner, self._find_clock_indices(messages), self._stretch_times, self._state.clock
            ),
            cursors=create_session_cursors(len(keys)),
            variable_parts=np.full(len(keys), None, object),
            rules=[self._rules.find_judging_rules(topic) for topic in names[0].to_pylist()],
            ends=np.zeros(0, np.int64),
            held_messages=build_message_arrays(
                held, np.zeros(0, np.int64), np.zeros(held.num_rows, np.int64), NO_STRETCHES, ShardClock([])
            ),
            held_bounds=held_bounds,
            decisions=self._list_decisions_by_session(names),
            chain_gaps=self._list_chain_gaps_by_session(keys),
            load_session_rows=rows.load_session_rows,
        )
        self._load_cursors(batch, places)
        out = judge_batch(batch, is_vectorized=is_vectorized)
        if self._state.clock.may_have_messages_without_stream_time:
            clear_unknown_times(batch, self._state.clock.first_offsets_with_stream_time, out)
        seen = self._store_cursors(batch, keys, places)
        self._store_held_messages(combined, out)
        combined = replace_message_seqs(rows.build_applied_messages(), out.unwrapped_seqs)
        judged = self._build_judged_batch(combined, held.num_rows, batch.new_messages, out, names, places, seen)
        self._remove_finished_sessions()
        return judged

    def _load_cursors(self, batch: ShardBatch, cursor_indices: Int64s) -> None:
        """Copies what the state has about the batch's sessions into the batch: their cursors and their variable parts.

        Args:
            batch: The batch, in which each session has an index.
            cursor_indices: The index in the state of each of the batch's sessions; -1 for new sessions.
        """
        known = cursor_indices >= 0
        batch.cursors[known] = self._state.cursors[cursor_indices[known]]
        batch.variable_parts[known] = self._state.variable_parts[cursor_indices[known]]
        batch.ends = self._find_end_times_of_sessions(batch)

    def _store_cursors(self, batch: ShardBatch, keys: pa.Array, cursor_indices: Int64s) -> Bools:
        """Stores the batch's cursors in the state, and writes their indices there into `cursor_indices`.

        Returns:
            A boolean for each session: True if the state contains it now.
        """
        # A new session is not stored if an operator had all its messages skipped.
        seen: Bools = batch.cursors["first_offset"] != NO_TIME
        mine = keys.filter(pa.array(seen))
        cursor_indices[seen] = self._state.store_cursors(
            cursor_indices[seen], mine, batch.cursors[seen], batch.variable_parts[seen]
        )
        return seen

    def _build_judged_batch(
        self,
        messages: pa.Table,
        held_before_count: int,
        new_messages: MessageArrays,
        outcome: JudgingOutcome,
        session_parts: tuple[pa.Array, pa.Array, pa.Array],
        cursor_indices: Int64s,
        has_messages: Bools,
    ) -> JudgedBatch:
        """Returns the judged batch, including the cuts and expiries that stream time alone caused."""
        state, cuts = self._state, outcome.recorded_cuts
        cuts["session"] = cursor_indices[cuts["session"]]
        cuts = np.concatenate([cuts, self._make_cuts_due_by_time()])
        expired = self._mark_expired_sessions()
        touched = np.unique(np.concatenate([cursor_indices[has_messages], expired, self._newly_timed_sessions]))
        changed = state.cursors[touched]
        return JudgedBatch(
            messages=messages,
            held_before_count=held_before_count,
            arrival_times=new_messages.now,
            message_times=new_messages.message_times,
            clock=state.clock,
            outcome=outcome,
            topics=session_parts[0],
            partitions=session_parts[1],
            sessions=session_parts[2],
            keys=state.keys.take(pa.array(touched)),
            cursors=changed,
            timeouts=self._list_session_timeouts()[changed["lane"]],
            late_fills=np.isin(touched, cursor_indices[sorted(outcome.late_fills)]),
            cuts=cuts,
            cut_keys=state.keys.take(pa.array(cuts["session"])),
            silences=self._silences,
        )

    def _find_clock_indices(self, messages: pa.Table) -> Int64s:
        """Returns, for each message, the index of its topic-partition in the shard's clock."""
        lane, (topics, partitions) = number_distinct_combinations(messages["topic"], messages["partition"])
        index = self._state.clock.find_partition_index
        pairs = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
        places = np.array([index(pair) for pair in pairs], np.int64)
        return places[lane] if len(places) else lane

    def _find_end_times_of_sessions(self, batch: ShardBatch) -> Int64s:
        """Returns, for each session, the stream time (ms) of its topic-partition after the batch."""
        lane = batch.cursors["lane"].astype(np.int64)
        stream = batch.new_messages
        lane[: len(stream.starts)] = stream.lane[stream.session_ends - 1] if len(stream.starts) else 0
        times = self._state.clock.partition_stream_times
        return times[lane] if len(times) else lane

    def _list_session_timeouts(self) -> Int64s:
        return np.array(
            [self._rules.find_judging_rules(lane.topic).session_timeout for lane in self._state.clock.partition_times],
            np.int64,
        )

    def _measure_idle_times(self) -> tuple[Int64s, Int64s]:
        """Returns two arrays (ms) by cursor: stream time since the session's last message, and its session timeout."""
        cursors, lane = self._state.cursors, self._state.cursors["lane"]
        times, timeouts = self._state.clock.partition_stream_times, self._list_session_timeouts()
        if not len(times):
            return np.zeros(len(cursors), np.int64), np.zeros(len(cursors), np.int64)
        seen = cursors["last_kafka_ts"] != NO_TIME
        return np.where(seen, times[lane] - np.where(seen, cursors["last_kafka_ts"], 0), 0), timeouts[lane]

    def _find_due_sessions(self, sessions_with_messages: Int64s) -> Int64s:
        """Returns the indices of cursors that must be judged although their sessions have no messages in the batch.

        Such a session has a gap that was not filled in time, held messages that its expiry releases, or a gap in a
        counter that it shares.

        Args:
            sessions_with_messages: The indices of cursors whose sessions have messages in the batch.
        """
        cursors = self._state.cursors
        if not len(cursors):
            return np.zeros(0, np.int64)
        silence, timeout = self._measure_idle_times()
        due = (cursors["held"] > 0) & (silence > timeout)
        due |= cursors["due"] < self._state.clock.partition_stream_times[cursors["lane"]]
        if self._chain_gaps:
            in_gap = self._state.find_cursor_indices(pa.array([*self._chain_gaps], pa.string()))
            due[in_gap[in_gap >= 0]] = True
        due[sessions_with_messages[sessions_with_messages >= 0]] = False
        return np.flatnonzero(due)

    def _remove_held_messages(self, keys: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Int64s]:
        """Removes the held messages of these sessions from the state, and returns them sorted by session.

        Returns:
            The messages; and the index of each session's first message, with the number of messages as the last value.
        """
        state = self._state
        nothing = np.zeros(len(keys) + 1, np.int64)
        if state.held_messages is None:
            return schema.empty_table(), nothing
        owner = find_held_session_numbers(state.held_messages, keys)
        mine = np.flatnonzero(owner >= 0)
        order = mine[np.lexsort((*(state.held_messages[name].to_numpy()[mine] for name in ("seq", "ts")), owner[mine]))]
        taken = state.held_messages.take(pa.array(order)).combine_chunks()
        state.held_messages = state.held_messages.filter(pa.array(owner < 0))
        return taken, np.searchsorted(owner[order], np.arange(len(keys) + 1))

    def _store_held_messages(self, messages: pa.Table, outcome: JudgingOutcome) -> None:
        """Adds the messages with the verdict "held back" to the state."""
        state = self._state
        held = np.flatnonzero(outcome.verdict == MessageVerdict.HELD)
        if len(held):
            rows = messages.take(pa.array(held))
            state.held_messages = (
                rows if state.held_messages is None else pa.concat_tables([state.held_messages, rows])
            ).combine_chunks()

    def _list_chain_gaps_by_session(self, keys: pa.Array) -> dict[int, list[ChainGap]]:
        """Returns the gaps of shared counters by the number of the session that they concern."""
        if not self._chain_gaps:
            return {}
        return {number: self._chain_gaps[key] for number, key in enumerate(keys.to_pylist()) if key in self._chain_gaps}

    def _list_decisions_by_session(
        self, session_parts: tuple[pa.Array, pa.Array, pa.Array]
    ) -> dict[int, dict[int, OperatorDecision]]:
        found: dict[int, dict[int, OperatorDecision]] = {}
        if self._decisions:
            number_of = {
                key: i for i, key in enumerate(zip(*(part.to_pylist() for part in session_parts), strict=True))
            }
            for (*session, offset), decision in self._decisions.items():
                if (number := number_of.get(tuple(session))) is not None:
                    found.setdefault(number, {})[offset] = decision
        return found

    def _make_cuts_due_by_time(self) -> Cuts:
        """Returns the cuts of all sessions in the state that are due because of stream time alone."""
        state = self._state
        if not len(state.cursors):
            return create_zeroed_cuts()
        lane = state.cursors["lane"]
        return state.create_cuts_due_by_time(
            state.clock.partition_stream_times[lane], self._list_session_timeouts()[lane], self._rules.snapshot_interval
        )

    def _list_silent_chains(self) -> list[str]:
        if not self._state.chains:  # most lakes have none, and listing stream times costs time
            return []
        return list_silent_chains(self._state.chains, self._rules, self._state.clock.stream_times_by_partition)

    def _mark_expired_sessions(self) -> Int64s:
        """Marks the sessions that have expired by stream time.

        Returns the cursor indices of those that were not marked before.
        """
        cursors = self._state.cursors
        silence, timeout = self._measure_idle_times()
        newly = np.flatnonzero(
            (silence > timeout) & (cursors["marked"] == 0) & (cursors["status"] != SessionStatus.ENDED)
        )
        self._state.mark_sessions_expired(newly)
        return newly

    def _remove_finished_sessions(self) -> None:
        """Removes the sessions from the state that no later message can continue.

        A session stays as long as one of its gaps can still become a violation. It also stays until the offsets of its
        topic-partition have passed its positions, which can be higher than the offsets.
        """
        state = self._state
        for key in self._list_silent_chains():
            del state.chains[key]
        if not len(state.cursors):
            return
        silence, timeout = self._measure_idle_times()
        gone = (silence > 2 * timeout) & (state.cursors["due"] == NEVER)
        gone &= state.cursors["position"] <= state.clock.last_partition_offsets[state.cursors["lane"]]
        state.keep_sessions(~gone)
