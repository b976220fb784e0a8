"""Judging a shard's batch: whole sessions at once where all is fine, run by run where it is not.

A *run* is a stretch of a session's messages, in offset order, whose seqs rise by one (under `none`: any), none of which
follows an end or comes when the session, by the one before or its own timestamp, has expired. If a run's first message
is applied as the session's latest and leaves it open, so is the rest of it: only first messages of runs, and those at
which its table is cut, need judging one by one. A session that is one run which continues its cursor needs none at all,
and is moved on by array arithmetic with all its like.
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
    Applied,
    Arrived,
    CutReason,
    SinceCut,
    changes_table,
    cut_after,
    cuts_by_the_way,
)
from sessionlake.integrity.judge import TAKING, Judge, ViolationError
from sessionlake.integrity.outcome import Outcome, Verdict
from sessionlake.integrity.rules import Rules
from sessionlake.integrity.shard_batch import STREAM_COLUMNS, ShardBatch, Stream
from sessionlake.integrity.transition import Run, apply_run, apply_runs
from sessionlake.integrity.window import judge_windows
from sessionlake.protocol.message import NO_SEQ, MessageType
from sessionlake.protocol.types import Bools, Int64s
from sessionlake.settings.capture import Integrity

_CLASSES = list(Integrity)


def judge_batch(batch: ShardBatch, *, bulk: bool = True) -> Outcome:
    """Judges a shard's batch and moves its cursors on: the fast way where it serves, else message by message.

    Args:
        bulk: False judges every message one by one; the result is the same.
    """
    out = Outcome(len(batch.held.seq) + len(batch.stream.seq))
    busy = len(batch.stream.starts)
    slow = list(range(busy, len(batch.cursors)))
    if busy:
        breaks = _breaks(batch)
        fine = _fine_sessions(batch, breaks)
        fine &= bulk
        _advance(batch, fine, out)
        if bulk:
            fine |= judge_windows(batch, out)
        if not bulk:
            breaks[:] = True
        slow = [*np.flatnonzero(~fine).tolist(), *slow]
    for number in slow:
        _judge_session(batch, number, breaks if number < busy else None, out)
    return out


def _per_session(batch: ShardBatch, value: Callable[[Rules], int]) -> Int64s:
    """A number of the rules of every session that has messages."""
    return np.array([value(rules) for rules in batch.rules[: len(batch.stream.starts)]], np.int64)


def _breaks(batch: ShardBatch) -> Bools:
    """True where a new run begins."""
    stream = batch.stream
    lengths = stream.ends - stream.starts
    timeout = np.repeat(_per_session(batch, lambda r: r.session_timeout), lengths)[1:]
    in_seq = np.repeat(_per_session(batch, lambda r: r.integrity is not Integrity.NONE), lengths)[1:].astype(np.bool_)
    breaks = np.ones(len(stream.seq), np.bool_)
    breaks[1:] = in_seq & (np.diff(stream.seq) != 1)
    breaks[1:] |= stream.type[:-1] == MessageType.END
    breaks[1:] |= stream.now[1:] - stream.time[:-1] > timeout
    breaks[1:] |= stream.now[1:] - stream.time[1:] > timeout
    breaks[stream.starts] = True
    return breaks


def _fine_sessions(batch: ShardBatch, breaks: Bools) -> Bools:
    """Sessions of one run that goes on where the cursor stands, or may begin a session."""
    stream, busy = batch.stream, len(batch.stream.starts)
    cursors, first = batch.cursors[:busy], batch.stream.starts
    integrity = _per_session(batch, lambda r: _CLASSES.index(r.integrity))
    timeout = _per_session(batch, lambda r: r.session_timeout)
    is_none, is_once = (integrity == _CLASSES.index(c) for c in (Integrity.NONE, Integrity.ONCE))
    known = cursors["last_kafka_ts"] != NO_TIME
    since = np.where(known, cursors["last_kafka_ts"], stream.now[first])
    in_time = (stream.now[first] - since <= timeout) & (stream.now[first] - stream.time[first] <= timeout)
    follows = (cursors["last_seq"] != NO_SEQ) & (stream.seq[first] - 1 == cursors["last_seq"])
    follows &= ~is_once | (cursors["taken_to"] == cursors["last_seq"])
    goes_on = known & (cursors["status"] == Status.OPEN) & (follows | is_none)
    begins = ~known & (is_none | is_once | (stream.type[first] == MessageType.SNAPSHOT))
    simple = (cursors["held"] == 0) & (integrity != _CLASSES.index(Integrity.WINDOW))
    simple &= np.array([memory is None for memory in batch.memories[:busy]], np.bool_) & (
        cursors["position"] < stream.offset[first]
    )
    simple[[number for number in batch.decisions if number < busy]] = False
    one_run = np.add.reduceat(breaks.astype(np.int64), first) == 1
    fine: Bools = simple & one_run & in_time & (goes_on | begins)
    return fine


def _advance(batch: ShardBatch, fine: Bools, out: Outcome) -> None:
    """Moves the cursors of the fine sessions over all their messages, and applies these."""
    if not fine.any():
        return
    stream = batch.stream
    cursors = batch.cursors[: len(fine)]
    moved = cursors[fine]
    epochs = _epochs(stream, cursors["epoch"])
    inside = np.flatnonzero(np.repeat(fine, stream.ends - stream.starts))
    _arrive(batch, fine, moved)
    _note_applied(batch, fine, inside, moved["first_offset"], epochs, out)
    lengths = (stream.ends - stream.starts)[fine]
    starts = np.cumsum(lengths) - lengths
    run = Run(starts, stream.type[inside], stream.seq[inside], stream.ts[inside], stream.offset[inside])
    apply_runs(moved, run)
    moved["epoch"] = epochs[stream.ends[fine] - 1]
    _take(batch, fine, run, moved)
    since = _cuts(batch, fine, inside, out)
    cursors[fine] = moved
    since.note(cursors, fine)


def _arrive(batch: ShardBatch, fine: Bools, moved: Cursors) -> None:
    """What the cursors of the fine sessions keep of messages that came, whatever becomes of them."""
    stream, first, last = batch.stream, batch.stream.starts[fine], batch.stream.ends[fine] - 1
    moved["first_offset"] = np.where(moved["first_offset"] == NO_TIME, stream.offset[first], moved["first_offset"])
    moved["lane"], moved["partition"], moved["marked"] = stream.lane[last], stream.partition[last], 0
    moved["last_offset"], moved["last_kafka_ts"] = stream.offset[last], stream.time[last]


def _note_applied(batch: ShardBatch, fine: Bools, inside: Int64s, lives: Int64s, epochs: Int64s, out: Outcome) -> None:
    """The outcome of the fine sessions' messages, which are those `inside`."""
    stream, places = batch.stream, len(batch.held.seq) + inside
    out.verdict[places] = Verdict.APPLIED
    out.epoch[places] = epochs[inside]
    out.position[places] = out.by[places] = stream.offset[inside]
    out.at[places] = stream.now[inside]
    out.life[places] = np.repeat(lives, (stream.ends - stream.starts)[fine])


