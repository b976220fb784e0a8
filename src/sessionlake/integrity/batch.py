"""Judging a shard's batch: whole sessions at once where all is fine, run by run where it is not.

A *run* is a stretch of a session's messages, in offset order, whose seqs rise by one, none of which follows
an end or comes a session timeout after the one before. If a run's first message is applied and leaves the
session open, so is the rest of it: only first messages of runs need judging one by one. A session that is one
run which continues its cursor needs none at all, and is moved on by array arithmetic with all its like.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sessionlake.config import Integrity
from sessionlake.integrity.cursor import NO_EPOCH, NO_SEQ, NO_TIME, Cursor, Cursors, Status, end_time
from sessionlake.integrity.judge import FINE, Header, Judgement, Verdict, judge
from sessionlake.integrity.rules import Rules
from sessionlake.protocol.message import MessageType

Int64s = npt.NDArray[np.int64]
Int8s = npt.NDArray[np.int8]
Bools = npt.NDArray[np.bool_]

_BULK = frozenset({Integrity.STRICT, Integrity.ORDER})


@dataclass(frozen=True)
class Stream:
    """Well-formed messages, session after session, each session in offset order. Arrays of one length; times in ms.

    Attributes:
        starts: index of each session's first message.
    """

    starts: Int64s
    type: Int8s
    seq: Int64s
    ts: Int64s
    offset: Int64s
    kafka_ts: Int64s
    partition: npt.NDArray[np.int32]

    @property
    def ends(self) -> Int64s:
        """One past each session's last message."""
        return np.append(self.starts[1:], len(self.seq))


@dataclass
class Judged:
    """What became of each message of a `Stream`.

    Attributes:
        verdict: a `Verdict` a message.
        epoch: for applied messages, the session's epoch after them.
        remarks: `(index, judgement)` of every message that was not simply applied, in index order.
    """

    verdict: Int8s
    epoch: Int64s
    remarks: list[tuple[int, Judgement]] = field(default_factory=list)


def judge_batch(stream: Stream, cursors: Cursors, rules_of: Callable[[int], Rules], *, bulk: bool = True) -> Judged:
    """Judges every session of the stream and moves its cursor on, in place.

    Args:
        cursors: one a session, in the order of `stream.starts`.
        rules_of: the rules of the session with that number.
        bulk: False judges every message one by one; the result is the same.
    """
    count = len(stream.seq)
    judged = Judged(np.zeros(count, np.int8), np.full(count, NO_EPOCH, np.int64))
    if not count:
        return judged
    rules = [rules_of(number) for number in range(len(stream.starts))]
    timeouts = np.array([rule.session_timeout for rule in rules], np.int64)
    breaks = _breaks(stream, timeouts)
    fine = _fine_sessions(stream, cursors, breaks, timeouts)
    fine &= bulk & np.array([rule.integrity in _BULK for rule in rules], np.bool_)
    _advance(stream, cursors, fine, judged)
    if not bulk:
        breaks[:] = True
    for number in np.flatnonzero(~fine).tolist():
        cursors[number] = _judge_session(stream, number, Cursor.of(cursors[number]), rules[number], breaks, judged)
    return judged


def _breaks(stream: Stream, timeouts: Int64s) -> Bools:
    """True where a new run begins."""
    breaks = np.ones(len(stream.seq), np.bool_)
    timeout = np.repeat(timeouts, stream.ends - stream.starts)[1:]
    breaks[1:] = np.diff(stream.seq) != 1
    breaks[1:] |= stream.type[:-1] == MessageType.END
    breaks[1:] |= np.diff(stream.kafka_ts) > timeout
    breaks[stream.starts] = True
    return breaks


def _fine_sessions(stream: Stream, cursors: Cursors, breaks: Bools, timeouts: Int64s) -> Bools:
    """Sessions of one run that goes on where the cursor stands, or begins with a snapshot."""
    runs = np.add.reduceat(breaks.astype(np.int64), stream.starts)
    first = stream.starts
    known = cursors["last_seq"] != NO_SEQ
    in_time = stream.kafka_ts[first] - np.where(known, cursors["last_kafka_ts"], stream.kafka_ts[first]) <= timeouts
    goes_on = known & (cursors["status"] == Status.OPEN) & (stream.seq[first] - 1 == cursors["last_seq"]) & in_time
    unknown = (cursors["last_kafka_ts"] == NO_TIME) & (stream.type[first] == MessageType.SNAPSHOT)
    fine: Bools = (runs == 1) & (goes_on | unknown)
    return fine


