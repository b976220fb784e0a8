"""What a catalog's tables are made with, as far as no session is asked."""

from __future__ import annotations

from datetime import timedelta

from sessionlake.config import Settings
from sessionlake.lake.names import CHANGES, MESSAGES, ROWS
from sessionlake.lake.tables import storage_of


def test_files_that_layers_may_yet_read_stay_though_the_platform_vacuums_by_itself(tmp_path):
    home, catalog = (storage_of(Settings(home=tmp_path, catalog=name)) for name in (None, "main"))
    keep = Settings().maintain.keep
    assert {home.files_stay(table) for table in (MESSAGES, CHANGES, ROWS)} == {keep}
    assert catalog.files_stay(MESSAGES) == catalog.files_stay(CHANGES) == timedelta(days=30)
    assert catalog.files_stay(ROWS) == keep