def _take(batch: ShardBatch, fine: Bools, run: Run, moved: Cursors) -> None:
    """Moves on, for sessions of class `once`, the seqs that are taken and the highest snapshot."""
    first, last = batch.stream.starts[fine], batch.stream.ends[fine] - 1
    seq = batch.stream.seq
    snapshot = np.maximum.reduceat(np.where(run.type == MessageType.SNAPSHOT, run.seq, NO_SEQ), run.starts)
    once = np.array([rules.integrity is Integrity.ONCE for rules in batch.rules[: len(fine)]], np.bool_)[fine]
    moved["taken_from"] = np.where(once & (moved["taken_from"] == NO_SEQ), seq[first], moved["taken_from"])
    moved["taken_to"] = np.where(once, seq[last], moved["taken_to"])
    moved["epoch_seq"] = np.where(once & (snapshot != NO_SEQ), snapshot, moved["epoch_seq"])


def _cuts(batch: ShardBatch, fine: Bools, inside: Int64s, out: Outcome) -> SinceCut:
    """Cuts the tables of the fine sessions where that is due on the way; returns what has happened to them since."""
    stream = batch.stream
    owner = np.repeat(np.arange(int(fine.sum())), (stream.ends - stream.starts)[fine])
    now, offset = stream.now[inside], stream.offset[inside]
    changes = stream.changes[inside]
    applied = Applied(owner, stream.type[inside], stream.seq[inside], now, offset, offset, changes)
    before = batch.cursors[: len(fine)][fine]
    cuts, since = cuts_by_the_way(Arrived(owner, now, offset), applied, before, batch.rules[0].snapshot_interval)
    cuts["session"] = np.flatnonzero(fine)[cuts["session"]]
    out.cut(cuts)
    return since


