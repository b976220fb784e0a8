"""How far the readers of a table are, by their checkpoints; what becomes of a table that fails."""

from __future__ import annotations

import errno
import json
import threading
from datetime import timedelta
from pathlib import Path
from queue import Queue
from typing import Any

import msgspec
import pytest

from sessionlake.delta.schemas.names import CHANGES, MESSAGES, ROWS, SESSIONS
from sessionlake.errors import LakeError
from sessionlake.operations.maintenance import (
    ReadingStreamProgress,
    TableMaintainer,
    TableMaintenanceResult,
    list_streams_reading_table,
)
from sessionlake.settings.model import MaintenanceSettings, ProcessorSettings, Settings
from sessionlake.streaming import handover
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import (
    discard_building_record,
    read_bronze_version_of_rebuild,
    record_tables_being_built,
)
from sessionlake.streaming.operation import create_processor_rebuild_operation


def checkpoint(settings: Settings, name: str, *, planned: int, committed: int | None, offset: Any) -> Path:
    """As Spark writes it."""
    folder = Path(settings.checkpoint_path(name))
    for log in ("offsets", "commits"):
        (folder / log).mkdir(parents=True, exist_ok=True)
    for batch in range(planned + 1):
        place = offset[batch] if isinstance(offset, list) else offset | {"at": batch}
        (folder / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(place)}")
    if committed is not None:
        (folder / "commits" / str(committed)).write_text("v1\n{}")
    return folder


def at(version: int, *, first: bool = False) -> dict[str, Any]:
    return {"reservoirId": "a", "reservoirVersion": version, "index": -1, "isStartingVersion": first}


def test_a_reader_goes_on_with_the_version_behind_its_last_committed_batch(settings: Settings) -> None:
    checkpoint(settings, "silver", planned=4, committed=3, offset=at(17))
    checkpoint(settings, "gold", planned=0, committed=0, offset=at(5, first=True))
    assert list_streams_reading_table(settings, MESSAGES) == [
        ReadingStreamProgress("silver", has_started=True, next_version=17, last_start=17)
    ]
    assert list_streams_reading_table(settings, CHANGES) == [
        ReadingStreamProgress("gold", has_started=True, next_version=None)
    ]
    assert list_streams_reading_table(settings, SESSIONS) == []


@pytest.mark.parametrize(
    ("offsets", "since", "again"),
    [
        ([at(4), at(9)], 9, 4),
        ([at(4), at(9), at(12)], 12, 9),
        ([at(3, first=True), at(6)], 6, 3),
        ([at(6)], 6, 5),
    ],
)
def test_of_the_log_a_reader_needs_what_its_last_batch_began_with(
    settings: Settings, offsets: list[Any], since: int, again: int
) -> None:
    checkpoint(settings, "silver", planned=len(offsets) - 1, committed=len(offsets) - 1, offset=offsets)
    [silver] = list_streams_reading_table(settings, MESSAGES)
    assert (silver.next_version, silver.last_start, silver.oldest_needed_version) == (since, again, again)


def test_what_no_batch_is_committed_of_has_begun_when_one_is_planned(settings: Settings) -> None:
    assert list_streams_reading_table(settings, CHANGES) == [ReadingStreamProgress("gold", has_started=False)]
    checkpoint(settings, "gold", planned=0, committed=None, offset=at(5))
    assert list_streams_reading_table(settings, CHANGES) == [ReadingStreamProgress("gold", has_started=True)]


