"""Makes what silver's fold emits for a judged batch: rows for each table as Arrow IPC, and the shard's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.clock import Clock, LaneTime
from sessionlake.integrity.cursor import NEVER, NO_TIME, Cursors, Status
from sessionlake.integrity.cuts import NO_OFFSET, CutReason, Cuts
from sessionlake.integrity.outcome import Action, Event, Outcome, Verdict
from sessionlake.integrity.rules import RuleBook
from sessionlake.protocol.arrow import contiguous, split_session_keys
from sessionlake.protocol.chunk import IGNORED, write_compressed
from sessionlake.protocol.columns import Column
from sessionlake.protocol.erased import CODE as ERASED
from sessionlake.protocol.reasons import CODES
from sessionlake.protocol.types import Bools, Int64s, Payloads
from sessionlake.silver.fold.changes import change_rows
from sessionlake.silver.fold.schemas import (
    CUTS_SCHEMA,
    EVENTS_SCHEMA,
    PROGRESS_SCHEMA,
    QUARANTINE_SCHEMA,
    PartitionCounts,
    ShardReport,
    SilverOutput,
    Violation,
    timestamps,
    write_report,
)

_STATUS = pa.array(["open", "ended", "expired", "broken"])
_REASONS = pa.array([None if reason is None else str(reason) for reason in CODES], pa.string())
_CUT_REASONS = pa.array([reason.name.lower() for reason in CutReason])


@dataclass(frozen=True)
class Judged:
    """One shard's judged batch: everything from which its rows and its report are made.

    Attributes:
        messages: The decoded messages: first those held back before the batch, then those of the batch.
        released: Number of messages held back before the batch, which come first in `messages`.
        arrived_at: Stream time at which each message of the batch arrived, ms.
        times: Kafka timestamp of each message of the batch, or stream time if it has none, ms.
        clock: The shard's clock after the batch.
        outcome: The verdict on each message, with events and cuts.
        topics: Topic of each judged session.
        partitions: Partition of each judged session.
        sessions: Id of each judged session.
        keys: Key of every session that changed, made by `protocol.arrow.session_key`.
        cursors: Cursors of the sessions in `keys`.
        timeouts: Session timeouts of the sessions in `keys`, ms.
        late_fills: For each session in `keys`, True if it had a late fill (class `once`) in this batch.
        cuts: The cuts of tables.
        cut_keys: Session key of each cut.
        silences: Stream time after each silence, by topic-partition; empty unless this shard reports the silences.
    """

    messages: pa.Table
    released: int
    arrived_at: Int64s
    times: Int64s
    clock: Clock
    outcome: Outcome
    topics: pa.Array
    partitions: pa.Array
    sessions: pa.Array
    keys: pa.Array
    cursors: Cursors
    timeouts: Int64s
    late_fills: Bools
    cuts: Cuts
    cut_keys: pa.Array
    silences: list[LaneTime]

    def name(self, session: int) -> tuple[str, int, str]:
        """Returns topic, partition and id of the judged session with this number."""
        topic, partition, own = (part[session].as_py() for part in (self.topics, self.partitions, self.sessions))
        return topic, partition, own


def silver_payloads(judged: Judged, malformed: pa.Table, columns: tuple[Column, ...], rules: RuleBook) -> Payloads:
    """Returns pairs of kind and payload to emit: rows for each table that gets any, and the report."""
    out = judged.outcome
    quarantine = _quarantine(judged, malformed)
    tables = {
        SilverOutput.CHANGES: change_rows(
            judged.messages, np.flatnonzero(out.verdict == Verdict.APPLIED), out, columns
        ),
        SilverOutput.PROGRESS: _progress(judged),
        SilverOutput.QUARANTINE: quarantine,
        SilverOutput.EVENTS: _events(judged, rules),
        SilverOutput.CUTS: _cuts(judged),
    }
    report = ShardReport(
        partitions=partition_counts(judged, malformed),
        rows={str(kind): table.num_rows for kind, table in tables.items()},
        violations=first_violations(judged, rules),
        quarantined=_offset_ranges(quarantine),
        decided=[(*judged.name(session), offset) for session, offset in out.decided],
        silences=judged.silences,
    )
    rows = [(str(kind), write_compressed(table)) for kind, table in tables.items() if table.num_rows]
    return [*rows, (str(SilverOutput.REPORT), write_report(report))]


def _progress(judged: Judged) -> pa.Table:
    cursors = judged.cursors
    known = cursors["messages"] > 0
    expired = cursors["marked"] == 1

    def field(name: str) -> Int64s:
        return np.ascontiguousarray(cursors[name])

    topics, partitions, sessions = split_session_keys(judged.keys)
    arrays = [
        topics,
        sessions,
        _STATUS.take(pa.array(np.where(expired, np.int8(Status.EXPIRED), cursors["status"]))),
        pa.array(field("epoch")),
        _following(field("last_seq")),
        *(pa.array(field(name)) for name in ("messages", "duplicates", "gaps", "late")),
        *(pa.array(field(name), mask=~known) for name in ("first_ts", "last_ts")),
        *(pa.array(field(name)) for name in ("first_offset", "last_offset")),
        partitions,
        timestamps(np.where(expired, cursors["last_kafka_ts"] + judged.timeouts, cursors["ended_at"])),
        timestamps(field("last_kafka_ts")),
        pa.array(judged.late_fills),
    ]
    return pa.Table.from_arrays(arrays, schema=PROGRESS_SCHEMA)


def _cuts(judged: Judged) -> pa.Table:
    def field(name: str) -> Int64s:
        return np.ascontiguousarray(judged.cuts[name])

    topics, partitions, sessions = split_session_keys(judged.cut_keys)
    arrays = [
        topics,
        sessions,
        partitions,
        timestamps(field("at")),
        _CUT_REASONS.take(pa.array(field("reason"))),
        timestamps(np.where(field("changed_at") == NEVER, NO_TIME, field("changed_at"))),
        pa.array(field("position")),
        pa.array(field("life")),
        _following(field("last_seq")),
        pa.array(field("offset"), mask=field("offset") == NO_OFFSET),
        pa.array(field("changes")),
    ]
    return pa.Table.from_arrays(arrays, schema=CUTS_SCHEMA)


def _following(last: Int64s) -> pa.Array:
    """Returns the seq after each highest applied one, but not above the highest int64; null if none was applied."""
    return pa.array(np.where(last == np.iinfo(np.int64).max, last, last + 1), mask=last < 0)


def _quarantine(judged: Judged, malformed: pa.Table) -> pa.Table:
    """Returns rows for the quarantine without the raw messages, which the driver adds from bronze."""
    out = judged.outcome
    places = np.flatnonzero(out.verdict == Verdict.QUARANTINED)
    parts = [_quarantine_rows(judged.messages.take(pa.array(places)), pa.array(out.reason[places]))]
    malformed = malformed.filter(pc.greater(malformed["reason"], 0))
    if malformed.num_rows:
        parts.append(_quarantine_rows(malformed, contiguous(malformed["reason"])))
    return pa.concat_tables(parts)


def _quarantine_rows(messages: pa.Table, reasons: pa.Array) -> pa.Table:
    columns = [
        messages["topic"],
        messages["partition"],
        messages["offset"],
        timestamps(messages["kafka_ts"].to_numpy()),
        messages["session_id"],
        _REASONS.take(reasons),
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)


def _offset_ranges(quarantine: pa.Table) -> list[tuple[str, int, int, int]]:
    grouped = quarantine.group_by(["topic", "partition"], use_threads=False)
    ranges = grouped.aggregate([("offset", "min"), ("offset", "max")])
    return [tuple(row.values()) for row in ranges.to_pylist()]


def _events(judged: Judged, rules: RuleBook) -> pa.Table:
    events = judged.outcome.events
    owner = pa.array([event.session for event in events], pa.int64())
    topics = judged.topics.take(owner)
    columns = [
        topics,
        pa.array([event.partition for event in events], pa.int32()),
        judged.sessions.take(owner),
        pa.array([event.offset for event in events], pa.int64()),
        pa.array([str(event.kind) for event in events], pa.string()),
        pa.array([str(event.action) for event in events], pa.string()),
        pa.array([str(rules.of(topic).integrity) for topic in topics.to_pylist()], pa.string()),
        pa.array([event.expected for event in events], pa.int64()),
        pa.array([event.actual for event in events], pa.int64()),
        timestamps(np.array([event.kafka_ts for event in events], np.int64)),
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS_SCHEMA)


def first_violations(judged: Judged, rules: RuleBook) -> list[Violation]:
    """Returns a list with the shard's first violation under `fail`, by topic, partition and offset; empty without one.

    The order makes the first violation of all shards independent of the number of shards.
    """

    def violation_of(event: Event) -> Violation:
        topic, partition, session = judged.name(event.session)
        return Violation(
            topic=topic,
            partition=partition,
            offset=event.offset,
            session_id=session,
            integrity=str(rules.of(topic).integrity),
            event=str(event.kind),
            expected_seq=event.expected,
            actual_seq=event.actual,
        )

    found = [violation_of(event) for event in judged.outcome.events if event.action is Action.STOPPED]
    return sorted(found, key=lambda v: (v.topic, v.partition, v.offset))[:1]


_COUNTED = ("applied", "duplicates", "quarantined", "held", "erased", "ignored")


def partition_counts(judged: Judged, malformed: pa.Table) -> list[PartitionCounts]:
    """Returns counts of messages by topic-partition. `held` counts newly held messages minus released ones."""
    names = ["topic", "partition", "offset", "part"]
    rows = judged.messages.select(names).append_column("verdict", pa.array(judged.outcome.verdict))
    released, arrived = rows.slice(0, judged.released), rows.slice(judged.released)
    if malformed.num_rows:
        reasons = malformed["reason"].to_numpy()
        codes = [_COUNTED.index("erased"), _COUNTED.index("ignored")]
        found = np.select([reasons == ERASED, reasons == IGNORED], codes, default=Verdict.QUARANTINED)
        wrong = pa.array(found.astype(np.int8))
        arrived = pa.concat_tables([arrived, malformed.select(names).append_column("verdict", wrong)])
    counts: dict[tuple[str, int], PartitionCounts] = {}
    for row in _grouped(arrived):
        place = row["topic"], row["partition"]
        count = counts.setdefault(place, PartitionCounts(*place, row["offset_min"], row["offset_max"], 0))
        clock = judged.clock
        count.since, count.stream_time = clock.since[place], clock.lanes[clock.index(place)].time
        count.first, count.last = min(count.first, row["offset_min"]), max(count.last, row["offset_max"])
        count.parts += row["offset_count"]
        count.messages += row["is_first_sum"]
        _add(count, row["verdict"], row["offset_count"])
    for row in _grouped(released.filter(pc.not_equal(released["verdict"], Verdict.HELD))):
        place = row["topic"], row["partition"]
        count = counts.setdefault(place, PartitionCounts(*place, -1, -1, 0))
        _add(count, row["verdict"], row["offset_count"])
        _add(count, Verdict.HELD, -row["offset_count"])
    return list(counts.values())


def _grouped(rows: pa.Table) -> list[dict[str, Any]]:
    rows = rows.append_column("is_first", pc.equal(rows["part"], 0).cast(pa.int64()))
    aggregates = [("offset", "min"), ("offset", "max"), ("offset", "count"), ("is_first", "sum")]
    grouped = rows.group_by(["topic", "partition", "verdict"], use_threads=False)  # threads cost more than they save
    found: list[dict[str, Any]] = grouped.aggregate(aggregates).to_pylist()
    return found


def _add(counts: PartitionCounts, verdict: int, messages: int) -> None:
    name = _COUNTED[verdict]
    setattr(counts, name, getattr(counts, name) + messages)
