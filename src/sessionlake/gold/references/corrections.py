"""Applies changes of reference tables while gold runs, some rows at a time, and updates enriched tables for them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.reading import Condition, TooLargeError, build_key_conditions
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.gold.enrich.asof import OPEN_END
from sessionlake.gold.enrich.reference import (
    BEGIN,
    END,
    ReferenceDifference,
    ReferenceTable,
    are_rows_in_time_spans,
    find_changed_time_spans,
    find_reference_difference,
)
from sessionlake.gold.enrich.table import CHANGE_ID, EnrichedTable, ReferenceJoin, find_joins_with_reference
from sessionlake.gold.references.applied import (
    MEMORY_FACTOR,
    AppliedReferenceRows,
    block_earlier_writers,
    create_txn_for_reference_commit,
    read_reference_rows,
)
from sessionlake.protocol.names import build_ddl, quote
from sessionlake.spark.frames import FunctionPerArrowBatch, Rows, apply_to_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLICE_ROWS = 10_000
"""Most rows of a reference table per correction, unless a single key has more.

All rows of an enriched table that a correction changes are updated in one commit.
"""


class ReferenceCorrectionRunner:
    """Applies changes of reference tables (corrections), and updates the enriched tables that join them.

    Args:
        spark: a Spark session that nothing else uses, because MERGE sets its transaction in the session.
        references: the reference tables to watch.
        tables: the enriched tables to update.
        applied: gold's copies of the reference tables.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        references: Sequence[ReferenceTable],
        tables: Sequence[EnrichedTable],
        applied: AppliedReferenceRows,
    ) -> None:
        self._spark, self._lake, self._applied = spark, lake, applied
        self._tables = tables
        self._references = references
        self._seen_versions: dict[str, int] = {}
        self._slices: dict[str, Iterator[ReferenceDifference]] = {one.name: iter(()) for one in references}

    def finish_interrupted_corrections(self) -> None:
        """Updates enriched tables for corrections that a process recorded before it died.

        Call it before the stream starts.
        """
        written = [*(one.applied_table_name for one in self._references), *(table.table_name for table in self._tables)]
        block_earlier_writers(self._spark, self._lake, written)
        for one in self._references:
            part = self._applied.read_unfinished_correction(self._spark, one)
            if part is not None:
                self._update_enriched_tables(one, part)

    def apply_all_corrections(self) -> None:
        """Applies all changes of the reference tables, then returns."""
        while self.apply_next_corrections():
            pass

    def apply_next_corrections(self) -> bool:
        """Applies the next part of the changes of each reference table. Returns True if a table had changes."""
        found = [self._apply_next_correction(one) for one in self._references]
        return any(found)

    def _apply_next_correction(self, reference: ReferenceTable) -> bool:
        part = next(self._slices[reference.name], None)
        if part is None:
            self._slices[reference.name] = self._split_pending_difference(reference)
            part = next(self._slices[reference.name], None)
        if part is None:
            return False
        self._applied.record_reference_correction(self._spark, reference, part)
        inject_fault_if_requested(f"taken:{reference.table_name}")
        self._update_enriched_tables(reference, part)
        return True

    def _split_pending_difference(self, reference: ReferenceTable) -> Iterator[ReferenceDifference]:
        """Returns the difference between a reference table and gold's copy, in parts.

        Empty if the table has not changed since the last call, or cannot be read.
        """
        version = self._lake.latest_version(self._spark, reference.table_name)
        if version == self._seen_versions.get(reference.name):
            return iter(())
        self._seen_versions[reference.name] = version
        try:
            now = read_reference_rows(self._lake, self._lake.reader(self._spark), reference)
        except LakeError:  # skipped until the table changes again; `sessionlake reference list` shows the reason
            return iter(())
        applied = self._applied.read_current_rows_by_reference(self._spark)[reference.name]
        return find_reference_difference(reference, applied, now)[0].split_into_parts(reference, _SLICE_ROWS)

    def _update_enriched_tables(self, reference: ReferenceTable, difference: ReferenceDifference) -> None:
        spans = find_changed_time_spans(reference, difference)
        if spans.num_rows:
            for table, join in find_joins_with_reference(self._tables, reference):
                self._update_enriched_table(table, join, spans)
        self._applied.mark_corrections_finished(self._spark, reference)

    def _update_enriched_table(self, table: EnrichedTable, join: ReferenceJoin, changed_spans: pa.Table) -> None:
        """Repeats a join for those rows of an enriched table that a correction affects, and updates these rows.

        Args:
            table: the enriched table.
            join: the join with the corrected reference table.
            changed_spans: keys and spans of event time in which the reference table's values have changed.
        """
        columns = [*dict.fromkeys((*CHANGE_ID, "ts", *join.on))]
        identity = [column for column in table.column_types if column[0] in CHANGE_ID]
        versions = self._applied.read_current_rows_by_reference(self._spark)[join.reference.name]

        def join_rows_again(rows: pa.Table) -> pa.Table:
            """Returns, for rows in the spans, the columns that identify the row and those that the join adds."""
            keys = [rows[name] for name in join.on]
            touched = rows.filter(
                pa.array(are_rows_in_time_spans(join.reference, changed_spans, keys, rows["ts"].to_numpy()))
            )
            return pa.table(
                {name: touched[name] for name, _ in identity} | join.compute_added_columns(touched, versions)
            )

        rows: Rows
        try:
            reader, most = self._lake.reader(self._spark), self._lake.driver_limits.driver_bytes // MEMORY_FACTOR
            near = reader.read_arrow_table(
                table.table_name, *_build_time_span_conditions(join, changed_spans), columns=columns, max_bytes=most
            )
        except TooLargeError:
            frame = self._lake.read(self._spark, table.table_name).select(*map(quote, columns))
            # Evaluated once, before the MERGE changes the table that it reads.
            rows = apply_to_batches(
                frame, FunctionPerArrowBatch(join_rows_again), build_ddl((*identity, *join.added_columns))
            ).localCheckpoint()
        else:
            rows = join_rows_again(near)
            if not rows.num_rows:
                return
        txn = create_txn_for_reference_commit(self._spark, self._lake, table.table_name).add_fencing_token(
            self._lake.storage.get_fencing_token(GOLD)
        )
        added = tuple(name for name, _ in join.added_columns)
        upsert = Upsert(CHANGE_ID, added, pruned_by=("topic", "offset"), inserts=False)
        merge_rows(self._spark, self._lake, table.table_name, rows, upsert, txn)


def _build_time_span_conditions(join: ReferenceJoin, spans: pa.Table) -> list[Condition]:
    """Returns conditions, joined by AND, that select all rows of an enriched table whose event time is in a span.

    They may select further rows, too.
    """
    keys = spans.select(join.reference.key_names).rename_columns([*join.on])
    found = [*build_key_conditions(keys, join.on, keys.schema), ("ts", operator.ge, pc.min(spans[BEGIN]).as_py())]
    last = pc.max(spans[END]).as_py()
    return found if last == OPEN_END else [*found, ("ts", operator.lt, last)]
