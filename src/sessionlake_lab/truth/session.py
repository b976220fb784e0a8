"""State of a session: the cursor of its current life, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from sessionlake_lab.truth.model import Row
from sessionlake_lab.truth.reading import ParsedMessage

OPEN, ENDED, EXPIRED, BROKEN = "open", "ended", "expired", "broken"


class ApplyCause(NamedTuple):
    """When a message was applied, and which message caused this: itself, or a later one if it was held back.

    Attributes:
        releasing: Lowest position that the applied message may get.
        at: Stream time at which it was applied, in ms.
        by: Offset of the message that caused this; None for an expiry.
    """

    releasing: int
    at: int
    by: int | None


@dataclass(slots=True, eq=False)
class OpenGap:
    """A gap that may still be filled (class `once`).

    Attributes:
        start: First seq of the gap.
        end: One past its last seq.
        revealed_by: The message whose seq showed the gap.
        missing: Number of seqs that are still missing.
        opened: Stream time from which the deadline counts, in ms.
    """

    start: int
    end: int
    revealed_by: ParsedMessage
    missing: int
    opened: int


@dataclass(slots=True, eq=False)
class LifeState:
    """State of one life of a session: its seqs, epoch and times. A new life starts with an empty state."""

    status: str = OPEN
    epoch: int = -1
    epoch_seq: int | None = None
    next_seq: int | None = None
    """One past the highest applied seq; None before the first."""
    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    late: int = 0
    first_ts: int | None = None
    last_ts: int | None = None
    first_offset: int = -1
    last_offset: int = -1
    last_timestamp: int | None = None
    """Time of the last well-formed message, in ms."""
    ended_at: int | None = None
    end_seq: int | None = None
    """Seq of the applied `end` message."""
    known_seqs: set[int] = field(default_factory=set)
    """Seqs applied or held back (classes `once` and `window`)."""
    runs: int = 0
    """Number of contiguous runs that `known_seqs` consists of."""
    abandoned_gaps: list[tuple[int, int]] = field(default_factory=list)
    """Gaps that count as filled, as the known seqs before and after them."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Offset of each applied snapshot by its seq (class `once`)."""
    open_gaps: list[OpenGap] = field(default_factory=list)
    held: list[ParsedMessage] = field(default_factory=list)
    highest_ts: int | None = None
    waiting: list[ParsedMessage] = field(default_factory=list)
    """Messages that wait for a snapshot, in order of arrival."""


@dataclass(slots=True, eq=False)
class SessionState:
    """A session with its current life and its table. The table persists when a new life starts."""

    topic: str
    session_id: str
    partition: int
    life: LifeState = field(default_factory=LifeState)
    lives: int = 1
    rows: dict[str, Row] = field(default_factory=dict)
    position: int = -1
    """The last `_position` that was assigned."""
    changed_at: int | None = None
    """Stream time of the table's first change since its last cut; None if it is unchanged."""
    changes_since_cut: int = 0
    """Number of changes applied since the table's last cut."""
    changes_since_snapshot: int = 0
    """Number of changes applied since the table was last stored as a snapshot."""
    snapshot_rows: int = 0
    """Number of rows in the last stored snapshot."""
    expired_at: int = -1
    """Position up to which changes are in a cut at expiry; when a life starts, its first position."""
    next_check: int | None = None
    """Earliest stream time at which the session is checked for a due cut or expiry; None if none is scheduled."""
    log: list[tuple[int, int, int, ParsedMessage]] = field(default_factory=list)
    """Life, seq, epoch and message of all applied messages (class `once`). The table is their fold in this order."""

    def compute_expiry_time(self, timeout: int) -> int:
        """Returns the stream time after which the session is expired, in ms."""
        return (self.life.last_timestamp or 0) + timeout

    def compute_next_cut_time(self, interval: int) -> int | None:
        """Returns the stream time of the next cut at an interval; None if the table is unchanged since its last cut."""
        return None if self.changed_at is None else self.changed_at // interval * interval + interval

    def to_sessions_row(self) -> Row:
        """Returns the session's row of the table `sessions`."""
        life = self.life
        return {
            "topic": self.topic,
            "session_id": self.session_id,
            "status": life.status,
            "epoch": life.epoch,
            "next_seq": life.next_seq,
            "messages": life.messages,
            "duplicates": life.duplicates,
            "gaps": life.gaps,
            "late": life.late,
            "first_ts": life.first_ts,
            "last_ts": life.last_ts,
            "first_offset": life.first_offset,
            "last_offset": life.last_offset,
            "partition": self.partition,
            "ended_at": life.ended_at,
        }


