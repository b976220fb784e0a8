"""The fold: a shard's cursors and packed messages in; new cursors, judged changes and the account out.

Pure: the result depends on the state and the messages alone, not on how they were chunked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.config import CaptureSettings
from sessionlake.integrity.batch import Judged, Stream, judge_batch
from sessionlake.integrity.cursor import ShardState, new_cursors
from sessionlake.integrity.judge import Judgement, Verdict
from sessionlake.integrity.rules import RuleBook
from sessionlake.protocol.chunk import read_chunks, write_ipc
from sessionlake.protocol.columns import Column
from sessionlake.protocol.reasons import CODE_OF, CODES
from sessionlake.silver.changes import change_rows
from sessionlake.silver.outputs import (
    EVENTS,
    PROGRESS,
    QUARANTINE,
    TIMESTAMP,
    Account,
    Output,
    PartitionAccount,
    Violation,
    write_account,
)

Int64s = npt.NDArray[np.int64]
_STATUS = pa.array(["open", "ended", "expired", "broken"])
_REASONS = pa.array([None if reason is None else str(reason) for reason in CODES], pa.string())
_PLACE = ["topic", "partition", "offset", "session_id", "seq"]
_NEVER = np.iinfo(np.int64).min


@dataclass
class SilverFold:
    """The silver fold of one shard; see `runtime.sharded.ShardFold`.

    Attributes:
        bulk: False judges message by message, which gives the same result slower.
    """

    columns: tuple[Column, ...]
    capture: CaptureSettings
    bulk: bool = True
    _rules: RuleBook | None = field(default=None, repr=False)

    def __call__(
        self, shard: int, state: bytes | None, chunks: list[bytes]
    ) -> tuple[bytes | None, list[tuple[str, bytes]]]:
        """Folds the batch's chunks."""
        del shard
        self._rules = self._rules or RuleBook(self.capture)
        batch = read_chunks(chunks, self.columns)
        reasons = batch["reason"].to_numpy()
        well_formed = batch.filter(pa.array(reasons == 0)) if reasons.any() else batch
        cursors = ShardState.decode(state)
        judged = _judge(well_formed, cursors, self._rules, bulk=self.bulk)
        malformed = batch.filter(pa.array(reasons != 0)) if reasons.any() else None
        return judged.state.encode(), _payloads(judged, malformed, self.columns)


@dataclass(frozen=True)
class _JudgedBatch:
    """Messages sorted by session and offset, what became of them, and the sessions they belong to."""

    messages: pa.Table
    judged: Judged
    state: ShardState
    places: Int64s
    topics: pa.Array
    sessions: pa.Array
    owner: Int64s
    rules: RuleBook


def _judge(messages: pa.Table, state: ShardState, rules: RuleBook, *, bulk: bool) -> _JudgedBatch:
    owner, topics, sessions = _group(messages)
    order = np.lexsort((messages["offset"].to_numpy(), owner))
    if (np.diff(order) != 1).any():
        messages, owner = messages.take(pa.array(order)).combine_chunks(), owner[order]
    starts = np.flatnonzero(np.diff(owner, prepend=-1))
    stream = Stream(
        starts, *(_numpy(messages[name]) for name in ("type", "seq", "ts", "offset", "kafka_ts", "partition"))
    )
    keys = pc.binary_join_element_wise(topics, sessions, "\0")
    places = state.find(keys)
    cursors = new_cursors(len(keys))
    cursors[places >= 0] = state.cursors[places[places >= 0]]
    names = topics.to_pylist()
    judged = judge_batch(stream, cursors, lambda number: rules.of(names[number]), bulk=bulk)
    after = state.updated(places, keys, cursors)
    return _JudgedBatch(messages, judged, after, after.find(keys), topics, sessions, owner, rules)


def _group(messages: pa.Table) -> tuple[Int64s, pa.Array, pa.Array]:
    """Number of each message's session, and the topic and id of each session."""
    topics, topic_code = _encode(messages["topic"])
    sessions, session_code = _encode(messages["session_id"])
    distinct, owner = np.unique(topic_code * max(len(sessions), 1) + session_code, return_inverse=True)
    split = np.divmod(distinct, max(len(sessions), 1))
    return owner, topics.take(pa.array(split[0])), sessions.take(pa.array(split[1]))


