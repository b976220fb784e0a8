"""Tables' definitions: declared columns fit into every table that has them."""

from __future__ import annotations

import pytest

from sessionlake.delta.schemas.definition import DECLARED, Column, TableSchema
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.protocol.columns import BUILT_IN_COLUMNS
from sessionlake.settings.model import CaptureSettings, Settings

WITH_DECLARED = {
    name: table for name, table in TABLES.items() if any(column == DECLARED for column, _ in table.column_types)
}


def test_a_declared_column_cannot_have_a_name_that_a_table_uses_itself():
    own = {name for table in WITH_DECLARED.values() for name, _ in table.column_types if name != DECLARED}
    assert own | {"_time"} == BUILT_IN_COLUMNS  # views of feeds have this one


@pytest.mark.parametrize("name", ["position", "Reason", "snapshot_at", "_seq"])
def test_such_a_name_is_refused_with_the_others(name):
    said = f"column '{name}': silver has a column of this name itself.*position.*such as 'my_{name}'"
    with pytest.raises(ValueError, match=said):
        Settings(capture=CaptureSettings(columns={name: "double"}))


def test_keys_of_types_without_bounds_are_no_clustering_keys_and_have_no_statistics() -> None:
    types = ("boolean", "binary", "array<string>", "decimal(5,2)", "date", "timestamp_ntz", "string", "double")
    columns = tuple(Column(f"c{place}", sql, "A key") for place, sql in enumerate(types))
    names = tuple(column.name for column in columns)
    schema = TableSchema(columns, "A row", written_by="x", cluster_by=names, statistics_columns=names)
    assert schema.cluster_by == schema.statistics_columns == names[3:]
    assert TableSchema(columns[:2], "A row", written_by="x", cluster_by=names[:2]).cluster_by == ()
