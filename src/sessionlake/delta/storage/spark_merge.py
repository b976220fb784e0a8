"""MERGE by Spark: for catalogs, and for folders whose tables are too large to be written anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.schemas.definition import DELETION_VECTORS
from sessionlake.delta.storage.commits import LAST_COMMIT, Commit
from sessionlake.delta.storage.conflicts import repeated
from sessionlake.delta.storage.expired import Chosen
from sessionlake.delta.storage.interface import Storage
from sessionlake.delta.storage.session_rows import BLANKED, SessionRows
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.protocol.names import DELETE, WRITTEN, quote
from sessionlake.spark.frames import Rows, as_frame
from sessionlake.spark.interpreted import conf

if TYPE_CHECKING:
    from delta.tables import DeltaMergeBuilder
    from pyspark.sql import Column, DataFrame, SparkSession

# Up to so many values are named; of more, the least and the greatest are. A literal costs the driver some 0.1 ms.
_NAMED = 1_000
_MICROS = pa.timestamp("us", "UTC")


def merged_by_spark(
    storage: Storage,
    spark: SparkSession,
    table: str,
    source: Rows,
    upsert: Upsert,
    txn: Txn,
    settings: Mapping[str, str] | None = None,
) -> Commit:
    """See `Storage.merge`. Where another commit has changed files that this one has read, it is done again.

    Args:
        spark: in which the transaction is set: no other write may run in it meanwhile.
        settings: what else is set in it.
    """
    frame = as_frame(spark, source)
    known = source if isinstance(source, pa.Table) else frame
    same = reduce(and_, (_bound(known, name) for name in upsert.bounded), _same(upsert))

    def execute() -> Commit:
        storage.make_sure(table)
        with storage.exclusive(table):
            builder = storage.delta(spark, table).alias("t").merge(frame.alias("s"), same)
            spark.conf.unset(LAST_COMMIT)
            [done] = _clauses(builder, upsert).execute().collect()
            version = spark.conf.get(LAST_COMMIT, None)
            if version is None:  # skipped, since an earlier run has made it
                return storage.last_commit(spark, table)
            return Commit(int(version), done["num_affected_rows"])

    with conf(spark, txn.conf(table) | dict(settings or {})):
        return repeated(execute)


def counted_by_spark(storage: Storage, spark: SparkSession, table: str, chosen: Chosen) -> int:
    """See `Storage.count`."""
    rows = storage.read(spark, table, {}).alias("t")
    return rows.join(chosen.source(spark), chosen.condition(), "left_semi").count()


def removed_by_spark(storage: Storage, spark: SparkSession, table: str, chosen: Chosen) -> None:
    """See `Storage.remove`."""
    rewritten_by_spark(storage, spark, table, chosen, lambda merge: merge.whenMatchedDelete())


def blanked_by_spark(storage: Storage, spark: SparkSession, table: str, rows: SessionRows) -> None:
    """See `Storage.blank`."""
    from pyspark.sql import functions as F

    values = {name: None if value is None else bytearray(value) for name, value in BLANKED.items()}
    blank = {name: F.lit(value) for name, value in values.items()}
    rewritten_by_spark(storage, spark, table, rows, lambda merge: merge.whenMatchedUpdate(set=blank))


def rewritten_by_spark(
    storage: Storage,
    spark: SparkSession,
    table: str,
    chosen: Chosen,
    change: Callable[[DeltaMergeBuilder], DeltaMergeBuilder],
) -> None:
    """Changes the chosen rows of a table, if there are any, and leaves no file with rows that are marked as gone."""

    def execute() -> None:
        storage.make_sure(table)
        with storage.exclusive(table):
            if storage.properties(spark, table).get(DELETION_VECTORS) == "true":
                spark.sql(f"REORG TABLE {storage.identifier(table)} APPLY (PURGE)").collect()
            merge = storage.delta(spark, table).alias("t").merge(chosen.source(spark), chosen.condition())
            change(merge).execute()

    with conf(spark, {"spark.databricks.delta.merge.deletionVectors.persistent": "false"}):
        repeated(execute)


def _same(upsert: Upsert) -> Column:
    from pyspark.sql import functions as F

    return reduce(and_, (F.col(f"t.{quote(name)}") == F.col(f"s.{quote(name)}") for name in upsert.keys))


def _clauses(builder: DeltaMergeBuilder, upsert: Upsert) -> DeltaMergeBuilder:
    taken: dict[str, str | Column] = {quote(name): f"s.{quote(name)}" for name in upsert.columns}
    kept: dict[str, str | Column] = {
        quote(name): f"CASE WHEN s.{WRITTEN}[{i}] THEN s.{quote(name)} ELSE t.{quote(name)} END"
        for i, name in enumerate(upsert.kept)
    }
    if upsert.deletes:
        builder = builder.whenMatchedDelete(f"s.{DELETE}")
    if upsert.updates:
        builder = builder.whenMatchedUpdate(set=taken | kept)
    if upsert.inserts:
        whole: dict[str, str | Column] = {quote(name): f"s.{quote(name)}" for name in (*upsert.keys, *upsert.kept)}
        there = f"NOT s.{DELETE}" if upsert.deletes else None
        builder = builder.whenNotMatchedInsert(there, values=whole | taken)
    return builder


def _bound(source: DataFrame | pa.Table, name: str) -> Column:
    """Which values the column can have, as literals: by the keys alone, MERGE would read every key of the table."""
    from pyspark.sql import functions as F

    column = F.col(f"t.{quote(name)}")
    if isinstance(source, pa.Table):
        timed = pa.types.is_timestamp(source.schema.field(name).type)
        values = source[name].cast(_MICROS).cast(pa.int64()) if timed else source[name]
        found = pc.unique(values).to_pylist()
    else:
        timed = dict(source.dtypes)[name] == "timestamp"
        value = F.unix_micros(quote(name)) if timed else F.col(quote(name))
        found = [row[0] for row in source.select(value).distinct().limit(_NAMED + 1).collect()]
        if len(found) > _NAMED:
            found = [*found, *source.agg(F.min(value), F.max(value)).collect()[0]]
    # A time as a literal of Python's would go by the zone of this process, and by the Julian calendar before 1582.
    literals = [F.timestamp_micros(F.lit(value)) if timed else F.lit(value) for value in found]
    if len(found) <= _NAMED:
        return column.isin(*literals)
    ends = [F.timestamp_micros(F.lit(end)) if timed else F.lit(end) for end in (min(found), max(found))]
    return column.between(*ends)
