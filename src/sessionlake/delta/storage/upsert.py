"""What a MERGE does with the rows of its source, told without SQL: each engine has its own words for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

Combine = Callable[[pa.Table, pa.Table], pa.Table]
"""Given rows, and those that a table has of their keys: the rows that are to be there, one for each key given."""


@dataclass(frozen=True)
class Upsert:
    """How the rows of a source, at most one a key, become rows of a table.

    Attributes:
        keys: the columns that tell rows apart; they are never null.
        columns: further ones that are taken from the source.
        kept: such whose value stays in a row that is there, where `WRITTEN` says no.
        bounded: keys by whose values Spark is told which files to leave out; delta-rs finds them for itself.
        deletes: whether the source has `DELETE`.
        updates: whether rows that are there change.
        inserts: whether rows that are not there are added.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    optional_columns: tuple[str, ...] = ()
    pruned_by: tuple[str, ...] = ()
    deletes: bool = False
    updates: bool = True
    inserts: bool = True
