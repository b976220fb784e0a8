"""Writes rows to a reference table. The rows come from a file or from a lookup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv, parquet

from sessionlake.delta.commit import merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.far_times import convert_time_to_micros
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import UsageError
from sessionlake.gold.enrich.reference import FROM, TO, ReferenceTable
from sessionlake.gold.enrich.upsert import Key, plan_reference_upsert
from sessionlake.gold.references.applied import create_txn_for_reference_commit, read_reference_rows
from sessionlake.protocol.names import DELETE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FILE_TYPES = (".csv", ".parquet")


@dataclass(frozen=True)
class ReferenceWriteResult:
    """The changes that a write made in a reference table.

    Attributes:
        rows: number of rows that were added or replaced.
        removed: number of rows that were deleted.
        refused: for each key whose rows could not be written, the reason.
    """

    rows: int
    removed: int
    refused: Mapping[Key, str]


def write_reference_rows(
    spark: SparkSession,
    lake: Lake,
    reference: ReferenceTable,
    rows: pa.Table,
    now: datetime,
    *,
    skip_refused: bool = False,
) -> ReferenceWriteResult:
    """Writes rows to a reference table in one commit. Existing rows that overlap them in time are shortened.

    Args:
        reference: the reference table.
        rows: rows with the table's columns. A null `valid_from` means `now`, or for a key's first row the earliest
            possible time. A null `valid_to` means the start of the key's next row.
        now: the current time.
        skip_refused: True to skip keys whose rows cannot be written, instead of raising an exception.

    Raises:
        ClaimedByOtherProcessError: another process writes the table.
        LakeError: the table is missing, has other columns or types, or is too large.
        UsageError: the rows of a key cannot be written. Nothing is written then.
    """
    with lake.storage.hold_exclusive_claim(spark, f"reference-{reference.name}", f"writes {reference.table_name}"):
        current = read_reference_rows(lake, lake.reader(spark), reference)
        plan = plan_reference_upsert(reference, current, rows, convert_time_to_micros(now))
        if plan.refused and not skip_refused:
            key, why = next(iter(plan.refused.items()))
            raise UsageError(
                f"{reference.table_name}: the rows of key {', '.join(map(repr, key))} cannot be written: {why}",
                fix="Correct these rows and run the command again. Nothing was written",
            )
        counts = (plan.written.num_rows, plan.removed.num_rows)
        if any(counts):
            flags = [pa.array([is_removed] * count) for is_removed, count in zip((False, True), counts, strict=True)]
            parts = [part.append_column(DELETE, flag) for part, flag in
                     zip((plan.written, plan.removed), flags, strict=True) if part.num_rows]  # fmt: skip
            keys = (*reference.key_names, FROM)
            others = (TO, *(name for name, _ in reference.columns))
            upsert = Upsert(keys, others, pruned_by=reference.key_names[:1], deletes=True)
            merge_rows(
                spark,
                lake,
                reference.table_name,
                pa.concat_tables(parts),
                upsert,
                create_txn_for_reference_commit(spark, lake, reference.table_name),
            )
        return ReferenceWriteResult(*counts, plan.refused)


def read_reference_rows_file(reference: ReferenceTable, file: Path) -> pa.Table:
    """Returns the rows of a CSV or Parquet file, with the columns of a reference table.

    Raises:
        UsageError: the file cannot be read, or has other columns than the reference table.
    """
    try:
        rows = _read_csv_or_parquet(reference, file)
    except (OSError, pa.ArrowException) as error:
        raise UsageError(
            f"the file {file} cannot be read: {error}",
            fix="Check that the file exists and has the format that its name says",
        ) from None
    return _convert_to_reference_columns(reference, rows, str(file))


def _convert_to_reference_columns(reference: ReferenceTable, rows: pa.Table, where: str) -> pa.Table:
    """Returns rows with the columns of a reference table, in order. Missing `valid_from` and `valid_to` become null.

    Args:
        reference: the reference table.
        rows: the rows to convert.
        where: says where the rows come from, for error texts.

    Raises:
        UsageError: columns are missing, unknown, repeated, or of other types.
    """
    schema = reference.arrow_schema()
    missing = [name for name in schema.names if name not in {*rows.column_names, FROM, TO}]
    unknown = [name for name in rows.column_names if name not in schema.names]
    if repeated := [name for name, often in Counter(rows.column_names).items() if often > 1]:
        raise UsageError(
            f"{where} has two columns of the name {', '.join(repeated)}", fix="Name each column once, and start again"
        )
    if missing or unknown:
        wrong = [f"lacks the columns {', '.join(missing)}"] * bool(missing)
        wrong += [f"has the unknown columns {', '.join(unknown)}"] * bool(unknown)
        raise UsageError(
            f"{where} {' and '.join(wrong)}", fix=f"Use the columns of the reference table: {', '.join(schema.names)}"
        )
    try:
        columns = [
            rows[f.name].cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
            for f in schema
        ]
    except pa.ArrowException as error:
        raise UsageError(
            f"{where} has values that do not fit the table's types: {error}",
            fix=f"Use the types {', '.join(f'{name} {sql}' for name, sql in reference.all_columns)}",
        ) from None
    return pa.table(columns, schema=schema)


def _read_csv_or_parquet(reference: ReferenceTable, file: Path) -> pa.Table:
    if file.suffix == ".parquet":
        return parquet.read_table(file)
    if file.suffix != ".csv":
        raise UsageError(
            f"the file {file} has a type that cannot be read",
            fix=f"Use a file that ends with {' or '.join(_FILE_TYPES)}",
        )
    types = dict(zip(reference.column_names, reference.arrow_schema().types, strict=True))
    # Only an empty field is null: `NA` may be a country, and `null` a name.
    options = csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True)
    return csv.read_csv(file, convert_options=options)


def find_declared_reference(references: Sequence[ReferenceTable], name: str) -> ReferenceTable:
    """Returns the declared reference table with this name. The name may begin with `reference.`.

    Raises:
        UsageError: no reference table has this name.
    """
    found = {one.name: one for one in references}.get(name.removeprefix("reference."))
    if found is None:
        declared = ", ".join(one.name for one in references) or "none"
        raise UsageError(
            f"gold.references declares no reference table {name}; it declares {declared}",
            fix="Declare the table in the configuration, or name another one",
        )
    return found
