"""Rules as a step of gold's batch: what it has brought is held against them once it is in the products' tables.

Alerts follow from the tables alone, and what is logged is the difference to the log: a batch that is done again finds
nothing left to log. Stream times, which say up to where all keys have been looked at, are written last.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.commit import append, merge, replace_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import RULE_EVENTS, RULE_MATCHES, RULE_TIMES
from sessionlake.delta.storage.far_times import nearest_time
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.gold.aggregate.order import OnceTopics
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.aggregate.sources import PARTITION, POINT_KEY
from sessionlake.gold.aggregate.standard import DISTINCT_VALUES, METRICS_1M
from sessionlake.gold.alerts.book import TIMES, RuleBook
from sessionlake.gold.alerts.stored import StoredInLake, events_in, merge_text_times, merge_times, times_of_all
from sessionlake.gold.batch.rows import BatchRows
from sessionlake.gold.changes import declared_in
from sessionlake.gold.fold.pack import ReadChanges
from sessionlake.gold.rules.alerts import KEY, RETRACTED, StreamTimes
from sessionlake.gold.rules.batch import Batch, Row, changed
from sessionlake.gold.rules.patterns import MATCH, sought
from sessionlake.gold.rules.rule import Rule
from sessionlake.gold.rules.tree import MINUTE_MS
from sessionlake.gold.tables.expiry import Expiry
from sessionlake.ledger.entries import TableOutput
from sessionlake.settings.model import Settings
from sessionlake.spark.frames import as_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MATCHED = Upsert((*MATCH.names[:-1],), ("value",), pruned_by=("event", "ts"))
_TIME = pa.timestamp("us", "UTC")
_LOGGED = pa.schema(
    [(name, pa.string()) for name in ("rule", "rule_version")]
    + [(name, pa.int32() if name == PARTITION else pa.string()) for name in KEY]
    + [
        ("event", pa.string()),
        ("retracts", pa.string()),
        ("window_start", _TIME),
        ("window_end", _TIME),
        ("values", pa.map_(pa.string(), pa.float64())),
    ]
    + [("late", pa.bool_()), ("late_ts", _TIME), ("cause", pa.string()), ("_batch", pa.int64())]
)


class RuleStep:
    """Evaluates rules over one gold batch after the other."""

    def __init__(self, lake: Lake, settings: Settings, expiry: Expiry) -> None:
        self._lake, self._declared, self._expiry = lake, declared_in(settings), expiry
        self._once = OnceTopics(settings.capture)
        self._book = RuleBook(lake, self._declared, settings.gold.retention.least)

    def __call__(self, spark: SparkSession, rows: BatchRows, txn: Txn) -> list[TableOutput]:
        """Logs what the batch raises, clears and retracts; call it once the products have the batch."""
        taken = self._book.take(spark, txn)
        if not taken:
            return []
        rules = [one.rule for one in taken if one.rule is not None]
        before = {row["topic"]: row["ts"] for row in self._lake.reader(spark).rows(RULE_TIMES)}
        # Without times, those that are known have looked at nothing: a batch that was done again has not left any.
        fresh = {one.name for one in taken if one.batch == txn.version or not before}
        known, new = ([rule for rule in rules if (rule.name in fresh) == is_new] for is_new in (False, True))
        matches = self._matched(spark, known, new, rows.part.report.read, txn)
        batch = self._batch(spark, rows, matches, before, begun=bool(known))
        logged = changed(known, new, batch, StoredInLake(self._lake.reader(spark)))
        found = [
            *self._log(spark, [row for row in logged if row.rule.name not in fresh], txn, txn),
            *self._log(spark, [row for row in logged if row.rule.name in fresh], txn.second_write, txn),
        ]
        times = pa.Table.from_pylist([{"topic": t, "ts": ts} for t, ts in sorted(batch.after.items())], TIMES)
        replace_rows(spark, self._lake, RULE_TIMES, times, txn)
        return found

    def _batch(
        self, spark: SparkSession, rows: BatchRows, matches: pa.Table, before: StreamTimes, *, begun: bool
    ) -> Batch:
        """What the batch brought.

        Args:
            before: up to when all keys have been looked at.
            begun: whether some rules have looked at what came before.
        """
        reader = self._lake.reader(spark)
        points = _rows(rows, METRICS_1M, (*POINT_KEY, PARTITION, START, "_first_ts", "_last_ts"))
        after = self._moved(reader, before, rows, points) if before else times_of_all(reader, self._declared)
        ends = pa.array(points[START].cast(pa.int64()).to_numpy() // (MINUTE_MS * 1000) + 1)
        touched = (
            points.select([*POINT_KEY, PARTITION]).append_column("end", ends).append_column("ts", points["_first_ts"])
        )
        return Batch(before if begun else before or after, after, touched, matches, self._expiry.slices_begin)

    def _moved(self, reader: TableReader, before: StreamTimes, rows: BatchRows, points: pa.Table) -> StreamTimes:
        after = dict(before)
        merge_times(after, points, "_last_ts")
        texts = _rows(rows, DISTINCT_VALUES, ("topic", "first_ts", "last_ts"))
        if texts.num_rows:
            merge_text_times(after, [texts], reader, self._declared, *_read_by(rows.part.report.read))
        return after

    def _matched(
        self, spark: SparkSession, known: Iterable[Rule], new: Iterable[Rule], read: ReadChanges, txn: Txn
    ) -> pa.Table:
        """Keeps the changes that are events: of the batch, and for events that nobody looked for so far back, of all.

        A batch may have read a part of silver's: all of that is looked at, and what comes twice is kept once.
        """
        if read.last is None or read.first is None:
            return MATCH.empty_table()
        reader, (begin, until) = self._lake.reader(spark), _read_by(read)
        had = sought(known)
        wider = {event: since for event, since in sought(new).items() if event not in had or since < had[event]}
        back_to = ("_ts", operator.ge, min(wider.values(), default=0))
        found = []
        for events, conditions, own in ((had, (begin, until), txn), (wider, (back_to, until), txn.second_write)):
            if events:
                rows = events_in(reader, list(events), self._declared, self._once, *conditions)
                if rows.num_rows:
                    merge(spark, self._lake, RULE_MATCHES, rows, _MATCHED, own)
                found.append(rows)
        return pa.concat_tables([MATCH.empty_table(), *found])

    def _log(self, spark: SparkSession, rows: Sequence[Row], own: Txn, txn: Txn) -> list[TableOutput]:
        if not rows:
            return []
        append(spark, self._lake, RULE_EVENTS, _logged(rows, txn.version), own)
        return [TableOutput(RULE_EVENTS, self._lake.latest_version(spark, RULE_EVENTS), len(rows))]


def _read_by(read: ReadChanges) -> tuple[Condition, Condition]:
    """Changes of silver's batches that a batch has read, perhaps a part of one of them."""
    return ("_batch", operator.ge, read.first), ("_batch", operator.le, read.last)


