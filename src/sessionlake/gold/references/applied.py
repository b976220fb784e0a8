"""Gold's copy of each reference table, `gold.reference_<name>`. Its rows are the applied rows, used by all joins.

Other programs may write a reference table at any time. Gold first records each difference in its copy, as a numbered
correction. It then updates the rows of enriched tables that the difference changes. If gold dies in between, the next
start finds the correction and repeats the update.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta import commit
from sessionlake.delta.commit import append_rows, make_delta_skip_transaction, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError, is_null
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.gold.enrich.reference import (
    GONE_BY,
    TAKEN_BY,
    ReferenceDifference,
    ReferenceKeyFault,
    ReferenceTable,
    find_reference_difference,
)
from sessionlake.gold.enrich.table import SILVER_NAMES, EnrichedTable
from sessionlake.protocol.names import build_ddl, quote
from sessionlake.spark.frames import FunctionPerArrowBatch, apply_to_batches

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Joining takes about this many times the memory of the rows that are read.
MEMORY_FACTOR = 4
_CORRECTED = "sessionlake.corrected"
"""Table property of gold's copy: the number of the last correction after which all enriched rows were updated."""


def read_reference_rows(lake: Lake, reader: TableReader, reference: ReferenceTable) -> pa.Table:
    """Returns all rows of a reference table, with the declared columns and types.

    Raises:
        LakeError: the table is missing, has other columns or types, or is too large.
    """
    if not reader.exists(reference.table_name):
        raise LakeError(
            f"{reference.table_name} does not exist",
            fix="Run `sessionlake run gold`, which creates the table when it starts",
        )
    try:
        return _read_table_as_declared(
            reader,
            reference.table_name,
            reference.arrow_schema(),
            max_bytes=lake.driver_limits.driver_bytes // MEMORY_FACTOR,
        )
    except TooLargeError as error:
        raise LakeError(
            error.what,
            why="Gold holds the rows of a reference table in memory",
            fix=f"Remove rows that no change needs any more from {reference.table_name}",
        ) from error


def read_applied_reference_rows(lake: Lake, reader: TableReader, reference: ReferenceTable) -> pa.Table:
    """Returns the rows of gold's copy of a reference table that are not marked as removed.

    When gold applies changes of the reference table (a correction), it adds rows, and marks others as removed. The
    column `_taken_by` has the number of the correction that added the row.

    Raises:
        LakeError: the table is missing, has other columns or types, or is too large.
    """
    schema, none = _build_applied_schema(reference), (GONE_BY, is_null, None)
    schema = schema.remove(schema.get_field_index(GONE_BY))
    return _read_table_as_declared(
        reader, reference.applied_table_name, schema, none, max_bytes=lake.driver_limits.driver_bytes
    )


def _read_table_as_declared(
    reader: TableReader, table: str, schema: pa.Schema, *conditions: Condition, max_bytes: int
) -> pa.Table:
    present = reader.read_table_schema(table).names
    if missing := [name for name in schema.names if name not in present]:
        raise LakeError(
            f"{table} lacks the columns {', '.join(missing)}; it has {', '.join(present)}",
            fix="Run `sessionlake run gold`, which adds them when it starts",
        )
    rows = reader.read_arrow_table(table, *conditions, columns=schema.names, max_bytes=max_bytes)
    try:
        return rows.cast(schema)
    except pa.ArrowException as error:
        raise LakeError(
            f"{table} has other types than `gold.references` declares: {error}",
            fix="Correct the types in `gold.references`. Or drop the table: the next start of gold "
            "creates it with the declared types",
        ) from error


def find_unapplied_reference_difference(
    lake: Lake, reader: TableReader, reference: ReferenceTable
) -> tuple[ReferenceDifference, list[ReferenceKeyFault]]:
    """Compares a reference table with gold's copy of it.

    Returns:
        The difference that gold has not applied yet, and a fault for each key that gold skips.

    Raises:
        LakeError: a table is missing, has other columns or types, or is too large.
    """
    return find_reference_difference(
        reference, read_applied_reference_rows(lake, reader, reference), read_reference_rows(lake, reader, reference)
    )


