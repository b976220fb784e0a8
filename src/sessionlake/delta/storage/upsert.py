"""Describes what a MERGE does with its source rows, for MERGEs with Spark and without Spark alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

Combine = Callable[[pa.Table, pa.Table], pa.Table]
"""Function that combines new rows with the table's rows of the same keys. It returns one resulting row per key."""


@dataclass(frozen=True)
class Upsert:
    """How a MERGE changes a table with its source rows, of which there is at most one per key.

    Attributes:
        keys: columns that identify a row. They are never null.
        columns: further columns, which always get the source's value.
        optional_columns: columns that get the source's value only if the source row's array `WRITTEN` says so. Its i-th
            element is for the i-th of these columns. If it is false, an existing row keeps its value.
        pruned_by: key columns by which Spark skips files: those without any value of the source.
        deletes: True if the source has a boolean column `DELETE`. Where it is true, the table's row is deleted.
        updates: True to change existing rows. False to leave them as they are.
        inserts: True to add rows whose keys the table does not have.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    optional_columns: tuple[str, ...] = ()
    pruned_by: tuple[str, ...] = ()
    deletes: bool = False
    updates: bool = True
    inserts: bool = True
