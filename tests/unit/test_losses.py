"""What a checkpoint says against the ledger, and what it does not say when it is damaged."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from sessionlake.delta.schemas.names import LEDGER, SILVER
from sessionlake.errors import DataLossError
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import require_intact_checkpoint
from sessionlake.streaming.losses import refuse_outdated_ledger
from support.ledgers import LEDGER_SCHEMA
from support.tables import Tables

QUERY = "4a7c"


@pytest.fixture
def checkpoint(settings: Settings) -> Path:
    """Of silver, which has committed three batches."""
    folder = Path(settings.checkpoint_path(SILVER))
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True)
        for batch in range(3):
            (folder / log / str(batch)).write_text("v1\n{}")
    (folder / "metadata").write_text(json.dumps({"id": QUERY}))
    return folder


def ledger(*batches: int) -> Tables:
    own = {"layer": SILVER, "app_id": QUERY, "committed_at": datetime.now(UTC)}
    rows = pa.Table.from_pylist([own | {"batch_id": batch} for batch in batches], LEDGER_SCHEMA)
    return Tables({LEDGER: rows})


@pytest.mark.usefixtures("checkpoint")
def test_a_ledger_that_ends_before_the_checkpoint_is_noticed(settings):
    refuse_outdated_ledger(ledger(0, 1, 2), settings, SILVER, 0)
    with pytest.raises(
        DataLossError, match=r"ops\.ledger has batches up to 1 of silver, which has committed batch 2 \("
    ):
        refuse_outdated_ledger(ledger(0, 1), settings, SILVER, 0)


def test_a_damaged_checkpoint_says_nothing_of_the_ledger_so_that_it_can_be_recovered(checkpoint, settings):
    (checkpoint / "metadata").write_text("{torn")
    refuse_outdated_ledger(ledger(0, 1), settings, SILVER, 0)
    with pytest.raises(DataLossError, match="metadata cannot be read"):
        require_intact_checkpoint(str(checkpoint), SILVER)
