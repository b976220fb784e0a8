"""What judging keeps of a session."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

from sessionlake.integrity.seq_set import SeqSet
from sessionlake.protocol.message import NO_SEQ

NO_EPOCH = -1
NO_POSITION = -1
NO_TIME = int(np.iinfo(np.int64).min)
NEVER = int(np.iinfo(np.int64).max)


class Status(IntEnum):
    """Where a session stands in its life. Numbers are stored: append only."""

    OPEN = 0
    ENDED = 1
    EXPIRED = 2  # shown of a session that is `marked`; its cursor stays what it was
    BROKEN = 3


CURSOR = np.dtype(
    [
        ("lane", np.int32),  # of its last message: place in the shard's clock
        ("partition", np.int32),
        ("status", np.int8),
        ("marked", np.int8),  # 1: expired, until a message proves that early
        ("epoch", np.int64),  # offset of the last applied snapshot (`once`: the one with the highest seq)
        ("last_seq", np.int64),  # highest applied; its successor could overflow
        ("messages", np.int64),  # applied
        ("duplicates", np.int64),
        ("gaps", np.int64),
        ("late", np.int64),
        ("first_ts", np.int64),  # event times of applied messages, ms
        ("last_ts", np.int64),
        ("first_offset", np.int64),  # of well-formed messages; names the session's present life
        ("last_offset", np.int64),
        ("last_kafka_ts", np.int64),  # own time of the last well-formed message, ms (`protocol.kafka_time`)
        ("ended_at", np.int64),  # event time of the end, ms, as far as a SQL timestamp can tell it
        ("position", np.int64),  # last order of application given out
        ("taken_from", np.int64),  # seqs applied or held back, if they have no gap; else see `SeqMemory`
        ("taken_to", np.int64),
        ("epoch_seq", np.int64),  # of the snapshot that `epoch` names
        ("highest_ts", np.int64),  # highest event time that has arrived, ms
        ("due", np.int64),  # stream time past which the next gap is a violation
        ("held", np.int32),  # messages held back
        ("changed_at", np.int64),  # stream time of the first change of the table since its last cut
        ("cut_position", np.int64),  # last order of application that a cut at expiry holds
        ("end_seq", np.int64),  # of the end, if it bears one
        ("changes", np.int64),  # applied since the last cut
    ]
)
FIELDS = CURSOR.names or ()
Cursors = npt.NDArray[np.void]
INITIAL: dict[str, int] = {
    "epoch": NO_EPOCH,
    "last_seq": NO_SEQ,
    "first_ts": NO_TIME,
    "last_ts": NO_TIME,
    "first_offset": NO_TIME,
    "last_kafka_ts": NO_TIME,
    "ended_at": NO_TIME,
    "position": NO_POSITION,
    "taken_from": NO_SEQ,
    "taken_to": NO_SEQ,
    "epoch_seq": NO_SEQ,
    "highest_ts": NO_TIME,
    "due": NEVER,
    "changed_at": NEVER,
    "cut_position": NO_POSITION,
    "end_seq": NO_SEQ,
}


def new_cursors(count: int) -> Cursors:
    """Cursors of sessions that nothing is known of."""
    cursors = np.zeros(count, CURSOR)
    for name, value in INITIAL.items():
        cursors[name] = value
    return cursors


class Hole(msgspec.Struct, array_like=True):
    """Seqs `start` up to, without, `end` that were missing when a message revealed it (class `once`).

    Attributes:
        due: the stream time past which it is a violation, ms.
    """

    start: int
    end: int
    due: int
    offset: int
    kafka_ts: int
    partition: int


class SeqMemory(msgspec.Struct, array_like=True):
    """What a cursor has no room for: kept only of sessions whose taken seqs have gaps.

    Attributes:
        taken: bounds of the intervals, see `SeqSet`.
        snapshots: `[seq, offset]` of the last applied snapshot of each interval that has one, ascending (`once`).
        holes: in the order in which they were revealed.
    """

    taken: list[int] = []
    snapshots: list[tuple[int, int]] = []
    holes: list[Hole] = []


_memories = msgspec.msgpack.Decoder(SeqMemory)


def encode_memory(memory: SeqMemory | None) -> bytes | None:
    """A memory as stored."""
    return None if memory is None else msgspec.msgpack.encode(memory)


def decode_memory(stored: bytes | None) -> SeqMemory | None:
    """Reads what `encode_memory` wrote."""
    return None if stored is None else _memories.decode(stored)


def later(stored: bytes | None, by: int) -> bytes | None:
    """A stored memory whose gaps are due `by` ms later."""
    memory = decode_memory(stored)
    if memory is not None:
        for hole in memory.holes:
            hole.due += by
    return encode_memory(memory)


@dataclass(slots=True)
class Cursor:
    """One session's cursor as plain Python values; fields as in `CURSOR`, then what `SeqMemory` holds."""

    lane: int = 0
    partition: int = 0
    status: int = Status.OPEN
    marked: int = 0
    epoch: int = NO_EPOCH
    last_seq: int = NO_SEQ
    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    late: int = 0
    first_ts: int = NO_TIME
    last_ts: int = NO_TIME
    first_offset: int = NO_TIME
    last_offset: int = 0
    last_kafka_ts: int = NO_TIME
    ended_at: int = NO_TIME
    position: int = NO_POSITION
    taken_from: int = NO_SEQ
    taken_to: int = NO_SEQ
    epoch_seq: int = NO_SEQ
    highest_ts: int = NO_TIME
    due: int = NEVER
    held: int = 0
    changed_at: int = NEVER
    cut_position: int = NO_POSITION
    end_seq: int = NO_SEQ
    changes: int = 0
    taken: SeqSet = field(default_factory=SeqSet)
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)

    @classmethod
    def of(cls, record: np.void, memory: SeqMemory | None = None) -> Cursor:
        """Reads one record of a cursor array."""
        cursor = cls(*record.tolist())
        if memory is not None:
            cursor.taken, cursor.snapshots, cursor.holes = SeqSet(memory.taken), memory.snapshots, memory.holes
        else:
            if cursor.taken_from != NO_SEQ:
                cursor.taken.add(cursor.taken_from, cursor.taken_to)
            if cursor.epoch_seq != NO_SEQ:
                cursor.snapshots.append((cursor.epoch_seq, cursor.epoch))
        return cursor

    def adopt_taken(self) -> None:
        """Counts all seqs up to the last as taken, where a class moved the cursor on that does not remember which."""
        if self.last_seq != NO_SEQ and not self.taken.bounds:
            self.taken.add(0, self.last_seq)

    def take(self, first: int, last: int, max_gaps: int) -> None:
        """Notes seqs as applied or held back; the oldest gaps beyond the limit count as filled from then on."""
        self.taken.add(first, last)
        while self.taken.gaps > max_gaps:
            self.taken.close_lowest_gap()
        if self.holes:
            self.holes = [hole for hole in self.holes if not self.taken.is_whole(hole.start, hole.end - 1)]
        if len(self.snapshots) > 1:  # no message to come can fall between two that have no gap between them
            pairs = zip(self.snapshots, self.snapshots[1:], strict=False)
            kept = [one for one, following in pairs if not self.taken.is_whole(one[0], following[0])]
            self.snapshots = [*kept, self.snapshots[-1]]
        if self.snapshots:
            self.epoch_seq, self.epoch = self.snapshots[-1]

    def next_due(self) -> int:
        """Stream time past which the next gap is a violation; `NEVER` if there is none."""
        return min((hole.due for hole in self.holes), default=NEVER)

    def memory(self) -> SeqMemory | None:
        """What does not go into the record, if it is needed."""
        return SeqMemory(self.taken.bounds, self.snapshots, self.holes) if self.taken.gaps else None

    def as_tuple(self) -> tuple[int, ...]:
        """The record to put back."""
        bounds = self.taken.bounds
        self.taken_from, self.taken_to = (bounds[0], bounds[-1]) if bounds else (NO_SEQ, NO_SEQ)
        self.due = self.next_due()
        return tuple(getattr(self, name) for name in FIELDS)

    def begin_anew(self) -> None:
        """A new life, of which nothing is known but where in the order it comes."""
        position, fresh = self.position, Cursor()
        for name in Cursor.__slots__:
            setattr(self, name, getattr(fresh, name))
        self.position = self.cut_position = position
