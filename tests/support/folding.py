"""Runs silver without Spark, with the code that Spark calls, and compares the result with the ground truth."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.integrity.rules import DecisionKey, JudgingRuleLookup, OperatorDecision, build_decode_rules
from sessionlake.integrity.state import ShardState
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.operations.resharding.judging import SessionStateResharder
from sessionlake.protocol.arrow import HEADERS, SESSION, SESSION_COLUMN_TYPES, mask_rows_of_sessions
from sessionlake.protocol.chunk import decode_ipc
from sessionlake.protocol.names import DELETE, WRITTEN
from sessionlake.protocol.silence import Silence, encode_silences
from sessionlake.protocol.xxhash64 import compute_spark_xxhash64
from sessionlake.settings.model import CaptureSettings
from sessionlake.settings.section import convert_duration_to_ms
from sessionlake.silver.fold.pack import RAW_ARROW_SCHEMA, ShardMessagePacker
from sessionlake.silver.fold.schemas import ShardReport, SilverPayloadKind, StoppingViolation, decode_report
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import sum_partition_counts
from sessionlake.silver.stream_times import list_stream_times_after_batch, require_continued_stream_times
from sessionlake.silver.tables.net_changes import compute_net_changes, compute_net_changes_in_seq_order
from sessionlake.silver.tables.snapshots import ROW_KEY
from sessionlake.silver.tables.splits import build_split_events, find_split_sessions
from sessionlake.streaming.payloads import build_feed_decoder
from sessionlake_lab.truth import CaptureRules, ExpectedTables, GroundTruth, KafkaMessage
from support.streams import YEAR_10000, Fact

INT64_MAX = 2**63 - 1
INTERVAL = 600_000
Row = dict[str, Any]
SessionKey = tuple[str, int, str]


class ViolationError(Exception):
    """A violation that stops silver, so the batch must not be committed."""

    def __init__(self, violation: StoppingViolation) -> None:
        super().__init__(violation.event)
        self.violation = violation


@dataclass
class Silver:
    """Content of silver's tables as plain rows. `rows` results from the net changes of each batch."""

    changes: list[Row] = field(default_factory=list)
    sessions: dict[SessionKey, Row] = field(default_factory=dict)
    cuts: list[Row] = field(default_factory=list)
    quarantine: list[Row] = field(default_factory=list)
    events: list[Row] = field(default_factory=list)
    counts: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)
    rows: dict[SessionKey, dict[str, Row]] = field(default_factory=dict)


def raw_table(facts: Iterable[Fact], shards: int) -> pa.Table:
    """Returns messages and silences in the form that `ShardMessagePacker` reads."""
    rows = [
        (0, None, None, None, None, None, encode_silences([m]), None)
        if isinstance(m, Silence)
        else (_shard(m, shards), m.topic, m.partition, m.offset, m.timestamp * 1000, m.key, m.value, read_at(m))
        for m in facts
    ]
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(RAW_ARROW_SCHEMA)
    return pa.table(
        [pa.array(c, f.type) for c, f in zip(columns, RAW_ARROW_SCHEMA, strict=True)], schema=RAW_ARROW_SCHEMA
    )


def read_at(message: KafkaMessage) -> int | None:
    """Returns when bronze read a message, in microseconds. Like a real time, it is between two milliseconds."""
    return None if message.ingested_at is None else message.ingested_at * 1000 + 999


def _shard(message: KafkaMessage, shards: int) -> int:
    return shard_of(message.topic, message.key, shards)


def shard_of(topic: str, rest: bytes | None, shards: int) -> int:
    """Returns the shard of a session or other key of a topic, by another hash than Spark's."""
    return zlib.crc32(topic.encode() + (rest or b"")) % shards


def spark_shard_of(topic: str, rest: bytes | None, shards: int) -> int:
    """Returns the shard of a session by Spark's hash, as feeds compute it."""
    columns = [[topic.encode()], *([] if rest is None else [[rest]])]
    return int(compute_spark_xxhash64(*columns)[0] % shards)


def resharded(
    resharder: Any, states: Mapping[int, bytes | None], shard_of: Callable[[str, bytes | None, int], int] = shard_of
) -> dict[int, bytes]:
    """Returns resharded states, as `streaming.resharded` computes them, but without Spark."""
    shards, parts = resharder.shards, {}
    for shard, state in states.items():
        targets = [shard_of(*name, shards) for name in resharder.list_sessions(shard, state)]
        for target, part in resharder.split_state(shard, state, targets).items():
            parts.setdefault(target, []).append(part)
    assert {*parts} <= {*range(shards)}
    return {shard: resharder.join_states(parts.get(shard, [])) for shard in range(shards)}