def _epochs(stream: Stream, before: Int64s) -> Int64s:
    """Offset of the last snapshot at or before each message of its session, else the epoch before."""
    index = np.arange(len(stream.seq))
    latest = np.maximum.accumulate(np.where(stream.type == MessageType.SNAPSHOT, index, -1))
    lengths = stream.ends - stream.starts
    inside = latest >= np.repeat(stream.starts, lengths)
    return np.where(inside, stream.offset[latest], np.repeat(before, lengths))


def _judge_session(batch: ShardBatch, number: int, breaks: Bools | None, out: Outcome) -> None:
    """Judges one session run by run, and does for it what is due at the end of the batch."""
    rules, stream, base = batch.rules[number], batch.stream, len(batch.held.seq)
    cursor = Cursor.of(batch.cursors[number], decode_memory(batch.memories[number]))
    if rules.integrity in TAKING:
        cursor.adopt_taken()
    held = [batch.held.header(i) for i in range(*batch.held_bounds[number : number + 2].tolist())]
    decisions = batch.decisions.get(number, {})
    out.session = number
    judge = Judge(cursor, held, rules, out, decisions)
    try:
        if breaks is not None:
            start, end = int(stream.starts[number]), int(stream.ends[number])
            for run in _runs(start, end, breaks):
                _judge_run(judge, cursor, run, stream, base)
        judge.pass_time(int(batch.ends[number]))
    except ViolationError:
        pass  # the batch is not committed: what becomes of the rest does not matter
    cursor.held = len(judge.held)
    batch.memories[number] = encode_memory(cursor.memory())
    batch.cursors[number] = cursor.as_tuple()


def _runs(start: int, end: int, breaks: Bools) -> list[tuple[int, int]]:
    firsts = [start, *(np.flatnonzero(breaks[start + 1 : end]) + start + 1).tolist()]
    return list(zip(firsts, [*firsts[1:], end], strict=True))


def _judge_run(judge: Judge, cursor: Cursor, run: tuple[int, int], stream: Stream, base: int) -> None:
    index, past = run
    while index < past:
        header = stream.header(index, base)
        judge.arrive(header)
        index += 1
        if index < past and judge.would_apply_what_follows(header):
            cut_due = cut_after(header.now, judge.rules.snapshot_interval)
            fine = _before(stream, index, past, min(cursor.next_due(), cut_due - 1))
            _apply_rest(stream, index, fine, cursor, base, judge)
            index = fine


def _before(stream: Stream, index: int, past: int, due: int) -> int:
    """First message of a stretch that comes when stream time is past `due`; the end of the stretch if none does."""
    late = np.flatnonzero(stream.now[index:past] > due)
    return index + int(late[0]) if len(late) else past


def _apply_rest(stream: Stream, start: int, end: int, cursor: Cursor, base: int, judge: Judge) -> None:
    """Applies messages which follow on an applied one, each as the session's latest."""
    if start == end:
        return
    out = judge.outcome
    part = Stream(np.zeros(1, np.int64), *(getattr(stream, name)[start:end] for name in STREAM_COLUMNS))
    places = slice(base + start, base + end)
    epochs = _epochs(part, np.array([cursor.epoch]))
    out.verdict[places] = Verdict.APPLIED
    out.epoch[places] = epochs
    out.position[places] = positions(cursor.position, part.offset)
    out.life[places] = cursor.first_offset
    out.at[places], out.by[places] = part.now, part.offset
    apply_run(cursor, Run(part.starts, part.type, part.seq, part.ts, out.position[places]))
    cursor.epoch = int(epochs[-1])
    cursor.last_offset = int(part.offset[-1])
    cursor.last_kafka_ts = int(part.time[-1])
    cursor.partition, cursor.lane = int(part.partition[-1]), int(part.lane[-1])
    if judge.rules.integrity is Integrity.ONCE:
        snapshot = np.flatnonzero(part.type == MessageType.SNAPSHOT)[-1:].tolist()
        cursor.snapshots += [(int(part.seq[i]), int(part.offset[i])) for i in snapshot]
        cursor.take(int(part.seq[0]), int(part.seq[-1]), judge.rules.max_gaps)
    if cursor.changed_at == NEVER:
        cursor.changed_at = int(np.where(changes_table(part.type), part.now, NEVER).min())
    cursor.changes += int(part.changes.sum())
    if cursor.status == Status.ENDED:
        judge.cut(CutReason.END, int(part.now[-1]))


def positions(before: int, releasing: Int64s) -> Int64s:
    """Orders of application: each the offset that leads to it, or the next free number."""
    place = np.arange(len(releasing))
    found: Int64s = np.maximum.accumulate(np.maximum(releasing - place, before + 1)) + place
    return found
