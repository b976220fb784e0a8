"""Names of any kind in a catalog: whatever users call columns, keys and results, every table is right."""

from __future__ import annotations

import pytest

from spark.test_names import (  # noqa: F401 - pytest runs what is imported again here
    names,
    test_a_declared_column_id_holds_the_row_s_id,
    test_a_moment_of_a_session_is_the_same_in_python_and_in_sql,
    test_gold_is_exact_and_every_table_has_rows,
    test_silver_is_the_truth_and_a_replay_finds_the_same,
    test_silver_rebuilt_is_the_truth,
    test_sql_says_which_figures_a_message_is_in_and_python_what_a_figure_is_made_of,
    test_tables_made_anew_are_what_they_were,
    test_views_and_queries_take_the_published_columns_for_what_they_are,
)

pytestmark = pytest.mark.soak
