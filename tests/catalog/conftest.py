"""Tests of `tests/spark` and `tests/integration` once more, with the tables in a catalog, as on a platform.

The catalog is Hive's, behind Spark's own: three-level names, and nothing that knows where a table's files are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from sessionlake.spark.session import DATABRICKS_VARIABLE

_NUMBERS = count(1)
SCHEMAS = ("bronze", "silver", "gold", "ops", "reference")


# What the same test over folders shows each time, and the shorter ones here of the catalog.
LONG = {
    "test_files_that_a_reader_which_rests_goes_on_with_stay_for_longer_than_others",
    "test_thirty_streams_of_every_class_equal_the_truth_merged_in_between_and_a_replay_changes_nothing",
    "test_silver_is_verified_rebuilt_and_goes_on",
    "test_tables_maintained_between_all_batches_are_the_truth_though_layers_lag",
    "test_whoever_starts_or_asks_reads_the_entries_of_late_and_answers_the_same",
    "test_batches_that_die_between_any_two_commits_and_are_replayed_count_once",
    "test_a_violation_under_fail_commits_nothing_and_stops_again_until_someone_decides",
    "test_random_points_in_random_batches_equal_a_recomputation",
    "test_a_point_far_older_than_the_tail_refines_old_rows_alone",
    "test_another_number_of_points_is_a_rebuild",
    "test_bronze_is_left_alone_before_silver_has_begun",
    "test_the_books_lose_the_session_s_decisions_and_nothing_else",
    "test_sums_go_on_from_sums_and_are_those_of_all",
    "test_a_figure_is_explained_down_to_its_offsets_and_says_of_a_message_whether_it_is_in_it",
    "test_a_product_that_is_new_or_made_again_holds_all_that_gold_has_read",
    "test_layers_that_run_stand_aside_and_go_on_without_the_session",
    "test_nothing_is_left_of_the_session_and_all_else_goes_on_as_it_was",
    "test_live_jobs_take_in_what_comes",
    "test_every_job_takes_in_what_there_is_and_all_that_is_asked_agrees",
    "test_a_stream_runs_on_through_a_cut_whose_books_balance_and_as_of_is_reported_from_there_on",
    "test_what_is_noted_as_gone_is_as_many_as_are_though_a_cut_died",
    "test_batches_that_die_at_any_commit_of_rules_log_nothing_twice",
    "test_lookups_ask_for_what_changes_name_and_again_for_what_failed",
    "test_batches_and_corrections_that_die_at_any_commit_are_made_good",
    "test_what_is_archived_comes_into_bronze_as_it_was_whatever_dies_between",
    "test_random_changes_and_corrections_come_to_what_sql_makes_of_them",
    "test_any_batches_and_deaths_append_each_final_row_once_and_it_stays",
    "test_all_layers_go_on_from_other_shards_as_if_they_had_always_had_them",
    "test_what_kinesis_gives_is_numbered_by_shard_in_the_order_of_sequence_numbers",
    "test_silver_is_not_level_with_bronze_before_it_has_read_its_silences",
    "test_a_merge_that_meets_an_optimize_is_done_again",
    "test_of_a_table_that_was_made_again_versions_count_from_there",
    "test_gold_computes_with_decimals_and_joins_decimals_and_dates",
    "test_rows_and_past_tables_equal_a_plain_fold",
    "test_with_lost_rows_tables_are_rebuilt_and_a_later_column_is_added",
    "test_processors_get_python_values_of_each_type",
    "test_a_session_leaves_messages_of_others_who_keep_all_they_had",
    "test_rows_that_are_only_marked_as_gone_leave_their_files_though_the_session_has_no_others",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("spark")
            if {item.name, item.name.partition("[")[0]} & LONG:
                item.add_marker("soak")


@contextmanager
def own_schemas(spark: Any, home: Path) -> Iterator[dict[str, Any]]:
    """Schemas of its own in the session's catalog, inside; the home holds only checkpoints."""
    schemas = {schema: f"place{next(_NUMBERS)}_{schema}" for schema in SCHEMAS}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DATABRICKS_VARIABLE, "17.3")
        for schema in schemas.values():
            spark.sql(f"CREATE SCHEMA spark_catalog.{schema}")
        yield {"home": home, "catalog": "spark_catalog", "schemas": schemas}
        for schema in schemas.values():
            spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{schema} CASCADE")


@pytest.fixture
def location(spark: Any, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Schemas of its own, for one test."""
    with own_schemas(spark, tmp_path / "home") as own:
        yield own


@pytest.fixture(scope="module")
def module_location(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Schemas of its own, for the tests of a module together."""
    with own_schemas(spark, tmp_path_factory.mktemp("module") / "home") as own:
        yield own
