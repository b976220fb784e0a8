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
    SessionCursor,
    SessionCursors,
    SessionStatus,
    decode_variable_part,
    encode_variable_part,
)
from sessionlake.integrity.cuts import (
    AppliedMessages,
    ArrivedMessages,
    ChangesSinceCut,
    CutReason,
    compute_next_cut_time,
    find_cuts_in_batch,
    mark_table_changing_messages,
)
from sessionlake.integrity.judge import SessionJudge
from sessionlake.integrity.outcome import JudgingOutcome, MessageVerdict
from sessionlake.integrity.recorder import ViolationError
from sessionlake.integrity.rules import SEQ_REMEMBERING_CLASSES, JudgingRules
from sessionlake.integrity.shard_batch import MESSAGE_ARRAY_NAMES, MessageArrays, ShardBatch
from sessionlake.integrity.transition import AppliedMessageRuns, apply_messages_to_cursor, apply_messages_to_cursors
from sessionlake.integrity.window import judge_window_class_sessions
from sessionlake.protocol.message import NO_SEQ, MessageType, SeqLink
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.settings.section import Integrity

_CLASSES = list(Integrity)


def judge_batch(batch: ShardBatch, *, is_vectorized: bool = True) -> JudgingOutcome:
    """Judges the messages of a shard's batch.

    Returns the verdicts on them, the integrity events and the cuts of tables.

    Args:
        batch: The messages and sessions. The sessions' cursors and their variable parts are updated in place.
        is_vectorized: True to judge simple sessions with array operations; False to judge every message one by one. The
            result is the same.
    """
    out = JudgingOutcome(len(batch.held_messages.seq) + len(batch.new_messages.seq))
    busy = len(batch.new_messages.starts)
    slow = list(range(busy, len(batch.cursors)))
    if busy:
        is_run_start = _mark_starts_of_gapless_runs(batch)
        for number in (number for number in batch.chain_gaps if number < busy):
            is_run_start[batch.new_messages.starts[number] : batch.new_messages.session_ends[number]] = True
        is_fast = _find_sessions_for_fast_path(batch, is_run_start)
        is_fast &= is_vectorized
        _apply_messages_of_fast_sessions(batch, is_fast, out)
        if is_vectorized:
            is_fast |= judge_window_class_sessions(batch, out)
        if not is_vectorized:
            is_run_start[:] = True
        slow = [*np.flatnonzero(~is_fast).tolist(), *slow]
    for number in slow:
        _judge_session(batch, number, is_run_start if number < busy else None, out)
    return out


def _list_rule_values_by_session(batch: ShardBatch, read_value: Callable[[JudgingRules], int]) -> Int64s:
    """Returns what `read_value` returns for the rules of each session with messages in the batch."""
    return np.array([read_value(rules) for rules in batch.rules[: len(batch.new_messages.starts)]], np.int64)


def _mark_starts_of_gapless_runs(batch: ShardBatch) -> Bools:
    """Returns a boolean for each message: True if it does not simply continue its session's message before it.

    The reason is a gap, a restart of the order, an `end` before it, or an expired session. All messages from such a
    message to the next one are a run.
    """
    stream = batch.new_messages
    lengths = stream.session_ends - stream.starts
    timeout = np.repeat(_list_rule_values_by_session(batch, lambda r: r.session_timeout), lengths)[1:]
    in_seq = np.repeat(_list_rule_values_by_session(batch, lambda r: r.integrity is not Integrity.NONE), lengths)[
        1:
    ].astype(np.bool_)
    is_run_start = np.ones(len(stream.seq), np.bool_)
    is_run_start[1:] = in_seq & ~_mark_messages_without_gap(stream, slice(1, None), stream.seq[:-1])
    is_run_start[1:] |= (stream.type[:-1] == MessageType.END) | (stream.link[1:] == SeqLink.RESTART)
    is_run_start[1:] |= stream.now[1:] - stream.message_times[:-1] > timeout
    is_run_start[1:] |= stream.now[1:] - stream.message_times[1:] > timeout
    is_run_start[stream.starts] = True
    return is_run_start


def _mark_messages_without_gap(stream: MessageArrays, indices: Int64s | slice, last_seqs: Int64s) -> Bools:
    """Returns a boolean for each of these messages: True if it follows its session's last seq without a gap.

    Args:
        stream: The batch's messages.
        indices: The indices in `stream` of the messages to check.
        last_seqs: The last seq before each of these messages.
    """
    seq, after, link = stream.seq[indices], stream.after[indices], stream.link[indices]
    continues = np.where(link == SeqLink.LINK, after == last_seqs, (after <= last_seqs) | (link == SeqLink.CHAINED))
    found: Bools = (seq > last_seqs) & continues & (link != SeqLink.RESTART) & (link != SeqLink.REPEATED)
    return found


