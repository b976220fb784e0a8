"""Rows put into a reference table: from a file, or from what a lookup brought."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv, parquet

from sessionlake.delta.commit import merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.far_times import micros_of
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import UsageError
from sessionlake.gold.enrich.reference import FROM, TO, Reference
from sessionlake.gold.enrich.upsert import Key, upserted
from sessionlake.gold.references.taken import next_txn, read_reference
from sessionlake.protocol.names import DELETE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READABLE = (".csv", ".parquet")


@dataclass(frozen=True)
class Written:
    """What became of rows that were put in.

    Attributes:
        rows: how many of the table are written.
        gone: how many are not there any more.
        refused: keys whose rows could not be put in, and why.
    """

    rows: int
    gone: int
    refused: Mapping[Key, str]


def write_reference(
    spark: SparkSession, lake: Lake, reference: Reference, rows: pa.Table, now: datetime, *, partly: bool = False
) -> Written:
    """Puts rows in, in one commit.

    Args:
        rows: with the table's columns; see `gold.enrich.upsert.Given`.
        now: since when a row holds that does not say so.
        partly: whether those of other keys are put in if those of a key cannot be.

    Raises:
        ClaimedError: another process writes it.
        LakeError: see `read_reference`.
        UsageError: rows of a key cannot be put in, and nothing is.
    """
    with lake.storage.claim(spark, f"reference-{reference.name}", f"writes {reference.table}"):
        held = read_reference(lake, lake.reader(spark), reference)
        found = upserted(reference, held, rows, micros_of(now))
        if found.refused and not partly:
            key, why = next(iter(found.refused.items()))
            raise UsageError(f"{reference.table}: {', '.join(map(repr, key))}: {why}")
        counts = (found.written.num_rows, found.removed.num_rows)
        if any(counts):
            flags = [pa.array([gone] * count) for gone, count in zip((False, True), counts, strict=True)]
            parts = [part.append_column(DELETE, flag) for part, flag in
                     zip((found.written, found.removed), flags, strict=True) if part.num_rows]  # fmt: skip
            keys = (*reference.key_names, FROM)
            others = (TO, *(name for name, _ in reference.columns))
            upsert = Upsert(keys, others, pruned_by=reference.key_names[:1], deletes=True)
            merge(spark, lake, reference.table, pa.concat_tables(parts), upsert, next_txn(spark, lake, reference.table))
        return Written(*counts, found.refused)


def rows_of_file(reference: Reference, file: Path) -> pa.Table:
    """The rows of a CSV or Parquet file, as the table has them.

    Raises:
        UsageError: it cannot be read, or has other columns.
    """
    try:
        rows = _read(reference, file)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"{file}: {error}") from None
    return as_reference(reference, rows, str(file))


def as_reference(reference: Reference, rows: pa.Table, where: str) -> pa.Table:
    """Rows with the table's columns in order; null where `valid_from` or `valid_to` is not told.

    Raises:
        UsageError: columns are missing, are of other types, or unknown.
    """
    schema = reference.schema()
    lacking = [name for name in schema.names if name not in {*rows.column_names, FROM, TO}]
    strange = [name for name in rows.column_names if name not in schema.names]
    if twice := [name for name, often in Counter(rows.column_names).items() if often > 1]:
        raise UsageError(f"{where} has {', '.join(twice)} twice")
    if lacking or strange:
        wrong = [f"no {', '.join(lacking)}"] * bool(lacking) + [f"a strange {', '.join(strange)}"] * bool(strange)
        raise UsageError(f"{where} has {' and '.join(wrong)}: the columns are {', '.join(schema.names)}")
    try:
        columns = [
            rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
            for f in schema
        ]
    except pa.ArrowException as error:
        raise UsageError(f"{where}: {error}") from None
    return pa.table(columns, schema=schema)


def _read(reference: Reference, file: Path) -> pa.Table:
    if file.suffix == ".parquet":
        return parquet.read_table(file)
    if file.suffix != ".csv":
        raise UsageError(f"{file} ends with none of {', '.join(_READABLE)}")
    types = dict(zip(reference.names, reference.schema().types, strict=True))
    # An empty field alone is null: `NA` may be a country, `null` somebody's name.
    options = csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    return csv.read_csv(file, convert_options=options)


def reference_named(references: Sequence[Reference], name: str) -> Reference:
    """The reference table of this name.

    Raises:
        UsageError: there is none.
    """
    found = {one.name: one for one in references}.get(name.removeprefix("reference."))
    if found is None:
        there = ", ".join(one.name for one in references) or "none"
        raise UsageError(f"gold.references has no {name}; there are: {there}")
    return found
