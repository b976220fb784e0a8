"""The ledger read in short, in a catalog."""

from __future__ import annotations

from spark.test_positions import (  # noqa: F401 - pytest runs what is imported again here
    lake,
    read,
    test_sums_go_on_from_sums_and_are_those_of_all,
    test_whoever_starts_or_asks_reads_the_entries_of_late_and_answers_the_same,
)
