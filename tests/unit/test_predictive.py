"""Whether a table's description says that predictive optimization is on."""

import pytest

from sessionlake.delta.catalog.predictive import is_predictive_optimization_enabled

ROW = "Predictive Optimization"


@pytest.mark.parametrize(
    ("description", "expected"),
    [
        ([("Owner", "ada"), (ROW, "ENABLE (inherited from METASTORE lake)")], True),
        ([(ROW, "ENABLE")], True),
        ([(ROW, "DISABLE (inherited from SCHEMA silver)")], False),
        ([("Owner", "ENABLE")], False),
        ([], False),
    ],
)
def test_only_the_row_of_that_name_says_so(description, expected):
    assert is_predictive_optimization_enabled(description) == expected
