"""The cursor of a session: what judging must remember about the session from one message to the next.

A seq is called *taken* once its message was applied or held back.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from enum import IntEnum

import msgspec
import numpy as np
import numpy.typing as npt

from sessionlake.integrity.seq_set import SeqSet
from sessionlake.protocol.message import NO_SEQ

NO_EPOCH = -1
"""The epoch of a session that has no applied snapshot yet."""
NO_POSITION = -1
"""The position before the first applied message."""
NO_TIME = int(np.iinfo(np.int64).min)
"""A time, or a first offset, that is not known yet."""
NEVER = int(np.iinfo(np.int64).max)
"""A time that is never reached."""


class SessionStatus(IntEnum):
    """The status of a session. The integer values are stored: add new ones at the end."""

    OPEN = 0
    ENDED = 1
    EXPIRED = 2  # never stored: reported for a session that is `marked`, whose cursor keeps its earlier status
    BROKEN = 3


CURSOR = np.dtype(
    [
        ("lane", np.int32),  # topic-partition of its last message: index in the shard's clock
        ("partition", np.int32),
        ("status", np.int8),
        ("marked", np.int8),  # 1: expired by stream time; a message with an earlier timestamp can revert this
        ("epoch", np.int64),  # offset of the last applied snapshot (`once`: the one with the highest seq)
        ("last_seq", np.int64),  # highest applied seq; its successor could overflow
        ("messages", np.int64),  # number of applied messages
        ("duplicates", np.int64),
        ("gaps", np.int64),
        ("late", np.int64),
        ("first_ts", np.int64),  # lowest and highest event time of applied messages, ms
        ("last_ts", np.int64),
        ("first_offset", np.int64),  # of the first well-formed message; identifies the session's current life
        ("last_offset", np.int64),
        ("last_kafka_ts", np.int64),  # time of the last well-formed message, ms (`protocol.kafka_time`)
        ("ended_at", np.int64),  # event time of the end, ms, limited to the range of a SQL timestamp
        ("position", np.int64),  # last position given to an applied message
        ("taken_from", np.int64),  # lowest and highest seq applied or held back; any gaps are in `CursorVariablePart`
        ("taken_to", np.int64),
        ("epoch_seq", np.int64),  # seq of the snapshot that `epoch` identifies
        ("highest_ts", np.int64),  # highest event time that has arrived, ms
        ("due", np.int64),  # stream time after which the earliest gap is a violation
        ("held", np.int32),  # number of messages held back
        ("changed_at", np.int64),  # stream time of the table's first change since its last cut
        ("cut_position", np.int64),  # last position contained in a cut at expiry
        ("end_seq", np.int64),  # seq of the end, if it has one
        ("changes", np.int64),  # number of changes applied since the last cut
        ("checks", np.int64),  # number of checksums and expectations that were compared, and that did not hold
        ("checks_failed", np.int64),
    ]
)
CURSOR_FIELDS = CURSOR.names or ()
SessionCursors = npt.NDArray[np.void]
INITIAL_VALUES: dict[str, int] = {
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


def create_session_cursors(count: int) -> SessionCursors:
    """Returns an array of `count` cursors, each of a session that has no message yet."""
    cursors = np.zeros(count, CURSOR)
    for name, value in INITIAL_VALUES.items():
        cursors[name] = value
    return cursors


class OpenGap(msgspec.Struct, array_like=True):
    """A gap under class `once`: the missing seqs from `start` up to but not including `end`.

    Attributes:
        start: The first missing seq.
        end: The seq after the last missing one.
        due: Stream time in ms after which the gap is a violation.
        offset: Kafka offset of the message that revealed the gap.
        kafka_ts: Kafka timestamp of that message, ms.
        partition: Kafka partition of that message.
    """

    start: int
    end: int
    due: int
    offset: int
    kafka_ts: int
    partition: int


class CursorVariablePart(msgspec.Struct, array_like=True):
    """The variable-length part of a cursor.

    Only sessions with gaps between applied seqs, or with rows in memory, have one.

    Attributes:
        taken: The first and last seq of each interval of seqs that were applied or held back: `first, last, first,
            last, …`.
        snapshots: `[seq, offset]` of the last applied snapshot in each interval that has one, ascending (`once`).
        open_gaps: The open gaps, in the order in which messages revealed them.
        rows: The session's encoded rows; None if its feed does not need them.
    """

    taken: list[int] = []
    snapshots: list[tuple[int, int]] = []
    open_gaps: list[OpenGap] = []
    rows: bytes | None = None


_variable_part_decoder = msgspec.msgpack.Decoder(CursorVariablePart)


def encode_variable_part(part: CursorVariablePart | None) -> bytes | None:
    """Encodes the variable-length part of a cursor for the stored state. None is not encoded."""
    return None if part is None else msgspec.msgpack.encode(part)


def decode_variable_part(stored: bytes | None) -> CursorVariablePart | None:
    """Decodes the variable-length part of a cursor that `encode_variable_part` has encoded; None for None."""
    return None if stored is None else _variable_part_decoder.decode(stored)


def postpone_gap_deadlines(stored: bytes | None, delay_ms: int) -> bytes | None:
    """Returns an encoded `CursorVariablePart` in which each gap becomes a violation `delay_ms` of stream time later."""
    part = decode_variable_part(stored)
    if part is not None:
        for hole in part.open_gaps:
            hole.due += delay_ms
    return encode_variable_part(part)


@dataclass(slots=True)
class SessionCursor:
    """What judging remembers about one session, as Python values. The comments at `CURSOR` explain each value."""

    lane: int = 0
    partition: int = 0
    status: int = SessionStatus.OPEN
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
    checks: int = 0
    checks_failed: int = 0
    taken: SeqSet = field(default_factory=SeqSet)
    snapshots: list[tuple[int, int]] = field(default_factory=list)
    open_gaps: list[OpenGap] = field(default_factory=list)
    rows: bytes | None = None

    @classmethod
    def from_array_record(cls, record: np.void, part: CursorVariablePart | None = None) -> SessionCursor:
        """Returns the cursor with the values of a cursor array's record, and of its variable part if it has one."""
        cursor = cls(*record.tolist())
        if part is not None:
            cursor.rows = part.rows
        if part is not None and part.taken:
            cursor.taken, cursor.snapshots, cursor.open_gaps = SeqSet(part.taken), part.snapshots, part.open_gaps
        else:
            if cursor.taken_from != NO_SEQ:
                cursor.taken.add_seq_range(cursor.taken_from, cursor.taken_to)
            if cursor.epoch_seq != NO_SEQ:
                cursor.snapshots.append((cursor.epoch_seq, cursor.epoch))
        return cursor

    def mark_all_earlier_seqs_as_applied(self) -> None:
        """Marks all seqs up to the last applied one as applied, if the cursor does not record which ones were.

        That is so if the session's class was another one before.
        """
        if self.last_seq != NO_SEQ and not self.taken.interval_bounds:
            self.taken.add_seq_range(0, self.last_seq)

    def record_applied_or_held_seqs(self, first: int, last: int, max_gaps: int) -> None:
        """Records that the seqs from `first` to `last` were applied or held back.

        If this leaves more than `max_gaps` gaps, the lowest gaps count as filled.
        """
        self.taken.add_seq_range(first, last)
        while self.taken.gap_count > max_gaps:
            self.taken.fill_lowest_gap()
        if self.open_gaps:
            self.open_gaps = [
                hole for hole in self.open_gaps if not self.taken.contains_seq_range(hole.start, hole.end - 1)
            ]
        if len(self.snapshots) > 1:  # no later message can have a seq between two snapshots without a gap between them
            pairs = zip(self.snapshots, self.snapshots[1:], strict=False)
            kept = [one for one, following in pairs if not self.taken.contains_seq_range(one[0], following[0])]
            self.snapshots = [*kept, self.snapshots[-1]]
        if self.snapshots:
            self.epoch_seq, self.epoch = self.snapshots[-1]

    def record_arrived_message(self, lane: int, partition: int, offset: int, message_time: int) -> None:
        """Records the place and time (ms) of a message that has arrived, before it is judged.

        Args:
            lane: The index of the message's topic-partition in the shard's clock.
        """
        self.lane, self.partition, self.marked = lane, partition, 0
        self.first_offset = offset if self.first_offset == NO_TIME else self.first_offset
        self.last_offset, self.last_kafka_ts = offset, message_time

    def assign_epoch(self, seq: int, offset: int, *, is_snapshot: bool, in_seq_order: bool) -> int:
        """Returns the epoch of a message that is applied. If the message is a snapshot, it starts a new epoch.

        Args:
            seq: The message's seq.
            offset: The message's offset.
            is_snapshot: True if the message is a snapshot.
            in_seq_order: True for class `once`: the epoch is the offset of the last snapshot up to this seq.
        """
        if not in_seq_order:
            self.epoch = offset if is_snapshot else self.epoch
            return self.epoch
        place = bisect_left(self.snapshots, (seq, -1))
        if is_snapshot:
            self.snapshots.insert(place, (seq, offset))
            self.epoch_seq, self.epoch = self.snapshots[-1]
            return offset
        return self.snapshots[place - 1][1] if place else NO_EPOCH

    def find_earliest_gap_deadline(self) -> int:
        """Returns the stream time (ms) after which the earliest gap is a violation; `NEVER` if there is no gap."""
        return min((hole.due for hole in self.open_gaps), default=NEVER)

    def create_variable_part(self) -> CursorVariablePart | None:
        """Returns the parts of the cursor that have no fixed size: its missing seqs, and its rows in memory.

        Returns None if it has neither. Arrays of cursors have only the parts of fixed size.
        """
        if self.taken.gap_count:
            return CursorVariablePart(self.taken.interval_bounds, self.snapshots, self.open_gaps, self.rows)
        return None if self.rows is None else CursorVariablePart(rows=self.rows)

    def list_array_record_values(self) -> tuple[int, ...]:
        """Returns the cursor's values in the order of the fields of a cursor array."""
        bounds = self.taken.interval_bounds
        self.taken_from, self.taken_to = (bounds[0], bounds[-1]) if bounds else (NO_SEQ, NO_SEQ)
        self.due = self.find_earliest_gap_deadline()
        return tuple(getattr(self, name) for name in CURSOR_FIELDS)

    def start_new_life(self) -> None:
        """Resets the cursor for a new life of the session.

        Only the position is kept, because later ones must be higher, and the rows, which the next snapshot will remove.
        """
        position, rows, fresh = self.position, self.rows, SessionCursor()
        for name in SessionCursor.__slots__:
            setattr(self, name, getattr(fresh, name))
        self.position = self.cut_position = position
        self.rows = rows
