"""What gold is behind: the changes that are there and that it has not taken in, whatever was removed since."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from sessionlake.delta.schemas.names import CHANGES, LEDGER
from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.history import status
from sessionlake.ledger.positions import SCHEMA
from sessionlake.settings.model import Settings
from support.tables import Tables

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ROW = pa.schema(
    SCHEMA.field(name)
    for name in ("layer", "app_id", "batch_id", "source_to", "committed_at", "outputs", "offsets", "messages", *COUNTS)
)


class Lake:
    """A ledger, and how many changes there are of each batch of silver."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.changes: dict[int, int] = {}

    def add(self, layer: str, batch: int, app_id: str = "", source_to: int | None = None, messages: int = 0) -> None:
        at = NOON + timedelta(seconds=len(self.rows))
        own = {"layer": layer, "app_id": app_id or layer, "batch_id": batch, "source_to": source_to}
        counts = dict.fromkeys(COUNTS, 0) | {"messages": messages, "parts": messages, "applied": messages}
        self.rows.append(own | counts | {"committed_at": at, "outputs": [], "offsets": []})

    def silver(self, batch: int, changes: int) -> None:
        self.add("silver", batch)
        self.rows[-1]["outputs"] = [{"table": CHANGES, "version": batch, "rows": changes}]
        self.changes[batch] = changes

    def behind(self, settings: Settings) -> int | None:
        numbers = [batch for batch, count in self.changes.items() for _ in range(count)]
        reader = Tables(
            {LEDGER: pa.Table.from_pylist(self.rows, ROW), CHANGES: pa.table({"_batch": pa.array(numbers, pa.int64())})}
        )
        return {one.layer: one.behind for one in status.layer_statuses(reader, settings)}["gold"]


@pytest.fixture
def lake(monkeypatch: pytest.MonkeyPatch) -> Lake:
    monkeypatch.setattr(status, "read_kafka_end_offsets", lambda _: None)
    made = Lake()
    made.silver(0, 5)
    made.silver(1, 3)
    made.add("gold", 0, source_to=1, messages=8)
    return made


def test_gold_that_was_emptied_is_not_behind_by_changes_that_were_gone_by_then(lake: Lake, settings: Settings) -> None:
    assert lake.behind(settings) == 0
    lake.changes[0] = 0  # by retention, or with a forgotten session
    assert lake.behind(settings) == 0
    lake.add("gold", 0, "rebuild:r:gold")
    assert lake.behind(settings) == 3
    lake.add("gold", 0, "another", source_to=1, messages=3)
    assert lake.behind(settings) == 0
    lake.silver(2, 2)
    assert lake.behind(settings) == 2


def test_gold_that_a_rebuild_of_silver_left_as_it_was_is_not_behind(lake: Lake, settings: Settings) -> None:
    lake.silver(2, 8)
    lake.rows[-1]["app_id"] = "rebuild:r"
    lake.changes = {2: 8}
    assert lake.behind(settings) == 0
    lake.silver(3, 1)
    assert lake.behind(settings) == 1


def test_gold_that_begins_is_behind_by_older_batches_too_that_it_reads_later(lake: Lake, settings: Settings) -> None:
    lake.add("gold", 0, "rebuild:r:gold")
    lake.add("gold", 0, "another", source_to=1, messages=3)
    assert lake.behind(settings) == 5