def _encode(column: pa.ChunkedArray) -> tuple[pa.Array, Int64s]:
    encoded = _one(column).dictionary_encode()
    return encoded.dictionary, encoded.indices.to_numpy().astype(np.int64)


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined: Any = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def _numpy(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    return column.to_numpy()


def _payloads(judged: _JudgedBatch, malformed: pa.Table | None, columns: tuple[Column, ...]) -> list[tuple[str, bytes]]:
    applied = np.flatnonzero(judged.judged.verdict == Verdict.APPLIED)
    tables = {
        Output.CHANGES: change_rows(judged.messages, applied, judged.judged.epoch, columns),
        Output.PROGRESS: _progress(judged),
        Output.QUARANTINE: _quarantine(judged, malformed),
        Output.EVENTS: _events(judged),
    }
    account = Account(
        partitions=_partitions(judged, malformed),
        rows={str(kind): table.num_rows for kind, table in tables.items()},
        violations=_violations(judged),
    )
    sent = [(str(kind), write_ipc(table)) for kind, table in tables.items() if table.num_rows]
    return [*sent, (str(Output.ACCOUNT), write_account(account))]


def timestamps(milliseconds: Int64s) -> pa.Array:
    """Milliseconds since the epoch as Arrow timestamps; the least int64 is null."""
    return pa.array(milliseconds * 1000, mask=milliseconds == _NEVER).cast(TIMESTAMP)


def _progress(judged: _JudgedBatch) -> pa.Table:
    cursors = judged.state.cursors[judged.places]
    known = cursors["messages"] > 0
    last = cursors["last_seq"]
    following = np.where(last == np.iinfo(np.int64).max, last, last + 1)
    columns = [
        judged.topics,
        judged.sessions,
        _STATUS.take(pa.array(cursors["status"])),
        pa.array(cursors["epoch"]),
        pa.array(following, mask=last < 0),
        *(pa.array(np.ascontiguousarray(cursors[name])) for name in ("messages", "duplicates", "gaps", "late")),
        *(pa.array(np.ascontiguousarray(cursors[name]), mask=~known) for name in ("first_ts", "last_ts")),
        *(pa.array(np.ascontiguousarray(cursors[name])) for name in ("first_offset", "last_offset")),
        pa.array(np.ascontiguousarray(cursors["partition"])),
        timestamps(cursors["ended_at"]),
        timestamps(cursors["last_kafka_ts"]),
    ]
    return pa.Table.from_arrays(columns, schema=PROGRESS)


def _quarantine(judged: _JudgedBatch, malformed: pa.Table | None) -> pa.Table:
    """Coordinates and reasons; the raw message is fetched from bronze by who writes the table."""
    held_back = [(index, remark) for index, remark in judged.judged.remarks if remark.reason and _quarantined(remark)]
    places = pa.array([index for index, _ in held_back], pa.int64())
    reasons = pa.array([CODE_OF[remark.reason] for _, remark in held_back if remark.reason], pa.int8())
    parts = [_quarantine_rows(judged.messages.take(places), reasons)]
    if malformed is not None:
        parts.append(_quarantine_rows(malformed, _one(malformed["reason"])))
    return pa.concat_tables(parts)


def _quarantined(remark: Judgement) -> bool:
    return remark.verdict == Verdict.QUARANTINED


def _quarantine_rows(messages: pa.Table, reasons: pa.Array) -> pa.Table:
    columns = [
        messages["topic"],
        messages["partition"],
        messages["offset"],
        timestamps(_numpy(messages["kafka_ts"])),
        messages["session_id"],
        _REASONS.take(reasons),
    ]
    return pa.Table.from_arrays(columns, schema=QUARANTINE)


def _events(judged: _JudgedBatch) -> pa.Table:
    noted = [(index, remark) for index, remark in judged.judged.remarks if remark.event]
    messages = judged.messages.take(pa.array([index for index, _ in noted], pa.int64()))
    classes = [str(judged.rules.of(topic).integrity) for topic in messages["topic"].to_pylist()]
    columns = [
        messages["topic"],
        messages["partition"],
        messages["session_id"],
        messages["offset"],
        pa.array([str(remark.event) for _, remark in noted], pa.string()),
        pa.array([str(remark.action) for _, remark in noted], pa.string()),
        pa.array(classes, pa.string()),
        pa.array([remark.expected for _, remark in noted], pa.int64()),
        messages["seq"],
        timestamps(_numpy(messages["kafka_ts"])),
    ]
    return pa.Table.from_arrays(columns, schema=EVENTS)


def _violations(judged: _JudgedBatch) -> list[Violation]:
    """The shard's first violation, by topic, partition and offset: the same one however sessions are sharded."""
    violating = [(index, remark) for index, remark in judged.judged.remarks if remark.violation]
    rows = judged.messages.select(_PLACE).take(pa.array([index for index, _ in violating], pa.int64())).to_pylist()
    found = [
        Violation(
            topic=row["topic"],
            partition=row["partition"],
            offset=row["offset"],
            session_id=row["session_id"],
            integrity=str(judged.rules.of(row["topic"]).integrity),
            event=str(remark.event),
            expected_seq=remark.expected,
            actual_seq=row["seq"],
        )
        for (_, remark), row in zip(violating, rows, strict=True)
    ]
    return sorted(found, key=lambda v: (v.topic, v.partition, v.offset))[:1]


def _partitions(judged: _JudgedBatch, malformed: pa.Table | None) -> list[PartitionAccount]:
    """Counts by topic-partition; every message of the batch is in exactly one of them."""
    names = ["topic", "partition", "offset"]
    verdicts = pa.array(judged.judged.verdict)
    rows = judged.messages.select(names).append_column("verdict", verdicts)
    if malformed is not None:
        wrong = pa.array(np.full(malformed.num_rows, Verdict.QUARANTINED, np.int8))
        rows = pa.concat_tables([rows, malformed.select(names).append_column("verdict", wrong)])
    aggregates = [("offset", "min"), ("offset", "max"), ("offset", "count")]
    accounts: dict[tuple[str, int], PartitionAccount] = {}
    for row in rows.group_by(["topic", "partition", "verdict"]).aggregate(aggregates).to_pylist():
        low, high, count = row["offset_min"], row["offset_max"], row["offset_count"]
        account = accounts.setdefault(
            (row["topic"], row["partition"]), PartitionAccount(row["topic"], row["partition"], low, high, 0)
        )
        account.first, account.last = min(account.first, low), max(account.last, high)
        account.messages += count
        name = ("applied", "duplicates", "quarantined", "held")[row["verdict"]]
        setattr(account, name, getattr(account, name) + count)
    return list(accounts.values())
