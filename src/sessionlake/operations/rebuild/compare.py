"""Compares the tables of two silvers by a hash for each session and table, and finds the first difference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, CUTS, EVENTS, QUARANTINE, ROWS, SESSIONS, SNAPSHOT_INDEX, SNAPSHOTS
from sessionlake.delta.storage.values import convert_to_row_dicts
from sessionlake.ledger.retained import (
    copy_record_to_tables_removed_together,
    read_removal_limits_as_frame,
    read_removal_records_without_limits,
    select_rows_removed_by_retention,
)
from sessionlake.operations.rebuild.compare_states import StatesComparison
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.names import add_internal_prefix, quote
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The columns that identify a row within its session.
COMPARED: dict[str, tuple[str, ...]] = {
    CHANGES: ("_position", "ordinal"),
    ROWS: ("row_id",),
    SESSIONS: (),
    QUARANTINE: ("offset",),
    CUTS: ("position", "snapshot_at", "reason"),
    SNAPSHOTS: ("position", "snapshot_at", "reason", "row_id"),
    SNAPSHOT_INDEX: ("position", "snapshot_at", "reason"),
    EVENTS: ("offset", "event", "action"),
}
BOOKKEEPING = "_batch"
_SIDE = add_internal_prefix("side")


@dataclass(frozen=True)
class SilverTablesComparison:
    """The result of comparing silver's live tables with rebuilt ones.

    Attributes:
        sessions: The number of compared sessions: those in the live tables, in the rebuilt ones or in both. Messages
            without a session count as one session per topic-partition.
        tables: The names of the tables that differ.
        different: The number of sessions that differ in at least one table.
        first_difference: A text that shows the first difference by table, topic, partition and session; None if all is
            equal.
        states: The result of comparing the stream's states with rebuilt ones; None if they were not compared.
        not_compared: A text for each table whose old rows were not compared because retention has removed them.
    """

    sessions: int
    tables: frozenset[str]
    different: int
    first_difference: str | None
    states: StatesComparison | None = None
    not_compared: tuple[str, ...] = ()

    @property
    def is_exact(self) -> bool:
        """True if all compared tables and states are equal."""
        return self.first_difference is None and (self.states is None or self.states.first_difference is None)


def compare_live_with_staging_tables(spark: SparkSession, settings: Settings, lake: Lake) -> SilverTablesComparison:
    """Compares silver's live tables with the staging tables that a replay has filled.

    In tables from which retention has removed rows, only rows above the recorded limits are compared.
    """
    staging = Lake(settings).build_staging_lake()
    cut = read_removal_records_without_limits(lake.reader(spark))
    recorded = copy_record_to_tables_removed_together(cut)

    def select_rows_above_retention_limits(source: Lake, table: str) -> DataFrame:
        rows = source.read_small_table_into_memory(spark, table)
        if table not in recorded:
            return rows
        up_to = read_removal_limits_as_frame(spark, lake, recorded[table].table).alias("s")
        return rows.alias("t").join(up_to, select_rows_removed_by_retention(table).build_merge_condition(), "left_anti")

    comparison = compare_live_with_rebuilt_tables(
        lambda table: select_rows_above_retention_limits(lake, table),
        lambda table: select_rows_above_retention_limits(staging, table),
    )
    return replace(
        comparison, not_compared=tuple(cut[table].removal_description for table in sorted(cut) if table in COMPARED)
    )


def compare_live_with_rebuilt_tables(
    read_live: Callable[[str], DataFrame], read_rebuilt: Callable[[str], DataFrame]
) -> SilverTablesComparison:
    """Compares silver's live tables with rebuilt ones: their rows in any order, without the numbers of batches.

    Args:
        read_live: Returns a live table, given its name.
        read_rebuilt: Returns the rebuilt table, given its name.
    """
    from pyspark.sql import functions as F

    hashes = _hash_rows_of_tables(read_live, side=1).unionByName(_hash_rows_of_tables(read_rebuilt, side=-1))
    differs = (F.sum("side") != 0) | (F.sum(F.col("hash") * F.col("side")) != 0)
    judged = hashes.groupBy("table", *SESSION).agg(differs.alias("differs")).localCheckpoint()
    session, wrong = F.struct(*SESSION), judged.where("differs")
    sessions, different, names = judged.select(
        F.count_distinct(session),
        F.count_distinct(F.when(F.col("differs"), session)),
        F.collect_set(F.when(F.col("differs"), F.col("table"))),
    ).collect()[0]
    tables = frozenset(names)
    if not tables:
        return SilverTablesComparison(sessions, tables, 0, None)
    first = wrong.orderBy("table", *SESSION).first()
    assert first is not None  # noqa: S101 - there are tables
    place = (first["table"], *(first[name] for name in SESSION))
    return SilverTablesComparison(sessions, tables, different, _find_first_difference(read_live, read_rebuilt, *place))


def _hash_rows_of_tables(read_table: Callable[[str], DataFrame], side: int) -> DataFrame:
    """Returns a hash of each row of each compared table: rows `table, topic, partition, session_id, side, hash`.

    Args:
        read_table: Returns a table, given its name.
        side: The value of the column `side`: 1 for live tables, -1 for rebuilt ones.
    """
    from pyspark.sql import functions as F

    hashes: DataFrame | None = None
    for table in COMPARED:
        rows = read_table(table).drop(BOOKKEEPING)
        columns = [quote(name) for name in sorted(rows.columns)]  # tables can have columns in different orders
        # `xxhash64` ignores nulls, so which values are null is hashed as well.
        nulls = F.concat(*(F.when(F.col(name).isNull(), "0").otherwise("1") for name in columns))
        row = F.xxhash64(*columns, nulls).cast("decimal(38,0)")
        part = rows.select(F.lit(table).alias("table"), *SESSION, F.lit(side).alias("side"), row.alias("hash"))
        hashes = part if hashes is None else hashes.unionByName(part)
    if hashes is None:
        raise ValueError("there are no tables to compare")
    return hashes


def _find_first_difference(
    read_live: Callable[[str], DataFrame],
    read_rebuilt: Callable[[str], DataFrame],
    table: str,
    topic: str,
    partition: int,
    session: str | None,
) -> str:
    """Returns a text that shows the first difference between the live and the rebuilt rows of a session in a table.

    Args:
        read_live: Returns a live table, given its name.
        read_rebuilt: Returns the rebuilt table, given its name.
        table: A table in which the session's rows differ.
    """
    from pyspark.sql import functions as F

    keys = COMPARED[table]
    names = zip(SESSION, (topic, partition, session), strict=True)
    of_session = reduce(and_, (F.col(name).eqNullSafe(F.lit(value)) for name, value in names))
    expected = read_rebuilt(table).where(of_session).drop(BOOKKEEPING)
    actual = read_live(table).where(of_session).select(*map(quote, expected.columns))
    lacking = expected.exceptAll(actual).withColumn(_SIDE, F.lit("expected"))
    apart = lacking.unionAll(actual.exceptAll(expected).withColumn(_SIDE, F.lit("found")))
    first, *others = convert_to_row_dicts(apart.orderBy(*keys, _SIDE).limit(2).toArrow())
    named = "".join(f", {name} {first[name]!r}" for name in keys)
    where = f"{table}: session {session!r}, topic {topic}, partition {partition}{named}"
    if first[_SIDE] == "found":
        return f"{where}: the row should not exist"
    other = next((row for row in others if row[_SIDE] == "found" and _have_rows_same_key(row, first, keys)), None)
    if other is None:
        return f"{where}: the row is missing"
    column = next(name for name in expected.columns if not _are_values_equal(first[name], other[name]))
    return f"{where}, {column}: found {other[column]!r}, expected {first[column]!r}"


def _have_rows_same_key(row: dict[str, Any], other_row: dict[str, Any], keys: tuple[str, ...]) -> bool:
    return all(row[name] == other_row[name] for name in keys)


def _are_values_equal(value: Any, other_value: Any) -> bool:
    return bool(value == other_value) or (_is_nan(value) and _is_nan(other_value))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)