def _advance(stream: Stream, cursors: Cursors, fine: Bools, judged: Judged) -> None:
    """Moves the cursors of the fine sessions over all their messages, and fills in the epochs."""
    if not fine.any():
        return
    first, last = stream.starts[fine], stream.ends[fine] - 1
    moved = cursors[fine]
    new = moved["messages"] == 0
    low = np.minimum.reduceat(stream.ts, stream.starts)[fine]
    high = np.maximum.reduceat(stream.ts, stream.starts)[fine]
    epochs = _epochs(stream, cursors["epoch"])
    in_fine = np.repeat(fine, stream.ends - stream.starts)
    judged.epoch[in_fine] = epochs[in_fine]
    moved["partition"] = stream.partition[last]
    moved["epoch"] = epochs[last]
    moved["last_seq"] = stream.seq[last]
    moved["messages"] += last - first + 1
    moved["first_ts"] = np.where(new, low, np.minimum(moved["first_ts"], low))
    moved["last_ts"] = np.where(new, high, np.maximum(moved["last_ts"], high))
    moved["first_offset"] = np.where(moved["first_offset"] == NO_TIME, stream.offset[first], moved["first_offset"])
    moved["last_offset"] = stream.offset[last]
    moved["last_kafka_ts"] = stream.kafka_ts[last]
    ended = stream.type[last] == MessageType.END
    moved["status"] = np.where(ended, Status.ENDED, moved["status"])
    moved["ended_at"] = np.where(ended, np.maximum(stream.ts[last], end_time(NO_TIME)), moved["ended_at"])
    cursors[fine] = moved


def _epochs(stream: Stream, before: Int64s) -> Int64s:
    """Offset of the last snapshot at or before each message of its session, else the epoch before."""
    index = np.arange(len(stream.seq))
    latest = np.maximum.accumulate(np.where(stream.type == MessageType.SNAPSHOT, index, -1))
    lengths = stream.ends - stream.starts
    inside = latest >= np.repeat(stream.starts, lengths)
    return np.where(inside, stream.offset[latest], np.repeat(before, lengths))


def _judge_session(
    stream: Stream, number: int, cursor: Cursor, rules: Rules, breaks: Bools, judged: Judged
) -> tuple[int, ...]:
    """Judges one session run by run."""
    start, end = int(stream.starts[number]), int(stream.ends[number])
    run_ends = [*(np.flatnonzero(breaks[start + 1 : end]) + start + 1).tolist(), end]
    index = start
    for run_end in run_ends:
        while index < run_end:
            judgement = judge(cursor, _header(stream, index), rules)
            judged.verdict[index] = judgement.verdict
            judged.epoch[index] = cursor.epoch
            if judgement is not FINE:
                judged.remarks.append((index, judgement))
            index += 1
            if judgement.verdict is Verdict.APPLIED and cursor.status == Status.OPEN and index < run_end:
                _apply_rest(stream, index, run_end, cursor, judged)
                index = run_end
    return cursor.as_tuple()


def _header(stream: Stream, index: int) -> Header:
    columns: Any = (stream.type, stream.seq, stream.ts, stream.offset, stream.kafka_ts, stream.partition)
    return Header(*(column[index].item() for column in columns))


def _apply_rest(stream: Stream, start: int, end: int, cursor: Cursor, judged: Judged) -> None:
    """Applies the rest of a run, all of which follows on an applied message."""
    part = Stream(np.zeros(1, np.int64), *(getattr(stream, name)[start:end] for name in _COLUMNS))
    epochs = _epochs(part, np.array([cursor.epoch]))
    judged.epoch[start:end] = epochs
    cursor.epoch = int(epochs[-1])
    cursor.last_seq = int(part.seq[-1])
    cursor.messages += end - start
    cursor.first_ts = min(cursor.first_ts, int(part.ts.min()))
    cursor.last_ts = max(cursor.last_ts, int(part.ts.max()))
    cursor.last_offset = int(part.offset[-1])
    cursor.last_kafka_ts = int(part.kafka_ts[-1])
    cursor.partition = int(part.partition[-1])
    if part.type[-1] == MessageType.END:
        cursor.status = Status.ENDED
        cursor.ended_at = end_time(int(part.ts[-1]))


_COLUMNS = ("type", "seq", "ts", "offset", "kafka_ts", "partition")