def _find_sessions_for_fast_path(batch: ShardBatch, is_run_start: Bools) -> Bools:
    """Returns a boolean for each session with messages: True if they can be applied without judging each one.

    That is so if the messages continue each other and the session's cursor, or validly start the session. The session
    must also have no held messages, no gaps and no operator's decision, and its class must not be `window`.
    """
    stream, busy = batch.new_messages, len(batch.new_messages.starts)
    cursors, first = batch.cursors[:busy], batch.new_messages.starts
    integrity = _list_rule_values_by_session(batch, lambda r: _CLASSES.index(r.integrity))
    timeout = _list_rule_values_by_session(batch, lambda r: r.session_timeout)
    is_none, is_once = (integrity == _CLASSES.index(c) for c in (Integrity.NONE, Integrity.ONCE))
    known = cursors["last_kafka_ts"] != NO_TIME
    since = np.where(known, cursors["last_kafka_ts"], stream.now[first])
    in_time = (stream.now[first] - since <= timeout) & (stream.now[first] - stream.message_times[first] <= timeout)
    follows = (cursors["last_seq"] != NO_SEQ) & _mark_messages_without_gap(stream, first, cursors["last_seq"])
    follows &= ~is_once | (cursors["taken_to"] == cursors["last_seq"])
    follows |= is_none & (stream.link[first] != SeqLink.RESTART)
    goes_on = known & (cursors["status"] == SessionStatus.OPEN) & follows
    starts_anywhere = _list_rule_values_by_session(batch, lambda r: r.starts_with_anything).astype(np.bool_)
    begins = ~known & (is_none | is_once | starts_anywhere | (stream.type[first] == MessageType.SNAPSHOT))
    begins &= stream.link[first] != SeqLink.REPEATED
    simple = (cursors["held"] == 0) & (integrity != _CLASSES.index(Integrity.WINDOW))
    simple &= np.array([part is None for part in batch.variable_parts[:busy]], np.bool_) & (
        cursors["position"] < stream.offset[first]
    )
    simple &= ~_list_rule_values_by_session(batch, lambda r: r.holds_rows or r.modulo is not None).astype(np.bool_)
    simple[[number for number in (*batch.decisions, *batch.chain_gaps) if number < busy]] = False
    one_run = np.add.reduceat(is_run_start.astype(np.int64), first) == 1
    is_fast: Bools = simple & one_run & in_time & (goes_on | begins)
    return is_fast


def _apply_messages_of_fast_sessions(batch: ShardBatch, is_fast: Bools, outcome: JudgingOutcome) -> None:
    """Applies all messages of some sessions: sets their verdicts and updates the cursors.

    Args:
        is_fast: For each session with messages, True if its messages are applied.
    """
    if not is_fast.any():
        return
    stream = batch.new_messages
    cursors = batch.cursors[: len(is_fast)]
    moved = cursors[is_fast]
    epochs = _compute_epoch_of_each_message(stream, cursors["epoch"])
    inside = np.flatnonzero(np.repeat(is_fast, stream.session_ends - stream.starts))
    _update_cursors_for_arrived_messages(batch, is_fast, moved)
    _set_applied_verdicts(batch, is_fast, inside, moved["first_offset"], epochs, outcome)
    lengths = (stream.session_ends - stream.starts)[is_fast]
    starts = np.cumsum(lengths) - lengths
    run = AppliedMessageRuns(starts, stream.type[inside], stream.seq[inside], stream.ts[inside], stream.offset[inside])
    apply_messages_to_cursors(moved, run)
    moved["epoch"] = epochs[stream.session_ends[is_fast] - 1]
    _update_applied_seqs_in_cursors(batch, is_fast, run, moved)
    since = _record_cuts_in_batch(batch, is_fast, inside, outcome)
    cursors[is_fast] = moved
    since.write_to_cursors(cursors, is_fast)


def _update_cursors_for_arrived_messages(batch: ShardBatch, is_fast: Bools, cursors: SessionCursors) -> None:
    """Updates the values of cursors that depend only on which messages arrived, such as the last offset.

    Args:
        is_fast: For each session with messages, True if its cursor is updated.
        cursors: The cursors of these sessions, updated in place.
    """
    stream, first, last = (
        batch.new_messages,
        batch.new_messages.starts[is_fast],
        batch.new_messages.session_ends[is_fast] - 1,
    )
    cursors["first_offset"] = np.where(
        cursors["first_offset"] == NO_TIME, stream.offset[first], cursors["first_offset"]
    )
    cursors["lane"], cursors["partition"], cursors["marked"] = stream.lane[last], stream.partition[last], 0
    cursors["last_offset"], cursors["last_kafka_ts"] = stream.offset[last], stream.message_times[last]


