"""Rules in a catalog: the log bears what SQL makes of silver, whatever died."""

from __future__ import annotations

from spark.test_rules import (  # noqa: F401 - pytest runs what is imported again here
    feed,
    test_batches_that_die_at_any_commit_of_rules_log_nothing_twice,
)
