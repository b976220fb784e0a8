"""How long a catalog's tables keep files that no version names, as far as no session is asked."""

from __future__ import annotations

from datetime import timedelta

from sessionlake.delta.catalog.history import compute_minimum_file_retention
from sessionlake.delta.schemas.names import CHANGES, MESSAGES, ROWS


def test_files_that_layers_may_yet_read_stay_though_the_platform_vacuums_by_itself():
    keep, longer = timedelta(hours=6), timedelta(days=9)
    assert (
        compute_minimum_file_retention(MESSAGES, keep)
        == compute_minimum_file_retention(CHANGES, keep)
        == timedelta(days=7)
    )
    assert compute_minimum_file_retention(ROWS, keep) == keep
    assert compute_minimum_file_retention(MESSAGES, longer) == longer
    assert compute_minimum_file_retention(MESSAGES, timedelta(0)) == timedelta(0)