def _set_applied_verdicts(
    batch: ShardBatch, is_fast: Bools, message_indices: Int64s, lives: Int64s, epochs: Int64s, outcome: JudgingOutcome
) -> None:
    """Sets the verdict, epoch, position and life of messages that are applied.

    Args:
        message_indices: The indices of these messages in the batch's new messages.
        lives: The life of each session in `is_fast`: the offset of its first message.
        epochs: The epoch of each new message of the batch.
    """
    stream, places = batch.new_messages, len(batch.held_messages.seq) + message_indices
    outcome.verdict[places] = MessageVerdict.APPLIED
    outcome.epoch[places] = epochs[message_indices]
    outcome.position[places] = outcome.applied_by[places] = stream.offset[message_indices]
    outcome.applied_at[places] = stream.now[message_indices]
    outcome.life[places] = np.repeat(lives, (stream.session_ends - stream.starts)[is_fast])


def _update_applied_seqs_in_cursors(
    batch: ShardBatch, is_fast: Bools, run: AppliedMessageRuns, cursors: SessionCursors
) -> None:
    """Updates the lowest and highest seq and the last snapshot's seq in cursors of class `once`.

    Args:
        is_fast: For each session with messages, True if its messages were applied.
        run: The applied messages of these sessions.
        cursors: The cursors of these sessions, updated in place.
    """
    first, last = batch.new_messages.starts[is_fast], batch.new_messages.session_ends[is_fast] - 1
    seq = batch.new_messages.seq
    snapshot = np.maximum.reduceat(np.where(run.type == MessageType.SNAPSHOT, run.seq, NO_SEQ), run.starts)
    once = np.array([rules.integrity is Integrity.ONCE for rules in batch.rules[: len(is_fast)]], np.bool_)[is_fast]
    cursors["taken_from"] = np.where(once & (cursors["taken_from"] == NO_SEQ), seq[first], cursors["taken_from"])
    cursors["taken_to"] = np.where(once, seq[last], cursors["taken_to"])
    cursors["epoch_seq"] = np.where(once & (snapshot != NO_SEQ), snapshot, cursors["epoch_seq"])


def _record_cuts_in_batch(
    batch: ShardBatch, is_fast: Bools, message_indices: Int64s, outcome: JudgingOutcome
) -> ChangesSinceCut:
    """Adds the cuts of tables that are due within the batch to the outcome.

    Args:
        is_fast: For each session with messages, True if its table is to be cut.
        message_indices: The indices of these sessions' messages in the batch's new messages.

    Returns:
        What changed in the table of each of these sessions since its last cut.
    """
    stream = batch.new_messages
    owner = np.repeat(np.arange(int(is_fast.sum())), (stream.session_ends - stream.starts)[is_fast])
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


def _compute_epoch_of_each_message(stream: MessageArrays, earlier_epochs: Int64s) -> Int64s:
    """Returns the epoch of each message: the offset of its session's last snapshot up to this message.

    Args:
        earlier_epochs: For each session, its epoch before these messages, for messages before the first snapshot.
    """
    index = np.arange(len(stream.seq))
    latest = np.maximum.accumulate(np.where(stream.type == MessageType.SNAPSHOT, index, -1))
    lengths = stream.session_ends - stream.starts
    inside = latest >= np.repeat(stream.starts, lengths)
    return np.where(inside, stream.offset[latest], np.repeat(earlier_epochs, lengths))


def _judge_session(batch: ShardBatch, number: int, is_run_start: Bools | None, outcome: JudgingOutcome) -> None:
    """Judges the messages of one session, then the gaps, cuts and expiry that are due by the end of the batch.

    Args:
        number: The session's number in the batch.
        is_run_start: For each message of the batch, True if it must be judged alone; None if the session has no
            messages.
    """
    rules, stream, base = batch.rules[number], batch.new_messages, len(batch.held_messages.seq)
    cursor = SessionCursor.from_array_record(batch.cursors[number], decode_variable_part(batch.variable_parts[number]))
    if rules.integrity in SEQ_REMEMBERING_CLASSES:
        cursor.mark_all_earlier_seqs_as_applied()
    held = [
        batch.held_messages.create_message_header(i) for i in range(*batch.held_bounds[number : number + 2].tolist())
    ]
    decisions = batch.decisions.get(number, {})
    outcome.session_number = number
    rows = batch.load_session_rows(number, cursor.rows) if rules.holds_rows and batch.load_session_rows else None
    judge = SessionJudge(cursor, held, rules, outcome, decisions, rows, batch.chain_gaps.get(number, ()))
    try:
        if is_run_start is not None:
            start, end = int(stream.starts[number]), int(stream.session_ends[number])
            for run in _list_bounds_of_gapless_runs(start, end, is_run_start):
                _judge_gapless_run_of_session(judge, cursor, run, stream, base)
        judge.judge_chain_gaps_up_to_offset(NEVER)
        judge.advance_stream_time(int(batch.ends[number]))
    except ViolationError:
        pass  # the batch will not be committed, so the rest of its outcome does not matter
    cursor.held = len(judge.held_messages)
    cursor.rows = cursor.rows if rows is None else rows.encode_rows()
    batch.variable_parts[number] = encode_variable_part(cursor.create_variable_part())
    batch.cursors[number] = cursor.list_array_record_values()


