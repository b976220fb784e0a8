"""Creates a home in which a layer has stopped at a violation under `fail`, without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import DECISIONS, LEDGER
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import StoppingViolation
from sessionlake.streaming.manifest import record_message_that_stopped_layer
from support.lakes import find_table_folder

TEXTS = ("topic", "session_id", "decision", "who", "why")
EMPTY = pa.table(
    {
        **{name: pa.array([], pa.string()) for name in TEXTS},
        "partition": pa.array([], pa.int32()),
        "offset": pa.array([], pa.int64()),
        "decided_at": pa.array([], pa.timestamp("us", tz="UTC")),
    }
)


def make_home(settings: Settings) -> None:
    """Creates the home: session s has the offsets 0 to 9 of topic t. Silver has read 0 to 3, processors 0 to 5."""
    Path(settings.checkpoint_path("silver")).parent.mkdir(parents=True)
    lake = Lake(settings)
    messages = pa.table(
        {"topic": ["t"] * 10, "partition": pa.array([0] * 10, pa.int32()), "offset": range(10), "key": [b"s"] * 10}
    )
    write_deltalake(find_table_folder(lake, "bronze.messages"), messages)
    write_deltalake(find_table_folder(lake, DECISIONS), EMPTY)
    entries = [entry("silver", 3, [0]), *(entry(own.layer, 5) for own in settings.processors)]
    write_deltalake(find_table_folder(lake, LEDGER), pa.Table.from_pylist(entries))


def entry(layer: str, last: int, decided: Sequence[int] = (), batch: int = 0) -> dict[str, object]:
    """Returns a ledger row: the layer has read the offsets up to `last`, with decisions about some."""
    span = {"topic": "t", "partition": 0, "first": 0, "last": last, "messages": last + 1}
    taken = [{"topic": "t", "partition": 0, "session_id": "s", "offset": n, "decision": "isolate"} for n in decided]
    return {
        "layer": layer,
        "app_id": "q",
        "batch_id": batch,
        "committed_at": datetime(2026, 1, 1, tzinfo=UTC),
        "offsets": [span],
        "decisions": taken,
    }


def stop(settings: Settings, offset: int, layer: str = "silver") -> None:
    """Records that the layer stopped with a gap at the session's message with this offset."""
    record_message_that_stopped_layer(settings, StoppingViolation("t", 0, offset, "s", "strict", "gap", 5, 6), layer)
