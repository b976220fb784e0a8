"""The fold of a shard: takes state and packed messages; returns the new state, and emits the rows and the report.

Pure: the result depends only on the state and the messages, not on how they were split into chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.batch import judge_batch
from sessionlake.integrity.clock import NO_STRETCHES, Clock, LaneTime, StretchTimes, decode_segments
from sessionlake.integrity.cursor import NEVER, NO_TIME, Status, new_cursors
from sessionlake.integrity.cuts import Cuts, cuts_due, no_cuts
from sessionlake.integrity.outcome import Outcome, Verdict
from sessionlake.integrity.rules import Decision, DecisionKey, RuleBook
from sessionlake.integrity.shard_batch import ShardBatch, Stream
from sessionlake.integrity.state import ShardState
from sessionlake.protocol.arrow import SESSION, join_session_keys, number_combinations, session_keys, split_session_keys
from sessionlake.protocol.chunk import is_chunk, read_chunks
from sessionlake.protocol.columns import Column
from sessionlake.protocol.message import ANY, NO_SEQ
from sessionlake.protocol.types import Bools, Int64s, Payloads, TopicPartition
from sessionlake.settings.capture import CaptureSettings
from sessionlake.silver.fold.emit import Judged
from sessionlake.silver.fold.process import Rebuild, ShardProcessor, join, split


@dataclass
class SilverFold:
    """Folds the batches of one shard of silver; a `streaming.sharded.ShardFold`.

    Attributes:
        columns: The declared columns.
        capture: The settings of capture.
        decisions: Operators' decisions by message.
        snapshot_interval: Time between snapshots of a session's table, ms.
        bulk: False judges every message one by one: slower, with the same result.
        processor: Makes the payloads from judged messages. None means silver's own, which makes the tables of sessions.
    """

    columns: tuple[Column, ...]
    capture: CaptureSettings
    decisions: dict[DecisionKey, Decision] = field(default_factory=dict)
    snapshot_interval: int = 600_000
    bulk: bool = True
    processor: ShardProcessor | None = None
    _rules: RuleBook | None = field(default=None, repr=False)

    def __call__(self, shard: int, state: bytes | None, chunks: list[bytes]) -> tuple[bytes | None, Payloads]:
        """Folds the chunks of one batch; returns the new state (None: unchanged) and the payloads to emit."""
        self._rules = self._rules or RuleBook(self.capture, self.snapshot_interval)
        batch = read_chunks([chunk for chunk in chunks if is_chunk(chunk)], self.columns)
        segments = [decode_segments(chunk) for chunk in chunks if not is_chunk(chunk)]
        judging, memory = split(state)
        after = ShardState.decode(judging, self.columns)
        stretch_times = after.clock.advance(segments, _topic_partitions(batch))
        # Every shard gets every silence, even of topic-partitions without a session. Only shard 0 reports them.
        silences = [] if shard else [silence for part in segments for silence in part.silences]
        first_timed = after.fill_first_times()
        judge = ShardJudge(after, self._rules, self.decisions, stretch_times, silences, first_timed)
        processor = self.processor or Rebuild(self.columns, self._rules)
        payloads: Payloads = []
        is_due = judge.has_due_sessions or _is_due(processor.due(memory), after.clock)
        if batch.num_rows or silences or after.clock.first_times or is_due:
            wrong = pc.not_equal(batch["reason"], 0)
            malformed = batch.filter(wrong)
            well_formed = batch.filter(pc.invert(wrong)).combine_chunks() if malformed.num_rows else batch
            judged = judge.judge(well_formed, bulk=self.bulk)
            memory, payloads = processor.process(memory, judged, malformed)
        after.drop_unused_lanes(processor.due(memory))
        encoded = join(after.encode(self.columns), memory)
        return None if encoded == state else encoded, payloads


def _topic_partitions(messages: pa.Table) -> set[TopicPartition]:
    _, (topics, partitions) = number_combinations(messages["topic"], messages["partition"])
    return set(zip(topics.to_pylist(), partitions.to_pylist(), strict=True))


def _is_due(due: Mapping[TopicPartition, int], clock: Clock) -> bool:
    now = clock.now if due else {}
    return any(time < now.get(place, time) for place, time in due.items())


class ShardJudge:
    """Judges one shard's batch: finds the sessions to judge, and stores their new cursors in the shard's state."""

    def __init__(
        self,
        state: ShardState,
        rules: RuleBook,
        decisions: dict[DecisionKey, Decision],
        stretch_times: StretchTimes,
        silences: list[LaneTime],
        first_timed: Int64s,
    ) -> None:
        self._state = state
        self._first_timed = first_timed
        self._rules = rules
        self._decisions = decisions
        self._stretch_times = stretch_times
        self._silences = silences

    @property
    def has_due_sessions(self) -> bool:
        """True if stream time alone makes it necessary to judge, cut, mark as expired or forget a session."""
        cursors = self._state.cursors
        if not len(cursors):
            return False
        silence, timeout = self._silence()
        to_mark = (silence > timeout) & (cursors["marked"] == 0) & (cursors["status"] != Status.ENDED)
        due = cuts_due(cursors["changed_at"], self._rules.snapshot_interval)
        to_cut = (due <= self._state.clock.times[cursors["lane"]]) | ((silence > timeout) & (due != NEVER))
        return bool(
            (to_mark | to_cut | (silence > 2 * timeout)).any() or len(self._due_without_messages(np.zeros(0, np.int64)))
        )

    def judge(self, messages: pa.Table, *, bulk: bool) -> Judged:
        """Judges well-formed messages, and the sessions without messages that are due by stream time."""
        messages, owner, keys = _by_session(messages)
        places = self._state.find(keys)
        silent = self._due_without_messages(places)
        keys = pa.concat_arrays([keys, self._state.keys.take(pa.array(silent))])
        places, names = np.append(places, silent), split_session_keys(keys)
        held, held_bounds = self._remove_held(keys, messages.schema)
        batch = ShardBatch(
            stream=_stream(messages, owner, self._lanes(messages), self._stretch_times, self._state.clock),
            cursors=new_cursors(len(keys)),
            memories=np.full(len(keys), None, object),
            rules=[self._rules.of(topic) for topic in names[0].to_pylist()],
            ends=np.zeros(0, np.int64),
            held=_stream(held, np.zeros(0, np.int64), np.zeros(held.num_rows, np.int64), NO_STRETCHES, Clock([])),
            held_bounds=held_bounds,
            decisions=self._decided(names),
        )
        self._load_sessions(batch, places)
        out = judge_batch(batch, bulk=bulk)
        if self._state.clock.has_untimed:
            _before_time(batch, self._state.clock.first_timed_offsets, out)
        seen = self._store_sessions(batch, keys, places)
        combined = pa.concat_tables([held, messages]).combine_chunks() if held.num_rows else messages
        self._store_held(combined, out)
        judged = self._build_judged(combined, held.num_rows, batch.stream, out, names, places, seen)
        self._forget()
        return judged

    def _load_sessions(self, batch: ShardBatch, places: Int64s) -> None:
        """Copies cursors and memories of the sessions, at the indices `places` of the state, into the batch."""
        known = places >= 0
        batch.cursors[known] = self._state.cursors[places[known]]
        batch.memories[known] = self._state.memories[places[known]]
        batch.ends = self._ends(batch)

    def _store_sessions(self, batch: ShardBatch, keys: pa.Array, places: Int64s) -> Bools:
        """Stores the sessions' cursors and sets their indices in `places`.

        Returns:
            A boolean for each session: True if the state contains it now.
        """
        # A new session is not stored if an operator had all its messages skipped.
        seen: Bools = batch.cursors["first_offset"] != NO_TIME
        mine = keys.filter(pa.array(seen))
        places[seen] = self._state.update(places[seen], mine, batch.cursors[seen], batch.memories[seen])
        return seen

    def _build_judged(
        self,
        messages: pa.Table,
        released: int,
        stream: Stream,
        out: Outcome,
        names: tuple[pa.Array, pa.Array, pa.Array],
        places: Int64s,
        seen: Bools,
    ) -> Judged:
        """Returns the judged batch, including the cuts and expiries that stream time alone caused."""
        state, cuts = self._state, out.cuts
        cuts["session"] = places[cuts["session"]]
        cuts = np.concatenate([cuts, self._cut_by_time()])
        expired = self._mark_expired()
        touched = np.unique(np.concatenate([places[seen], expired, self._first_timed]))
        changed = state.cursors[touched]
        return Judged(
            messages=messages,
            released=released,
            arrived_at=stream.now,
            times=stream.time,
            clock=state.clock,
            outcome=out,
            topics=names[0],
            partitions=names[1],
            sessions=names[2],
            keys=state.keys.take(pa.array(touched)),
            cursors=changed,
            timeouts=self._timeouts()[changed["lane"]],
            late_fills=np.isin(touched, places[sorted(out.late_fills)]),
            cuts=cuts,
            cut_keys=state.keys.take(pa.array(cuts["session"])),
            silences=self._silences,
        )

    def _lanes(self, messages: pa.Table) -> Int64s:
        """Returns the lane of each message: the index of its topic-partition in the shard's clock."""
        lane, (topics, partitions) = number_combinations(messages["topic"], messages["partition"])
        index = self._state.clock.index
        pairs = zip(topics.to_pylist(), partitions.to_pylist(), strict=True)
        places = np.array([index(pair) for pair in pairs], np.int64)
        return places[lane] if len(places) else lane

    def _ends(self, batch: ShardBatch) -> Int64s:
        """Returns for each session the stream time of its topic-partition after the batch, ms."""
        lane = batch.cursors["lane"].astype(np.int64)
        stream = batch.stream
        lane[: len(stream.starts)] = stream.lane[stream.ends - 1] if len(stream.starts) else 0
        times = self._state.clock.times
        return times[lane] if len(times) else lane

    def _timeouts(self) -> Int64s:
        return np.array([self._rules.of(lane.topic).session_timeout for lane in self._state.clock.lanes], np.int64)

    def _silence(self) -> tuple[Int64s, Int64s]:
        """Returns two arrays (ms) by cursor: stream time since the session's last message, and its session timeout."""
        cursors, lane = self._state.cursors, self._state.cursors["lane"]
        times, timeouts = self._state.clock.times, self._timeouts()
        if not len(times):
            return np.zeros(len(cursors), np.int64), np.zeros(len(cursors), np.int64)
        seen = cursors["last_kafka_ts"] != NO_TIME
        return np.where(seen, times[lane] - np.where(seen, cursors["last_kafka_ts"], 0), 0), timeouts[lane]

    def _due_without_messages(self, touched: Int64s) -> Int64s:
        """Returns the indices of cursors without messages in the batch that must be judged.

        Such a session has a gap that was not filled in time, or held messages that its expiry releases.

        Args:
            touched: Indices of the cursors with messages.
        """
        cursors = self._state.cursors
        if not len(cursors):
            return np.zeros(0, np.int64)
        silence, timeout = self._silence()
        due = (cursors["held"] > 0) & (silence > timeout)
        due |= cursors["due"] < self._state.clock.times[cursors["lane"]]
        due[touched[touched >= 0]] = False
        return np.flatnonzero(due)

    def _remove_held(self, keys: pa.Array, schema: pa.Schema) -> tuple[pa.Table, Int64s]:
        """Removes the held messages of these sessions from the state.

        Returns:
            The messages by session, and the index of each session's first message, followed by the number of messages.
        """
        state = self._state
        nothing = np.zeros(len(keys) + 1, np.int64)
        if state.held is None:
            return schema.empty_table(), nothing
        owner = _owners(state.held, keys)
        mine = np.flatnonzero(owner >= 0)
        order = mine[np.lexsort((*(state.held[name].to_numpy()[mine] for name in ("seq", "ts")), owner[mine]))]
        taken = state.held.take(pa.array(order)).combine_chunks()
        state.held = state.held.filter(pa.array(owner < 0))
        return taken, np.searchsorted(owner[order], np.arange(len(keys) + 1))

    def _store_held(self, combined: pa.Table, out: Outcome) -> None:
        """Adds the messages with the verdict "held back" to the state."""
        state = self._state
        held = np.flatnonzero(out.verdict == Verdict.HELD)
        if len(held):
            rows = combined.take(pa.array(held))
            state.held = (rows if state.held is None else pa.concat_tables([state.held, rows])).combine_chunks()

    def _decided(self, names: tuple[pa.Array, pa.Array, pa.Array]) -> dict[int, dict[int, Decision]]:
        found: dict[int, dict[int, Decision]] = {}
        if self._decisions:
            number_of = {key: i for i, key in enumerate(zip(*(part.to_pylist() for part in names), strict=True))}
            for (*session, offset), decision in self._decisions.items():
                if (number := number_of.get(tuple(session))) is not None:
                    found.setdefault(number, {})[offset] = decision
        return found

    def _cut_by_time(self) -> Cuts:
        """Returns the cuts, in any session of the state, that stream time alone caused."""
        state = self._state
        if not len(state.cursors):
            return no_cuts()
        lane = state.cursors["lane"]
        return state.cut_by_time(state.clock.times[lane], self._timeouts()[lane], self._rules.snapshot_interval)

    def _mark_expired(self) -> Int64s:
        """Marks the sessions that have expired by stream time; returns the cursor indices of the newly marked ones."""
        cursors = self._state.cursors
        silence, timeout = self._silence()
        newly = np.flatnonzero((silence > timeout) & (cursors["marked"] == 0) & (cursors["status"] != Status.ENDED))
        self._state.mark_expired(newly)
        return newly

    def _forget(self) -> None:
        """Removes the sessions from the state that no later message can continue.

        A session stays as long as one of its gaps can still become a violation. It also stays until the offsets of its
        topic-partition have passed its positions, which can be higher than the offsets.
        """
        state = self._state
        if not len(state.cursors):
            return
        silence, timeout = self._silence()
        gone = (silence > 2 * timeout) & (state.cursors["due"] == NEVER)
        gone &= state.cursors["position"] <= state.clock.offsets[state.cursors["lane"]]
        state.keep_sessions(~gone)


