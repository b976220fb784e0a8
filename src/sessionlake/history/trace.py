"""Traces one Kafka message: when bronze and silver read it, what silver decided, and which rows it changed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from operator import eq, ge, gt, itemgetter, le

from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    EVENTS,
    LEDGER,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    SESSIONS,
    SILVER,
    SILVER_TABLES,
)
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.errors import LakeError, NotFoundError
from sessionlake.history.content import (
    READ,
    FeedReadingExplanation,
    decode_message_parts,
    explain_how_feed_reads_message,
)
from sessionlake.history.fate import (
    MessageContent,
    MessageFate,
    MessageFateWithReason,
    SilverRowsOfMessage,
    decide_message_fate,
)
from sessionlake.history.missing import explain_absent_message, explain_unjudged_message, explain_unread_message
from sessionlake.history.traced import (
    BatchCommit,
    MessageJudgement,
    MessageTrace,
    SilverMerge,
    TracedMessage,
    TracedMessagePart,
)
from sessionlake.integrity.outcome import IntegrityEventAction
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.entries import RECOVERED
from sessionlake.ledger.progress import (
    find_ledger_entry_of_message,
    has_read_message,
    iterate_commit_time_windows,
    read_last_merged_batch_number,
    read_layer_offsets,
)
from sessionlake.ledger.retained import (
    describe_partition_start,
    read_partition_starts,
    read_removal_records_without_limits,
)
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.erased import PARTS_ERASED_HEADER
from sessionlake.protocol.reasons import Reason
from sessionlake.protocol.types import Row, TopicPartition
from sessionlake.settings.model import Settings

_EVENT = ("session_id", "event", "action", "integrity", "expected_seq", "actual_seq", "offset", "_batch")
_CHANGE = ("change", "row_id", "_rescued", "_epoch", "_seq", "_position", "ordinal", "_batch")
_COUNTED = ("messages", "duplicates", "gaps", "late")
_SESSION = ("session_id", "partition", "status", "epoch", "next_seq", *_COUNTED, "last_offset")


def trace(reader: TableReader, settings: Settings, topic: str, partition: int, offset: int) -> MessageTrace:
    """Returns what happened to one message in bronze and silver.

    Raises:
        NotFoundError: Bronze has not read it, silver has not judged it yet, or retention has removed it.
        LakeError: The ledger says that silver read it, but silver's tables lack it.
    """
    place: list[Condition] = [("topic", eq, topic), ("partition", eq, partition), ("offset", eq, offset)]
    raw = next(reader.read_rows(MESSAGES, *place, columns=READ), None)
    bronze = _find_batch_of_message(reader, BRONZE, topic, partition, offset, raw["ingested_at"]) if raw else None
    gone = read_partition_starts(reader).get((topic, partition))
    if raw is None and gone is not None and offset <= gone.last_removed:
        start = describe_partition_start((topic, partition), gone)
        raise NotFoundError(
            f"the message at offset {offset} is not in bronze any more: {start}",
            fix="Ask about a message with a higher offset",
        )
    if raw is not None:
        _require_ledger_entry_of_message(reader, topic, partition, offset, (bronze, BRONZE))
    if bronze is None or raw is None:
        absent = explain_absent_message(reader, topic, partition, offset)
        raise NotFoundError(
            absent or explain_unread_message(read_layer_offsets(reader), settings, topic, partition, offset)
        )
    silver = _find_batch_of_message(reader, SILVER, topic, partition, offset, bronze.committed_at)
    _require_ledger_entry_of_message(reader, topic, partition, offset, (silver, SILVER))
    if silver is None:
        raise NotFoundError(
            explain_unjudged_message(
                read_layer_offsets(reader), bronze.batch, bronze.committed_at, topic, partition, offset
            )
        )
    _require_rows_of_batch_retained(reader, silver)
    contents = decode_message_parts(raw, settings)
    first, *others = [_trace_message_part(reader, settings, place, content, silver) for content in contents]
    reading = None if contents[0].erased else explain_how_feed_reads_message(raw, settings)
    message = _create_traced_message(raw, contents[0], reading)
    outcome = first.judgement, first.tables, first.changes, first.session
    return MessageTrace(topic, partition, offset, bronze, message, silver, *outcome, others)


def _trace_message_part(
    reader: TableReader, settings: Settings, conditions: list[Condition], content: MessageContent, silver: BatchCommit
) -> TracedMessagePart:
    """Returns what silver decided about a message, or about the part of a message that concerns one session.

    Args:
        reader: Reads the tables.
        settings: The configuration.
        conditions: Conditions that select the message's topic, partition and offset, in this order.
        content: The content of the message or part.
        silver: The batch of silver that read the message.
    """
    topic, partition, offset = (value for _, _, value in conditions)
    quarantined = reader.read_rows(QUARANTINE, *conditions, columns=["reason", "session_id", "_batch"])
    events = _select_rows_of_message_part(content, reader.read_rows(EVENTS, *conditions, columns=_EVENT))
    session = _read_current_session_row(reader, topic, partition, content.session_id)
    found = SilverRowsOfMessage(
        offset=offset,
        batch=silver.batch,
        quarantine=_select_rows_of_message_part(content, quarantined),
        events=[
            {name: value for name, value in row.items() if name != "session_id"}
            for row in sorted(events, key=itemgetter("_batch"))
        ],
        changes=_select_rows_of_message_part(content, _read_changes_of_message(reader, silver.batch, conditions)),
        session=session,
    )
    judgement = _find_message_judgement(reader, settings, (topic, partition), content, found, silver)
    return TracedMessagePart(
        content.session_id,
        content.type,
        content.seq,
        content.ts,
        judgement,
        _find_merge_of_judged_batch(reader, judgement),
        [_convert_change_to_output(row) for row in found.changes],
        session and {name: session[name] for name in _SESSION},
    )


def _select_rows_of_message_part(content: MessageContent, rows: Iterable[Row]) -> list[Row]:
    """Returns the rows about the session of a message's part, and rows without a session, which are about all parts."""
    return [row for row in rows if content.session_id is None or row["session_id"] in {None, content.session_id}]