def _list_bounds_of_gapless_runs(start: int, end: int, is_run_start: Bools) -> list[tuple[int, int]]:
    """Returns the start and end index of each run between two message indices.

    A run starts where `is_run_start` is True.
    """
    firsts = [start, *(np.flatnonzero(is_run_start[start + 1 : end]) + start + 1).tolist()]
    return list(zip(firsts, [*firsts[1:], end], strict=True))


def _judge_gapless_run_of_session(
    judge: SessionJudge, cursor: SessionCursor, run: tuple[int, int], stream: MessageArrays, outcome_base: int
) -> None:
    """Judges messages that continue each other: the first one alone, the others together if possible.

    Args:
        cursor: The session's cursor.
        run: The index of the first message, and the index after the last.
        outcome_base: What is added to a message's index to get its index in the outcome.
    """
    index, end = run
    while index < end:
        header = stream.create_message_header(index, outcome_base)
        judge.judge_message(header)
        index += 1
        if index < end and judge.can_apply_following_messages_unjudged(header):
            cut_due = compute_next_cut_time(header.now, judge.rules.snapshot_interval)
            stop = _find_first_message_after_stream_time(
                stream, index, end, min(cursor.find_earliest_gap_deadline(), cut_due - 1)
            )
            _apply_rest_of_gapless_run(stream, index, stop, cursor, outcome_base, judge)
            index = stop


def _find_first_message_after_stream_time(stream: MessageArrays, index: int, end: int, stream_time: int) -> int:
    """Returns the index of the first message in `[index, end)` that arrived after a stream time (ms), else `end`."""
    late = np.flatnonzero(stream.now[index:end] > stream_time)
    return index + int(late[0]) if len(late) else end


def _apply_rest_of_gapless_run(
    stream: MessageArrays, start: int, end: int, cursor: SessionCursor, outcome_base: int, judge: SessionJudge
) -> None:
    """Applies messages of one session that continue an applied one, and updates the cursor.

    Args:
        start: The index of the first message in `stream`.
        end: The index after the last message.
        outcome_base: What is added to a message's index to get its index in the outcome.
    """
    if start == end:
        return
    out = judge.outcome
    part = MessageArrays(np.zeros(1, np.int64), *(getattr(stream, name)[start:end] for name in MESSAGE_ARRAY_NAMES))
    places = slice(outcome_base + start, outcome_base + end)
    epochs = _compute_epoch_of_each_message(part, np.array([cursor.epoch]))
    out.verdict[places] = MessageVerdict.APPLIED
    out.epoch[places] = epochs
    out.position[places] = assign_application_positions(cursor.position, part.offset)
    out.life[places] = cursor.first_offset
    out.applied_at[places], out.applied_by[places] = part.now, part.offset
    apply_messages_to_cursor(
        cursor, AppliedMessageRuns(part.starts, part.type, part.seq, part.ts, out.position[places])
    )
    cursor.epoch = int(epochs[-1])
    cursor.last_offset = int(part.offset[-1])
    cursor.last_kafka_ts = int(part.message_times[-1])
    cursor.partition, cursor.lane = int(part.partition[-1]), int(part.lane[-1])
    if judge.rules.integrity is Integrity.ONCE:
        snapshot = np.flatnonzero(part.type == MessageType.SNAPSHOT)[-1:].tolist()
        cursor.snapshots += [(int(part.seq[i]), int(part.offset[i])) for i in snapshot]
        cursor.record_applied_or_held_seqs(int(part.seq[0]), int(part.seq[-1]), judge.rules.max_gaps)
    if cursor.changed_at == NEVER:
        cursor.changed_at = int(np.where(mark_table_changing_messages(part.type), part.now, NEVER).min())
    cursor.changes += int(part.changes.sum())
    if cursor.status == SessionStatus.ENDED:
        judge.record_table_cut(CutReason.END, int(part.now[-1]))


def assign_application_positions(last_position: int, releasing_offsets: Int64s) -> Int64s:
    """Returns each applied message's position in its session's order of application.

    It is the offset of the message that had it applied, or the next free number if that is higher.

    Args:
        last_position: The session's last position.
        releasing_offsets: For each message, the offset of the message whose arrival had it applied.
    """
    place = np.arange(len(releasing_offsets))
    found: Int64s = np.maximum.accumulate(np.maximum(releasing_offsets - place, last_position + 1)) + place
    return found
