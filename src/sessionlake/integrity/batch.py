"""Judges a shard's batch: simple sessions all at once with array operations, all other sessions run by run.

A *run* is a series of a session's messages in offset order, in which each message continues the one before without a
gap. Under class `none`, the messages of a run may have any seqs. A new run starts at a message that restarts the order,
comes after an `end`, or arrives after the session has expired.

If the first message of a run is applied as the session's latest and the session stays open, the rest of the run is
applied too. So only two kinds of message are judged one by one: the first of each run, and those at which the session's
table is cut. A session is simple if it has a single run that continues its cursor: then no message is judged alone.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sessionlake.integrity.cursor import (
    NEVER,
    NO_TIME,
    Cursor,
    Cursors,
    Status,
    decode_memory,
    encode_memory,
)
from sessionlake.integrity.cuts import (
    AppliedMessages,
    ArrivedMessages,
    ChangesSinceCut,
    CutReason,
    changes_table,
    compute_next_cut_time,
    find_cuts_in_batch,
)
from sessionlake.integrity.judge import SessionJudge
from sessionlake.integrity.outcome import JudgingOutcome, Verdict
from sessionlake.integrity.recorder import ViolationError
from sessionlake.integrity.rules import SEQ_REMEMBERING_CLASSES, Rules
from sessionlake.integrity.shard_batch import MESSAGE_ARRAY_NAMES, MessageArrays, ShardBatch
from sessionlake.integrity.transition import AppliedRun, apply_run, apply_runs
from sessionlake.integrity.window import judge_window_sessions
from sessionlake.protocol.message import NO_SEQ, Link, MessageType
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.settings.section import Integrity

_CLASSES = list(Integrity)


def judge_batch(batch: ShardBatch, *, is_vectorized: bool = True) -> JudgingOutcome:
    """Judges a shard's batch, updates the cursors of its sessions, and returns the verdicts, events and cuts.

    Args:
        batch: The messages and sessions; their cursors and memories are updated in place.
        is_vectorized: True judges simple sessions with array operations; False judges every message one by one. The
            result is the same.
    """
    out = JudgingOutcome(len(batch.held_messages.seq) + len(batch.new_messages.seq))
    busy = len(batch.new_messages.starts)
    slow = list(range(busy, len(batch.cursors)))
    if busy:
        breaks = _find_run_starts(batch)
        for number in (number for number in batch.chain_gaps if number < busy):
            breaks[batch.new_messages.starts[number] : batch.new_messages.ends[number]] = True
        is_fast = _find_sessions_for_fast_path(batch, breaks)
        is_fast &= is_vectorized
        _apply_fast_sessions(batch, is_fast, out)
        if is_vectorized:
            is_fast |= judge_window_sessions(batch, out)
        if not is_vectorized:
            breaks[:] = True
        slow = [*np.flatnonzero(~is_fast).tolist(), *slow]
    for number in slow:
        _judge_session(batch, number, breaks if number < busy else None, out)
    return out


def _list_rule_values(batch: ShardBatch, value: Callable[[Rules], int]) -> Int64s:
    """Returns `value(rules)` for every session that has messages in the batch."""
    return np.array([value(rules) for rules in batch.rules[: len(batch.new_messages.starts)]], np.int64)


def _find_run_starts(batch: ShardBatch) -> Bools:
    """Returns a boolean for each message: True if it starts a new run."""
    stream = batch.new_messages
    lengths = stream.ends - stream.starts
    timeout = np.repeat(_list_rule_values(batch, lambda r: r.session_timeout), lengths)[1:]
    in_seq = np.repeat(_list_rule_values(batch, lambda r: r.integrity is not Integrity.NONE), lengths)[1:].astype(
        np.bool_
    )
    breaks = np.ones(len(stream.seq), np.bool_)
    breaks[1:] = in_seq & ~_follows_without_gap(stream, slice(1, None), stream.seq[:-1])
    breaks[1:] |= (stream.type[:-1] == MessageType.END) | (stream.link[1:] == Link.RESTART)
    breaks[1:] |= stream.now[1:] - stream.time[:-1] > timeout
    breaks[1:] |= stream.now[1:] - stream.time[1:] > timeout
    breaks[stream.starts] = True
    return breaks


def _follows_without_gap(stream: MessageArrays, places: Int64s | slice, last: Int64s) -> Bools:
    """Returns a boolean for each message at the indices `places`: True if it follows seq `last` without a gap."""
    seq, after, link = stream.seq[places], stream.after[places], stream.link[places]
    continues = np.where(link == Link.LINK, after == last, (after <= last) | (link == Link.CHAINED))
    found: Bools = (seq > last) & continues & (link != Link.RESTART) & (link != Link.REPEATED)
    return found


def _find_sessions_for_fast_path(batch: ShardBatch, breaks: Bools) -> Bools:
    """Returns a boolean for each session with messages: True if all of them can be applied without judging each one.

    This needs a single run that continues the cursor or validly starts the session. The session must also have no held
    messages, no gaps and no operator's decision, and its class must not be `window`.
    """
    stream, busy = batch.new_messages, len(batch.new_messages.starts)
    cursors, first = batch.cursors[:busy], batch.new_messages.starts
    integrity = _list_rule_values(batch, lambda r: _CLASSES.index(r.integrity))
    timeout = _list_rule_values(batch, lambda r: r.session_timeout)
    is_none, is_once = (integrity == _CLASSES.index(c) for c in (Integrity.NONE, Integrity.ONCE))
    known = cursors["last_kafka_ts"] != NO_TIME
    since = np.where(known, cursors["last_kafka_ts"], stream.now[first])
    in_time = (stream.now[first] - since <= timeout) & (stream.now[first] - stream.time[first] <= timeout)
    follows = (cursors["last_seq"] != NO_SEQ) & _follows_without_gap(stream, first, cursors["last_seq"])
    follows &= ~is_once | (cursors["taken_to"] == cursors["last_seq"])
    goes_on = known & (cursors["status"] == Status.OPEN) & (follows | (is_none & (stream.link[first] != Link.RESTART)))
    starts_anywhere = _list_rule_values(batch, lambda r: r.starts_with_anything).astype(np.bool_)
    begins = ~known & (is_none | is_once | starts_anywhere | (stream.type[first] == MessageType.SNAPSHOT))
    begins &= stream.link[first] != Link.REPEATED
    simple = (cursors["held"] == 0) & (integrity != _CLASSES.index(Integrity.WINDOW))
    simple &= np.array([memory is None for memory in batch.memories[:busy]], np.bool_) & (
        cursors["position"] < stream.offset[first]
    )
    simple &= ~_list_rule_values(batch, lambda r: r.holds_rows or r.modulo is not None).astype(np.bool_)
    simple[[number for number in (*batch.decisions, *batch.chain_gaps) if number < busy]] = False
    one_run = np.add.reduceat(breaks.astype(np.int64), first) == 1
    is_fast: Bools = simple & one_run & in_time & (goes_on | begins)
    return is_fast


def _apply_fast_sessions(batch: ShardBatch, is_fast: Bools, outcome: JudgingOutcome) -> None:
    """Applies all messages of the sessions in `is_fast`: sets their outcome and updates the cursors."""
    if not is_fast.any():
        return
    stream = batch.new_messages
    cursors = batch.cursors[: len(is_fast)]
    moved = cursors[is_fast]
    epochs = _compute_epochs(stream, cursors["epoch"])
    inside = np.flatnonzero(np.repeat(is_fast, stream.ends - stream.starts))
    _update_arrived(batch, is_fast, moved)
    _set_applied(batch, is_fast, inside, moved["first_offset"], epochs, outcome)
    lengths = (stream.ends - stream.starts)[is_fast]
    starts = np.cumsum(lengths) - lengths
    run = AppliedRun(starts, stream.type[inside], stream.seq[inside], stream.ts[inside], stream.offset[inside])
    apply_runs(moved, run)
    moved["epoch"] = epochs[stream.ends[is_fast] - 1]
    _update_taken(batch, is_fast, run, moved)
    since = _cut_tables(batch, is_fast, inside, outcome)
    cursors[is_fast] = moved
    since.write_to_cursors(cursors, is_fast)


def _update_arrived(batch: ShardBatch, is_fast: Bools, cursors: Cursors) -> None:
    """Updates the cursor fields that depend on which messages arrived, whatever the verdict on them."""
    stream, first, last = batch.new_messages, batch.new_messages.starts[is_fast], batch.new_messages.ends[is_fast] - 1
    cursors["first_offset"] = np.where(
        cursors["first_offset"] == NO_TIME, stream.offset[first], cursors["first_offset"]
    )
    cursors["lane"], cursors["partition"], cursors["marked"] = stream.lane[last], stream.partition[last], 0
    cursors["last_offset"], cursors["last_kafka_ts"] = stream.offset[last], stream.time[last]


def _set_applied(
    batch: ShardBatch, is_fast: Bools, message_indices: Int64s, lives: Int64s, epochs: Int64s, outcome: JudgingOutcome
) -> None:
    """Sets the outcome of the applied messages; `message_indices` has their indices in the batch's stream."""
    stream, places = batch.new_messages, len(batch.held_messages.seq) + message_indices
    outcome.verdict[places] = Verdict.APPLIED
    outcome.epoch[places] = epochs[message_indices]
    outcome.position[places] = outcome.applied_by[places] = stream.offset[message_indices]
    outcome.applied_at[places] = stream.now[message_indices]
    outcome.life[places] = np.repeat(lives, (stream.ends - stream.starts)[is_fast])


