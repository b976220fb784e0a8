"""Another number of shards where the tables are in a catalog."""

from __future__ import annotations

from spark.test_resharding import (
    settings,  # noqa: F401 - a fixture of the test below
    test_all_layers_go_on_from_other_shards_as_if_they_had_always_had_them,  # noqa: F401 - pytest runs what is imported again here
)
