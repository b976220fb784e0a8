"""A feed whose columns have every type, over tables in a catalog."""

from __future__ import annotations

from spark.test_feed_types import (  # noqa: F401 - pytest runs what is imported again here
    test_gold_computes_with_decimals_and_joins_decimals_and_dates,
    test_lost_rows_are_rebuilt_states_resharded_and_a_later_column_added,
    test_processors_get_python_values_of_each_type,
    test_rows_and_past_tables_equal_a_plain_fold,
    typed,
)
