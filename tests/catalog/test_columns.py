"""Declared columns that have changed, over tables of a catalog: made of bronze, with their clustering and feeds."""

from __future__ import annotations

from spark.test_columns import (  # noqa: F401 - pytest runs what is imported again here
    deaths,
    test_killed_at_each_fault_point_of_its_publication_it_comes_to_what_a_fresh_home_has,
)
