"""A batch's averages written: restatements, new rows, and rows that others changed."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append, merge
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RESTATEMENTS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.fold.outputs import RowRange, SeriesOutput
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.folded import Part, rows_of
from sessionlake.gold.slow import beyond_ddl, recomputed, recomputed_at_hand
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.names import quote
from sessionlake.spark.frames import Mapped, Rows, as_frame
from sessionlake.streaming.carried import unpack

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIGURES = ("average", "points", "revision", "pane")
_STAMPS = ("restated_at", "_batch")
_STAMPED = ", ".join(f"{quote(name)} {sql}" for name, sql in TABLES[RESTATEMENTS].columns)
_RESTATED = ", ".join(f"{quote(name)} {sql}" for name, sql in TABLES[RESTATEMENTS].columns if name not in _STAMPS)


@dataclass(frozen=True)
class AverageWriter:
    """Writes one folded batch.

    Restatements go first: what the tables say before the batch is known only until they take it in.
    """

    spark: SparkSession
    lake: Lake
    part: Part
    txn: Txn
    shards: int

    def write(self, averages: Sequence[RollingAverage]) -> list[TableOutput]:
        """Commits the batch to the tables; what each took in."""
        parts = [self.part, *self._slow(averages)]
        outputs = [self._restate(parts, averages), *(self._write(parts, series) for series in averages)]
        return [output for output in outputs if output is not None]

    def _slow(self, averages: Sequence[RollingAverage]) -> Iterator[Part]:
        """What follows from the tables, of each that has new points from before its tails."""
        spark, limits = self.spark, self.lake.limits
        for series in averages:
            beyond = SeriesOutput.BEYOND.of(series)
            if beyond not in self.part.report.spans:
                continue
            points, found = rows_of([self.part], [beyond], beyond_ddl(series)), None
            if isinstance(points, pa.Table):
                found = recomputed_at_hand(points, self.lake.reader(spark), series, limits)
            if found is not None:
                yield Part.of(spark, found)
            else:
                held = self.lake.read(spark, series.table)
                frame = recomputed(as_frame(spark, points), held, series, shards=self.shards)
                # Not persisted: Spark would compute it again after each write to the table that it was read from.
                yield Part.collect(frame.localCheckpoint(), limits.inline_bytes)

    def _restate(self, parts: Sequence[Part], averages: Sequence[RollingAverage]) -> TableOutput | None:
        kinds = [SeriesOutput.RESTATED.of(series) for series in averages]
        span = _span(parts, kinds)
        if span is None:
            return None
        stamp = _Stamp(self.txn.version, datetime.now(UTC))
        append(self.spark, self.lake, RESTATEMENTS, stamp.on(rows_of(parts, kinds, _RESTATED)), self.txn)
        return TableOutput(RESTATEMENTS, self.lake.last_commit(self.spark, RESTATEMENTS).version, span.rows)

    def _write(self, parts: Sequence[Part], series: RollingAverage) -> TableOutput | None:
        """Appends new rows, for which nothing is looked up: they are most of what a batch brings; merges others."""
        new, changed = (_span(parts, [kind.of(series)]) for kind in (SeriesOutput.NEW, SeriesOutput.CHANGED))
        if not new and not changed:
            return None
        if new:
            rows = rows_of(parts, [SeriesOutput.NEW.of(series)], series.ddl)
            append(self.spark, self.lake, series.table, rows, self.txn)
        if changed:
            rows = rows_of(parts, [SeriesOutput.CHANGED.of(series)], series.ddl)
            # That a row is there is known, which spares Delta an outer join.
            upsert = Upsert(series.row_keys, _FIGURES, bounded=("ts",), inserts=False)
            commit = merge(self.spark, self.lake, series.table, rows, upsert, self.txn.second)
        else:
            commit = self.lake.last_commit(self.spark, series.table)
        return TableOutput(series.table, commit.version, sum(span.rows for span in (new, changed) if span))


@dataclass(frozen=True)
class _Stamp:
    """Adds the batch that restated, and when; as a call, a `mapInArrow` function of payloads."""

    batch: int
    at: datetime

    def on(self, rows: Rows) -> Rows:
        """The rows with the two columns."""
        if isinstance(rows, pa.Table):
            return pa.Table.from_batches([self._stamped(batch) for batch in rows.to_batches()])
        return Mapped(rows.frame, self, _STAMPED) if isinstance(rows, Mapped) else rows

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from map(self._stamped, unpack(batches))

    def _stamped(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        stamps = (pa.scalar(self.at, pa.timestamp("us", "UTC")), pa.scalar(self.batch, pa.int64()))
        for name, stamp in zip(_STAMPS, stamps, strict=True):
            batch = batch.append_column(name, pa.repeat(stamp, batch.num_rows))
        return batch


def _span(parts: Sequence[Part], kinds: Iterable[str]) -> RowRange | None:
    found = [part.report.spans[kind] for part in parts for kind in kinds if kind in part.report.spans]
    return reduce(operator.add, found) if found else None