@pytest.mark.parametrize(("layer", "table"), [("silver", MESSAGES), ("gold", CHANGES)])
def test_a_layer_that_was_handed_states_goes_on_behind_the_version_that_they_are_of(
    settings: Settings, layer: str, table: str
) -> None:
    place = handover.find_active_handover_folder(settings, layer)
    place.mkdir(parents=True)
    (place / "handover.json").write_bytes(msgspec.json.encode(Handover(8, 3, 4, "rebuild:a")))
    assert list_streams_reading_table(settings, table) == [
        ReadingStreamProgress(layer, has_started=True, next_version=9)
    ]
    assert (
        handover.read_last_processed_version(settings, layer),
        handover.read_next_batch_number(settings, layer),
    ) == (8, 3)
    checkpoint(settings, layer, planned=1, committed=0, offset=at(9))
    with pytest.raises(LakeError, match=f"{layer} was interrupted in its last batch.* Run `sessionlake run {layer}"):
        handover.read_last_processed_version(settings, layer)
    checkpoint(settings, layer, planned=1, committed=1, offset=at(10))
    assert (
        handover.read_last_processed_version(settings, layer),
        handover.read_next_batch_number(settings, layer),
    ) == (9, 5)


def test_a_processor_without_a_checkpoint_that_is_rebuilt_goes_on_behind_what_it_is_rebuilt_of(
    location: dict[str, Any],
) -> None:
    own = ProcessorSettings(name="logins", target="a:B")
    settings = Settings(**location, processors=(own,))
    with record_tables_being_built(settings, create_processor_rebuild_operation(own), 8):
        pass
    assert list_streams_reading_table(settings, MESSAGES)[1] == ReadingStreamProgress(
        own.layer, has_started=True, next_version=9
    )
    checkpoint(settings, own.layer, planned=0, committed=0, offset=at(3))
    assert list_streams_reading_table(settings, MESSAGES)[1] == ReadingStreamProgress(
        own.layer, has_started=True, next_version=3, last_start=2
    )
    discard_building_record(settings, create_processor_rebuild_operation(own))
    assert read_bronze_version_of_rebuild(settings, own.layer) is None


def test_processors_read_bronze_and_publications_their_table(location: dict[str, Any]) -> None:
    own = ProcessorSettings(name="logins", target="a:B")
    settings = Settings(**location, processors=(own,))
    checkpoint(settings, own.layer, planned=0, committed=0, offset=at(3))
    checkpoint(settings, f"publish-{ROWS}-out.rows", planned=0, committed=0, offset=at(2))
    [silver, logins] = list_streams_reading_table(settings, MESSAGES)
    assert (silver, logins) == (
        ReadingStreamProgress("silver", has_started=False),
        ReadingStreamProgress(own.layer, has_started=True, next_version=3, last_start=2),
    )
    assert list_streams_reading_table(settings, ROWS) == [
        ReadingStreamProgress(f"publish-{ROWS}-out.rows", has_started=True, next_version=2, last_start=1)
    ]


def test_an_offset_that_cannot_be_read_stops_everything(settings: Settings) -> None:
    folder = checkpoint(settings, "silver", planned=0, committed=0, offset=at(3))
    (folder / "offsets" / "0").write_text("v1\n{}\n-")
    with pytest.raises(LakeError, match=r"silver/offsets: the checkpoint file 0, or the one before, cannot be read"):
        list_streams_reading_table(settings, MESSAGES)


def test_a_table_that_fails_is_reported_and_the_others_have_their_turn(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = settings.model_copy(update={"maintain": MaintenanceSettings.model_construct(interval=timedelta(0))})
    monkeypatch.setattr("sessionlake.operations.maintenance.create_separate_session", lambda spark: spark)
    monkeypatch.setattr(TableMaintainer, "_list_tables", lambda _: [CHANGES, ROWS])

    def maintain(_: TableMaintainer, table: str, *, only_if_worth: bool) -> TableMaintenanceResult:
        if table == CHANGES:
            raise OSError(errno.ENOSPC, "no space left on device")
        return TableMaintenanceResult(table, rows=int(only_if_worth))

    monkeypatch.setattr(TableMaintainer, "_maintain_table", maintain)
    done = Queue[TableMaintenanceResult]()
    beside = TableMaintainer(None, at_once, done.put).start()
    assert [done.get(timeout=10).table for _ in range(3)] == [ROWS] * 3
    beside.stop()
    assert "no space" in str(beside.error)
    with pytest.raises(OSError, match="no space"):
        TableMaintainer(None, at_once).maintain_until_stopped(threading.Event())