def _require_ledger_entry_of_message(
    reader: TableReader, topic: str, partition: int, offset: int, batch_and_layer: tuple[BatchCommit | None, str]
) -> None:
    """Checks that retention has not removed the ledger entry of the batch that read a message.

    Args:
        reader: Reads the tables.
        topic: The message's topic.
        partition: The message's partition.
        offset: The message's offset.
        batch_and_layer: The batch that read the message (None if the ledger has none), and the name of the layer.

    Raises:
        NotFoundError: Retention has removed the entry.
    """
    batch, layer = batch_and_layer
    cut = None if batch is not None else read_removal_records_without_limits(reader).get(LEDGER)
    if cut is not None and has_read_message(reader, layer, topic, partition, offset):
        raise NotFoundError(
            f"topic {topic}, partition {partition}: {layer} has read offset {offset}, but it is not "
            f"known in which batch: {cut.removal_description}",
            fix="Nothing is wrong with the message. For messages that were read later, the batch is known",
        )


def _require_rows_of_batch_retained(reader: TableReader, silver: BatchCommit) -> None:
    """Checks that silver's tables still have all rows of a batch, so that a missing row proves something.

    Raises:
        NotFoundError: Retention has removed rows of the batch.
    """
    known = read_removal_records_without_limits(reader)
    for found in (known[table] for table in (CHANGES, QUARANTINE, EVENTS) if table in known):
        if silver.batch <= found.batch:
            raise NotFoundError(
                f"silver judged the message in batch {silver.batch}, but {found.removal_description}, of batches up to "
                f"{found.batch}",
                why="So it is not known any more what became of the message",
                fix="Ask about a message of a later batch",
            )


def _create_traced_message(
    bronze_row: Row, content: MessageContent, reading: FeedReadingExplanation | None
) -> TracedMessage:
    return TracedMessage(
        key=bronze_row["key"],
        session_id=content.session_id,
        type=content.type,
        seq=content.seq,
        ts=content.ts,
        timestamp=bronze_row["timestamp"],
        value_bytes=len(bronze_row["value"] or b""),
        ingested_at=bronze_row["ingested_at"],
        reading=reading,
        has_erased_parts=any(header["key"] == PARTS_ERASED_HEADER for header in bronze_row["headers"] or ()),
    )


def _find_batch_of_message(
    reader: TableReader, layer: str, topic: str, partition: int, offset: int, near: datetime | None
) -> BatchCommit | None:
    found = find_ledger_entry_of_message(reader, layer, topic, partition, offset, near)
    return None if found is None else BatchCommit(*_extract_batch_commit_fields(found))


def _extract_batch_commit_fields(row: Row) -> tuple[int, str, datetime, dict[str, int], bool]:
    versions = {output["table"]: output["version"] for output in row["outputs"]}
    return row["batch_id"], row["app_id"], row["committed_at"], versions, row["source"] == RECOVERED


def _read_changes_of_message(reader: TableReader, batch: int, conditions: list[Condition]) -> list[Row]:
    named = [("_offset" if name == "offset" else name, compare, value) for name, compare, value in conditions]
    return sorted(reader.read_rows(CHANGES, *named, ("_batch", ge, batch)), key=lambda row: row["ordinal"])


