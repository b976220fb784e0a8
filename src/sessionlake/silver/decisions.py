"""What operators decide about places at which a session broke its class under `fail`: `ops.decisions`.

A decision is an input to silver as the messages are: it is read when the job starts, taken at its place once, and
noted in the ledger by the batch that took it. Where a job stopped is noted beside its checkpoint: only that place can
be decided about, so a decision needs only the session's name. Until somebody has followed it, it can be withdrawn.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake.delta.commit import append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, SILVER
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.rules import Decision, DecisionKey
from sessionlake.ledger.books import LedgerReader, to_dicts
from sessionlake.ledger.progress import has_read
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import Violation
from sessionlake.streaming import manifest
from sessionlake.streaming.manifest import Batch, unfinished_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WITHDRAWN = "withdrawn"
_PLACE = ("topic", "partition", "session_id", "offset")
_CHOICES = "--topic, --partition and --offset"
_EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class Decided:
    """One decision.

    Attributes:
        decision: None withdraws the one before.
        who: the user's name.
        why: in the user's words.
    """

    topic: str
    partition: int
    session_id: str
    offset: int
    decision: Decision | None
    who: str
    why: str | None
    decided_at: datetime

    @property
    def place(self) -> DecisionKey:
        """The message that it is about."""
        return self.topic, self.partition, self.session_id, self.offset

    def __str__(self) -> str:
        place = f"session {self.session_id!r}, topic {self.topic}, partition {self.partition}, offset {self.offset}"
        if self.decision is None:
            return f"{place}: the decision is withdrawn"
        meaning = {
            Decision.ACCEPT_GAP: "the message is applied all the same",
            Decision.ISOLATE: "the session is broken until its next snapshot",
            Decision.SKIP: "the message goes to quarantine and counts as not having arrived",
        }[self.decision]
        return f"{place}: {meaning}. It takes effect when silver runs again"


def decisions(reader: TableReader) -> dict[DecisionKey, Decision]:
    """All decisions by place, less those withdrawn."""
    return {place: Decision(last) for place, (*_, (_, last)) in _recorded(reader).items() if last != WITHDRAWN}


def binding_decisions(reader: TableReader) -> dict[DecisionKey, Decision]:
    """As `decisions`, and those that silver has followed, though the table lack them: the ledger names them, too."""
    return decisions(reader) | _followed(reader)


def _recorded(reader: TableReader) -> dict[DecisionKey, list[tuple[datetime, str]]]:
    """What was recorded about each place, in order of time: the last word counts."""
    found: dict[DecisionKey, list[tuple[datetime, str]]] = {}
    for row in reader.rows(DECISIONS, columns=[*_PLACE, "decision", "decided_at"]):
        place = _key_of(row)
        found.setdefault(place, []).append((row["decided_at"], row["decision"]))
    return {place: sorted(rows) for place, rows in found.items()}


def decide(
    settings: Settings,
    spark: SparkSession | None,
    session: str,
    decision: Decision,
    *,
    offset: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
    who: str,
    why: str | None = None,
) -> Decided:
    """Records a decision about a place at which silver, or a processor, stopped.

    Args:
        spark: needed where tables are in a catalog.
        offset: of the message that broke the session; by default where silver stopped, or else a processor.
        topic: the session's; by default that of the place.
        partition: likewise.

    Raises:
        UsageError: nothing has stopped there, or the place is decided already.
    """
    lake = Lake(settings)
    reader = lake.reader(spark)
    place, stopped = _stop_at(settings, _Meant(session, offset, topic, partition))
    topic, partition, _, offset = place
    known = decisions(reader).get(place)
    if known is not None:
        raise UsageError(f"{_told(place)}: decided already: {known}; --withdraw takes it back")
    # Where silver stopped, a processor that is past the place has judged it by other rules: it would not stop there.
    layers = [SILVER] if SILVER in stopped else _layers(settings)
    passed = [layer for layer in layers if has_read(reader, layer, topic, partition, offset)]
    _require_ahead(passed, f"topic {topic}, partition {partition}", offset, decision, stopped)
    for layer in layers:
        _require_whole(unfinished_batch(settings, layer), layer, topic, partition, offset)
    decided = Decided(*place, decision, who, why, datetime.now(UTC))
    _write(lake, spark, reader, decided)
    return decided


def withdraw(
    settings: Settings,
    spark: SparkSession | None,
    session: str,
    *,
    offset: int | None = None,
    topic: str | None = None,
    partition: int | None = None,
    who: str,
    why: str | None = None,
) -> Decided:
    """Takes back a decision that nobody has followed yet.

    Args:
        spark: needed where tables are in a catalog.
        offset: of the place; by default that of the session's only decision still to be followed.
        topic: the session's; by default the only one with such a decision.
        partition: likewise.

    Raises:
        UsageError: there is no such decision, or it was followed.
    """
    lake = Lake(settings)
    reader = lake.reader(spark)
    followed = _followed(reader)
    meant = _Meant(session, offset, topic, partition)
    mine = [place for place in sorted(decisions(reader)) if meant.fits(place)]
    pending = [place for place in mine if place not in followed]
    if not pending:
        why_not = "silver has followed it: it cannot be withdrawn" if mine else "nothing is decided"
        raise UsageError(f"{meant}: {why_not}")
    if len(pending) > 1:
        places = "; ".join(map(_told, pending))
        raise UsageError(f"{meant}: there are several decisions ({places}): choose one with {_CHOICES}")
    place = pending[0]
    _require_untaken(settings, reader, place)
    decided = Decided(*place, None, who, why, datetime.now(UTC))
    _write(lake, spark, reader, decided)
    return decided


def _followed(reader: TableReader) -> dict[DecisionKey, Decision]:
    """The decisions that batches of silver have taken."""
    rows = to_dicts(LedgerReader(reader, "decisions").entries(("layer", operator.eq, SILVER)))
    told = (item for row in rows for item in row["decisions"] or ())
    return {_key_of(item): Decision(item["decision"]) for item in told}


def _key_of(row: Mapping[str, Any]) -> DecisionKey:
    return row["topic"], row["partition"], row["session_id"], row["offset"]


def _require_untaken(settings: Settings, reader: TableReader, place: DecisionKey) -> None:
    """Refuses to withdraw what a layer has followed, or may have: it would be made otherwise when it is made again."""
    (topic, partition, _, offset), stopped = place, _stops(settings)
    for layer in _layers(settings):
        if unfinished_batch(settings, layer) is not None:
            raise UsageError(
                f"{layer} was interrupted while it committed a batch: run `sessionlake run {layer.replace('-', ' ')} "
                "--once` first"
            )
        waits = layer in stopped and _place_of(stopped[layer]) == place
        if not waits and has_read(reader, layer, topic, partition, offset):
            raise UsageError(f"{_told(place)}: {layer} has passed it: the decision cannot be withdrawn")


def _layers(settings: Settings) -> list[str]:
    """The layers that judge sessions, and so can be decided about."""
    return [SILVER, *(processor.layer for processor in settings.processors)]


def _stops(settings: Settings) -> dict[str, Violation]:
    """Where the layers stopped, of those that have."""
    found = {layer: stopped_at(settings, layer) for layer in _layers(settings)}
    return {layer: stop for layer, stop in found.items() if stop is not None}


@dataclass(frozen=True)
class _Meant:
    """A place, as far as it was given."""

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

    def fits(self, place: DecisionKey) -> bool:
        """Whether this may be the place."""
        topic, partition, session, offset = place
        given = ((self.topic, topic), (self.partition, partition), (self.offset, offset))
        return session == self.session and all(wanted in (None, found) for wanted, found in given)


def _told(place: DecisionKey) -> str:
    topic, partition, session, offset = place
    return f"session {session!r}, topic {topic}, partition {partition}, offset {offset}"


def _place_of(stop: Violation) -> DecisionKey:
    return stop.topic, stop.partition, stop.session_id, stop.offset


def _stop_at(settings: Settings, meant: _Meant) -> tuple[DecisionKey, set[str]]:
    """The place that is meant, and the layers that stopped there.

    Raises:
        UsageError: none has, or the processors stopped at several.
    """
    stops = _stops(settings)
    mine = {layer: _place_of(stop) for layer, stop in stops.items() if meant.fits(_place_of(stop))}
    if not mine:
        places = "; ".join(f"{layer} stopped at {_told(_place_of(stop))}" for layer, stop in stops.items())
        if SILVER not in stops:
            places = "; ".join(filter(None, ["silver is not known to have stopped", places]))
        raise UsageError(f"nothing stopped at {meant}, so nothing is to be decided: {places}")
    if SILVER not in mine and len(set(mine.values())) > 1:
        places = "; ".join(map(_told, sorted(set(mine.values()))))
        raise UsageError(f"{meant}: processors stopped at several places ({places}): choose one with {_CHOICES}")
    place = mine[SILVER] if SILVER in mine else next(iter(mine.values()))
    return place, {layer for layer, other in mine.items() if other == place}


def _require_ahead(passed: list[str], place: str, offset: int, decision: Decision, stopped: set[str]) -> None:
    """Refuses a decision about what is done already: who did it could not follow it, and a rebuild would.

    A gap that was not filled in time (class `once`), and what was held back (`window`), stop silver at messages that it
    has taken in.

    Args:
        passed: the layers that have taken in the message.
        stopped: those that stopped at it.
    """
    gone = [layer for layer in passed if layer not in stopped]
    if gone:
        raise UsageError(f"{place}: {' and '.join(gone)} has passed offset {offset}: nothing to decide")
    if passed and decision is Decision.SKIP:
        raise UsageError(
            f"{place}: offset {offset} was taken in before it came to a violation: "
            "it cannot be skipped any more; choose --accept-gap or --isolate"
        )


def _require_whole(batch: Batch | None, layer: str, topic: str, partition: int, offset: int) -> None:
    """Refuses a decision about a message of a batch some of whose tables may be committed."""
    spans = [] if batch is None else batch.offsets
    if any((name, part) == (topic, partition) and first <= offset <= last for name, part, first, last in spans):
        raise UsageError(
            f"topic {topic}, partition {partition}: {layer} was interrupted while it committed offset {offset}: "
            f"run `sessionlake run {layer.replace('-', ' ')} --once` first"
        )


def _write(lake: Lake, spark: SparkSession | None, reader: TableReader, decided: Decided) -> None:
    if not reader.exists(DECISIONS):
        raise LakeError(f"{DECISIONS} is not there yet: there is nothing to decide before silver has run")
    before = _recorded(reader).get(decided.place, [])
    # The last word counts, whatever a clock set back says.
    at = max([decided.decided_at, *(time + timedelta(microseconds=1) for time, _ in before)])
    row = asdict(decided) | {"decision": str(decided.decision or WITHDRAWN), "decided_at": at}
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
    # Delta never forgets who has committed: what names the session there must not be its id.
    place = hashlib.sha256("\0".join(map(str, decided.place)).encode()).hexdigest()
    # Nor what was committed before the table was set back: the number rises whatever the table holds.
    number = (at - _EPOCH) // timedelta(microseconds=1)
    append(spark, lake, DECISIONS, pa.Table.from_pylist([row], schema), Txn(place, number))


# -- where a layer stopped


def stopped_at(settings: Settings, layer: str = SILVER) -> Violation | None:
    """The violation at which silver, or a processor, stopped, if it has not gone on since."""
    return manifest.stopped_at(settings, layer, Violation)


def taken(decided: Iterable[DecisionKey], known: dict[DecisionKey, Decision]) -> tuple[dict[str, object], ...]:
    """Decisions that a batch took, as the ledger tells them, in order of place."""
    return tuple({**dict(zip(_PLACE, place, strict=True)), "decision": str(known[place])} for place in sorted(decided))
