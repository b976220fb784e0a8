"""Enriched tables in a catalog: what SQL makes of silver and the reference tables, whatever comes late or died."""

from __future__ import annotations

from spark.test_enrich import (  # noqa: F401 - pytest runs what is imported again here
    feed,
    test_batches_and_corrections_that_die_at_any_commit_are_made_good,
    test_lookups_ask_for_what_changes_name_and_again_for_what_failed,
    test_random_changes_and_corrections_come_to_what_sql_makes_of_them,
)
