"""Makes what silver's fold emits for a judged batch: rows for each table as Arrow IPC, and the shard's report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.clock import PartitionStreamTime, ShardClock
from sessionlake.integrity.cursor import NEVER, NO_TIME, SessionCursors, SessionStatus
from sessionlake.integrity.cuts import NO_OFFSET, CutReason, Cuts
from sessionlake.integrity.outcome import IntegrityEvent, IntegrityEventAction, JudgingOutcome, MessageVerdict
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.protocol.arrow import convert_to_contiguous_array, encode_values_as_codes, split_session_keys
from sessionlake.protocol.chunk import IGNORED, encode_compressed_ipc
from sessionlake.protocol.columns import Column
from sessionlake.protocol.erased import ERASED_CODE as ERASED
from sessionlake.protocol.reasons import CODES
from sessionlake.protocol.types import Bools, Int64s, Payloads
from sessionlake.silver.fold.changes import build_change_rows
from sessionlake.silver.fold.schemas import (
    CUTS_SCHEMA,
    EVENTS_SCHEMA,
    PROGRESS_SCHEMA,
    QUARANTINE_SCHEMA,
    PartitionMessageCounts,
    ShardReport,
    SilverPayloadKind,
    StoppingViolation,
    convert_ms_to_timestamps,
    encode_report,
)

_STATUS_NAMES = pa.array(["open", "ended", "expired", "broken"])
_REASON_NAMES = pa.array([None if reason is None else str(reason) for reason in CODES], pa.string())
_CUT_REASON_NAMES = pa.array([reason.name.lower() for reason in CutReason])


@dataclass(frozen=True)
class JudgedBatch:
    """One shard's judged batch: everything of which its rows and its report are made.

    Attributes:
        messages: The decoded messages: first those held back before the batch, then those of the batch.
        held_before_count: Number of messages held back before the batch, which come first in `messages`.
        arrival_times: Stream time at which each message of the batch arrived, ms.
        message_times: Kafka timestamp of each message of the batch, or stream time if it has none, ms.
        clock: The shard's clock after the batch.
        outcome: The verdict on each message, with events and cuts.
        topics: Topic of each judged session.
        partitions: Partition of each judged session.
        sessions: Id of each judged session.
        keys: Session key of every session that changed, made of topic, partition and session id.
        cursors: Cursors of the sessions in `keys`.
        timeouts: Session timeouts of the sessions in `keys`, ms.
        late_fills: For each session in `keys`, True if it had a late fill (class `once`) in this batch.
        cuts: The cuts of tables.
        cut_keys: Session key of each cut.
        silences: The stream time after each silence; empty unless this shard reports the silences.
    """

    messages: pa.Table
    held_before_count: int
    arrival_times: Int64s
    message_times: Int64s
    clock: ShardClock
    outcome: JudgingOutcome
    topics: pa.Array
    partitions: pa.Array
    sessions: pa.Array
    keys: pa.Array
    cursors: SessionCursors
    timeouts: Int64s
    late_fills: Bools
    cuts: Cuts
    cut_keys: pa.Array
    silences: list[PartitionStreamTime]

    def get_session_identity(self, session_number: int) -> tuple[str, int, str]:
        """Returns topic, partition and id of the judged session with this number."""
        topic, partition, session_id = (
            part[session_number].as_py() for part in (self.topics, self.partitions, self.sessions)
        )
        return topic, partition, session_id


def build_silver_payloads(
    judged: JudgedBatch, malformed: pa.Table, columns: tuple[Column, ...], rules: JudgingRuleLookup
) -> Payloads:
    """Returns what a shard emits for a judged batch: pairs of a kind and encoded content.

    There is a pair with the rows of each table that gets any, and one with the shard's report.

    Args:
        judged: The judged batch.
        malformed: The batch's malformed, erased and ignored messages.
        columns: The declared columns.
        rules: The rules of the topics.
    """
    out = judged.outcome
    quarantine = _build_quarantine_rows(judged, malformed)
    tables = {
        SilverPayloadKind.CHANGES: build_change_rows(
            judged.messages, np.flatnonzero(out.verdict == MessageVerdict.APPLIED), out, columns
        ),
        SilverPayloadKind.PROGRESS: _build_progress_rows(judged, rules),
        SilverPayloadKind.QUARANTINE: quarantine,
        SilverPayloadKind.EVENTS: _build_event_rows(judged, rules),
        SilverPayloadKind.CUTS: _build_cut_rows(judged, rules),
    }
    report = ShardReport(
        partitions=count_messages_by_partition(judged, malformed),
        rows={str(kind): table.num_rows for kind, table in tables.items()},
        violations=list_first_stopping_violation(judged, rules),
        quarantined=_compute_offset_ranges(quarantine),
        decided=[(*judged.get_session_identity(session), offset) for session, offset in out.followed_decisions],
        silences=judged.silences,
    )
    rows = [(str(kind), encode_compressed_ipc(table)) for kind, table in tables.items() if table.num_rows]
    return [*rows, (str(SilverPayloadKind.REPORT), encode_report(report))]


def _build_progress_rows(judged: JudgedBatch, rules: JudgingRuleLookup) -> pa.Table:
    cursors = judged.cursors
    known = cursors["messages"] > 0
    expired = cursors["marked"] == 1

    def get_cursor_column(name: str) -> Int64s:
        return np.ascontiguousarray(cursors[name])

    topics, partitions, sessions = split_session_keys(judged.keys)
    arrays = [
        topics,
        sessions,
        _STATUS_NAMES.take(pa.array(np.where(expired, np.int8(SessionStatus.EXPIRED), cursors["status"]))),
        pa.array(get_cursor_column("epoch")),
        _compute_next_seqs(get_cursor_column("last_seq"), topics, rules),
        *(
            pa.array(get_cursor_column(name))
            for name in ("messages", "duplicates", "gaps", "late", "checks", "checks_failed")
        ),
        *(pa.array(get_cursor_column(name), mask=~known) for name in ("first_ts", "last_ts")),
        *(pa.array(get_cursor_column(name)) for name in ("first_offset", "last_offset")),
        partitions,
        convert_ms_to_timestamps(np.where(expired, cursors["last_kafka_ts"] + judged.timeouts, cursors["ended_at"])),
        convert_ms_to_timestamps(get_cursor_column("last_kafka_ts")),
        pa.array(judged.late_fills),
    ]
    return pa.Table.from_arrays(arrays, schema=PROGRESS_SCHEMA)


def _build_cut_rows(judged: JudgedBatch, rules: JudgingRuleLookup) -> pa.Table:
    def get_cut_column(name: str) -> Int64s:
        return np.ascontiguousarray(judged.cuts[name])

    changed_at, (topics, partitions, sessions) = get_cut_column("changed_at"), split_session_keys(judged.cut_keys)
    arrays = [
        topics,
        sessions,
        partitions,
        convert_ms_to_timestamps(get_cut_column("at")),
        _CUT_REASON_NAMES.take(pa.array(get_cut_column("reason"))),
        convert_ms_to_timestamps(np.where(changed_at == NEVER, NO_TIME, changed_at)),
        pa.array(get_cut_column("position")),
        pa.array(get_cut_column("life")),
        _compute_next_seqs(get_cut_column("last_seq"), topics, rules),
        pa.array(get_cut_column("offset"), mask=get_cut_column("offset") == NO_OFFSET),
        pa.array(get_cut_column("changes")),
    ]
    return pa.Table.from_arrays(arrays, schema=CUTS_SCHEMA)


def _compute_next_seqs(last_seqs: Int64s, topics: pa.Array, rules: JudgingRuleLookup) -> pa.Array:
    """Returns the next seq of each session: one more than its last, but at most the highest int64.

    It is null if no message was applied, and for feeds whose next seq is not known in advance.
    """
    code, names = encode_values_as_codes(topics)
    without = np.array([not rules.find_judging_rules(name).knows_next_seq for name in names.to_pylist()], np.bool_)
    unknown = (last_seqs < 0) | (without[code] if len(without) else False)
    return pa.array(np.where(last_seqs == np.iinfo(np.int64).max, last_seqs, last_seqs + 1), mask=unknown)


def _build_quarantine_rows(judged: JudgedBatch, malformed: pa.Table) -> pa.Table:
    """Returns rows for the quarantine without the raw messages, which the driver adds from bronze."""
    out = judged.outcome
    places = np.flatnonzero(out.verdict == MessageVerdict.QUARANTINED)
    parts = [_convert_to_quarantine_rows(judged.messages.take(pa.array(places)), pa.array(out.reason[places]))]
    malformed = malformed.filter(pc.greater(malformed["reason"], 0))
    if malformed.num_rows:
        parts.append(_convert_to_quarantine_rows(malformed, convert_to_contiguous_array(malformed["reason"])))
    return pa.concat_tables(parts)


def _convert_to_quarantine_rows(messages: pa.Table, reason_codes: pa.Array) -> pa.Table:
    """Returns rows for the quarantine, with the name of the reason in place of its code."""
    columns = [
        messages["topic"],
        messages["partition"],
        messages["offset"],
        convert_ms_to_timestamps(messages["kafka_ts"].to_numpy()),
        messages["session_id"],
        _REASON_NAMES.take(reason_codes),
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE_SCHEMA)


def _compute_offset_ranges(quarantine_rows: pa.Table) -> list[tuple[str, int, int, int]]:
    """Returns topic, partition, lowest and highest offset of each topic-partition with quarantined messages."""
    grouped = quarantine_rows.group_by(["topic", "partition"], use_threads=False)
    ranges = grouped.aggregate([("offset", "min"), ("offset", "max")])
    return [tuple(row.values()) for row in ranges.to_pylist()]


def _build_event_rows(judged: JudgedBatch, rules: JudgingRuleLookup) -> pa.Table:
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
        pa.array([str(rules.find_judging_rules(topic).integrity) for topic in topics.to_pylist()], pa.string()),
        pa.array([event.expected for event in events], pa.int64()),
        pa.array([event.actual for event in events], pa.int64()),
        convert_ms_to_timestamps(np.array([event.kafka_ts for event in events], np.int64)),
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS_SCHEMA)


def list_first_stopping_violation(judged: JudgedBatch, rules: JudgingRuleLookup) -> list[StoppingViolation]:
    """Returns a list with the shard's first violation of `on_violation: fail`; an empty list if there is none.

    The first is the one with the lowest topic, partition and offset. So the first violation of all shards together does
    not depend on the number of shards.
    """

    def convert_event_to_violation(event: IntegrityEvent) -> StoppingViolation:
        topic, partition, session = judged.get_session_identity(event.session)
        return StoppingViolation(
            topic=topic,
            partition=partition,
            offset=event.offset,
            session_id=session,
            integrity=str(rules.find_judging_rules(topic).integrity),
            event=str(event.kind),
            expected_seq=event.expected,
            actual_seq=event.actual,
        )

    found = [
        convert_event_to_violation(event)
        for event in judged.outcome.events
        if event.action is IntegrityEventAction.STOPPED
    ]
    return sorted(found, key=lambda v: (v.topic, v.partition, v.offset))[:1]


_COUNT_FIELDS = ("applied", "duplicates", "quarantined", "held", "erased", "ignored")


def count_messages_by_partition(judged: JudgedBatch, malformed: pa.Table) -> list[PartitionMessageCounts]:
    """Returns the counts of the batch's messages by topic-partition and verdict.

    The count `held` is the number of newly held messages minus that of released ones.
    """
    names = ["topic", "partition", "offset", "part"]
    rows = judged.messages.select(names).append_column("verdict", pa.array(judged.outcome.verdict))
    released, arrived = rows.slice(0, judged.held_before_count), rows.slice(judged.held_before_count)
    if malformed.num_rows:
        reasons = malformed["reason"].to_numpy()
        codes = [_COUNT_FIELDS.index("erased"), _COUNT_FIELDS.index("ignored")]
        found = np.select([reasons == ERASED, reasons == IGNORED], codes, default=MessageVerdict.QUARANTINED)
        wrong = pa.array(found.astype(np.int8))
        arrived = pa.concat_tables([arrived, malformed.select(names).append_column("verdict", wrong)])
    counts: dict[tuple[str, int], PartitionMessageCounts] = {}
    for row in _count_by_verdict(arrived):
        place = row["topic"], row["partition"]
        count = counts.setdefault(place, PartitionMessageCounts(*place, row["offset_min"], row["offset_max"], 0))
        clock = judged.clock
        count.previous_offset, count.stream_time = (
            clock.previous_offsets[place],
            clock.partition_times[clock.find_partition_index(place)].time,
        )
        count.first_offset, count.last_offset = (
            min(count.first_offset, row["offset_min"]),
            max(count.last_offset, row["offset_max"]),
        )
        count.parts += row["offset_count"]
        count.messages += row["is_first_sum"]
        _add_to_counts(count, row["verdict"], row["offset_count"])
    for row in _count_by_verdict(released.filter(pc.not_equal(released["verdict"], MessageVerdict.HELD))):
        place = row["topic"], row["partition"]
        count = counts.setdefault(place, PartitionMessageCounts(*place, -1, -1, 0))
        _add_to_counts(count, row["verdict"], row["offset_count"])
        _add_to_counts(count, MessageVerdict.HELD, -row["offset_count"])
    return list(counts.values())


def _count_by_verdict(rows: pa.Table) -> list[dict[str, Any]]:
    """Returns a dict per topic-partition and verdict: lowest and highest offset, and numbers of parts and messages."""
    rows = rows.append_column("is_first", pc.equal(rows["part"], 0).cast(pa.int64()))
    aggregates = [("offset", "min"), ("offset", "max"), ("offset", "count"), ("is_first", "sum")]
    grouped = rows.group_by(["topic", "partition", "verdict"], use_threads=False)  # threads cost more than they save
    found: list[dict[str, Any]] = grouped.aggregate(aggregates).to_pylist()
    return found


def _add_to_counts(counts: PartitionMessageCounts, verdict: int, message_count: int) -> None:
    name = _COUNT_FIELDS[verdict]
    setattr(counts, name, getattr(counts, name) + message_count)