class Folder:
    """Runs micro-batches through pack, fold and net changes, with states as the bytes that Spark would store."""

    def __init__(
        self,
        capture: CaptureSettings,
        shards: int,
        rnd: random.Random,
        *,
        bulk: bool = True,
        decisions: dict[DecisionKey, OperatorDecision] | None = None,
        interval: int = INTERVAL,
        headers: Mapping[str, bytes] | None = None,
    ) -> None:
        columns = capture.declared_columns
        self._headers = [{"key": name, "value": value} for name, value in (headers or {}).items()]
        self._capture, self._columns, self._shards, self._rnd = capture, columns, shards, rnd
        self._decode, self._times = build_decode_rules(capture), StreamTimesAtBatchEnds()
        decided = {} if decisions is None else decisions
        self._fold = SilverFold(columns, capture, decided, is_vectorized=bulk, snapshot_interval=interval)
        self.stored: dict[int, bytes | None] = {}
        """State of each shard, as the bytes that Spark would store."""
        self.ends: dict[tuple[str, int], int] = {}
        """Last offset of each topic-partition."""
        self._history: list[pa.Table] = []
        self.parts: list[dict[str, pa.Table]] = []
        """Output rows of each batch, by kind."""
        self.silver = Silver()
        self._split = pa.schema([*zip(SESSION, SESSION_COLUMN_TYPES, strict=True)]).empty_table()

    def batch(self, messages: Sequence[Fact]) -> None:
        """Runs one micro-batch, split over tasks at random.

        Raises:
            ViolationError: A violation stops the batch. It has the first violation, and nothing is stored.
        """
        states, payloads = dict(self.stored), []
        for shard, chunks in self._chunks(messages).items():
            self._rnd.shuffle(chunks)
            after, out = self._fold(shard, states.get(shard), chunks)
            states[shard] = after or states.get(shard)
            payloads += out
        reports = [decode_report(payload) for kind, payload in payloads if kind == SilverPayloadKind.REPORT]
        violations = [violation for report in reports for violation in report.violations]
        ends = sum_partition_counts(reports)
        require_continued_stream_times("silver", ends, self.ends)
        self._times = self._times.add_stream_times(
            list_stream_times_after_batch(ends, reports)
        )  # before the batch is committed, as in silver
        if violations:
            raise ViolationError(min(violations, key=lambda v: (v.topic, v.partition, v.offset)))
        self.stored = states
        self.ends |= {(part.topic, part.partition): part.last_offset for part in ends if part.messages}
        self._keep(payloads, reports)

    def use_rules(self, rules: JudgingRuleLookup) -> None:
        """Judges the next batches by other rules than those of the capture settings."""
        self._fold = replace(self._fold, _rules=rules)

    def reshard(self, shards: int) -> None:
        """Changes the number of shards."""
        resharder = SessionStateResharder(JudgingRuleLookup(self._capture), shards)
        self.stored = dict(resharded(resharder, self.stored, spark_shard_of if self._capture.feeds else shard_of))
        self._shards = shards

    def states(self) -> dict[int, ShardState]:
        """Returns the state of each shard."""
        return {
            shard: ShardState.decode_shard_state(self.stored.get(shard), self._columns) for shard in range(self._shards)
        }

    def table(self, kind: SilverPayloadKind, schema: pa.Schema) -> pa.Table:
        """Returns all output rows of a kind, with the number of their batch."""
        with_batch = schema.append(pa.field("_batch", pa.int64()))
        found = [
            part[kind].append_column("_batch", pa.array([number] * part[kind].num_rows, pa.int64()))
            for number, part in enumerate(self.parts)
            if kind in part
        ]
        return pa.concat_tables([with_batch.empty_table(), *found]).combine_chunks()

    def _chunks(self, messages: Sequence[Fact]) -> dict[int, list[bytes]]:
        tasks: list[list[Fact]] = [[] for _ in range(self._rnd.randint(1, 3))]
        for message in messages:
            self._rnd.choice(tasks).append(message)
        chunks: dict[int, list[bytes]] = {}
        feeds = build_feed_decoder(self._capture, self._shards)
        packer = ShardMessagePacker(self._decode, self._shards, feeds, earlier_times=self._times)
        for task in filter(None, tasks):
            raw = raw_table(task, self._shards)
            if self._headers:
                raw = raw.append_column("headers", pa.array([self._headers] * raw.num_rows, HEADERS))
            packed = packer.pack_message_block(raw).to_pydict()
            for shard, chunk in zip(packed["shard"], packed["chunk"], strict=True):
                chunks.setdefault(shard, []).append(chunk)
        return chunks

    def _keep(self, payloads: list[tuple[str, bytes]], reports: list[ShardReport]) -> None:
        tables = {kind: pa.concat_tables(found) for kind, found in _by_kind(payloads).items()}
        reported = {
            kind: sum(report.rows.get(kind, 0) for report in reports)
            for kind in SilverPayloadKind
            if kind != SilverPayloadKind.REPORT
        }
        assert {kind: tables[kind].num_rows if kind in tables else 0 for kind in reported} == reported
        self.parts.append(tables)
        silver = self.silver
        if SilverPayloadKind.CHANGES in tables:
            silver.changes += plain(tables[SilverPayloadKind.CHANGES])
            self._history.append(tables[SilverPayloadKind.CHANGES])
            self._merge(tables[SilverPayloadKind.CHANGES], tables[SilverPayloadKind.PROGRESS])
        for row in plain(tables[SilverPayloadKind.PROGRESS]) if SilverPayloadKind.PROGRESS in tables else ():
            del row["beneath"]
            silver.sessions[row["topic"], row["partition"], row["session_id"]] = row
        silver.cuts += plain(tables[SilverPayloadKind.CUTS]) if SilverPayloadKind.CUTS in tables else []
        silver.quarantine += (
            plain(tables[SilverPayloadKind.QUARANTINE]) if SilverPayloadKind.QUARANTINE in tables else []
        )
        silver.events += plain(tables[SilverPayloadKind.EVENTS]) if SilverPayloadKind.EVENTS in tables else []
        self._record_splits()
        for part in (part for report in reports for part in report.partitions):
            counts = silver.counts.setdefault((part.topic, part.partition), dict.fromkeys(_COUNTS, 0))
            for name in _COUNTS:
                counts[name] += getattr(part, name)

    def _record_splits(self) -> None:
        """Adds the split-session events that the table merger writes."""
        if self.silver.sessions:
            columns = zip(zip(*self.silver.sessions, strict=True), SESSION_COLUMN_TYPES, strict=True)
            sessions = pa.table([pa.array(values, kind) for values, kind in columns], names=SESSION)
            events = build_split_events(find_split_sessions(sessions), self._split, JudgingRuleLookup(self._capture))
            self._split = pa.concat_tables([self._split, events.select(SESSION)])
            self.silver.events += plain(events)

    def _merge(self, changes: pa.Table, progress: pa.Table) -> None:
        filled_late = progress.filter(progress["beneath"])
        usual = changes.filter(pc.invert(mask_rows_of_sessions(changes, filled_late)))
        apply_net(self.silver.rows, compute_net_changes(usual, self._columns), self._columns)
        history = pa.concat_tables(self._history)
        affected = history.filter(mask_rows_of_sessions(history, filled_late))
        apply_net(self.silver.rows, compute_net_changes_in_seq_order(affected, self._columns), self._columns)


