"""Maintenance in a catalog: no table changes, and a MERGE that meets an OPTIMIZE is done again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.errors import LakeError
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from spark.test_maintenance import (  # noqa: F401 - pytest runs what is imported again here
    eager,
    test_a_merge_that_meets_an_optimize_is_done_again,
    test_bronze_is_left_alone_before_silver_has_begun,
    test_files_that_a_reader_which_rests_goes_on_with_stay_for_longer_than_others,
    test_tables_maintained_between_all_batches_are_the_truth_though_layers_lag,
)
from spark.test_silver_law import Pipeline, streams
from support.lakes import assert_silver_is_the_truth


@pytest.mark.soak
def test_a_first_read_of_files_that_others_have_merged_goes_by_commits(spark: Any, location: dict[str, Any]) -> None:
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))
    for n, batch in enumerate(batches):
        pipeline.arrive(batch)
        if n == 2:
            spark.sql(f"OPTIMIZE {pipeline.lake.to_sql_identifier(MESSAGES)}").collect()
    pipeline.stream()
    assert len(pipeline.batches()) == len(batches)
    pipeline.merge()
    assert_silver_is_the_truth(spark, pipeline.settings, [message for batch in batches for message in batch])


@pytest.mark.soak
def test_a_first_read_that_cannot_go_by_commits_any_more_is_refused_and_begun_by_a_rebuild(
    spark: Any, location: dict[str, Any]
) -> None:
    pipeline, batches = Pipeline(spark, location), list(streams(seeds=1))
    for batch in batches[:3]:
        pipeline.arrive(batch)
    spark.sql(f"OPTIMIZE {pipeline.lake.to_sql_identifier(MESSAGES)}").collect()
    pipeline.lake.storage.vacuum_table(spark, MESSAGES, HistoryToKeep(timedelta(0)))
    with pytest.raises(LakeError, match=r"may have been rewritten.*`sessionlake rebuild silver` begins it"):
        pipeline.stream()
    rebuild_silver_tables(spark, pipeline.settings)
    for batch in batches[3:]:
        pipeline.arrive(batch)
    pipeline.stream()
    pipeline.merge()
    every = [message for batch in batches for message in batch]
    assert_silver_is_the_truth(spark, pipeline.settings, every, ledger=False)
