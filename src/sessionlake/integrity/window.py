"""The fast path for class `window`: judges whole sessions at once with array operations.

Messages are held back on arrival, released in event-time order, and judged on release. The fast path handles open
sessions that miss no message, have no late one, stay below the limits of held messages and do not expire in the batch.
Their messages may arrive in any order of `seq` and `ts` within the lateness. `judge.py` handles all other sessions. For
every session both give the same result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from sessionlake.integrity.cursor import NO_TIME, SessionStatus
from sessionlake.integrity.cuts import AppliedMessages, ArrivedMessages, find_cuts_in_batch
from sessionlake.integrity.outcome import (
    IntegrityEvent,
    IntegrityEventAction,
    IntegrityEventKind,
    JudgingOutcome,
    MessageVerdict,
)
from sessionlake.integrity.shard_batch import ShardBatch
from sessionlake.integrity.transition import AppliedMessageRuns, apply_messages_to_cursors
from sessionlake.protocol.arrow import compute_running_maximum
from sessionlake.protocol.message import INT64_MAX, NO_SEQ, MessageType
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.settings.section import Integrity


def judge_window_class_sessions(batch: ShardBatch, outcome: JudgingOutcome) -> Bools:
    """Judges those sessions of class `window` that array operations can judge; other code judges the rest one by one.

    Their cursors in the batch are updated, and what becomes of each message is written to `outcome`.

    Returns:
        A boolean for each session with messages: True if it was judged.
    """
    wanted = _find_sessions_with_fast_path_cursor(batch)
    if not wanted.any():
        return wanted
    arrivals = _ArrivedWindowMessages(batch, wanted)
    wanted &= ~arrivals.find_sessions_for_slow_path()
    releases = _ReleasedWindowMessages(batch, wanted, arrivals)
    wanted &= ~releases.find_sessions_for_slow_path()
    if wanted.any():
        releases.keep_sessions(wanted)
        _apply_messages_of_fast_sessions(batch, wanted, arrivals, releases, outcome)
    return wanted


def _find_sessions_with_fast_path_cursor(batch: ShardBatch) -> Bools:
    """Returns a boolean for each session with messages: True if its cursor allows the fast path.

    That needs class `window`, an open session, no gaps and no operator's decisions.
    """
    busy = len(batch.new_messages.starts)
    cursors = batch.cursors[:busy]
    wanted = np.array([rules.integrity is Integrity.WINDOW for rules in batch.rules[:busy]], np.bool_)
    wanted &= cursors["status"] == SessionStatus.OPEN
    wanted &= np.array([part is None for part in batch.variable_parts[:busy]], np.bool_)
    wanted &= (cursors["taken_to"] != NO_SEQ) | (cursors["last_seq"] == NO_SEQ)
    wanted[[number for number in batch.decisions if number < busy]] = False
    return wanted


def _list_rule_values_by_session(batch: ShardBatch, rule_name: str) -> Int64s:
    """Returns, for each session with messages, the value of the rule with this name."""
    return np.array([getattr(rules, rule_name) for rules in batch.rules[: len(batch.new_messages.starts)]], np.int64)


def _compute_release_times(ts: Int64s, batch: ShardBatch, session_numbers: Int64s) -> Int64s:
    """Returns the event time (ms) that a session must exceed to release each message. The highest int64: never.

    Args:
        ts: The event time of each message, ms.
        session_numbers: The number of each message's session in the batch.
    """
    lateness = _list_rule_values_by_session(batch, "lateness")[session_numbers]
    return np.minimum(ts, INT64_MAX - lateness) + lateness


class _ArrivedWindowMessages:
    """New messages of sessions that the fast path may be able to judge, in order of arrival.

    Attributes:
        sessions: The number of sessions that have messages in the batch.
        place: The index of each message in the batch's new messages.
        owner: The session number of each message.
        highest: The highest event time (ms) of the session up to each message.
    """

    def __init__(self, batch: ShardBatch, is_candidate: Bools) -> None:
        stream = batch.new_messages
        self._batch = batch
        self.sessions = len(is_candidate)
        lengths = stream.session_ends - stream.starts
        self.place = np.flatnonzero(np.repeat(is_candidate, lengths))
        self.owner = np.repeat(np.arange(self.sessions), lengths)[self.place]
        self.ts, self.seq = stream.ts[self.place], stream.seq[self.place]
        before = batch.cursors["highest_ts"][: self.sessions][self.owner]
        self.highest = np.maximum(compute_running_maximum(self.ts, self.owner), before)

    def find_sessions_for_slow_path(self) -> Bools:
        """Returns a boolean for each session: True if the fast path cannot handle it because of an arriving message.

        Such a session has a late message, expires, misses a seq, repeats one, or exceeds a limit of held messages.
        """
        return (
            self._find_sessions_with_late_message()
            | self._find_expired_sessions()
            | self._find_sessions_with_gaps()
            | self._find_sessions_over_holding_limits()
        )

    def _find_sessions_of_messages(self, is_faulty: Bools) -> Bools:
        """Returns a boolean for each session: True if one of its messages is marked in `is_faulty`."""
        found = np.zeros(self.sessions, np.bool_)
        found[self.owner[is_faulty]] = True
        return found

    def _find_sessions_with_late_message(self) -> Bools:
        return self._find_sessions_of_messages(self.highest > _compute_release_times(self.ts, self._batch, self.owner))

    def _find_expired_sessions(self) -> Bools:
        stream, cursors = self._batch.new_messages, self._batch.cursors[: self.sessions]
        timeout = _list_rule_values_by_session(self._batch, "session_timeout")
        before = np.roll(stream.message_times, 1)
        before[stream.starts] = cursors["last_kafka_ts"]
        known = before != NO_TIME
        silence = np.where(known, stream.now - np.where(known, before, 0), 0)[self.place]
        silent = self._find_sessions_of_messages(silence > timeout[self.owner])
        last = stream.message_times[stream.session_ends - 1]
        return silent | (self._batch.ends[: self.sessions] - last > timeout)

    def _find_sessions_with_gaps(self) -> Bools:
        order = np.lexsort((self.seq, self.owner))
        owner, seq = self.owner[order], self.seq[order]
        first = np.append(True, np.diff(owner) != 0)
        taken_to = self._batch.cursors["taken_to"][: self.sessions][owner]
        follows = np.append(False, np.diff(seq) == 1)
        begins = first & ((taken_to == NO_SEQ) | (seq - 1 == taken_to))
        found = np.zeros(self.sessions, np.bool_)
        found[owner[~np.where(first, begins, follows)]] = True
        return found

    def _find_sessions_over_holding_limits(self) -> Bools:
        batch, count = self._batch, np.bincount(self.owner, minlength=self.sessions)
        sizes = np.bincount(self.owner, weights=batch.new_messages.size[self.place], minlength=self.sessions)
        bounds = batch.held_bounds[: self.sessions + 1]
        held_bytes = np.append(0, np.cumsum(batch.held_messages.size.astype(np.int64)))
        sizes = sizes + held_bytes[bounds[1:]] - held_bytes[bounds[:-1]]
        follows = np.append(False, (np.diff(self.seq) == 1) | (np.diff(self.owner) != 0))
        in_order = ~self._find_sessions_of_messages(~follows & np.append(False, np.diff(self.owner) == 0))
        too_many = count + batch.cursors["held"][: self.sessions] > _list_rule_values_by_session(
            batch, "max_held_messages"
        )
        too_big = sizes > _list_rule_values_by_session(batch, "max_held_bytes")
        return too_many | too_big | (~in_order & (count > _list_rule_values_by_session(batch, "max_gaps")))


class _ReleasedWindowMessages:
    """The messages that sessions of the fast path release in the batch, by session and then in order of release.

    Attributes:
        owner: The session number of each message.
        index: The index of each message in the outcome.
        releasing: The offset of the message whose arrival released it.
        at: The stream time (ms) at that arrival.
    """

    def __init__(self, batch: ShardBatch, is_candidate: Bools, arrivals: _ArrivedWindowMessages) -> None:
        self._batch, self._sessions = batch, len(is_candidate)
        stream, held = batch.new_messages, batch.held_messages
        mine = is_candidate[arrivals.owner]
        owners = np.repeat(np.arange(len(batch.held_bounds) - 1), np.diff(batch.held_bounds))
        before = np.flatnonzero(
            np.append(is_candidate, np.zeros(len(batch.cursors) - len(is_candidate), np.bool_))[owners]
        )
        self.owner = np.concatenate([owners[before], arrivals.owner[mine]])
        self.index = np.concatenate([before, len(held.seq) + arrivals.place[mine]])

        def joined(name: str) -> Any:
            return np.concatenate([getattr(held, name)[before], getattr(stream, name)[arrivals.place[mine]]])

        self.ts, self.seq, self.type = joined("ts"), joined("seq"), joined("type")
        self.offset, self.kafka_ts, self.partition = joined("offset"), joined("kafka_ts"), joined("partition")
        self.changes = joined("changes")
        last = np.zeros(self._sessions, np.int64)
        last[arrivals.owner] = arrivals.highest  # the last assignment for each session counts
        passed = np.flatnonzero(_compute_release_times(self.ts, batch, self.owner) < last[self.owner])
        self._keep_selected_messages(passed[np.lexsort((self.seq[passed], self.ts[passed], self.owner[passed]))])
        releasing_arrivals = arrivals.place[self._find_releasing_arrivals(arrivals)]
        self.releasing, self.at = stream.offset[releasing_arrivals], stream.now[releasing_arrivals]

    def _keep_selected_messages(self, selection: Int64s | Bools) -> None:
        for name in ("owner", "index", "ts", "seq", "type", "offset", "kafka_ts", "partition", "changes"):
            setattr(self, name, getattr(self, name)[selection])

    def _find_releasing_arrivals(self, arrivals: _ArrivedWindowMessages) -> Int64s:
        """Returns, for each released message, the index in `arrivals` of the message that released it."""
        release_times = _compute_release_times(self.ts, self._batch, self.owner)
        times = np.unique(np.concatenate([arrivals.highest, release_times]))
        come = arrivals.owner * len(times) + np.searchsorted(times, arrivals.highest)
        gone = self.owner * len(times) + np.searchsorted(times, release_times)
        return np.searchsorted(come, gone, side="right")

    @property
    def is_first_of_session(self) -> Bools:
        """A boolean for each released message: True if it is the first of its session."""
        return np.append(True, np.diff(self.owner) != 0)[: len(self.owner)]

    @property
    def is_last_of_session(self) -> Bools:
        """A boolean for each released message: True if it is the last of its session."""
        return np.append(np.diff(self.owner) != 0, True)[: len(self.owner)]

    def find_sessions_for_slow_path(self) -> Bools:
        """Returns a boolean for each session: True if the fast path cannot handle it because of a released message.

        Such a session starts with a message other than a snapshot, or has a message after an `end`.
        """
        known = self._batch.cursors["last_seq"][self.owner] != NO_SEQ
        wrong = self.is_first_of_session & ~known & (self.type != MessageType.SNAPSHOT)
        wrong |= ~self.is_last_of_session & (self.type == MessageType.END)
        found = np.zeros(self._sessions, np.bool_)
        found[self.owner[wrong]] = True
        return found

    def keep_sessions(self, is_kept: Bools) -> None:
        """Keeps the messages of the sessions where `is_kept` is True and drops all others."""
        kept = is_kept[self.owner]
        self.releasing, self.at = self.releasing[kept], self.at[kept]
        self._keep_selected_messages(kept)


def _apply_messages_of_fast_sessions(
    batch: ShardBatch,
    is_fast: Bools,
    arrivals: _ArrivedWindowMessages,
    releases: _ReleasedWindowMessages,
    outcome: JudgingOutcome,
) -> None:
    """Applies the released messages of some sessions, and updates their cursors.

    Args:
        is_fast: For each session with messages, True if the fast path judges it.
        arrivals: The new messages of these sessions.
        releases: The messages that they release.
    """
    stream, cursors = batch.new_messages, batch.cursors[: len(is_fast)]
    last = stream.session_ends[is_fast] - 1
    moved = cursors[is_fast]
    new = moved["first_offset"] == NO_TIME
    moved["first_offset"] = np.where(new, stream.offset[stream.starts[is_fast]], moved["first_offset"])
    moved["lane"], moved["partition"], moved["marked"] = stream.lane[last], stream.partition[last], 0
    moved["last_offset"], moved["last_kafka_ts"] = stream.offset[last], stream.message_times[last]
    highest = np.zeros(len(is_fast), np.int64)
    highest[arrivals.owner] = arrivals.highest
    low, high = (
        ufunc.reduceat(np.where(np.repeat(is_fast, stream.session_ends - stream.starts), stream.seq, 0), stream.starts)[
            is_fast
        ]
        for ufunc in (np.minimum, np.maximum)
    )
    moved["highest_ts"] = highest[is_fast]
    moved["taken_from"] = np.where(moved["taken_from"] == NO_SEQ, low, moved["taken_from"])
    moved["taken_to"] = high
    released = np.bincount(releases.owner, minlength=len(is_fast))[is_fast]
    moved["held"] += (stream.session_ends - stream.starts)[is_fast] - released
    before = cursors[is_fast]
    cursors[is_fast] = moved
    mine = is_fast[arrivals.owner]
    outcome.life[len(batch.held_messages.seq) + arrivals.place[mine]] = cursors["first_offset"][arrivals.owner[mine]]
    if len(releases.owner):
        _apply_released_messages(batch, releases, outcome)
    number = np.cumsum(is_fast) - 1
    place = arrivals.place[mine]
    arrived = ArrivedMessages(number[arrivals.owner[mine]], stream.now[place], stream.offset[place])
    times = releases.at, releases.releasing, outcome.position[releases.index]
    applied = AppliedMessages(number[releases.owner], releases.type, releases.seq, *times, releases.changes)
    cuts, since = find_cuts_in_batch(arrived, applied, before, batch.rules[0].snapshot_interval)
    cuts["session"] = np.flatnonzero(is_fast)[cuts["session"]]
    outcome.add_cuts(cuts)
    since.write_to_cursors(cursors, is_fast)


@dataclass(frozen=True)
class _ReleasedMessageGroups:
    """Released messages grouped by session.

    Attributes:
        starts: Index of each session's first message.
        ends: Index after each session's last message.
        sessions: Number of each session in the batch.
    """

    starts: Int64s
    ends: Int64s
    sessions: Int64s


def _apply_released_messages(batch: ShardBatch, releases: _ReleasedWindowMessages, outcome: JudgingOutcome) -> None:
    """Sets the verdicts of released messages, records their gaps, and updates the cursors."""
    starts = np.flatnonzero(releases.is_first_of_session)
    ends = np.append(starts[1:], len(releases.owner))
    groups = _ReleasedMessageGroups(starts, ends, releases.owner[starts])
    cursors = batch.cursors
    before = cursors[groups.sessions]
    lengths = ends - starts
    index, owner = releases.index, releases.owner
    snapshot = np.where(releases.type == MessageType.SNAPSHOT, np.arange(len(owner)), -1)
    latest = compute_running_maximum(snapshot, owner)
    epoch = np.where(latest >= 0, releases.offset[latest], np.repeat(before["epoch"], lengths))
    place = np.arange(len(owner)) - np.repeat(starts, lengths)
    position = np.maximum(
        compute_running_maximum(releases.releasing - place, owner), np.repeat(before["position"] + 1, lengths)
    )
    position += place
    outcome.verdict[index] = MessageVerdict.APPLIED
    outcome.epoch[index], outcome.position[index] = epoch, position
    outcome.applied_at[index], outcome.applied_by[index] = releases.at, releases.releasing
    outcome.life[index] = np.repeat(before["first_offset"], lengths)
    gaps = _record_gaps_before_released_messages(releases, np.repeat(before["last_seq"], lengths), outcome)

    before["epoch"] = epoch[ends - 1]
    before["gaps"] += np.add.reduceat(gaps.astype(np.int64), starts)
    apply_messages_to_cursors(before, AppliedMessageRuns(starts, releases.type, releases.seq, releases.ts, position))
    cursors[groups.sessions] = before


def _record_gaps_before_released_messages(
    releases: _ReleasedWindowMessages, last_seq: Int64s, outcome: JudgingOutcome
) -> Bools:
    """Records an event for each released message before which seqs are missing.

    Args:
        last_seq: For each message, the highest seq that its session had applied before the batch.

    Returns:
        A boolean for each released message: True if it has such an event.
    """
    so_far = np.maximum(compute_running_maximum(releases.seq, releases.owner), last_seq)
    previous = np.roll(so_far, 1)
    previous[releases.is_first_of_session] = last_seq[releases.is_first_of_session]
    gaps: Bools = (previous != NO_SEQ) & (releases.seq - 1 > previous)
    for i in np.flatnonzero(gaps).tolist():
        event = IntegrityEvent(
            session=int(releases.owner[i]),
            kind=IntegrityEventKind.GAP,
            action=IntegrityEventAction.APPLIED,
            partition=int(releases.partition[i]),
            offset=int(releases.offset[i]),
            expected=int(previous[i]) + 1,
            actual=int(releases.seq[i]),
            kafka_ts=int(releases.kafka_ts[i]),
        )
        outcome.events.append(event)
    return gaps
