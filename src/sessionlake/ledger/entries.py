"""The ledger: what went into each micro-batch of each layer, and what came out. Its row is written last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import eq
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.build import code_version
from sessionlake.delta.commit import append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.reading import Condition, TableReader, starts_with
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.ledger.books import LedgerReader
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_REBUILD: Condition = ("app_id", starts_with, REBUILD)
_NEVER = datetime.fromtimestamp(0, UTC)
RECOVERED = "recovered"
"""The `source` of an entry that was made of what a table holds: of a batch, or of all batches before it together."""


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
class TableOutput:
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
        decisions: what operators had decided about places in it (`topic, partition, session_id, offset, decision`).
    """

    layer: str
    txn: Txn
    source: str
    started_at: datetime
    source_from: int | None = None
    source_to: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    outputs: tuple[TableOutput, ...] = ()
    messages: int = 0
    applied: int = 0
    duplicates: int = 0
    quarantined: int = 0
    held: int = 0
    config_hash: str = field(default="")
    decisions: tuple[Mapping[str, object], ...] = ()


class Ledger:
    """Appends entries, at times that tell which of a layer's are from before its last rebuild, and which from after it.

    A machine's clock may be set back, at a rebuild or since. So a rebuild's entry is later than those of its layer, and
    than all other rebuilds', and no entry of its layer comes before it. One job has one of these: its layer is not
    rebuilt meanwhile.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._rebuilt: dict[str, datetime] = {}

    def write(self, spark: SparkSession, entry: LedgerEntry, txn: Txn | None = None) -> None:
        """Appends the entry; a replayed batch leaves the first one in place.

        Args:
            txn: of the commit, if it is not the entry's own.
        """
        row = _row(entry, max(datetime.now(UTC), self._earliest(spark, entry)))
        append(spark, self._lake, LEDGER, pa.Table.from_pylist([row], arrow_schema(LEDGER)), txn or entry.txn)

    def _earliest(self, spark: SparkSession, entry: LedgerEntry) -> datetime:
        """Just behind the entries that this one is after."""
        if entry.txn.app_id.startswith(REBUILD):
            books = LedgerReader(self._lake.reader(spark))
            return _behind(chain(books.entries(("layer", eq, entry.layer)), books.entries(_OF_REBUILD)))
        if entry.layer not in self._rebuilt:
            self._rebuilt[entry.layer] = earliest_after_rebuild(self._lake.reader(spark), entry.layer)
        return self._rebuilt[entry.layer]


def earliest_after_rebuild(reader: TableReader, layer: str) -> datetime:
    """Just behind the last rebuild of the layer, which may be in the future; long ago, if it never was rebuilt."""
    return _behind(LedgerReader(reader).entries(("layer", eq, layer), _OF_REBUILD))


def _behind(entries: Iterator[pa.RecordBatch]) -> datetime:
    times = [pc.max(batch.column("committed_at")).as_py() for batch in entries]
    return max((time for time in times if time is not None), default=_NEVER) + timedelta(microseconds=1)


def _row(entry: LedgerEntry, committed_at: datetime) -> Row:
    return {
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
        "committed_at": committed_at,
        "code_version": code_version(),
        "config_hash": entry.config_hash,
        "decisions": list(entry.decisions),
    }


_DECIDING: dict[str, set[str]] = {SILVER: {"snapshot_interval"}, GOLD: {"rolling_points"}}


def config_hash(settings: Settings, *layers: str) -> str:
    """Fingerprint of the part of the configuration that decides results: of these layers, by default of all."""
    deciding = {layer: _DECIDING[layer] for layer in layers or _DECIDING}
    text = settings.capture.model_dump_json() + settings.model_dump_json(include=deciding)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