def _update_taken(batch: ShardBatch, is_fast: Bools, run: AppliedRun, cursors: Cursors) -> None:
    """Updates the cursors of class `once`: lowest and highest taken seq, and the seq of the highest snapshot."""
    first, last = batch.new_messages.starts[is_fast], batch.new_messages.ends[is_fast] - 1
    seq = batch.new_messages.seq
    snapshot = np.maximum.reduceat(np.where(run.type == MessageType.SNAPSHOT, run.seq, NO_SEQ), run.starts)
    once = np.array([rules.integrity is Integrity.ONCE for rules in batch.rules[: len(is_fast)]], np.bool_)[is_fast]
    cursors["taken_from"] = np.where(once & (cursors["taken_from"] == NO_SEQ), seq[first], cursors["taken_from"])
    cursors["taken_to"] = np.where(once, seq[last], cursors["taken_to"])
    cursors["epoch_seq"] = np.where(once & (snapshot != NO_SEQ), snapshot, cursors["epoch_seq"])


def _cut_tables(batch: ShardBatch, is_fast: Bools, message_indices: Int64s, outcome: JudgingOutcome) -> ChangesSinceCut:
    """Records the cuts of tables that are due within the batch.

    Returns:
        For each session in `is_fast`, what changed in its table since its last cut.
    """
    stream = batch.new_messages
    owner = np.repeat(np.arange(int(is_fast.sum())), (stream.ends - stream.starts)[is_fast])
    now, offset = stream.now[message_indices], stream.offset[message_indices]
    changes = stream.changes[message_indices]
    applied = AppliedMessages(
        owner, stream.type[message_indices], stream.seq[message_indices], now, offset, offset, changes
    )
    before = batch.cursors[: len(is_fast)][is_fast]
    cuts, since = find_cuts_in_batch(
        ArrivedMessages(owner, now, offset), applied, before, batch.rules[0].snapshot_interval
    )
    cuts["session"] = np.flatnonzero(is_fast)[cuts["session"]]
    outcome.add_cuts(cuts)
    return since


