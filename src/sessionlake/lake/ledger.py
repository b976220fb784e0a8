"""The ledger: what went into each micro-batch of each layer, and what came out. Its row is written last."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sessionlake import __version__
from sessionlake.config import Settings
from sessionlake.errors import OffsetHoleError
from sessionlake.lake.commit import Txn, append
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import Lake
from sessionlake.lake.topics import Jumps, jumped, jumps, read_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEDGER = "ops.ledger"
REBUILD = "rebuild:"
"""What the application id of a rebuild's entry begins with: the layer's entries before it tell of tables replaced."""


@dataclass(frozen=True)
class OffsetRange:
    """A batch's messages of one topic-partition: first and last offset, both included."""

    topic: str
    partition: int
    first: int
    last: int
    messages: int

    @property
    def missing(self) -> int:
        """How many offsets inside the range have no message."""
        return self.last - self.first + 1 - self.messages


@dataclass(frozen=True)
class Output:
    """One table a batch wrote: its version afterwards and how many rows went in."""

    table: str
    version: int
    rows: int


@dataclass(frozen=True)
class LedgerEntry:
    """One micro-batch of one layer.

    Attributes:
        source: the table or system read; `source_from` and `source_to` are its first and last version or
            batch, both included, where it has such.
        offsets: Kafka offsets the batch covered.
        decisions: what operators had decided about places in it (`topic, session_id, offset, decision`).
    """

    layer: str
    txn: Txn
    source: str
    started_at: datetime
    source_from: int | None = None
    source_to: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    outputs: tuple[Output, ...] = ()
    messages: int = 0
    applied: int = 0
    duplicates: int = 0
    quarantined: int = 0
    held: int = 0
    config_hash: str = field(default="")
    decisions: tuple[Mapping[str, object], ...] = ()


def write(spark: SparkSession, lake: Lake, entry: LedgerEntry) -> None:
    """Appends the entry; a replayed batch leaves the first one in place."""
    row = {
        "layer": entry.layer,
        "app_id": entry.txn.app_id,
        "batch_id": entry.txn.version,
        "source": entry.source,
        "source_from": entry.source_from,
        "source_to": entry.source_to,
        "offsets": [asdict(item) for item in entry.offsets],
        "outputs": [asdict(item) for item in entry.outputs],
        "messages": entry.messages,
        "applied": entry.applied,
        "duplicates": entry.duplicates,
        "quarantined": entry.quarantined,
        "held": entry.held,
        "started_at": entry.started_at,
        "committed_at": datetime.now(UTC),
        "code_version": __version__,
        "config_hash": entry.config_hash,
        "decisions": list(entry.decisions),
    }
    append(spark, lake, LEDGER, pa.Table.from_pylist([row], _arrow_schema()), entry.txn)


def rebuilt(entries: Iterable[Mapping[str, Any]]) -> dict[str, tuple[str, Any]]:
    """Since when each layer is as it is: layers that were rebuilt, with a column and the least value that counts.

    Args:
        entries: the rebuilds', or more, with `layer`, `app_id`, `batch_id` and `committed_at`.
    """
    found: dict[str, tuple[str, Any]] = {}
    for entry in entries:
        if entry["app_id"].startswith(REBUILD):
            layer, by = entry["layer"], _RISING.get(entry["layer"], "committed_at")
            found[layer] = by, max(entry[by], found.get(layer, (by, entry[by]))[1])
    return found


def current(ledger: DataFrame) -> DataFrame:
    """The entries that tell of what the tables hold now: each layer's since it was rebuilt."""
    from pyspark.sql import functions as F

    rebuilds = ledger.where(F.col("app_id").startswith(REBUILD)).select(*ENTRY).collect()
    for layer, (by, least) in rebuilt(row.asDict() for row in rebuilds).items():
        ledger = ledger.where((F.col("layer") != layer) | (F.col(by) >= least))
    return ledger


ENTRY = ("layer", "app_id", "batch_id", "committed_at")
# Layers whose batch numbers go on rising through a rebuild; those of others begin anew.
_RISING = {"silver": "batch_id", "silver_tables": "batch_id"}


