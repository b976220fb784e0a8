"""Liquid clustering of tables in a catalog."""

from __future__ import annotations

from typing import Any

import pytest

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ROWS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.settings.model import CaptureSettings, Settings
from support.seeds import long_beyond

NAMES = ("price", "\U0001f600'--", "preis_\u20ac", "\U0001f600")


@pytest.mark.parametrize("column", long_beyond([(name,) for name in NAMES[:2]], ((name,) for name in NAMES)))
def test_a_table_is_clustered_whatever_its_columns_are_called(
    spark: Any, location: dict[str, Any], column: str
) -> None:
    settings = Settings(**location, capture=CaptureSettings(columns={column: "double"}))
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [ROWS])
    found = lake.open_delta_table(spark, ROWS).detail().select("clusteringColumns").first()
    assert tuple(found[0]) == TABLES[ROWS].cluster_by
    assert column in lake.read(spark, ROWS).columns
