"""Deciding about a place: only while nobody has passed it, and nobody can pass it meanwhile."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.commands.resolve import resolve
from sessionlake.config import ProcessorSettings, Settings
from sessionlake.errors import MachineError, UsageError
from sessionlake.integrity.rules import Decision
from sessionlake.lake.ledger import OffsetRange
from sessionlake.lake.names import DECISIONS, LEDGER
from sessionlake.lake.reading import DirectReader
from sessionlake.lake.tables import Lake
from sessionlake.laptop.home import claim
from sessionlake.silver.decisions import decisions
from sessionlake.streaming.guards import committing

TEXTS = ("topic", "session_id", "decision", "who", "why")
EMPTY = pa.table(
    {
        **{name: pa.array([], pa.string()) for name in TEXTS},
        "offset": pa.array([], pa.int64()),
        "decided_at": pa.array([], pa.timestamp("us", tz="UTC")),
    }
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Topic t, partition 0: session s has the offsets 0 to 9; silver has taken in 0 to 3, processor p 0 to 5."""
    busy = ProcessorSettings.model_validate({"name": "p", "class": "a:B"})
    found = Settings(home=tmp_path, processors=(busy,))
    Path(found.checkpoint("silver")).parent.mkdir()
    lake = Lake(found)
    messages = pa.table(
        {"topic": ["t"] * 10, "partition": pa.array([0] * 10, pa.int32()), "offset": range(10), "key": [b"s"] * 10}
    )
    write_deltalake(lake.path("bronze.messages"), messages)
    write_deltalake(lake.path(DECISIONS), EMPTY)
    write_deltalake(lake.path(LEDGER), pa.Table.from_pylist([entry("silver", 3), entry(busy.layer, 5)]))
    return found


def entry(layer: str, last: int) -> dict[str, object]:
    span = {"topic": "t", "partition": 0, "first": 0, "last": last}
    return {
        "layer": layer,
        "app_id": "q",
        "batch_id": 0,
        "committed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "offsets": [span],
    }


def decide(settings: Settings, offset: int) -> None:
    resolve(None, settings, "s", Decision.SKIP, offset=offset, topic=None, why=None)


def test_a_place_that_nobody_has_come_to_can_be_decided(settings):
    decide(settings, 6)
    assert decisions(DirectReader(Lake(settings))) == {("t", "s", 6): Decision.SKIP}


@pytest.mark.parametrize(("offset", "who"), [(3, "silver and processor-p"), (5, "processor-p")])
def test_what_silver_or_a_processor_has_passed_is_not_decided_any_more(settings, offset, who):
    with pytest.raises(UsageError, match=f"{who} has passed offset {offset}"):
        decide(settings, offset)


def test_nothing_is_decided_about_a_batch_that_was_interrupted_between_two_tables(settings):
    with contextlib.suppress(KeyError), committing(settings, "silver", 1, "a", [OffsetRange("t", 0, 4, 6, 3)]):
        raise KeyError
    with pytest.raises(UsageError, match="committed offset 6: run `sessionlake run silver --once`"):
        decide(settings, 6)
    decide(settings, 7)


def test_nothing_is_decided_while_silver_runs(settings):
    with claim(settings, "silver", "runs silver"), pytest.raises(MachineError, match="another process runs silver"):
        decide(settings, 6)