def _compute_epochs(stream: MessageArrays, earlier_epochs: Int64s) -> Int64s:
    """Returns each message's epoch: the offset of its session's last snapshot so far, else its earlier epoch."""
    index = np.arange(len(stream.seq))
    latest = np.maximum.accumulate(np.where(stream.type == MessageType.SNAPSHOT, index, -1))
    lengths = stream.ends - stream.starts
    inside = latest >= np.repeat(stream.starts, lengths)
    return np.where(inside, stream.offset[latest], np.repeat(earlier_epochs, lengths))


def _judge_session(batch: ShardBatch, number: int, breaks: Bools | None, outcome: JudgingOutcome) -> None:
    """Judges the messages of one session run by run, then the gaps, cuts and expiry due by the end of the batch."""
    rules, stream, base = batch.rules[number], batch.new_messages, len(batch.held_messages.seq)
    cursor = Cursor.from_record(batch.cursors[number], decode_memory(batch.memories[number]))
    if rules.integrity in SEQ_REMEMBERING_CLASSES:
        cursor.assume_all_taken()
    held = [batch.held_messages.build_header(i) for i in range(*batch.held_bounds[number : number + 2].tolist())]
    decisions = batch.decisions.get(number, {})
    outcome.session_number = number
    rows = batch.open_rows(number, cursor.rows) if rules.holds_rows and batch.open_rows else None
    judge = SessionJudge(cursor, held, rules, outcome, decisions, rows, batch.chain_gaps.get(number, ()))
    try:
        if breaks is not None:
            start, end = int(stream.starts[number]), int(stream.ends[number])
            for run in _list_runs(start, end, breaks):
                _judge_run(judge, cursor, run, stream, base)
        judge.judge_chain_gaps(NEVER)
        judge.advance_time(int(batch.ends[number]))
    except ViolationError:
        pass  # the batch will not be committed, so the rest of its outcome does not matter
    cursor.held = len(judge.held_messages)
    cursor.rows = cursor.rows if rows is None else rows.encode()
    batch.memories[number] = encode_memory(cursor.to_memory())
    batch.cursors[number] = cursor.to_record_values()