class AppliedReferenceRows:
    """Reads and writes gold's copies of the reference tables, and caches their rows in memory.

    Attributes:
        lock: held while a batch's changes are joined and committed, and while a correction is recorded.
    """

    def __init__(self, lake: Lake, references: Sequence[ReferenceTable]) -> None:
        self._lake = lake
        self._references = references
        self._current: dict[str, pa.Table] = {}
        self.lock = threading.Lock()

    def read_current_rows_by_reference(self, spark: SparkSession) -> dict[str, pa.Table]:
        """Returns the rows of each of gold's copies that are not marked as removed, by name of the reference table."""
        reader = self._lake.reader(spark)
        for one in self._references:
            if one.name not in self._current:
                self._current[one.name] = read_applied_reference_rows(self._lake, reader, one)
        return self._current

    def record_reference_correction(
        self, spark: SparkSession, reference: ReferenceTable, difference: ReferenceDifference
    ) -> None:
        """Writes a difference to gold's copy of a reference table, as the next correction.

        Added rows are appended with the number of the correction, removed rows are marked with it.
        """
        with self.lock:
            txn = create_txn_for_reference_commit(spark, self._lake, reference.applied_table_name)
            rows = _create_correction_rows(reference, difference, txn.version)
            token = self._lake.storage.get_fencing_token(GOLD)
            if difference.removed.num_rows:
                merge_rows(
                    spark,
                    self._lake,
                    reference.applied_table_name,
                    rows,
                    _build_upsert_of_applied_versions(reference),
                    txn.add_fencing_token(token),
                )
            else:
                append_rows(spark, self._lake, reference.applied_table_name, rows, txn.add_fencing_token(token))
            self._current.pop(reference.name, None)

    def read_unfinished_correction(self, spark: SparkSession, reference: ReferenceTable) -> ReferenceDifference | None:
        """Returns the last recorded correction if gold may have died before it updated enriched tables, else None."""
        done = int(self._lake.storage.read_properties(spark, reference.applied_table_name).get(_CORRECTED, 0))
        reader, schema = self._lake.reader(spark), _build_applied_schema(reference)
        removed, added = (
            reader.read_arrow_table(reference.applied_table_name, (name, operator.gt, done), columns=schema.names).cast(
                schema
            )
            for name in (GONE_BY, TAKEN_BY)
        )
        found = ReferenceDifference(removed, added)
        return found if found.row_count else None

    def mark_corrections_finished(self, spark: SparkSession, reference: ReferenceTable) -> None:
        """Marks all recorded corrections of a reference table as finished: all enriched rows are updated for them."""
        number = self._lake.latest_version(spark, reference.applied_table_name)
        self._lake.storage.require_claims_before_commit(reference.applied_table_name)
        self._lake.set_property(spark, reference.applied_table_name, _CORRECTED, str(number))


def create_txn_for_reference_commit(spark: SparkSession, lake: Lake, table: str) -> Txn:
    """Returns Delta's transaction id for the next commit to a table that is no part of a batch of gold.

    Such commits correct enriched rows after their reference data changed, or store rows that were looked up.
    """
    return commit.create_txn_outside_queries(spark, lake, table, "references")


def block_earlier_writers(spark: SparkSession, lake: Lake, tables: Sequence[str], app_id: str = "references") -> None:
    """Makes Delta ignore later commits to these tables from processes that held gold's lease earlier.

    Args:
        tables: names of the tables.
        app_id: application id of the commits.
    """
    token = lake.storage.get_fencing_token(GOLD)
    if token:
        make_delta_skip_transaction(spark, lake, tables, Txn.build_txn_before_lease_holder(app_id, token))


def _build_applied_schema(reference: ReferenceTable) -> pa.Schema:
    numbers = [pa.field(name, pa.int64()) for name in (TAKEN_BY, GONE_BY)]
    return pa.schema([*reference.arrow_schema(), *numbers])


def _create_correction_rows(
    reference: ReferenceTable, difference: ReferenceDifference, correction_number: int
) -> pa.Table:
    schema = _build_applied_schema(reference)
    removed = difference.removed.append_column(
        GONE_BY, pa.array([correction_number] * difference.removed.num_rows, pa.int64())
    )
    added = difference.added.append_column(
        TAKEN_BY, pa.array([correction_number] * difference.added.num_rows, pa.int64())
    )
    added = added.append_column(GONE_BY, pa.nulls(added.num_rows, pa.int64()))
    return pa.concat_tables([removed.select(schema.names).cast(schema), added.select(schema.names).cast(schema)])


def _build_upsert_of_applied_versions(reference: ReferenceTable) -> Upsert:
    keys = (*reference.key_names, "valid_from", TAKEN_BY)
    others = tuple(name for name in _build_applied_schema(reference).names if name not in keys)
    return Upsert(keys, others, pruned_by=reference.key_names[:1])


def join_changes_with_references_on_cluster(
    spark: SparkSession, lake: Lake, changes: DataFrame, table: EnrichedTable
) -> DataFrame:
    """Returns the rows of an enriched table for some changes, computed on the cluster.

    Args:
        changes: rows of `silver.session_changes`, which may be too many for the driver's memory.
        table: the enriched table.

    Raises:
        LakeError: gold's copy of a reference table is missing, has other columns or types, or is too large.
    """
    reader = lake.reader(spark)
    versions = {join.reference.name: read_applied_reference_rows(lake, reader, join.reference) for join in table.joins}
    needed = dict.fromkeys(SILVER_NAMES.get(name, name) for name in table.change_column_names)
    own = changes.select(*map(quote, needed))
    return apply_to_batches(
        own,
        FunctionPerArrowBatch(lambda rows: table.join_changes_with_references(rows, versions)),
        build_ddl(table.column_types),
    )
