"""Products that are kept for a time: which of their buckets are gone, and how they go.

Gold alone removes them, between its batches, and notes in `ops.retained` what goes before it does. From then on a batch
passes over what comes for a bucket that is gone: a row is whole, or it is not there. Coarser tables are made of the
batch, and not of finer ones' rows: they miss nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sessionlake.delta.commit import delete_rows, next_txn
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.conflicts import retry_on_conflict
from sessionlake.delta.storage.far_times import nearest_time
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import ClaimedError
from sessionlake.gold.aggregate.final import FinalTable
from sessionlake.gold.aggregate.late import NEVER, first_kept
from sessionlake.gold.aggregate.product import START, Product, starts
from sessionlake.gold.aggregate.standard import TIERS
from sessionlake.gold.declared.tables import GoldTable, finals_of, products_of, with_finals
from sessionlake.ledger.retained import (
    CLAIM,
    LIMITS,
    Retained,
    clear_retained,
    read_head,
    read_retained,
    record_retained,
)
from sessionlake.protocol.arrow import codes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

Floors = Mapping[str, int]
"""By topic, where a table begins: the first event time whose bucket is not gone, in ms. Of others all is there."""

# Buckets go when some have been gone for so much of the time that they are kept.
_STEPS = 24


def read_floors(reader: TableReader, tables: Collection[str]) -> dict[str, Floors]:
    """Where tables begin of which something is gone."""
    known = read_retained(reader, tables)
    return {table: _floors(known[table]) for table in tables if table in known}


def slices_begin(reader: TableReader) -> Floors:
    """Where the slices begin that rules are evaluated over: those of each length are there."""
    return _latest(read_floors(reader, [tier.table for tier in TIERS]).values())


def describe_floors(table: str, floors: Floors) -> str:
    """Where a table begins, in words for people."""
    ends = sorted({f"{nearest_time(ms):%Y-%m-%d %H:%M:%SZ}" for ms in floors.values()})
    until = ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}, by topic,"
    return f"{table} is kept for a time: buckets before {until} are gone"


def without_expired(rows: DataFrame, *floors: Floors) -> DataFrame:
    """Rows, with `topic` and `window_start`, less those of buckets that are gone of any of several tables."""
    from pyspark.sql import functions as F

    for one in filter(None, floors):
        rows = rows.where(~F.coalesce(_is_gone(one), F.lit(col=False)))
    return rows


def without_expired_rows(rows: pa.Table, *floors: Floors) -> pa.Table:
    """As `without_expired`, of rows in memory; a table that loses no rows needs no buckets."""
    floors = tuple(filter(None, floors))
    if not rows.num_rows or not floors:
        return rows
    code, topics = codes(rows["topic"])
    # A topic's rows begin where the tables that keep the least of it do.
    begin = [max(one.get(topic, NEVER) for one in floors) for topic in topics.to_pylist()]
    return rows.filter(pa.array(starts(rows) >= np.array(begin, np.int64)[code]))


def due_floors(product: Product | FinalTable, times: Mapping[str, int]) -> dict[str, int]:
    """Where a product is to begin at these stream times, in ms, of topics.

    A producer whose clock is ahead moves stream time with it: no more goes than by the clock here.
    """
    if product.retention_ms is None or product.bucket_ms is None:
        return {}
    length, retention, now = product.bucket_ms, product.retention_ms, int(datetime.now(UTC).timestamp() * 1000)
    return {topic: first_kept(min(time, now), length, retention) for topic, time in times.items() if time > NEVER}


def store_floors(spark: SparkSession, lake: Lake, tables: Collection[str], floors: Floors) -> None:
    """Notes where tables begin, all at one place, whose rows are being written anew.

    Raises:
        ClaimedError: rows are just being removed.
    """
    known = read_retained(lake.reader(spark), tables)
    if any((_floors(known[table]) if table in known else {}) != dict(floors) for table in tables):
        with lake.storage.claim(spark, CLAIM, f"makes {', '.join(sorted(tables))} anew"):
            for table in tables if floors else ():
                record_retained(spark, lake, _retained_entry(table, floors))
            others = {topic for one in known.values() for topic in _floors(one)} - floors.keys()
            clear_retained(spark, lake, tables, sorted(others) if floors else None)


def start_expiry(spark: SparkSession, lake: Lake, tables: Sequence[GoldTable], *, is_new: bool) -> Expiry:
    """Where these tables begin, once what is due, or was to go when a process died, is removed.

    Args:
        is_new: whether gold begins with tables that are empty.
    """
    if is_new:
        store_floors(spark, lake, [one.table for one in with_finals(products_of(lake.settings))], {})
    products = [one for one in tables if isinstance(one, Product)]
    expiry = Expiry(spark, lake, [*products, *finals_of(products)])
    expiry.remove(spark, {})
    return expiry


class Expiry:
    """Follows, for the one gold that writes, where its products begin."""

    def __init__(self, spark: SparkSession, lake: Lake, products: Iterable[Product | FinalTable]) -> None:
        self._lake, self._products = lake, list(products)
        known = read_retained(lake.reader(spark), [one.table for one in self._products])
        self._floors = {one.table: _floors(known[one.table]) for one in self._products if one.table in known}
        self._looked: dict[str, dict[str, int]] = {}
        # A process died: what it has noted may still be there.
        self._pending = {one.table for one in self._products if one.table in known and known[one.table].pending}

    def floors(self, table: str) -> Floors:
        """Where a table begins."""
        return self._floors.get(table, {})

    @property
    def slices_begin(self) -> Floors:
        """Where the slices begin that rules are evaluated over."""
        return _latest(self.floors(tier.table) for tier in TIERS)

    def remove(self, spark: SparkSession, times: Mapping[str, int]) -> None:
        """Removes buckets that are due; if somebody else removes rows just now, another time.

        Args:
            times: stream times of topics, in ms.
        """
        for product in self._products:
            looked, step = self._looked.setdefault(product.table, {}), (product.retention_ms or 0) // _STEPS
            floors = {
                topic: floor
                for topic, floor in due_floors(product, times).items()
                if floor > looked.get(topic, NEVER) + step
            }
            if not floors and product.table not in self._pending:
                continue
            try:
                with self._lake.storage.claim(spark, CLAIM, "removes old rows"):
                    if product.table in self._pending:
                        self._cut(spark, product.table, {})
                        self._pending.remove(product.table)
                    if floors:
                        self._cut(spark, product.table, floors)
            except ClaimedError:
                return
            looked |= floors

    def _cut(self, spark: SparkSession, table: str, floors: Floors) -> None:
        before = self._floors.get(table, {})
        now = {**before, **{topic: max(floor, before.get(topic, NEVER)) for topic, floor in floors.items()}}
        is_gone = _is_gone(now)
        count = self._lake.read(spark, table).where(is_gone).count()
        found = read_head(self._lake.reader(spark), table)
        if not count and not (found and found.pending):
            return
        # Of what a process that died was about to remove, all is gone or nothing.
        removed = 0 if found is None else found.gone - (count if found.pending else 0)
        noted = replace(_retained_entry(table, now), removed=removed, pending=count)
        if count:
            record_retained(spark, self._lake, noted)
            self._floors[table] = now
            txn = next_txn(spark, self._lake, table, "expiry")
            fault_point(f"before:expire:{table}")
            retry_on_conflict(lambda: delete_rows(spark, self._lake, table, txn, is_gone))
            fault_point(f"after:expire:{table}")
        record_retained(spark, self._lake, replace(noted, removed=noted.gone, pending=0))


def _latest(many: Iterable[Floors]) -> Floors:
    found: dict[str, int] = {}
    for floors in many:
        found |= {topic: max(floor, found.get(topic, floor)) for topic, floor in floors.items()}
    return found


def _is_gone(floors: Floors) -> Column:
    from pyspark.sql import functions as F

    pairs = [F.lit(part) for topic, ms in sorted(floors.items()) for part in (topic, nearest_time(ms))]
    floor = F.try_element_at(F.create_map(*pairs), F.col("topic"))
    # By the last of all, files are left out that have no such row.
    return (F.col(START) < F.lit(nearest_time(max(floors.values())))) & (F.col(START) < floor)


def _floors(found: Retained) -> dict[str, int]:
    return {row["topic"]: row["limit"] + 1 for row in found.limits.to_pylist()}


def _retained_entry(table: str, floors: Floors) -> Retained:
    rows = [{"topic": topic, "limit": floor - 1} for topic, floor in sorted(floors.items())]
    return Retained(table, datetime.now(UTC), limits=pa.Table.from_pylist(rows, LIMITS))
