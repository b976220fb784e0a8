"""Ids that occur in several partitions are found whatever the number of rows that the driver may hold."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from sessionlake.delta.home import FolderStorage
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import EVENTS, SESSIONS
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.settings.model import Settings
from sessionlake.silver.merge import splits
from support.lakes import find_table_folder

IDS, PARTITIONS = 9, 5
NAMES = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("session_id", pa.string())])


@pytest.mark.parametrize("driver_bytes", [0, 1, 500, 10_000_000])
def test_each_split_id_has_its_events_once_whatever_fits_into_the_driver(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, driver_bytes: int
) -> None:
    lake = Lake(settings)
    rows = [
        {"topic": "capture.a", "partition": partition, "session_id": f"s{number}"}
        for number in range(IDS)
        for partition in range(PARTITIONS if number % 2 else 1)
    ]
    write_deltalake(find_table_folder(lake, SESSIONS), pa.Table.from_pylist(rows, NAMES))
    known = [row | {"event": "split_session"} for row in rows if row["session_id"] == "s1" and row["partition"]]
    write_deltalake(
        find_table_folder(lake, EVENTS), pa.Table.from_pylist(known, NAMES.append(pa.field("event", pa.string())))
    )
    monkeypatch.setattr(FolderStorage, "limits", replace(FolderStorage.limits, driver_bytes=driver_bytes))
    ids = pa.Table.from_pylist([{"topic": "capture.a", "session_id": f"s{number}"} for number in range(IDS)])
    found = pa.concat_tables(
        splits._find_missing_events_in_parts(lake.reader(), lake, ids, JudgingRuleLookup(settings.capture))
    )
    split = [row for row in rows if int(str(row["session_id"])[1:]) % 2]
    expected = sorted(
        (row["session_id"], row["partition"]) for row in split if row | {"event": "split_session"} not in known
    )
    assert sorted(zip(*found.select(["session_id", "partition"]).to_pydict().values(), strict=True)) == expected
