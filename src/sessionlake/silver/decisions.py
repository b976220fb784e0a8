"""Operators' decisions about messages that violate a session's class under `fail`: `ops.decisions`.

A decision is an input of silver, like the messages. Silver reads it when the job starts and follows it once, at its
message; the batch that follows it records it in the ledger. The manifest beside a layer's checkpoint has the message at
which the layer stopped. Only that message can be decided about, so the session's name is enough to decide. A decision
can be withdrawn until a batch has followed it.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, SILVER
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.rules import DecisionKey, OperatorDecision
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.progress import has_read_message
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import StoppingViolation
from sessionlake.streaming import manifest
from sessionlake.streaming.manifest import ManifestBatch, read_unfinished_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHDRAWN = "withdrawn"
_PLACE = ("topic", "partition", "session_id", "offset")
_TRACE = "Run `sessionlake trace TOPIC PARTITION OFFSET` to see what became of the message"
_CHOICES = "--topic, --partition and --offset"
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class RecordedDecision:
    """One decision about a message, or the withdrawal of one: a row of `ops.decisions`.

    Attributes:
        topic: The session's topic.
        partition: The session's partition.
        session_id: The session's id.
        offset: The offset of the message.
        decision: The decision; None if this row withdraws the decision before it.
        who: The user's name.
        why: The reason in the user's words; None if none was given.
        decided_at: When the decision was recorded.
    """

    topic: str
    partition: int
    session_id: str
    offset: int
    decision: OperatorDecision | None
    who: str
    why: str | None
    decided_at: datetime

    @property
    def message_key(self) -> DecisionKey:
        """The message that the decision is about: topic, partition, session id and offset."""
        return self.topic, self.partition, self.session_id, self.offset

    def __str__(self) -> str:
        place = f"session {self.session_id!r}, topic {self.topic}, partition {self.partition}, offset {self.offset}"
        if self.decision is None:
            return f"{place}: the decision is withdrawn"
        meaning = {
            OperatorDecision.ACCEPT_GAP: "the message is applied all the same",
            OperatorDecision.ISOLATE: "the session is broken until its next snapshot",
            OperatorDecision.SKIP: "the message goes to quarantine and counts as not having arrived",
        }[self.decision]
        return f"{place}: {meaning}. It takes effect when silver runs again"


def read_operator_decisions(reader: TableReader) -> dict[DecisionKey, OperatorDecision]:
    """Returns, by message, the last decision about it. Messages whose last decision was withdrawn are left out."""
    return {
        place: OperatorDecision(last)
        for place, (*_, (_, last)) in _read_recorded_decisions(reader).items()
        if last != WITHDRAWN
    }


def read_operator_decisions_in_force(reader: TableReader) -> dict[DecisionKey, OperatorDecision]:
    """Returns, by message, the last decision about it, or the one that silver has followed according to the ledger.

    A followed decision counts even if `ops.decisions` has lost it.
    """
    return read_operator_decisions(reader) | _read_followed_decisions(reader)


def _read_recorded_decisions(reader: TableReader) -> dict[DecisionKey, list[tuple[datetime, str]]]:
    """Returns, by message, all decisions about it in `ops.decisions`, oldest first: decision time and decision."""
    found: dict[DecisionKey, list[tuple[datetime, str]]] = {}
    for row in reader.read_rows(DECISIONS, columns=[*_PLACE, "decision", "decided_at"]):
        place = _get_decision_key(row)
        found.setdefault(place, []).append((row["decided_at"], row["decision"]))
    return {place: sorted(rows) for place, rows in found.items()}


def record_decision(
    settings: Settings,
    spark: SparkSession | None,
    session_id: str,
    decision: OperatorDecision,
    *,
    offset: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
    who: str,
    why: str | None = None,
) -> RecordedDecision:
    """Records a decision about a message at which silver or a processor has stopped.

    Args:
        settings: The settings of the lake.
        spark: The Spark session; needed if the tables are in a catalog.
        session_id: The id of the session.
        decision: The decision.
        offset: The offset of the message; None means the message where silver, or else a processor, stopped.
        topic: The session's topic; None means the topic where the layer stopped.
        partition: The session's partition; None means the partition where the layer stopped.
        who: The user's name.
        why: The reason in the user's words.

    Returns:
        The decision as recorded.

    Raises:
        UsageError: No layer has stopped at this message, or the message is already decided about or processed.
    """
    lake = Lake(settings)
    reader = lake.reader(spark)
    place, stopped = _find_stopped_message(settings, _MessageFilter(session_id, offset, topic, partition))
    topic, partition, _, offset = place
    known = read_operator_decisions(reader).get(place)
    if known is not None:
        raise UsageError(
            f"resolve: {_describe_message(place)}: a decision is already recorded: {known}",
            fix="To replace it, first take it back: run `sessionlake resolve` with --withdraw",
        )
    # If silver stopped there, only silver counts: a processor that got past this message judged it by other rules.
    layers = [SILVER] if SILVER in stopped else _list_judging_layers(settings)
    passed = [layer for layer in layers if has_read_message(reader, layer, topic, partition, offset)]
    _refuse_processed_message(passed, f"topic {topic}, partition {partition}", offset, decision, stopped)
    for layer in layers:
        _refuse_message_in_unfinished_batch(read_unfinished_batch(settings, layer), layer, topic, partition, offset)
    decided = RecordedDecision(*place, decision, who, why, datetime.now(UTC))
    _write_decision(lake, spark, reader, decided)
    return decided


def withdraw_decision(
    settings: Settings,
    spark: SparkSession | None,
    session_id: str,
    *,
    offset: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
    who: str,
    why: str | None = None,
) -> RecordedDecision:
    """Withdraws a decision that no batch has followed yet.

    Args:
        settings: The settings of the lake.
        spark: The Spark session; needed if the tables are in a catalog.
        session_id: The id of the session.
        offset: The offset of the message; None means that the session has only one decision to withdraw.
        topic: The session's topic; None means that only one topic has such a decision.
        partition: The session's partition; None means that only one partition has such a decision.
        who: The user's name.
        why: The reason in the user's words.

    Returns:
        The withdrawal as recorded.

    Raises:
        UsageError: There is no such decision, there are several, or a batch has already followed it.
    """
    lake = Lake(settings)
    reader = lake.reader(spark)
    followed = _read_followed_decisions(reader)
    meant = _MessageFilter(session_id, offset, topic, partition)
    mine = [place for place in sorted(read_operator_decisions(reader)) if meant.matches_message(place)]
    pending = [place for place in mine if place not in followed]
    if not pending:
        if mine:
            raise UsageError(f"{meant}: silver has acted on the decision, so it cannot be withdrawn", fix=_TRACE)
        raise UsageError(f"{meant}: there is no decision to withdraw", fix=f"The table {DECISIONS} has all decisions")
    if len(pending) > 1:
        places = "; ".join(map(_describe_message, pending))
        raise UsageError(f"{meant}: there are several decisions: {places}", fix=f"Choose one with {_CHOICES}")
    place = pending[0]
    _require_not_followed(settings, reader, place)
    decided = RecordedDecision(*place, None, who, why, datetime.now(UTC))
    _write_decision(lake, spark, reader, decided)
    return decided


def _read_followed_decisions(reader: TableReader) -> dict[DecisionKey, OperatorDecision]:
    """Returns the decisions that batches of silver have followed, by message, from the ledger."""
    rows = iterate_rows_as_dicts(LedgerReader(reader, "decisions").read_entries(("layer", operator.eq, SILVER)))
    items = (item for row in rows for item in row["decisions"] or ())
    return {_get_decision_key(item): OperatorDecision(item["decision"]) for item in items}


def _get_decision_key(row: Mapping[str, Any]) -> DecisionKey:
    return row["topic"], row["partition"], row["session_id"], row["offset"]


def _require_not_followed(settings: Settings, reader: TableReader, key: DecisionKey) -> None:
    """Refuses to withdraw a decision that a layer may have followed: a rebuild would judge otherwise."""
    (topic, partition, _, offset), stopped = key, _read_stops_by_layer(settings)
    for layer in _list_judging_layers(settings):
        if read_unfinished_batch(settings, layer) is not None:
            raise UsageError(
                f"{layer} was interrupted while it committed a batch",
                fix=f"Run `sessionlake run {layer.replace('-', ' ')} --once` first, which finishes it",
            )
        waits = layer in stopped and _get_violation_key(stopped[layer]) == key
        if not waits and has_read_message(reader, layer, topic, partition, offset):
            raise UsageError(
                f"{_describe_message(key)}: {layer} has processed it, so it is too late to withdraw", fix=_TRACE
            )


def _list_judging_layers(settings: Settings) -> list[str]:
    """Returns the names of the layers that judge sessions, and so can stop at a message: silver and the processors."""
    return [SILVER, *(processor.layer for processor in settings.processors)]


def _read_stops_by_layer(settings: Settings) -> dict[str, StoppingViolation]:
    """Returns, by layer, the violation at which the layer has stopped. Layers that have not stopped are left out."""
    found = {layer: read_message_that_stopped_layer(settings, layer) for layer in _list_judging_layers(settings)}
    return {layer: stop for layer, stop in found.items() if stop is not None}


@dataclass(frozen=True)
class _MessageFilter:
    """What the user has said about a message. None if the user did not say it."""

    session: str
    offset: int | None
    topic: str | None
    partition: int | None

    def __str__(self) -> str:
        parts = [f"session {self.session!r}"]
        for name in ("topic", "partition", "offset"):
            value = getattr(self, name)
            parts += [] if value is None else [f"{name} {value}"]
        return ", ".join(parts)

    def matches_message(self, key: DecisionKey) -> bool:
        """Returns True if the message, given by topic, partition, session id and offset, fits what the user said."""
        topic, partition, session, offset = key
        given = ((self.topic, topic), (self.partition, partition), (self.offset, offset))
        return session == self.session and all(wanted in (None, found) for wanted, found in given)


def _describe_message(key: DecisionKey) -> str:
    topic, partition, session, offset = key
    return f"session {session!r}, topic {topic}, partition {partition}, offset {offset}"


def _get_violation_key(violation: StoppingViolation) -> DecisionKey:
    return violation.topic, violation.partition, violation.session_id, violation.offset


def _find_stopped_message(settings: Settings, message_filter: _MessageFilter) -> tuple[DecisionKey, set[str]]:
    """Finds the stopped message that the user means. Returns its key, and the layers that have stopped at it.

    Raises:
        UsageError: No layer has stopped at such a message, or processors have stopped at several that fit.
    """
    stops = _read_stops_by_layer(settings)
    mine = {
        layer: _get_violation_key(stop)
        for layer, stop in stops.items()
        if message_filter.matches_message(_get_violation_key(stop))
    }
    if not mine:
        texts = (f"{layer} stopped at {_describe_message(_get_violation_key(stop))}" for layer, stop in stops.items())
        places = "; ".join(texts)
        if SILVER not in stops:
            places = "; ".join(filter(None, ["silver is not known to have stopped", places]))
        raise UsageError(
            f"no layer has stopped at {message_filter}, so there is nothing to decide; known stops: {places}",
            fix=f"Name such a message with {_CHOICES}",
        )
    if SILVER not in mine and len(set(mine.values())) > 1:
        places = "; ".join(map(_describe_message, sorted(set(mine.values()))))
        raise UsageError(
            f"resolve: {message_filter}: processors have stopped at several messages: {places}",
            fix=f"Choose one with {_CHOICES}",
        )
    place = mine[SILVER] if SILVER in mine else next(iter(mine.values()))
    return place, {layer for layer, other in mine.items() if other == place}


def _refuse_processed_message(
    passed_layers: list[str], place: str, offset: int, decision: OperatorDecision, stopped_layers: set[str]
) -> None:
    """Refuses a decision about a message that is already processed: it would only change the result of a rebuild.

    A layer can stop at a message that it has processed: at a gap that was not filled in time (class `once`), or when a
    held message is released (class `window`, or `hold` of a feed). Then only a decision to skip the message is refused.

    Args:
        passed_layers: The layers that have processed the message.
        place: The topic and partition, as text for the error.
        offset: The offset of the message.
        decision: The decision.
        stopped_layers: The layers that have stopped at the message.
    """
    layers = " and ".join(layer for layer in passed_layers if layer not in stopped_layers)
    if layers:
        raise UsageError(f"{place}: {layers} has processed offset {offset}, so there is nothing to decide", fix=_TRACE)
    if passed_layers and decision is OperatorDecision.SKIP:
        raise UsageError(
            f"{place}: offset {offset} was processed as a valid message, and judged a violation only later",
            why="So the message is in the tables and cannot be skipped",
            fix="Choose --accept-gap to continue the session, or --isolate to stop it until its next snapshot",
        )


def _refuse_message_in_unfinished_batch(
    batch: ManifestBatch | None, layer: str, topic: str, partition: int, offset: int
) -> None:
    """Raises UsageError if a batch that was planned but not committed has the message. None means no such batch."""
    spans, target = [] if batch is None else batch.offsets, layer.replace("-", " ")
    if any((name, part) == (topic, partition) and first <= offset <= last for name, part, first, last in spans):
        raise UsageError(
            f"topic {topic}, partition {partition}: {layer} was interrupted while it committed offset {offset}",
            why="Some tables may already have the message's result",
            fix=f"Run `sessionlake run {target} --once` first, which finishes the batch",
        )


def _write_decision(lake: Lake, spark: SparkSession | None, reader: TableReader, decision: RecordedDecision) -> None:
    if not reader.exists(DECISIONS):
        raise LakeError(
            f"there is no table {DECISIONS} yet: silver has not run", fix="Run `sessionlake run silver` first"
        )
    before = _read_recorded_decisions(reader).get(decision.message_key, [])
    # The last decision must have the latest time, even if the system clock now shows an earlier time.
    at = max([decision.decided_at, *(time + timedelta(microseconds=1) for time, _ in before)])
    row = asdict(decision) | {"decision": str(decision.decision or WITHDRAWN), "decided_at": at}
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("session_id", pa.string()),
            ("offset", pa.int64()),
            ("decision", pa.string()),
            ("who", pa.string()),
            ("why", pa.string()),
            ("decided_at", pa.timestamp("us", tz="UTC")),
            ("partition", pa.int32()),
        ]
    )
    # Delta never forgets the ids of transactions, so the id must not contain the session's name.
    place = hashlib.sha256("\0".join(map(str, decision.message_key)).encode()).hexdigest()
    # The number must rise even if the table was restored to an older version, so it is not taken from the table.
    number = (at - _EPOCH) // timedelta(microseconds=1)
    append_rows(spark, lake, DECISIONS, pa.Table.from_pylist([row], schema), Txn(place, number))


# -- where a layer stopped


def read_message_that_stopped_layer(settings: Settings, layer: str = SILVER) -> StoppingViolation | None:
    """Returns the violation at which silver or a processor stands now; None if it has passed it or never stopped."""
    return manifest.read_message_that_stopped_layer(settings, layer, StoppingViolation)


def list_ledger_decisions(
    followed_keys: Iterable[DecisionKey], decisions_by_key: dict[DecisionKey, OperatorDecision]
) -> tuple[dict[str, object], ...]:
    """Returns the decisions that a batch has followed, as rows for the ledger's column `decisions`, sorted by message.

    Args:
        followed_keys: The messages whose decisions were followed, each by topic, partition, session id and offset.
        decisions_by_key: All decisions, by message.
    """
    return tuple(
        {**dict(zip(_PLACE, place, strict=True)), "decision": str(decisions_by_key[place])}
        for place in sorted(followed_keys)
    )
