"""What operators decide about places at which a session broke its class under `fail`: `ops.decisions`.

A decision is an input to silver as the messages are: it is read when the job starts, taken at its place once, and
noted in the ledger by the batch that took it. Where the job stopped is noted beside its checkpoint, so that a decision
needs only the session's name.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from sessionlake.config import Settings
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.rules import Decision, Place
from sessionlake.lake.commit import append
from sessionlake.lake.names import DECISIONS, MESSAGES
from sessionlake.lake.reading import Condition, Reader, reader_for
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn
from sessionlake.silver.fold.schemas import Violation
from sessionlake.streaming.guards import Begun, begun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Decided:
    """One decision.

    Attributes:
        who: the user's name.
        why: in the user's words.
    """

    topic: str
    session_id: str
    offset: int
    decision: Decision
    who: str
    why: str | None
    decided_at: datetime

    def __str__(self) -> str:
        meaning = {
            Decision.ACCEPT_GAP: "the message is applied all the same",
            Decision.ISOLATE: "the session is broken until its next snapshot",
            Decision.SKIP: "the message goes to quarantine and counts as not having arrived",
        }[self.decision]
        place = f"session {self.session_id!r}, topic {self.topic}, offset {self.offset}"
        return f"{place}: {meaning}. It takes effect when silver runs again"


def decisions(reader: Reader) -> dict[Place, Decision]:
    """All decisions by place."""
    columns = ["topic", "session_id", "offset", "decision"]
    rows = reader.rows(DECISIONS, columns=columns)
    return {(row["topic"], row["session_id"], row["offset"]): Decision(row["decision"]) for row in rows}


def decide(
    settings: Settings,
    spark: SparkSession | None,
    session: str,
    decision: Decision,
    *,
    offset: int | None = None,
    topic: str | None = None,
    who: str,
    why: str | None = None,
) -> Decided:
    """Records a decision.

    Args:
        spark: needed where tables are in a catalog.
        offset: of the message that broke the session; by default where silver stopped.
        topic: the session's; by default that of the place where silver stopped, or the only one that has the session.

    Raises:
        UsageError: silver did not stop at this session and no place is given, or its place is decided already.
        LakeError: bronze has no such message.
    """
    lake = Lake(settings)
    reader = reader_for(lake, spark)
    stopped = stopped_at(settings)
    if stopped is not None and stopped.session_id == session and topic in (None, stopped.topic):
        offset, topic = stopped.offset if offset is None else offset, stopped.topic
    if offset is None:
        where = f"it stopped at session {stopped.session_id!r}" if stopped else "it is not known to have stopped"
        raise UsageError(f"silver did not stop at session {session!r}: {where}. Name the place with --offset")
    topic, partition = _topic(reader, session, offset, topic)
    known = decisions(reader).get((topic, session, offset))
    if known is not None:
        raise UsageError(f"session {session!r}, topic {topic}, offset {offset}: decided already: {known}")
    stopped_here = stopped is not None and (stopped.topic, stopped.session_id, stopped.offset) == (
        topic,
        session,
        offset,
    )
    layers = ["silver"] if stopped_here else ["silver", *(processor.layer for processor in settings.processors)]
    passed = [layer for layer in layers if reader.covering(layer, topic, partition, offset)]
    _require_ahead(passed, f"topic {topic}, partition {partition}", offset, decision, stopped_here=stopped_here)
    for layer in layers:
        _require_whole(begun(settings, layer), layer, topic, partition, offset)
    decided = Decided(topic, session, offset, decision, who, why, datetime.now(UTC))
    _write(lake, spark, decided)
    return decided


def _topic(reader: Reader, session: str, offset: int, topic: str | None) -> tuple[str, int]:
    """The topic and partition in which the session has a message with this offset."""
    conditions: list[Condition] = [("key", operator.eq, session.encode()), ("offset", operator.eq, offset)]
    if topic is not None:
        conditions.append(("topic", operator.eq, topic))
    rows = reader.rows(MESSAGES, *conditions, columns=["topic", "partition"])
    found = sorted({(row["topic"], row["partition"]) for row in rows})
    if not found:
        where = f" of topic {topic}" if topic else ""
        raise LakeError(f"{MESSAGES} has no message of session {session!r} at offset {offset}{where}")
    if len(found) > 1:
        topics = ", ".join(name for name, _ in found)
        raise UsageError(f"session {session!r} has an offset {offset} in {topics}: choose one with --topic")
    return found[0]


def _require_ahead(passed: list[str], place: str, offset: int, decision: Decision, *, stopped_here: bool) -> None:
    """Refuses a decision about what is done already: who did it could not follow it, and a rebuild would.

    A gap that was not filled in time (class `once`), and what was held back (`window`), stop silver at messages that it
    has taken in.

    Args:
        passed: the layers that have taken in the message.
    """
    if passed and not stopped_here:
        raise UsageError(f"{place}: {' and '.join(passed)} has passed offset {offset}: nothing to decide")
    if passed and decision is Decision.SKIP:
        raise UsageError(
            f"{place}: offset {offset} was taken in before it came to a violation: "
            "it cannot be skipped any more; choose --accept-gap or --isolate"
        )


def _require_whole(batch: Begun | None, layer: str, topic: str, partition: int, offset: int) -> None:
    """Refuses a decision about a message of a batch some of whose tables may be committed."""
    spans = [] if batch is None else batch.offsets
    if any((name, part) == (topic, partition) and first <= offset <= last for name, part, first, last in spans):
        raise UsageError(
            f"topic {topic}, partition {partition}: {layer} was interrupted while it committed offset {offset}: "
            f"run `sessionlake run {layer.replace('-', ' ')} --once` first"
        )


def _write(lake: Lake, spark: SparkSession | None, decided: Decided) -> None:
    if lake.local and not (lake.path(DECISIONS) / "_delta_log").is_dir():
        raise LakeError(f"{DECISIONS} is not there yet: there is nothing to decide before silver has run")
    row = asdict(decided) | {"decision": str(decided.decision)}
    schema = pa.schema(
        [
            ("topic", pa.string()),
            ("session_id", pa.string()),
            ("offset", pa.int64()),
            ("decision", pa.string()),
            ("who", pa.string()),
            ("why", pa.string()),
            ("decided_at", pa.timestamp("us", tz="UTC")),
        ]
    )
    place = f"{decided.topic}\0{decided.session_id}\0{decided.offset}"
    append(spark, lake, DECISIONS, pa.Table.from_pylist([row], schema), Txn(place, 0))


# -- where silver stopped


def _note(settings: Settings) -> Path:
    return Path(f"{settings.checkpoint('silver')}.stopped.json")


def stopped_at(settings: Settings) -> Violation | None:
    """The violation at which silver stopped, if it has not gone on since."""
    try:
        return msgspec.json.decode(_note(settings).read_bytes(), type=Violation)
    except (OSError, msgspec.MsgspecError):
        return None


def note_stop(settings: Settings, violation: Violation) -> None:
    """Notes where silver stops. A convenience: the error names the place as well."""
    with contextlib.suppress(OSError):
        _note(settings).write_bytes(msgspec.json.encode(violation))


def note_going_on(settings: Settings) -> None:
    """Notes that silver has passed the place at which it stopped."""
    with contextlib.suppress(OSError):
        _note(settings).unlink(missing_ok=True)


def taken(decided: Iterable[Place], known: dict[Place, Decision]) -> tuple[dict[str, object], ...]:
    """Decisions that a batch took, as the ledger tells them, in order of place."""
    return tuple(
        {"topic": topic, "session_id": session, "offset": offset, "decision": str(known[topic, session, offset])}
        for topic, session, offset in sorted(decided)
    )
