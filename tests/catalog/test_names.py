"""Names of any kind in a catalog: whatever users call columns, keys and results, every table is right.

Table functions are not among them: Spark itself calls none by the name of a schema.
"""

from __future__ import annotations

import pytest

from spark.test_names import (  # noqa: F401 - pytest runs what is imported again here
    names,
    test_a_declared_column_id_holds_the_row_s_id,
    test_gold_is_exact_and_every_table_has_rows,
    test_silver_is_the_truth_and_a_replay_finds_the_same,
    test_silver_rebuilt_is_the_truth,
    test_tables_made_again_are_what_they_were,
)

pytestmark = pytest.mark.soak
