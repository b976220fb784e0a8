"""Maintenance in a catalog: no table changes, and a MERGE that meets an OPTIMIZE is done again."""

from __future__ import annotations

from spark.test_maintenance import (  # noqa: F401
    eager,
    test_a_merge_that_meets_an_optimize_is_done_again,
    test_bronze_is_left_alone_before_silver_has_begun,
    test_tables_maintained_between_all_batches_are_the_truth_though_layers_lag,
)
