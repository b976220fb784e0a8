"""Reads the latest ledger entries for the report. Entries from before a layer's last rebuild are left out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import ge

from sessionlake.delta.schemas.names import LEDGER, SILVER
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.ledger.books import ENTRY, LedgerReader, mask_entries_since_rebuild
from sessionlake.protocol.types import Row

# How far back to look for enough entries. If there are more entries than the limit, only the latest are used.
_LOOKBACKS = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))
_ENOUGH = 100
_AT_MOST = 20_000
_COLUMNS = (*ENTRY, "started_at", "messages", "outputs")


@dataclass(frozen=True)
class LayerBatch:
    """One batch of a layer, from its ledger entry.

    Attributes:
        layer: Name of the layer.
        number: Id of the batch.
        started_at: When the batch started.
        committed_at: When the batch was committed.
        messages: Number of messages that the batch read; for gold, of session changes.
        rows: Number of rows that the batch wrote, by table.
        rebuilt: True if the entry is a rebuild, which replaced all rows of the layer.
    """

    layer: str
    number: int
    started_at: datetime
    committed_at: datetime
    messages: int
    rows: Mapping[str, int]
    rebuilt: bool = False

    @property
    def duration_seconds(self) -> float:
        """Duration from the start of the batch to its commit, in seconds."""
        return max(0.0, (self.committed_at - self.started_at).total_seconds())


def find_latest_batches(reader: TableReader, layers: Iterable[str], until: datetime) -> list[LayerBatch]:
    """Returns the latest batches of the layers, in the order of their commits: at least 100, if there are so many.

    Args:
        reader: Reads the ledger.
        layers: Names of the layers.
        until: When the last batch of all layers was committed.
    """
    since, wanted = LedgerReader(reader).read_last_rebuilds(), set(layers)
    found: list[LayerBatch] = []
    for reach in _LOOKBACKS:
        late = reader.read_batches(LEDGER, ("committed_at", ge, until - reach), columns=_COLUMNS)
        rows = (row for batch in late for row in batch.filter(mask_entries_since_rebuild(batch, since)).to_pylist())
        found = [_convert_to_layer_batch(row) for row in rows if row["layer"] in wanted]
        if len(found) >= _ENOUGH:
            break
    return sorted(found, key=lambda batch: (batch.committed_at, batch.number))[-_AT_MOST:]


def build_conditions_for_recent_rows(
    batches: Sequence[LayerBatch], table: str, total_rows: int, max_rows: int
) -> list[Condition]:
    """Returns a condition that limits reading to the latest rows of one of silver's tables; empty if all can be read.

    Args:
        batches: The latest batches, in the order of their commits.
        table: Name of the table.
        total_rows: Number of rows that all batches wrote to the table.
        max_rows: The most rows to read. Rows of the last batch are always read.
    """
    if total_rows <= max_rows:
        return []
    left, first = max_rows, None
    for batch in reversed([batch for batch in batches if batch.layer == SILVER]):
        left -= batch.rows.get(table, 0)
        if first is not None and left < 0:
            break
        first = batch.number
    return [] if first is None else [("_batch", ge, first)]


def _convert_to_layer_batch(row: Row) -> LayerBatch:
    return LayerBatch(
        layer=row["layer"],
        number=row["batch_id"],
        started_at=row["started_at"],
        committed_at=row["committed_at"],
        messages=row["messages"],
        rows={output["table"]: output["rows"] for output in row["outputs"]},
        rebuilt=row["app_id"].startswith(REBUILD),
    )
