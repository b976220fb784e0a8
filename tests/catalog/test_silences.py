"""Silences that silver has yet to read, of tables in a catalog."""

from __future__ import annotations

from spark.test_silences import (
    begun,  # noqa: F401 - a fixture of the test below
    test_silver_is_not_level_with_bronze_before_it_has_read_its_silences,  # noqa: F401 - pytest runs what is imported again here
)