def current_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same of rows that are at hand, with `ENTRY`."""
    known = list(rows)
    since = rebuilt(known)
    return [row for row in known if row["layer"] not in since or row[since[row["layer"]][0]] >= since[row["layer"]][1]]


@lru_cache(maxsize=1)
def _arrow_schema() -> pa.Schema:
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    ddl = ", ".join(f"{name} {sql}" for name, sql in TABLES[LEDGER].columns)
    return to_arrow_schema(StructType.fromDDL(ddl))


class OffsetLog:
    """Where each topic-partition stood after the previous batch: the check that nothing was skipped.

    Args:
        ends: the last offset of each topic-partition.
        jumps: offsets that were passed over between generations of a topic; asked for when some are missing.
    """

    def __init__(self, ends: Mapping[tuple[str, int], int] | None = None, jumps: Callable[[], Jumps] = dict) -> None:
        self._ends = dict(ends or {})
        self._jumps = jumps

    @classmethod
    def empty(cls, spark: SparkSession, lake: Lake) -> OffsetLog:
        """Before any batch."""
        from sessionlake.lake.topics import jumps, read_topics

        return cls({}, lambda: jumps(read_topics(spark, lake)))

    @classmethod
    def load(cls, spark: SparkSession, lake: Lake, layer: str, before: Txn | None = None) -> OffsetLog:
        """Reads the layer's ledger, up to, and without, the batch `before`."""
        from pyspark.sql import functions as F

        replayed = F.lit(col=False)
        if before is not None:
            replayed = (F.col("app_id") == before.app_id) & (F.col("batch_id") >= before.version)
        kept = current(lake.read(spark, LEDGER)).where((F.col("layer") == layer) & ~replayed)
        ends = (
            kept.select(F.explode("offsets").alias("o"))
            .groupBy("o.topic", "o.partition")
            .agg(F.max("o.last").alias("last"))
        )
        last = {(row["topic"], row["partition"]): row["last"] for row in ends.collect()}
        return cls(last, lambda: jumps(read_topics(spark, lake)))

    @property
    def ends(self) -> Mapping[tuple[str, int], int]:
        """Last offset taken in, by topic and partition."""
        return self._ends

    def check(self, ranges: Iterable[OffsetRange], *, allow_gaps: bool, layer: str) -> None:
        """Every range must go on where the last ended and have as many messages as offsets.

        Raises:
            OffsetHoleError: naming topic, partition and the missing or repeated offsets.
        """
        for item in ranges:
            previous = self._ends.get((item.topic, item.partition))
            place = f"{layer}: topic {item.topic}, partition {item.partition}"
            if previous is not None and item.first <= previous:
                raise OffsetHoleError(
                    f"{place}: the batch starts at offset {item.first}, but offsets up to {previous} are already in; "
                    "the topic was deleted and made anew, or the checkpoint is older than the tables"
                )
            if item.missing < 0:
                raise OffsetHoleError(
                    f"{place}: {item.messages} messages for the offsets {item.first} to {item.last}: some are in the "
                    "source table more than once; restore it to a version without them"
                )
            if allow_gaps:
                continue
            before, inside = self._unexplained(item, previous)
            if before and previous is not None:
                raise OffsetHoleError(
                    f"{place}: offsets {previous + 1} to {item.first - 1} are missing; they were deleted before they "
                    "were read. If the topic is compacted or written in transactions, set kafka.allow_offset_gaps: true"
                )
            if inside:
                raise OffsetHoleError(
                    f"{place}: {inside} of the offsets {item.first} to {item.last} are missing. "
                    "If the topic is compacted or written in transactions, set kafka.allow_offset_gaps: true"
                )

    def _unexplained(self, item: OffsetRange, previous: int | None) -> tuple[int, int]:
        """Offsets missing before and inside a range, less those between two generations of the topic."""
        before = 0 if previous is None else item.first - previous - 1
        if not before and not item.missing:
            return 0, 0
        place, known = (item.topic, item.partition), self._jumps()
        over = jumped(known, place, item.first - before, item.first), jumped(known, place, item.first, item.last + 1)
        return before - over[0], item.missing - over[1]

    def advance(self, ranges: Iterable[OffsetRange]) -> None:
        """Takes note of a batch that is committed."""
        for item in ranges:
            self._ends[item.topic, item.partition] = item.last


_DECIDING: dict[str, set[str]] = {"silver": {"snapshot_interval"}, "gold": {"rolling_points"}}


def config_hash(settings: Settings) -> str:
    """Fingerprint of the part of the configuration that decides results."""
    text = settings.capture.model_dump_json() + settings.model_dump_json(include=_DECIDING)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