_YEAR_ONE = -62_135_596_800_000
"""Earliest time that a SQL timestamp can have."""
_COUNTS = ("messages", *COUNTS)


def _by_kind(payloads: list[tuple[str, bytes]]) -> dict[str, list[pa.Table]]:
    found: dict[str, list[pa.Table]] = {}
    for kind, payload in payloads:
        if kind != SilverPayloadKind.REPORT:
            found.setdefault(kind, []).append(decode_ipc(payload))
    return found


def plain(table: pa.Table) -> list[Row]:
    """Returns rows as dictionaries, with timestamps in milliseconds."""
    for i, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(i, column.name, _milliseconds(table[column.name]))
    return table.to_pylist()


def _milliseconds(column: pa.ChunkedArray) -> pa.Array:
    micros = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_pylist()
    assert all(value is None or value % 1000 == 0 for value in micros)
    return pa.array([None if value is None else value // 1000 for value in micros], pa.int64())


def apply_net(rows: dict[SessionKey, dict[str, Row]], net: pa.Table, columns: tuple[Any, ...]) -> None:
    """Applies net changes to dictionaries, as the MERGE does to the table."""
    found = net.to_pylist()
    concerned = {tuple(change[name] for name in ROW_KEY) for change in found}
    assert len(concerned) == len(found), "a MERGE refuses a source with a row twice"
    for change in found:
        *session, row_id = (change[name] for name in ROW_KEY)
        table = rows.setdefault(tuple(session), {})
        if row_id is None:
            for known in [known for known in table if (*session, known) not in concerned]:
                del table[known]
        elif change[DELETE]:
            table.pop(row_id, None)
        else:
            before = table.get(row_id, {})
            kept = {
                c.name: change[c.name] if written or row_id not in table else before[c.name]
                for c, written in zip(columns, change[WRITTEN], strict=True)
            }
            marks = {name: change[name] for name in ("_rescued", "_epoch", "_seq", "_ts", "_offset")}
            table[row_id] = kept | marks


def fold(
    messages: Iterable[Sequence[Fact]],
    capture: CaptureSettings,
    *,
    shards: int,
    rnd: random.Random,
    bulk: bool = True,
    decisions: dict[DecisionKey, OperatorDecision] | None = None,
    interval: int = INTERVAL,
) -> Silver:
    """Returns silver's tables after these micro-batches."""
    folder = Folder(capture, shards, rnd, bulk=bulk, decisions=decisions, interval=interval)
    for batch in messages:
        folder.batch(batch)
    return folder.silver


# -- comparison with the ground truth


def truth_rules(capture: CaptureSettings, interval: int = INTERVAL) -> CaptureRules:
    """Returns the capture settings as rules of the ground truth."""
    return CaptureRules(
        columns=capture.columns,
        integrity=str(capture.integrity),
        on_violation=str(capture.on_violation),
        lateness_ms=convert_duration_to_ms(capture.lateness),
        gap_timeout_ms=convert_duration_to_ms(capture.gap_timeout),
        session_timeout_ms=convert_duration_to_ms(capture.session_timeout),
        max_held_messages=capture.max_held_messages,
        max_held_bytes=capture.max_held_bytes,
        max_gaps=capture.max_gaps,
        max_future_skew_ms=convert_duration_to_ms(capture.max_future_skew),
        max_message_bytes=capture.max_message_bytes,
        snapshot_interval_ms=interval,
        by_topic=tuple(
            (
                rule.pattern,
                rule.model_dump(include={"integrity", "on_violation"}, exclude_none=True, mode="json")
                | ({} if rule.lateness is None else {"lateness_ms": convert_duration_to_ms(rule.lateness)}),
            )
            for rule in capture.by_topic
        ),
    )


def truth_of(messages: Iterable[Fact], capture: CaptureSettings, interval: int = INTERVAL) -> ExpectedTables:
    """Returns the expected silver tables."""
    truth = GroundTruth(truth_rules(capture, interval))
    for message in messages:
        if isinstance(message, Silence):
            truth.apply_silence(message.topic, message.partition, message.until)
        else:
            truth.judge_message(message)
    return truth.finish_and_return_tables()


@dataclass(frozen=True)
class Holdings:
    """Silver's tables in a comparable form: sorted lines of text, in which -0.0 differs from 0.0."""

    session_changes: list[str]
    session_rows: list[str]
    sessions: list[str]
    session_cuts: list[str]
    quarantine: list[str]
    integrity_events: list[str]
    counts: list[str]


def of_silver(silver: Silver) -> Holdings:
    """Returns the tables of folded batches in comparable form."""
    return Holdings(
        _lines({k: v for k, v in row.items() if k != "_life"} for row in silver.changes),
        _row_lines(silver.rows),
        _lines({k: v for k, v in row.items() if k != "last_kafka_timestamp"} for row in silver.sessions.values()),
        _lines(silver.cuts),
        _lines(silver.quarantine),
        _lines({k: v for k, v in row.items() if k != "integrity"} for row in silver.events),
        _lines({"place": place, **counts} for place, counts in silver.counts.items()),
    )


def of_truth(tables: ExpectedTables) -> Holdings:
    """Returns the expected tables in comparable form."""
    quarantine = [
        {
            **{k: v for k, v in row.items() if k not in {"key", "value", "timestamp"}},
            "kafka_timestamp": row["timestamp"],
        }
        for row in tables.quarantine
    ]
    return Holdings(
        _lines(tables.session_changes),
        _row_lines(tables.session_rows),
        _lines(closed(row) for row in tables.sessions.values()),
        _lines(cut_of(row) for row in tables.session_cuts),
        _lines(quarantine),
        _lines({**row, "expected_seq": capped(row["expected_seq"])} for row in tables.integrity_events),
        _lines(
            {"place": place, "parts": counts["messages"], "ignored": 0, **counts}
            for place, counts in tables.counts.items()
        ),
    )


def closed(row: Row) -> Row:
    """Returns the expected row of a session, limited to the values that the table's types can have."""
    row = {**row, "next_seq": capped(row["next_seq"]), "checks": 0, "checks_failed": 0}
    if row["ended_at"] is not None:
        row["ended_at"] = min(max(row["ended_at"], _YEAR_ONE), YEAR_10000 - 1)
    return row


def cut_of(snapshot: Row) -> Row:
    """Returns the expected row of a cut, or of a snapshot without its rows."""
    return {**{k: v for k, v in snapshot.items() if k != "rows"}, "next_seq": capped(snapshot["next_seq"])}


def capped(seq: int | None) -> int | None:
    """Returns the expected seq limited to the largest bigint, which is also the largest seq."""
    return None if seq is None else min(seq, INT64_MAX)


def _lines(rows: Iterable[Row]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def _row_lines(tables: dict[SessionKey, dict[str, Row]]) -> list[str]:
    return _lines(
        {**dict(zip(SESSION, session, strict=True)), "row_id": row_id, **row}
        for session, table in tables.items()
        for row_id, row in table.items()
    )
