"""Describes what a MERGE does with its source rows. Each engine translates the description into its own terms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

Combine = Callable[[pa.Table, pa.Table], pa.Table]
"""Function of new rows and of the table's rows with the same keys. It returns the resulting rows, one per key."""


@dataclass(frozen=True)
class Upsert:
    """How source rows, at most one per key, change a table.

    Attributes:
        keys: columns that identify a row; never null.
        columns: further columns that are always taken from the source.
        optional_columns: columns that an existing row keeps where the source's array `WRITTEN` is false for them.
        pruned_by: keys by whose values Spark skips files. delta-rs finds such files by itself.
        deletes: True if the source has a column `DELETE` that marks rows to delete.
        updates: True if existing rows change.
        inserts: True if new rows are added.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    optional_columns: tuple[str, ...] = ()
    pruned_by: tuple[str, ...] = ()
    deletes: bool = False
    updates: bool = True
    inserts: bool = True