def _by_session(messages: pa.Table) -> tuple[pa.Table, Int64s, pa.Array]:
    """Sorts messages by session and offset; returns them, the session number of each, and the session keys."""
    owner, names = number_combinations(*(messages[name] for name in SESSION))
    order = np.lexsort((messages["offset"].to_numpy(), owner))
    if (np.diff(order) != 1).any():
        messages, owner = messages.take(pa.array(order)).combine_chunks(), owner[order]
    return messages, owner, join_session_keys(*names)


def _owners(held: pa.Table, keys: pa.Array) -> Int64s:
    found: Int64s = pc.fill_null(pc.index_in(session_keys(held), value_set=keys), -1).to_numpy().astype(np.int64)
    return found


def _before_time(batch: ShardBatch, first_timed_offsets: Int64s, out: Outcome) -> None:
    """Marks times in the outcome as unknown where the topic-partition had no stream time yet."""
    of_session = first_timed_offsets[batch.cursors["lane"]]
    held = np.repeat(of_session, np.diff(batch.held_bounds))
    out.before_time(np.append(held, first_timed_offsets[batch.stream.lane]), of_session)


def _stream(messages: pa.Table, owner: Int64s, lane: Int64s, stretch_times: StretchTimes, clock: Clock) -> Stream:
    def numbers(name: str) -> Any:
        return messages[name].to_numpy()

    offset = numbers("offset")
    now = clock.with_first_time(lane, stretch_times.times(lane, offset, numbers("clock")))
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    return Stream(
        starts=starts,
        type=numbers("type"),
        seq=pc.fill_null(messages["seq"], NO_SEQ).to_numpy(),
        ts=numbers("ts"),
        offset=offset,
        kafka_ts=numbers("kafka_ts"),
        partition=numbers("partition"),
        lane=lane.astype(np.int32),
        now=now,
        size=numbers("size"),
        changes=pc.fill_null(pc.list_value_length(messages["changes"]), 0).to_numpy().astype(np.int64),
        after=pc.fill_null(messages["after"], ANY).to_numpy(),
        link=numbers("link"),
    )
