"""Changes joined with reference tables by plain Spark SQL: for checking, for making anew, and where they are many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.gold.enrich.reference import FROM, TO, Reference
from sessionlake.gold.enrich.table import SOURCES, Enriched, Join
from sessionlake.gold.references.taken import frame_of_held
from sessionlake.protocol.names import internal, quote

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FROM, _TO = internal("from"), internal("to")


def enriched_rows(spark: SparkSession, lake: Lake, changes: DataFrame, table: Enriched) -> DataFrame:
    """The table's rows.

    Args:
        changes: as silver has them.
    """
    from pyspark.sql import functions as F

    own = [F.col(quote(SOURCES.get(name, name))).alias(name) for name in table.names]
    rows = joined(changes.select(*own), table.joins, lambda one: frame_of_held(spark, lake, one))
    return rows.select(*(quote(name) for name, _ in table.columns))


def joined(changes: DataFrame, joins: Sequence[Join], versions: Callable[[Reference], DataFrame]) -> DataFrame:
    """Changes with the columns that joins add.

    Args:
        changes: `ts` and the columns that are joined on.
        versions: a reference table's rows, those of one key not overlapping.
    """
    return reduce(lambda rows, join: _with(rows, join, versions(join.reference)), joins, changes)


def _with(changes: DataFrame, join: Join, versions: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    keys = [internal(f"key:{name}") for name in join.reference.key_names]
    known = versions.select(
        *(F.col(quote(name)).alias(key) for name, key in zip(join.reference.key_names, keys, strict=True)),
        F.col(FROM).alias(_FROM),
        F.col(TO).alias(_TO),
        *(F.col(quote(source)).alias(name) for name, source in join.take),
        F.col(FROM).alias(join.version),
    )
    same = reduce(and_, (changes[quote(on)] == known[quote(key)] for on, key in zip(join.on, keys, strict=True)))
    at = _micros(changes["ts"].cast("decimal(20,0)") * 1000)
    until = known[quote(_TO)]
    holds = (at >= _moment(known[quote(_FROM)])) & (until.isNull() | (at < _moment(until)))
    return changes.join(known, same & holds, "left").drop(*keys, _FROM, _TO)


def _moment(timestamp: Column) -> Column:
    from pyspark.sql import functions as F

    return _micros(F.unix_micros(timestamp))


def _micros(number: Column) -> Column:
    """Any event time, and a thousand times that, has room."""
    return number.cast("decimal(24,0)")
