"""Removes the expired buckets of products with a retention, and stores from which time on each table is complete.

That time is called the table's floor. Only gold removes buckets, between batches. Before it removes them, it stores the
new floor in `ops.retained`. From then on, a batch skips rows for expired buckets. So a row is complete or does not
exist. A table with longer buckets loses nothing: it is merged from the batch's changes, and not from the rows of a
table with shorter buckets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sessionlake.delta.commit import create_txn_outside_queries, delete_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.conflicts import retry_on_conflict
from sessionlake.delta.storage.far_times import find_nearest_datetime
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.gold.aggregate.final import FinalTable
from sessionlake.gold.aggregate.late import NEVER, compute_first_unexpired_bucket_start
from sessionlake.gold.aggregate.product import START, Product, compute_bucket_starts_ms
from sessionlake.gold.aggregate.standard import TIERS
from sessionlake.gold.declared.tables import (
    GoldTable,
    add_final_tables_of_products,
    find_final_tables,
    list_declared_products,
)
from sessionlake.ledger.retained import (
    CLAIM,
    LIMITS,
    RetentionRecord,
    delete_removal_records,
    read_removal_record_of_table,
    read_removal_records,
    store_removal_record,
)
from sessionlake.protocol.arrow import encode_values_as_codes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ExpiryTimes = Mapping[str, int]
"""By topic, the first event time of a table whose bucket has not expired, in ms: the table's floor.

