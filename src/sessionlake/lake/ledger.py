"""The ledger: what went into each micro-batch of each layer, and what came out. Its row is written last."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.build import code_version
from sessionlake.config import Settings
from sessionlake.lake.commit import append
from sessionlake.lake.names import GOLD, LEDGER, SILVER
from sessionlake.lake.schemas import arrow_schema
from sessionlake.lake.tables import Lake
from sessionlake.lake.txn import Txn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNTS = ("messages", "applied", "duplicates", "quarantined", "held")
"""Columns that balance in every entry of silver: the first is the sum of the others."""

REBUILD = "rebuild:"
"""What the application id of a rebuild's entry begins with: the layer's entries before it tell of tables replaced."""

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
        decisions: what operators had decided about places in it (`topic, session_id, offset, decision`).
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


def write(spark: SparkSession, lake: Lake, entry: LedgerEntry, txn: Txn | None = None) -> None:
    """Appends the entry; a replayed batch leaves the first one in place.

    Args:
        txn: of the commit, if it is not the entry's own.
    """
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
        "code_version": code_version(),
        "config_hash": entry.config_hash,
        "decisions": list(entry.decisions),
    }
    append(spark, lake, LEDGER, pa.Table.from_pylist([row], arrow_schema(LEDGER)), txn or entry.txn)


_DECIDING: dict[str, set[str]] = {SILVER: {"snapshot_interval"}, GOLD: {"rolling_points"}}


def config_hash(settings: Settings, *layers: str) -> str:
    """Fingerprint of the part of the configuration that decides results: of these layers, by default of all."""
    deciding = {layer: _DECIDING[layer] for layer in layers or _DECIDING}
    text = settings.capture.model_dump_json() + settings.model_dump_json(include=deciding)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
