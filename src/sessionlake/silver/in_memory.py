"""Silver's tables in memory: judges messages as silver does, without Spark, files and a clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.feeds.chunks import FeedDecoder
from sessionlake.feeds.reader import KafkaRecord
from sessionlake.integrity.rules import build_decode_rules
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.protocol.arrow import HEADERS, mask_rows_of_sessions
from sessionlake.protocol.chunk import decode_ipc
from sessionlake.protocol.types import Row
from sessionlake.settings.capture import CaptureSettings
from sessionlake.silver.fold.pack import RAW_ARROW_SCHEMA, ShardMessagePacker
from sessionlake.silver.fold.schemas import ShardReport, SilverPayloadKind, StoppingViolation, decode_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.stream_times import list_stream_times_after_batch
from sessionlake.silver.tables.net_changes import compute_net_changes, compute_net_changes_in_seq_order
from sessionlake.silver.tables.rows_in_memory import SessionKey, apply_net_changes_in_memory

_RAW = RAW_ARROW_SCHEMA.append(pa.field("headers", HEADERS))


class StoppedAtViolationError(Exception):
    """A violation at which silver stops. Nothing of the messages that were judged with it is applied."""

    def __init__(self, violation: StoppingViolation) -> None:
        super().__init__(violation.event)
        self.violation = violation


@dataclass(frozen=True)
class EventAndQuarantineRows:
    """The rows that silver wrote about messages that it did not simply apply.

    Attributes:
        events: Rows of `integrity_events`.
        quarantine: Rows of `quarantine`, without the raw message.
    """

    events: list[Row]
    quarantine: list[Row]


@dataclass
class SilverInMemory:
    """Silver's tables after the messages that were judged.

    Attributes:
        capture: The settings of capture.
        decoder: Decodes the messages by the feeds of these settings.
        rows: The rows of each session's table, by row id.
        sessions: The row of each session in `sessions`.
        breaks: For each broken session, the event at which it broke.
        reasons: Number of quarantined messages by reason.
    """

    capture: CaptureSettings
    decoder: FeedDecoder
    rows: dict[SessionKey, dict[str, Row]] = field(default_factory=dict)
    sessions: dict[SessionKey, Row] = field(default_factory=dict)
    breaks: dict[SessionKey, Row] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    _times: StreamTimesAtBatchEnds = field(default_factory=StreamTimesAtBatchEnds)
    _state: bytes | None = None
    _history: list[pa.Table] = field(default_factory=list)

    def judge_and_apply_messages(self, records: Sequence[KafkaRecord]) -> EventAndQuarantineRows:
        """Judges messages, which follow those before in the order of their offsets, and applies them.

        Raises:
            ViolationError: A violation stops silver.
        """
        packer = ShardMessagePacker(build_decode_rules(self.capture), 1, self.decoder, earlier_times=self._times)
        chunks = packer.pack_message_block(_build_raw_table(records)).to_pydict()["chunk"]
        fold = SilverFold(self.capture.declared_columns, self.capture)
        state, payloads = fold(0, self._state, chunks)
        tables: dict[str, pa.Table] = {}
        reports: list[ShardReport] = []
        for kind, payload in payloads:
            if kind == SilverPayloadKind.REPORT:
                reports.append(decode_report(payload))
            else:
                found = decode_ipc(payload)
                tables[kind] = pa.concat_tables([tables[kind], found]) if kind in tables else found
        if violations := [one for report in reports for one in report.violations]:
            raise StoppedAtViolationError(violations[0])
        ends = [one for report in reports for one in report.partitions]
        self._times = self._times.add_stream_times(list_stream_times_after_batch(ends, reports))
        self._state = state or self._state
        return self._apply_fold_output(tables)

    def _apply_fold_output(self, tables: dict[str, pa.Table]) -> EventAndQuarantineRows:
        if SilverPayloadKind.CHANGES in tables:
            self._history.append(tables[SilverPayloadKind.CHANGES])
            self._apply_changes_to_rows(tables[SilverPayloadKind.CHANGES], tables[SilverPayloadKind.PROGRESS])
        events, quarantine, progress = (
            tables[kind].to_pylist() if kind in tables else []
            for kind in (SilverPayloadKind.EVENTS, SilverPayloadKind.QUARANTINE, SilverPayloadKind.PROGRESS)
        )
        for row in progress:
            self.sessions[_get_session(row)] = row
        for row in events:
            if row["action"] == "isolated":
                self.breaks[_get_session(row)] = row
        for key in [key for key in self.breaks if self.sessions.get(key, {}).get("status") not in {None, "broken"}]:
            del self.breaks[key]
        self.reasons.update(row["reason"] for row in quarantine)
        return EventAndQuarantineRows(events, quarantine)

    def _apply_changes_to_rows(self, changes: pa.Table, progress: pa.Table) -> None:
        """Applies the changes to the rows. Sessions with a late fill (class `once`) are computed from all changes."""
        columns = self.capture.declared_columns
        filled_late = progress.filter(progress["beneath"])
        usual = changes.filter(pc.invert(mask_rows_of_sessions(changes, filled_late)))
        apply_net_changes_in_memory(self.rows, compute_net_changes(usual, columns), columns)
        if filled_late.num_rows:
            history = pa.concat_tables(self._history)
            affected = history.filter(mask_rows_of_sessions(history, filled_late))
            apply_net_changes_in_memory(self.rows, compute_net_changes_in_seq_order(affected, columns), columns)


def _build_raw_table(records: Iterable[KafkaRecord]) -> pa.Table:
    rows = [
        {
            "shard": 0,
            "topic": record.topic,
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp * 1000,
            "key": record.key,
            "value": record.value,
            "headers": [{"key": name, "value": value} for name, value in record.headers.items()],
        }
        for record in records
    ]
    return pa.Table.from_pylist(rows, _RAW)


def _get_session(row: Row) -> SessionKey:
    return row["topic"], row["partition"], row["session_id"]
