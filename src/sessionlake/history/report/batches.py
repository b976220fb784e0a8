"""The ledger's entries that a page tells of: those of late, of the layers as they are now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import ge

from sessionlake.delta.schemas.names import LEDGER, SILVER
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.ledger.books import ENTRY, LedgerReader, current_mask
from sessionlake.protocol.types import Row

# As far back as it takes for so many entries; where an hour has more than can be shown, the latest.
_LOOKBACKS = (timedelta(hours=1), timedelta(days=1), timedelta(days=30))
_ENOUGH = 100
_AT_MOST = 20_000
_COLUMNS = (*ENTRY, "started_at", "messages", "outputs")


@dataclass(frozen=True)
class Batch:
    """One entry.

    Attributes:
        rows: that it wrote, by table.
        rebuilt: whether it is a rebuild, which replaces all that the layer had.
    """

    layer: str
    number: int
    started_at: datetime
    committed_at: datetime
    messages: int
    rows: Mapping[str, int]
    rebuilt: bool = False

    @property
    def seconds(self) -> float:
        """From its start to its commit."""
        return max(0.0, (self.committed_at - self.started_at).total_seconds())


def latest_batches(reader: TableReader, layers: Iterable[str], until: datetime) -> list[Batch]:
    """Batches of the layers before a moment, as they were committed; some hundred, or the last hour's.

    Args:
        until: when the last batch was committed.
    """
    since, wanted = LedgerReader(reader).rebuilds(), set(layers)
    found: list[Batch] = []
    for reach in _LOOKBACKS:
        late = reader.batches(LEDGER, ("committed_at", ge, until - reach), columns=_COLUMNS)
        rows = (row for batch in late for row in batch.filter(current_mask(batch, since)).to_pylist())
        found = [_batch(row) for row in rows if row["layer"] in wanted]
        if len(found) >= _ENOUGH:
            break
    return sorted(found, key=lambda batch: (batch.committed_at, batch.number))[-_AT_MOST:]


def recent_rows_condition(batches: Sequence[Batch], table: str, total: int, at_most: int) -> list[Condition]:
    """What narrows a table of silver's down to the rows of its latest batches.

    Args:
        total: rows that all batches wrote to the table.
        at_most: so many may be read. A batch that alone has more is read all the same.
    """
    if total <= at_most:
        return []
    left, first = at_most, None
    for batch in reversed([batch for batch in batches if batch.layer == SILVER]):
        left -= batch.rows.get(table, 0)
        if first is not None and left < 0:
            break
        first = batch.number
    return [] if first is None else [("_batch", ge, first)]


def _batch(row: Row) -> Batch:
    return Batch(
        layer=row["layer"],
        number=row["batch_id"],
        started_at=row["started_at"],
        committed_at=row["committed_at"],
        messages=row["messages"],
        rows={output["table"]: output["rows"] for output in row["outputs"]},
        rebuilt=row["app_id"].startswith(REBUILD),
    )