def _rows(rows: BatchRows, product: Product, columns: Sequence[str]) -> pa.Table:
    """What the batch comes to in a product by itself, perhaps in several rows a key."""
    found = rows.of(product)
    if isinstance(found, pa.Table):
        return found.cast(product.schema()).select(list(columns))
    return as_frame(rows.spark, found).select(*columns).toArrow()


def _logged(rows: Sequence[Row], batch: int) -> pa.Table:
    """Rows as `gold.rule_events` has them."""
    return pa.Table.from_pylist([_logged_row(row, batch) for row in rows], _LOGGED)


def _logged_row(row: Row, batch: int) -> dict[str, object]:
    alert, grounds = row.logged.alert, row.logged.grounds
    start = None if grounds is None or grounds.start_ms is None else nearest_time(grounds.start_ms)
    return {
        "rule": alert.rule,
        "rule_version": row.rule.version,
        **dict(zip(KEY, alert.key, strict=True)),
        "event": RETRACTED if row.logged.retracted else alert.event,
        "retracts": alert.event if row.logged.retracted else None,
        "window_start": start,
        "window_end": nearest_time(alert.at_ms),
        "values": None if grounds is None else list(grounds.values.items()),
        "late": row.late,
        "late_ts": None if row.late_ts is None else nearest_time(row.late_ts),
        "cause": str(row.cause),
        "_batch": batch,
    }
