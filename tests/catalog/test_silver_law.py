"""Silver in a catalog: thirty streams equal the truth, and a stop commits nothing."""

from __future__ import annotations

from spark.test_silver_law import (  # noqa: F401
    test_a_violation_under_fail_commits_nothing_and_stops_again_until_someone_decides,
    test_thirty_streams_of_every_class_equal_the_truth_merged_in_between_and_a_replay_changes_nothing,
)
