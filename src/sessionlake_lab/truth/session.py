"""What is remembered of a session: the cursor of its present life, and its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from sessionlake_lab.truth.model import Row
from sessionlake_lab.truth.reading import ParsedMessage

OPEN, ENDED, EXPIRED, BROKEN = "open", "ended", "expired", "broken"


class Cause(NamedTuple):
    """What leads to the application of a message."""

    releasing: int
    """Offset from which its position is counted."""
    at: int
    """Stream time."""
    by: int | None
    """Offset of the message that came; None if the session expired."""


@dataclass(slots=True, eq=False)
class Hole:
    """Missing seqs `start` up to but without `end`, first seen at `revealed` (class `once`)."""

    start: int
    end: int
    revealed: ParsedMessage
    missing: int
    opened: int
    """The time from which its deadline counts."""


@dataclass(slots=True, eq=False)
class Life:
    """The cursor: everything that starts anew when a session comes back after its timeout."""

    status: str = OPEN
    epoch: int = -1
    epoch_seq: int | None = None
    next_seq: int | None = None
    """One past the highest applied seq; None until one was applied."""
    messages: int = 0
    duplicates: int = 0
    gaps: int = 0
    late: int = 0
    first_ts: int | None = None
    last_ts: int | None = None
    first_offset: int = -1
    last_offset: int = -1
    last_timestamp: int | None = None
    """Own time of the previous well-formed message."""
    ended_at: int | None = None
    end_seq: int | None = None
    """Place of the end in seq order."""
    taken: set[int] = field(default_factory=set)
    """Seqs applied or held back (classes `once` and `window`)."""
    runs: int = 0
    """Into how many stretches without a gap they fall."""
    given_up: list[tuple[int, int]] = field(default_factory=list)
    """Gaps that count as filled: the taken seqs at their two ends."""
    epochs: dict[int, int] = field(default_factory=dict)
    """Seq to offset of every applied snapshot (class `once`)."""
    holes: list[Hole] = field(default_factory=list)
    held: list[ParsedMessage] = field(default_factory=list)
    highest_ts: int | None = None


@dataclass(slots=True, eq=False)
class Session:
    """A session with the table that outlives its lives."""

    topic: str
    session_id: str
    partition: int
    life: Life = field(default_factory=Life)
    lives: int = 1
    rows: dict[str, Row] = field(default_factory=dict)
    position: int = -1
    """The last `_position` given out."""
    changed_at: int | None = None
    """Stream time of the first change of its table since its last cut."""
    fresh: int = 0
    """Changes applied since its table was cut last."""
    unkept: int = 0
    """Changes applied since its table was kept last."""
    kept: int = 0
    """How many rows its table had when it was kept last."""
    expired_at: int = -1
    """Position up to which a cut at expiry has seen it; at the beginning of a life, where that begins."""
    wake: int | None = None
    """The earliest stream time that is set for looking after it."""
    log: list[tuple[int, int, int, ParsedMessage]] = field(default_factory=list)
    """(life, seq, epoch, message) of all that was applied (class `once`): its table is their fold in this order."""

    def expiry(self, timeout: int) -> int:
        """Stream time past which it has expired, once it has a message."""
        return (self.life.last_timestamp or 0) + timeout

    def cut_due(self, interval: int) -> int | None:
        """Stream time at which its table is to be cut; None while it is as it was at its last cut."""
        return None if self.changed_at is None else self.changed_at // interval * interval + interval

    def as_row(self) -> Row:
        """The session's row of the table `sessions`."""
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


def is_taken(life: Life, seq: int) -> bool:
    """Whether the seq was applied, is held back, or lies in a gap that was given up."""
    return seq in life.taken or any(low < seq < high for low, high in life.given_up)


def gaps_with(life: Life, seq: int) -> int:
    """How many gaps there would be between taken seqs, were this one taken too."""
    return life.runs - is_taken(life, seq - 1) - is_taken(life, seq + 1)


def take(life: Life, seq: int, max_gaps: int) -> None:
    """Notes a seq as applied or held back; the oldest gaps beyond the limit count as filled from then on."""
    if is_taken(life, seq):
        return
    life.runs = gaps_with(life, seq) + 1
    life.taken.add(seq)
    _fill(life, seq, seq + 1)
    while life.runs - 1 > max_gaps:
        low, high = next(
            (low, high) for low, high in pairwise(sorted(life.taken)) if high > low + 1 and not is_taken(life, low + 1)
        )
        life.given_up.append((low, high))
        life.runs -= 1
        _fill(life, low + 1, high)


def leave(life: Life, seq: int) -> None:
    """Forgets a seq that was held back and never applied: sent again it is no duplicate."""
    if seq in life.taken:
        life.taken.discard(seq)
        life.runs += is_taken(life, seq - 1) + is_taken(life, seq + 1) - 1


def _fill(life: Life, start: int, end: int) -> None:
    for hole in life.holes:
        hole.missing -= max(0, min(end, hole.end) - max(start, hole.start))
    life.holes = [hole for hole in life.holes if hole.missing]


def fold(table: dict[str, Row], said: ParsedMessage, epoch: int, all_null: Mapping[str, Any]) -> None:
    """Applies one message to a session's table, in place: a snapshot clears, rows upsert, then ids are deleted."""
    if said.kind == "snapshot":
        table.clear()
    for row_id, values, rescued in said.rows:
        table[row_id] = {
            **(table.get(row_id) or all_null),
            **values,
            "_rescued": rescued,
            "_epoch": epoch,
            "_seq": said.seq,
            "_ts": said.ts,
            "_offset": said.kafka.offset,
        }
    for row_id in said.deleted:
        table.pop(row_id, None)


def changes(said: ParsedMessage, epoch: int, position: int, cause: Cause, all_null: Mapping[str, Any]) -> list[Row]:
    """The rows of `session_changes` that one applied message makes."""
    kafka = said.kafka
    parts: list[tuple[str, str | None, dict[str, Any], str | None]] = []
    if said.kind == "snapshot":
        parts.append(("clear", None, {}, None))
    parts += [("upsert", row_id, values, rescued) for row_id, values, rescued in said.rows]
    parts += [("delete", row_id, {}, None) for row_id in said.deleted]
    return [
        {
            "topic": kafka.topic,
            "session_id": said.session_id,
            "row_id": row_id,
            **all_null,
            **values,
            "_rescued": rescued,
            "_epoch": epoch,
            "_seq": said.seq,
            "_ts": said.ts,
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