def _list_runs(start: int, end: int, breaks: Bools) -> list[tuple[int, int]]:
    firsts = [start, *(np.flatnonzero(breaks[start + 1 : end]) + start + 1).tolist()]
    return list(zip(firsts, [*firsts[1:], end], strict=True))


def _judge_run(
    judge: SessionJudge, cursor: Cursor, run: tuple[int, int], stream: MessageArrays, outcome_base: int
) -> None:
    index, past = run
    while index < past:
        header = stream.build_header(index, outcome_base)
        judge.judge_message(header)
        index += 1
        if index < past and judge.applies_rest_of_run(header):
            cut_due = compute_next_cut_time(header.now, judge.rules.snapshot_interval)
            stop = _find_first_after(stream, index, past, min(cursor.find_next_due_time(), cut_due - 1))
            _apply_rest_of_run(stream, index, stop, cursor, outcome_base, judge)
            index = stop


def _find_first_after(stream: MessageArrays, index: int, end: int, due: int) -> int:
    """Returns the index of the first message that arrives after stream time `due` (ms); `end` if there is none."""
    late = np.flatnonzero(stream.now[index:end] > due)
    return index + int(late[0]) if len(late) else end


def _apply_rest_of_run(
    stream: MessageArrays, start: int, end: int, cursor: Cursor, outcome_base: int, judge: SessionJudge
) -> None:
    """Applies the messages from index `start` to before `end`. They follow an applied message in the same run."""
    if start == end:
        return
    out = judge.outcome
    part = MessageArrays(np.zeros(1, np.int64), *(getattr(stream, name)[start:end] for name in MESSAGE_ARRAY_NAMES))
    places = slice(outcome_base + start, outcome_base + end)
    epochs = _compute_epochs(part, np.array([cursor.epoch]))
    out.verdict[places] = Verdict.APPLIED
    out.epoch[places] = epochs
    out.position[places] = assign_positions(cursor.position, part.offset)
    out.life[places] = cursor.first_offset
    out.applied_at[places], out.applied_by[places] = part.now, part.offset
    apply_run(cursor, AppliedRun(part.starts, part.type, part.seq, part.ts, out.position[places]))
    cursor.epoch = int(epochs[-1])
    cursor.last_offset = int(part.offset[-1])
    cursor.last_kafka_ts = int(part.time[-1])
    cursor.partition, cursor.lane = int(part.partition[-1]), int(part.lane[-1])
    if judge.rules.integrity is Integrity.ONCE:
        snapshot = np.flatnonzero(part.type == MessageType.SNAPSHOT)[-1:].tolist()
        cursor.snapshots += [(int(part.seq[i]), int(part.offset[i])) for i in snapshot]
        cursor.mark_taken(int(part.seq[0]), int(part.seq[-1]), judge.rules.max_gaps)
    if cursor.changed_at == NEVER:
        cursor.changed_at = int(np.where(changes_table(part.type), part.now, NEVER).min())
    cursor.changes += int(part.changes.sum())
    if cursor.status == Status.ENDED:
        judge.record_cut(CutReason.END, int(part.now[-1]))


def assign_positions(last_position: int, releasing_offsets: Int64s) -> Int64s:
    """Returns each applied message's position: its releasing offset, or the next free number if that is higher.

    Args:
        last_position: The session's last position.
        releasing_offsets: For each message, the offset of the message whose arrival had it applied.
    """
    place = np.arange(len(releasing_offsets))
    found: Int64s = np.maximum.accumulate(np.maximum(releasing_offsets - place, last_position + 1)) + place
    return found
