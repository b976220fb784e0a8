"""Tables' definitions: declared columns fit into every table that has them."""

from __future__ import annotations

import pytest

from sessionlake.delta.schemas.definition import DECLARED
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