A topic that is missing has no expired buckets.
"""

# Not every batch removes buckets. They are removed once the oldest is overdue by the retention divided by this number.
_STEPS = 24


def read_expiry_times(reader: TableReader, tables: Collection[str]) -> dict[str, ExpiryTimes]:
    """Returns, by table and topic, the first event time in ms whose bucket has not expired.

    Tables and topics without expired buckets are left out.
    """
    known = read_removal_records(reader, tables)
    return {table: _compute_expiry_times_from_limits(known[table]) for table in tables if table in known}


def read_first_bucket_times(reader: TableReader) -> ExpiryTimes:
    """Returns, by topic, the event time in ms from which no bucket of metrics per minute, hour or day has expired.

    Topics without expired buckets are left out.
    """
    return _find_latest_expiry_times(read_expiry_times(reader, [tier.table_name for tier in TIERS]).values())


def describe_expiry(table: str, expiry_times: ExpiryTimes) -> str:
    """Returns a sentence for users that says which buckets of a table have expired."""
    ends = sorted({f"{find_nearest_datetime(ms):%Y-%m-%d %H:%M:%SZ}" for ms in expiry_times.values()})
    until = ends[0] if len(ends) == 1 else f"{ends[0]} to {ends[-1]}, by topic,"
    return f"{table} has a retention: buckets before {until} are gone"


def drop_expired_spark_rows(rows: DataFrame, *expiry_times: ExpiryTimes) -> DataFrame:
    """Returns the rows of a Spark frame without those whose bucket has expired in at least one of some tables.

    Args:
        rows: Rows with `topic` and `window_start`.
        expiry_times: For each of the tables, by topic, the first event time in ms that has not expired.
    """
    from pyspark.sql import functions as F

    for one in filter(None, expiry_times):
        rows = rows.where(~F.coalesce(_build_expired_filter(one), F.lit(col=False)))
    return rows


def drop_expired_arrow_rows(rows: pa.Table, *expiry_times: ExpiryTimes) -> pa.Table:
    """Returns the rows of an Arrow table without those whose bucket has expired in at least one of some tables.

    Args:
        rows: Rows with `topic` and `window_start`. The latter may be missing if `expiry_times` are all empty.
        expiry_times: For each of the tables, by topic, the first event time in ms that has not expired.
    """
    expiry_times = tuple(filter(None, expiry_times))
    if not rows.num_rows or not expiry_times:
        return rows
    code, topics = encode_values_as_codes(rows["topic"])
    # A bucket must not have expired in any table, so the latest floor counts.
    begin = [max(one.get(topic, NEVER) for one in expiry_times) for topic in topics.to_pylist()]
    return rows.filter(pa.array(compute_bucket_starts_ms(rows) >= np.array(begin, np.int64)[code]))


def compute_expiry_times(product: Product | FinalTable, stream_times: Mapping[str, int]) -> dict[str, int]:
    """Returns, by topic, the first event time in ms whose bucket has not expired, given the stream times.

    Stream time counts only up to this machine's clock. Otherwise a producer whose clock is ahead would make too many
    buckets expire. The result is empty for a table without buckets or retention.

    Args:
        product: The table, with its retention.
        stream_times: Stream time by topic, in ms.
    """
    if product.retention_ms is None or product.bucket_ms is None:
        return {}
    length, retention, now = product.bucket_ms, product.retention_ms, int(datetime.now(UTC).timestamp() * 1000)
    return {
        topic: compute_first_unexpired_bucket_start(min(time, now), length, retention)
        for topic, time in stream_times.items()
        if time > NEVER
    }


def store_expiry_times(spark: SparkSession, lake: Lake, tables: Collection[str], expiry_times: ExpiryTimes) -> None:
    """Stores in `ops.retained` which buckets of some tables have expired, the same for all of these tables.

    Args:
        tables: Names of the tables, whose rows are being rewritten.
        expiry_times: By topic, the first event time in ms that has not expired. What is stored for other topics is
            deleted.

    Raises:
        ClaimedByOtherProcessError: Another process is removing rows.
    """
    known = read_removal_records(lake.reader(spark), tables)
    if any(
        (_compute_expiry_times_from_limits(known[table]) if table in known else {}) != dict(expiry_times)
        for table in tables
    ):
        with lake.storage.hold_exclusive_claim(spark, CLAIM, f"rebuilds {', '.join(sorted(tables))}"):
            for table in tables if expiry_times else ():
                store_removal_record(spark, lake, _create_bucket_removal_record(table, expiry_times))
            others = {
                topic for one in known.values() for topic in _compute_expiry_times_from_limits(one)
            } - expiry_times.keys()
            delete_removal_records(spark, lake, tables, sorted(others) if expiry_times else None)


def start_bucket_expiry(spark: SparkSession, lake: Lake, tables: Sequence[GoldTable], *, is_new: bool) -> BucketExpiry:
    """Finishes removals of expired buckets that a process began before it died, and returns the object for later ones.

    Args:
        tables: The tables that gold maintains.
        is_new: True if gold starts with empty tables. Then it forgets which buckets had expired.
    """
    if is_new:
        store_expiry_times(
            spark,
            lake,
            [one.table_name for one in add_final_tables_of_products(list_declared_products(lake.settings))],
            {},
        )
    products = [one for one in tables if isinstance(one, Product)]
    expiry = BucketExpiry(spark, lake, [*products, *find_final_tables(products)])
    expiry.remove_expired_buckets(spark, {})
    return expiry


class BucketExpiry:
    """Removes the expired buckets of products, and knows which have expired. The gold stream has one instance."""

    def __init__(self, spark: SparkSession, lake: Lake, products: Iterable[Product | FinalTable]) -> None:
        self._lake, self._products = lake, list(products)
        known = read_removal_records(lake.reader(spark), [one.table_name for one in self._products])
        self._floors = {
            one.table_name: _compute_expiry_times_from_limits(known[one.table_name])
            for one in self._products
            if one.table_name in known
        }
        self._looked: dict[str, dict[str, int]] = {}
        # If a process died, rows that it was about to remove may still exist.
        self._pending = {
            one.table_name for one in self._products if one.table_name in known and known[one.table_name].pending
        }

    def get_expiry_times(self, table: str) -> ExpiryTimes:
        """Returns, by topic, the first event time in ms whose bucket of a table has not expired.

        Empty if nothing has expired.
        """
        return self._floors.get(table, {})

    @property
    def first_bucket_times(self) -> ExpiryTimes:
        """By topic, the event time in ms from which no bucket of metrics per minute, hour or day has expired."""
        return _find_latest_expiry_times(self.get_expiry_times(tier.table_name) for tier in TIERS)

    def remove_expired_buckets(self, spark: SparkSession, stream_times: Mapping[str, int]) -> None:
        """Removes the buckets that have expired, once enough have. Does nothing while another process removes rows.

        Args:
            stream_times: Stream time by topic, in ms.
        """
        for product in self._products:
            looked, step = self._looked.setdefault(product.table_name, {}), (product.retention_ms or 0) // _STEPS
            floors = {
                topic: floor
                for topic, floor in compute_expiry_times(product, stream_times).items()
                if floor > looked.get(topic, NEVER) + step
            }
            if not floors and product.table_name not in self._pending:
                continue
            try:
                with self._lake.storage.hold_exclusive_claim(spark, CLAIM, "removes old rows"):
                    if product.table_name in self._pending:
                        self._remove_expired_buckets_of_table(spark, product.table_name, {})
                        self._pending.remove(product.table_name)
                    if floors:
                        self._remove_expired_buckets_of_table(spark, product.table_name, floors)
            except ClaimedByOtherProcessError:
                return
            looked |= floors

    def _remove_expired_buckets_of_table(self, spark: SparkSession, table: str, expiry_times: ExpiryTimes) -> None:
        before = self._floors.get(table, {})
        now = {**before, **{topic: max(floor, before.get(topic, NEVER)) for topic, floor in expiry_times.items()}}
        is_gone = _build_expired_filter(now)
        count = self._lake.read(spark, table).where(is_gone).count()
        found = read_removal_record_of_table(self._lake.reader(spark), table)
        if not count and not (found and found.pending):
            return
        # A process that died has removed either all of its pending rows or none.
        removed = 0 if found is None else found.max_missing_rows - (count if found.pending else 0)
        noted = replace(_create_bucket_removal_record(table, now), removed=removed, pending=count)
        if count:
            store_removal_record(spark, self._lake, noted)
            self._floors[table] = now
            txn = create_txn_outside_queries(spark, self._lake, table, "expiry")
            inject_fault_if_requested(f"before:expire:{table}")
            retry_on_conflict(lambda: delete_rows(spark, self._lake, table, txn, is_gone))
            inject_fault_if_requested(f"after:expire:{table}")
        store_removal_record(spark, self._lake, replace(noted, removed=noted.max_missing_rows, pending=0))


def _find_latest_expiry_times(expiry_times_of_tables: Iterable[ExpiryTimes]) -> ExpiryTimes:
    found: dict[str, int] = {}
    for floors in expiry_times_of_tables:
        found |= {topic: max(floor, found.get(topic, floor)) for topic, floor in floors.items()}
    return found


def _build_expired_filter(expiry_times: ExpiryTimes) -> Column:
    from pyspark.sql import functions as F

    pairs = [F.lit(part) for topic, ms in sorted(expiry_times.items()) for part in (topic, find_nearest_datetime(ms))]
    floor = F.try_element_at(F.create_map(*pairs), F.col("topic"))
    # The comparison with the highest floor lets Delta skip files that have no expired row.
    return (F.col(START) < F.lit(find_nearest_datetime(max(expiry_times.values())))) & (F.col(START) < floor)


def _compute_expiry_times_from_limits(removed: RetentionRecord) -> dict[str, int]:
    """Returns, by topic, the start in ms of the first bucket that has not expired, from a row of `ops.retained`."""
    return {row["topic"]: row["limit"] + 1 for row in removed.limits.to_pylist()}


def _create_bucket_removal_record(table: str, expiry_times: ExpiryTimes) -> RetentionRecord:
    rows = [{"topic": topic, "limit": floor - 1} for topic, floor in sorted(expiry_times.items())]
    return RetentionRecord(table, datetime.now(UTC), limits=pa.Table.from_pylist(rows, LIMITS))