def count_message_bytes(parsed: ParsedMessage) -> int:
    """Returns the length of the message's value in bytes."""
    return len(parsed.kafka.value or b"")


def is_seq_received(life: LifeState, seq: int) -> bool:
    """Returns True if the seq was applied, is held back, or is in an abandoned gap."""
    return seq in life.known_seqs or any(low < seq < high for low, high in life.abandoned_gaps)


def count_gaps_with(life: LifeState, seq: int) -> int:
    """Returns the number of gaps between the known seqs of a life after this seq is added to them."""
    return life.runs - is_seq_received(life, seq - 1) - is_seq_received(life, seq + 1)


def record_received_seq(life: LifeState, seq: int, max_gaps: int) -> None:
    """Adds a seq to the known seqs of a life. Its oldest gaps beyond `max_gaps` then count as filled."""
    if is_seq_received(life, seq):
        return
    life.runs = count_gaps_with(life, seq) + 1
    life.known_seqs.add(seq)
    _remove_from_open_gaps(life, seq, seq + 1)
    while life.runs - 1 > max_gaps:
        low, high = next(
            (low, high)
            for low, high in pairwise(sorted(life.known_seqs))
            if high > low + 1 and not is_seq_received(life, low + 1)
        )
        life.abandoned_gaps.append((low, high))
        life.runs -= 1
        _remove_from_open_gaps(life, low + 1, high)


def forget_received_seq(life: LifeState, seq: int) -> None:
    """Removes a seq that was held back and never applied. If it is sent again it is not a duplicate."""
    if seq in life.known_seqs:
        life.known_seqs.discard(seq)
        life.runs += is_seq_received(life, seq - 1) + is_seq_received(life, seq + 1) - 1


def _remove_from_open_gaps(life: LifeState, start: int, end: int) -> None:
    """Removes the seqs from `start` up to but not including `end` from open gaps, and gaps without missing seqs."""
    for gap in life.open_gaps:
        gap.missing -= max(0, min(end, gap.end) - max(start, gap.start))
    life.open_gaps = [gap for gap in life.open_gaps if gap.missing]


def apply_message_to_table(
    table: dict[str, Row], parsed: ParsedMessage, epoch: int, all_null: Mapping[str, Any]
) -> None:
    """Applies one message to a session's table in place: clears it for a snapshot, upserts rows, then deletes ids.

    Args:
        table: The rows by row id.
        parsed: The message.
        epoch: Epoch of the message.
        all_null: Null for each declared column.
    """
    if parsed.kind == "snapshot":
        table.clear()
    for row_id, values, rescued in parsed.rows:
        table[row_id] = {
            **(table.get(row_id) or all_null),
            **values,
            "_rescued": rescued,
            "_epoch": epoch,
            "_seq": parsed.seq,
            "_ts": parsed.ts,
            "_offset": parsed.kafka.offset,
        }
    for row_id in parsed.deleted:
        table.pop(row_id, None)


def make_change_rows(
    parsed: ParsedMessage, epoch: int, position: int, cause: ApplyCause, all_null: Mapping[str, Any]
) -> list[Row]:
    """Returns the rows of `session_changes` for one applied message.

    Args:
        parsed: The message.
        epoch: Its epoch.
        position: Its place in the order in which the session's messages were applied.
        cause: When it was applied, and which message caused this.
        all_null: Null for each declared column.
    """
    kafka = parsed.kafka
    parts: list[tuple[str, str | None, dict[str, Any], str | None]] = []
    if parsed.kind == "snapshot":
        parts.append(("clear", None, {}, None))
    parts += [("upsert", row_id, values, rescued) for row_id, values, rescued in parsed.rows]
    parts += [("delete", row_id, {}, None) for row_id in parsed.deleted]
    return [
        {
            "topic": kafka.topic,
            "session_id": parsed.session_id,
            "row_id": row_id,
            **all_null,
            **values,
            "_rescued": rescued,
            "_epoch": epoch,
            "_seq": parsed.seq,
            "_ts": parsed.ts,
            "_offset": kafka.offset,
            "change": change,
            "_set": [name for name in all_null if name in values],
            "partition": kafka.partition,
            "ordinal": ordinal,
            "kafka_timestamp": kafka.timestamp,
            "_position": position,
            "_applied_at": cause.at,
            "_applied_by": cause.by,
        }
        for ordinal, (change, row_id, values, rescued) in enumerate(parts)
    ]
