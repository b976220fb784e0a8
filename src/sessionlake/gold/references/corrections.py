"""Changes of reference tables taken beside the stream, a slice at a time: rows that they touch are joined anew."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.reading import Condition, TooLargeError, key_conditions
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.gold.enrich.asof import OPEN
from sessionlake.gold.enrich.reference import (
    BEGIN,
    END,
    Difference,
    Reference,
    difference,
    touched_spans,
    within_spans,
)
from sessionlake.gold.enrich.table import IDENTITY, Enriched, Join, joins_of
from sessionlake.gold.references.taken import (
    PART,
    TakenRows,
    next_txn,
    read_reference,
    retire_others,
)
from sessionlake.protocol.names import ddl_of, quote
from sessionlake.spark.frames import EachBatch, Rows, map_batches

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SLICE = 10_000
"""Rows of a reference table that are taken at once, unless one key has more: what they touch is one commit."""


class Corrections:
    """Follows reference tables.

    Args:
        spark: a session of its own: MERGE sets its transaction in it.
        tables: those that are kept up.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        references: Sequence[Reference],
        tables: Sequence[Enriched],
        taken: TakenRows,
    ) -> None:
        self._spark, self._lake, self._taken = spark, lake, taken
        self._tables = tables
        self._references = references
        self._seen: dict[str, int] = {}
        self._slices: dict[str, Iterator[Difference]] = {one.name: iter(()) for one in references}

    def begin(self) -> None:
        """Makes good what a correction that died has left undone. To be called before the stream starts."""
        written = [*(one.taken for one in self._references), *(table.table for table in self._tables)]
        retire_others(self._spark, self._lake, written)
        for one in self._references:
            part = self._taken.unfinished(self._spark, one)
            if part is not None:
                self._make_good(one, part)

    def catch_up(self) -> None:
        """Takes all that there is to take."""
        while self.step():
            pass

    def step(self) -> bool:
        """Takes a slice of what each reference table has that was not taken yet; whether there was any."""
        found = [self._next(one) for one in self._references]
        return any(found)

    def _next(self, reference: Reference) -> bool:
        part = next(self._slices[reference.name], None)
        if part is None:
            self._slices[reference.name] = self._untaken(reference)
            part = next(self._slices[reference.name], None)
        if part is None:
            return False
        self._taken.take(self._spark, reference, part)
        fault_point(f"taken:{reference.table}")
        self._make_good(reference, part)
        return True

    def _untaken(self, reference: Reference) -> Iterator[Difference]:
        """What is to be taken of a reference table that has changed since the last look, in slices."""
        version = self._lake.latest_version(self._spark, reference.table)
        if version == self._seen.get(reference.name):
            return iter(())
        self._seen[reference.name] = version
        try:
            now = read_reference(self._lake, self._lake.reader(self._spark), reference)
        except LakeError:  # it rests, until it is another one: `sessionlake reference list` says why
            return iter(())
        held = self._taken.versions(self._spark)[reference.name]
        return difference(reference, held, now)[0].slices(reference, _SLICE)

    def _make_good(self, reference: Reference, part: Difference) -> None:
        spans = touched_spans(reference, part)
        if spans.num_rows:
            for table, join in joins_of(self._tables, reference):
                self._correct(table, join, spans)
        self._taken.note_corrected(self._spark, reference)

    def _correct(self, table: Enriched, join: Join, spans: pa.Table) -> None:
        """Joins the rows anew that lie in the spans."""
        columns = [*dict.fromkeys((*IDENTITY, "ts", *join.on))]
        identity = [column for column in table.columns if column[0] in IDENTITY]
        versions = self._taken.versions(self._spark)[join.reference.name]

        def rejoined(rows: pa.Table) -> pa.Table:
            """`IDENTITY` and the columns that the join adds, of the rows in the spans."""
            keys = [rows[name] for name in join.on]
            touched = rows.filter(pa.array(within_spans(join.reference, spans, keys, rows["ts"].to_numpy())))
            return pa.table({name: touched[name] for name, _ in identity} | join.found(touched, versions))

        rows: Rows
        try:
            reader, most = self._lake.reader(self._spark), self._lake.limits.driver_bytes // PART
            near = reader.table(table.table, *_near(join, spans), columns=columns, max_bytes=most)
        except TooLargeError:
            frame = self._lake.read(self._spark, table.table).select(*map(quote, columns))
            # Once, and before the MERGE: what it reads is not what it writes.
            rows = map_batches(frame, EachBatch(rejoined), ddl_of((*identity, *join.added))).localCheckpoint()
        else:
            rows = rejoined(near)
            if not rows.num_rows:
                return
        txn = next_txn(self._spark, self._lake, table.table).fenced_by(self._lake.storage.token(GOLD))
        added = tuple(name for name, _ in join.added)
        upsert = Upsert(IDENTITY, added, pruned_by=("topic", "offset"), inserts=False)
        merge(self._spark, self._lake, table.table, rows, upsert, txn)


def _near(join: Join, spans: pa.Table) -> list[Condition]:
    """Conditions that all rows in the spans meet, and few others."""
    keys = spans.select(join.reference.key_names).rename_columns([*join.on])
    found = [*key_conditions(keys, join.on, keys.schema), ("ts", operator.ge, pc.min(spans[BEGIN]).as_py())]
    last = pc.max(spans[END]).as_py()
    return found if last == OPEN else [*found, ("ts", operator.lt, last)]
