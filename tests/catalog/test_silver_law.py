"""Silver in a catalog: streams of every class equal the truth, and a stop commits nothing."""

from __future__ import annotations

from typing import Any

import pytest

from spark.test_silver_law import (  # noqa: F401 - pytest runs what is imported again here
    Pipeline,
    by_spark_alone,
    streams,
    test_a_violation_under_fail_commits_nothing_and_stops_again_until_someone_decides,
    test_thirty_streams_of_every_class_equal_the_truth_merged_in_between_and_a_replay_changes_nothing,
)
from support.lakes import assert_silver_is_the_truth


@pytest.mark.soak  # that silver is the truth in a catalog, test_bundle shows each time
def test_thirty_streams_equal_the_truth_of_small_batches_and_large_ones_and_a_replay_changes_nothing(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline, (first, second) = Pipeline(spark, location), streams(batches=2)
    pipeline.arrive(first)
    pipeline.stream()
    assert pipeline.merge() == 1
    pipeline.arrive(second)
    pipeline.stream()
    pipeline.lose_last_commit()
    pipeline.stream()
    by_spark_alone(monkeypatch)
    assert pipeline.merge() == 1
    assert_silver_is_the_truth(spark, pipeline.settings, [*first, *second])