def _convert_change_to_output(row: Row) -> Row:
    """Returns a row of `session_changes` in which `set` has the values of the columns that the message set."""
    head = {name: row[name] for name in _CHANGE}
    return {"change": head.pop("change"), "row_id": head.pop("row_id"), "set": {n: row[n] for n in row["_set"]}} | head


def _read_current_session_row(reader: TableReader, topic: str, partition: int, session_id: str | None) -> Row | None:
    """Returns the current row of a session; None if there is none.

    It is from `session_progress` if that has a batch which is not merged yet, or else from `silver.sessions`.
    """
    if session_id is None:
        return None
    own: list[Condition] = [("topic", eq, topic), ("partition", eq, partition), ("session_id", eq, session_id)]
    late = reader.read_rows(PROGRESS, *own, ("_batch", gt, read_last_merged_batch_number(reader)))
    latest = max(late, key=lambda row: row["_batch"], default=None)
    return latest or next(reader.read_rows(SESSIONS, *own), None)


def _find_message_judgement(
    reader: TableReader,
    settings: Settings,
    place: TopicPartition,
    content: MessageContent,
    silver_rows: SilverRowsOfMessage,
    silver: BatchCommit,
) -> MessageJudgement:
    topic, _ = place
    rules = JudgingRuleLookup(settings.capture).find_judging_rules(topic)
    integrity, unjudged, holds = rules.integrity, content.fate_if_not_judged, rules.hold > 0
    if unjudged is None:
        verdict = decide_message_fate(content, silver_rows, integrity, holds_until_snapshot=holds)
    else:
        verdict = MessageFateWithReason(unjudged)
    if verdict is None:
        raise LakeError(
            f"silver batch {silver.batch} read topic {topic}, offset {silver_rows.offset} "
            f"({content.type or 'malformed'}, {content.changes} row changes), but no table of silver shows it",
            why="Either the settings under `capture` have changed since, or rows were removed by hand",
            fix="Set `capture` as it was. If it did not change, run `sessionlake doctor`, which compares "
            "the tables with the ledger",
        )
    fate, reason, batch = verdict
    return MessageJudgement(
        fate=fate,
        reason=reason,
        batch=batch,
        committed_at=_read_commit_time_of_silver_batch(reader, silver, batch),
        integrity=str(integrity),
        events=[dict(row) for row in silver_rows.events],
        broken_by=_find_event_that_broke_session_of_message(reader, place, content, silver_rows.offset)
        if reason == Reason.SESSION_BROKEN
        else None,
    )


def _read_commit_time_of_silver_batch(reader: TableReader, silver: BatchCommit, batch: int | None) -> datetime | None:
    if batch is None or batch == silver.batch:
        return silver.committed_at if batch is not None else None
    own: list[Condition] = [("layer", eq, SILVER), ("app_id", eq, silver.app_id), ("batch_id", eq, batch)]
    # A batch writes its tables before its ledger row, so the row may be missing while the batch runs.
    return next((row["committed_at"] for row in _read_ledger_entries_near(reader, silver.committed_at, *own)), None)


def _read_ledger_entries_near(reader: TableReader, moment: datetime, *conditions: Condition) -> list[Row]:
    """Returns ledger entries that meet the conditions and were committed near `moment`; else those of any time."""
    found: list[Row] = []
    for window in iterate_commit_time_windows(moment):
        found = list(reader.read_rows(LEDGER, *conditions, *window))
        if found:
            break
    return found


def _find_event_that_broke_session_of_message(
    reader: TableReader, place: TopicPartition, content: MessageContent, offset: int
) -> Row | None:
    names = zip(SESSION, (*place, content.session_id), strict=True)
    own: list[Condition] = [*((name, eq, value) for name, value in names), ("offset", le, offset)]
    rows = reader.read_rows(EVENTS, *own, ("action", eq, str(IntegrityEventAction.ISOLATED)), columns=_EVENT)
    return max(rows, key=lambda row: row["offset"], default=None)


def _find_merge_of_judged_batch(reader: TableReader, judgement: MessageJudgement) -> SilverMerge | None:
    if judgement.fate is not MessageFate.APPLIED or judgement.batch is None or judgement.committed_at is None:
        return None
    taking: list[Condition] = [("source_from", le, judgement.batch), ("source_to", ge, judgement.batch)]
    since = judgement.committed_at
    rows = _read_ledger_entries_near(reader, since, ("layer", eq, SILVER_TABLES), *taking, ("committed_at", ge, since))
    found = min(rows, key=lambda row: row["committed_at"], default=None)
    if found is None:
        return None
    return SilverMerge(*_extract_batch_commit_fields(found), found["source_from"], found["source_to"])
