"""Rows that leave a catalog's tables: streams run on, the books balance, and what is gone is not told wrong."""

from __future__ import annotations

from typing import Any

import pytest

from spark import test_retention as over_folders
from spark.test_retention import (  # noqa: F401 - pytest runs what is imported again here
    test_rows_up_to_their_limits_go_in_one_commit_of_none_and_again_none_do,
    test_what_is_noted_as_gone_is_as_many_as_are_though_a_cut_died,
)
from support.retention import Aging


def test_a_stream_runs_on_through_a_cut_whose_books_balance_and_as_of_is_reported_from_there_on(
    spark: Any, location: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = Aging(spark, location)
    for _ in range(3):
        cut.take_in()
    cut.cut_and_go_on()
    over_folders.test_streams_run_on_through_a_cut_and_what_is_left_is_the_truth(cut)
    over_folders.test_the_books_balance_and_a_row_that_is_lost_besides_is_missed(cut)
    over_folders.test_a_session_is_reported_at_each_moment_from_its_last_old_table_on_and_refused_before(cut)
    over_folders.test_a_ledger_that_is_cut_has_all_sums_and_says_which_batches_it_tells(cut, monkeypatch)
