"""Verifies enriched tables and gold's copies of reference tables."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError
from sessionlake.gold.declared.references import list_declared_references
from sessionlake.gold.enrich.reference import FROM, GONE_BY, TO
from sessionlake.gold.enrich.table import SILVER_NAMES, EnrichedTable, ReferenceJoin
from sessionlake.gold.references.applied import find_unapplied_reference_difference
from sessionlake.protocol.names import add_internal_prefix, quote
from sessionlake.settings.model import Settings
from sessionlake.spark.compare import TableComparison

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FROM, _TO = add_internal_prefix("from"), add_internal_prefix("to")


def verify_applied_references(
    spark: SparkSession, lake: Lake, settings: Settings, tables: Sequence[object]
) -> list[TableComparison]:
    """Compares each reference table that enriched tables join with gold's copy of it.

    Keys with a fault are left out, and so are reference tables that cannot be read.

    Args:
        tables: tables of gold. Only reference tables that one of them joins are compared.

    Returns:
        One result per reference table. Its number of different rows is the number of rows that gold must still apply.
    """
    used = {join.reference.name for table in tables if isinstance(table, EnrichedTable) for join in table.joins}
    reader, found = lake.reader(spark), []
    for one in list_declared_references(settings):
        if one.name not in used:
            continue
        try:
            pending, _ = find_unapplied_reference_difference(lake, reader, one)
        except LakeError:  # the whole table is faulty, and gold keeps what it applied before
            continue
        first = (
            None
            if not pending.row_count
            else f"{one.applied_table_name}: {pending.row_count} rows of {one.table_name} wait for "
            "`sessionlake run gold`"
        )
        found.append(
            TableComparison(one.applied_table_name, reader.read_size(one.table_name).rows, pending.row_count, first)
        )
    return found


def compute_enriched_rows(spark: SparkSession, lake: Lake, changes: DataFrame, table: EnrichedTable) -> DataFrame:
    """Returns the rows that an enriched table should have, computed by plain Spark SQL.

    Args:
        changes: rows of `silver.session_changes`.
        table: the enriched table.
    """
    from pyspark.sql import functions as F

    own = [F.col(quote(SILVER_NAMES.get(name, name))).alias(name) for name in table.change_column_names]
    rows = changes.select(*own)
    for join in table.joins:
        rows = _join_reference_rows(
            rows, join, lake.read(spark, join.reference.applied_table_name).where(f"{GONE_BY} IS NULL")
        )
    return rows.select(*(quote(name) for name, _ in table.column_types))


def _join_reference_rows(changes: DataFrame, join: ReferenceJoin, reference_rows: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keys = [add_internal_prefix(f"key:{name}") for name in join.reference.key_names]
    known = reference_rows.select(
        *(F.col(quote(name)).alias(key) for name, key in zip(join.reference.key_names, keys, strict=True)),
        F.col(FROM).alias(_FROM),
        F.col(TO).alias(_TO),
        *(F.col(quote(source)).alias(name) for name, source in join.taken_columns),
        F.col(FROM).alias(join.valid_from_column),
    )
    same = reduce(and_, (changes[quote(on)] == known[quote(key)] for on, key in zip(join.on, keys, strict=True)))
    at = _convert_to_wide_decimal(changes["ts"].cast("decimal(20,0)") * 1000)
    until = known[quote(_TO)]
    holds = (at >= _convert_timestamp_to_micros(known[quote(_FROM)])) & (
        until.isNull() | (at < _convert_timestamp_to_micros(until))
    )
    return changes.join(known, same & holds, "left").drop(*keys, _FROM, _TO)


def _convert_timestamp_to_micros(timestamp: Column) -> Column:
    from pyspark.sql import functions as F

    return _convert_to_wide_decimal(F.unix_micros(timestamp))


def _convert_to_wide_decimal(number: Column) -> Column:
    """Converts a column of integers to a decimal type that is wide enough for every event time in microseconds."""
    return number.cast("decimal(24,0)")
