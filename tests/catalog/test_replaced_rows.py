"""All rows of a table in a catalog are replaced: columns can still be added, and streams still read the table."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ROWS
from sessionlake.delta.schemas.properties import RETENTION
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.settings.model import CaptureSettings, Settings


@pytest.mark.parametrize("columns", [False, True])
def test_a_column_is_added_after_all_rows_were_replaced(spark: Any, location: dict[str, Any], columns: bool) -> None:
    lake = Lake(Settings(**location, capture=CaptureSettings(columns={"price": "double"})))
    lake.create_or_update_tables(spark, [ROWS])
    before = lake.storage.read_properties(spark, ROWS)[RETENTION]
    rows = lake.read(spark, ROWS)
    for _ in range(2):  # a replay replaces nothing
        lake.overwrite_table(spark, ROWS, rows, Txn("rebuild", 0), '{"rebuild": 1}', columns=columns)
    wider = Lake(Settings(**location, capture=CaptureSettings(columns={"price": "double", "size": "bigint"})))
    wider.create_or_update_tables(spark, [ROWS])

    history = wider.open_delta_table(spark, ROWS).history().select("operation", "userMetadata").collect()
    assert [row["userMetadata"] for row in history].count('{"rebuild": 1}') == 1
    assert "size" in wider.storage.stream_table(spark, ROWS, {}).columns
    found = wider.open_delta_table(spark, ROWS).detail().select("clusteringColumns").first()
    assert tuple(found[0]) == TABLES[ROWS].cluster_by
    assert wider.storage.read_properties(spark, ROWS)[RETENTION] == before
