"""Rows appended once they are final, in a catalog: as in folders, whatever dies."""

from __future__ import annotations

from spark.test_final import (  # noqa: F401 - pytest runs what is imported again here
    feed,
    test_any_batches_and_deaths_append_each_final_row_once_and_it_stays,
    test_made_again_emptied_new_and_otherwise_declared_it_has_all_that_is_final,
)
