"""The ledger's entries: what went into each micro-batch of each layer, and what came out.

A batch writes its entry last.
"""

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
"""The `source` of an entry that was reconstructed from a table: for one batch, or for all batches before it."""


@dataclass(frozen=True)
class OffsetRange:
    """A batch's messages of one topic-partition. First and last offset are both included."""

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
    """A table that a batch wrote: its version after the write, and the number of rows written."""

    table: str
    version: int
    rows: int


@dataclass(frozen=True)
class LedgerEntry:
    """One micro-batch of one layer.

    Attributes:
        source: the table or system that was read.
        source_from: first version or batch of the source that was read; None if the source has none.
        source_to: last version or batch of the source that was read; None if the source has none.
        offsets: Kafka offsets of the batch.
        decisions: operators' decisions that the batch followed (`topic, partition, session_id, offset, decision`).
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
    """Appends entries, with times that order them correctly around rebuilds.

    A machine's clock can be set to an earlier time. So a rebuild's entry gets a later time than all entries of its
    layer and all other rebuilds. Later entries of the layer get a later time than the rebuild. One job uses one
    instance: its layer is not rebuilt meanwhile.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._rebuilt: dict[str, datetime] = {}

    def write(self, spark: SparkSession, entry: LedgerEntry, txn: Txn | None = None) -> None:
        """Appends the entry; a replayed batch keeps its first entry.

        Args:
            txn: the commit's transaction, if it differs from the entry's.
        """
        row = _row(entry, max(datetime.now(UTC), self._earliest(spark, entry)))
        append(spark, self._lake, LEDGER, pa.Table.from_pylist([row], arrow_schema(LEDGER)), txn or entry.txn)

    def _earliest(self, spark: SparkSession, entry: LedgerEntry) -> datetime:
        """Returns the earliest time that the entry may have."""
        if entry.txn.app_id.startswith(REBUILD):
            books = LedgerReader(self._lake.reader(spark))
            return _behind(chain(books.entries(("layer", eq, entry.layer)), books.entries(_OF_REBUILD)))
        if entry.layer not in self._rebuilt:
            self._rebuilt[entry.layer] = earliest_after_rebuild(self._lake.reader(spark), entry.layer)
        return self._rebuilt[entry.layer]


def earliest_after_rebuild(reader: TableReader, layer: str) -> datetime:
    """Returns the moment just after the layer's last rebuild, possibly in the future; 1970 if it never was rebuilt."""
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
    """Returns a fingerprint of the settings that decide results of these layers; of all layers if none is given."""
    deciding = {layer: _DECIDING[layer] for layer in layers or _DECIDING}
    text = settings.capture.model_dump_json() + settings.model_dump_json(include=deciding)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
