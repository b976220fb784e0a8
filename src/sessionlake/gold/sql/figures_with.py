"""Defines `figures_with(topic, partition, offset)`, which returns the rows of gold that a message contributed to.

`history.explain` answers the opposite question: which messages a row of gold was computed from. The function computes
the rows' keys from the message's changes in silver, as far as gold has read them. Only averages are looked up in their
tables, since a point alone does not tell which later averages include it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import quote_sql_string
from sessionlake.delta.schemas.names import CHANGES, FIGURES_WITH, GOLD, LEDGER, POSITIONS, RETAINED, SILVER
from sessionlake.delta.schemas.tables import list_fixed_columns
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.delta.table_function import build_subquery_sql, create_table_function
from sessionlake.gold.aggregate.late import APPLIED
from sessionlake.gold.aggregate.product import START, Product
from sessionlake.gold.changes import (
    build_event_source_condition_sql,
    build_late_change_condition_sql,
    get_value_columns,
)
from sessionlake.gold.declared.tables import GoldTable, list_declared_gold_tables
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.protocol.names import add_internal_prefix, quote
from sessionlake.protocol.years import FIRST_MS, LAST_MS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PARAMETERS = "of_topic STRING, of_partition INT, of_offset BIGINT"
# All key columns of gold's tables. A column that a table does not have is null.
_KEYS = {
    "topic": "STRING",
    "session_id": "STRING",
    "row_id": "STRING",
    "metric": "STRING",
    "column": "STRING",
    "value": "STRING",
    START: "TIMESTAMP",
    "ts": "BIGINT",
    "position": "BIGINT",
    "partition": "INT",
    "offset": "BIGINT",
    "ordinal": "INT",
}
# Batches before gold was last emptied do not count. If silver was rebuilt without emptying gold, everything that gold
# had read then has the rebuild's batch number.
_BODY = """
WITH batches AS (
  {batches}
), emptied AS (
  SELECT coalesce(max(committed_at), timestamp_seconds(0)) AS at FROM batches
  WHERE layer = '{gold}' AND startswith(app_id, '{rebuild}')
), since AS (
  SELECT * FROM batches WHERE committed_at > (SELECT at FROM emptied)
), rebuilt AS (
  SELECT max(s.batch_id) AS batch FROM since AS s
  LEFT ANTI JOIN batches AS g ON g.layer = '{gold}' AND g.app_id = concat(s.app_id, ':{gold}')
  WHERE s.layer = '{silver}'
), taken_in AS (
  SELECT CASE WHEN max(source_to) IS NOT NULL THEN greatest(max(source_to), (SELECT batch FROM rebuilt)) END AS batch
  FROM since WHERE layer = '{gold}'
), numbers AS (
  SELECT * FROM ({numbers}) WHERE value IS NOT NULL AND NOT isnan(value)
), texts AS (
  SELECT * FROM ({texts}) WHERE value IS NOT NULL
)
{tables}
"""
_ENTRIES = """SELECT layer, app_id, batch_id, source_to, committed_at FROM {table}
  WHERE layer = '{gold}' OR (layer = '{silver}' AND startswith(app_id, '{rebuild}'))"""
_EVENTS = """
  SELECT topic, session_id, row_id, `partition`, _offset AS offset, ordinal, _ts AS ts, _position AS position,
    unix_millis(_applied_at) AS {applied}, inline(array({structs})) AS ({name}, value)
  FROM {changes} WHERE change = 'upsert' AND {own}
"""
_OWN = """topic = figures_with.of_topic AND `partition` = figures_with.of_partition
    AND _offset = figures_with.of_offset AND _batch <= (SELECT batch FROM taken_in)"""
_PRODUCT = """SELECT {columns}, count(*) AS events FROM (
  SELECT *, {start} AS {window} FROM {kind} WHERE NOT {late} AND {of_source}
) AS e {kept} {within} GROUP BY {keys}"""
_START = """CASE WHEN ts BETWEEN {first} AND {last} AND try_subtract(ts, pmod(ts, {length}L)) >= {first}
    THEN timestamp_millis(ts - pmod(ts, {length}L)) END"""
_KEPT = """LEFT ANTI JOIN {retained} AS r
  ON r.`table` = {table} AND r.topic = e.topic AND unix_millis(e.{window}) <= r.`limit`"""
# A point is part of the average in its own row, and in those of the rows after it whose `points` reach back to it.
_AVERAGE = """SELECT {columns}, count(*) AS events FROM (
  SELECT {held}, t.points, row_number() OVER (PARTITION BY {whose} ORDER BY {order}) AS n
  FROM numbers AS e JOIN {table} AS own ON {own} JOIN {table} AS t ON {same} AND struct({order}) >= struct({place})
) WHERE n <= points GROUP BY {keys}"""
_ENRICHED = """SELECT {columns}, count(*) AS events FROM (
  SELECT topic, `partition`, _offset AS offset, ordinal FROM {changes} WHERE {own}
) GROUP BY {keys}"""


def create_sql_function_figures_with(spark: SparkSession, lake: Lake) -> str:
    """Creates the SQL table function `figures_with` in the schema `gold`, and returns its name.

    The function returns the rows of gold to which one message contributed. Its parameters are `of_topic STRING,
    of_partition INT, of_offset BIGINT`. It does not read tables that do not exist yet.

    Raises:
        LakeError: Spark refuses to create the function, for example because a privilege is missing.
    """
    there = [table for table in list_declared_gold_tables(lake.settings) if lake.exists(spark, table.table_name)]
    columns = ", ".join(
        f"{quote(name)} {sql}" for name, sql in {"table": "STRING", **_KEYS, "events": "BIGINT"}.items()
    )
    body = _build_function_body_sql(lake, there, [name for name in (POSITIONS, RETAINED) if lake.exists(spark, name)])
    return create_table_function(spark, lake, f"gold.{FIGURES_WITH}", _PARAMETERS, columns, body)


def _build_function_body_sql(lake: Lake, tables: list[GoldTable], existing: list[str]) -> str:
    declared = get_value_columns(lake.settings)
    known = [lake.to_sql_identifier(table) for table in (LEDGER, POSITIONS) if table == LEDGER or table in existing]
    named = {"gold": GOLD, "silver": SILVER, "rebuild": REBUILD}
    entries = (_ENTRIES.format(table=table, **named) for table in known)
    retained = lake.to_sql_identifier(RETAINED) if RETAINED in existing else None
    none = ", ".join(f"CAST(NULL AS {sql}) AS {quote(name)}" for name, sql in _KEYS.items())
    nothing = f"SELECT '' AS `table`, {none}, 0L AS events WHERE false"
    return _BODY.format(
        batches=" UNION ALL ".join(entries),
        **named,
        numbers=_build_events_sql(lake, declared.numbers, "metric", "DOUBLE"),
        texts=_build_events_sql(lake, declared.texts, "column", "STRING"),
        tables=" UNION ALL ".join([nothing, *(_build_recomputed_rows_sql(lake, table, retained) for table in tables)]),
    )


def _build_events_sql(lake: Lake, names: tuple[str, ...], name_column: str, value_type: str) -> str:
    """Returns the SQL that selects the values that a message's changes set in declared columns, one row per value.

    Args:
        names: Names of the declared columns to read.
        name_column: Name of the result's column that holds the declared column's name.
        value_type: Spark SQL type of the values.
    """
    structs = [
        f"named_struct('name', {quote_sql_string(name)}, 'value', "
        f"CASE WHEN array_contains(_set, {quote_sql_string(name)}) "
        f"THEN CAST({add_internal_prefix(str(place))} AS {value_type}) END)"
        for place, name in enumerate(names)
    ] or [f"named_struct('name', '', 'value', CAST(NULL AS {value_type}))"]
    return _EVENTS.format(
        applied=APPLIED,
        structs=", ".join(structs),
        name=quote(name_column),
        changes=_build_session_changes_sql(lake, names),
        own=_OWN,
    )


def _build_session_changes_sql(lake: Lake, declared: tuple[str, ...] = ()) -> str:
    """Returns the SQL that selects silver's changes, with other names for the declared columns.

    Otherwise a declared column could have the same name as the function `figures_with`.

    Args:
        declared: The declared columns to select.
    """
    renamed = (f"{quote(name)} AS {add_internal_prefix(str(place))}" for place, name in enumerate(declared))
    return build_subquery_sql(lake.to_sql_identifier(CHANGES), [*map(quote, list_fixed_columns(CHANGES)), *renamed])


def _build_recomputed_rows_sql(lake: Lake, table: GoldTable, retained: str | None) -> str:
    """Returns the SQL that selects the rows of one table of gold to which a message contributed.

    Args:
        table: The table of gold.
        retained: Identifier of `ops.retained`; None if it does not exist.
    """
    keys = ", ".join(map(quote, table.row_keys))
    own = (quote(name) if name in table.row_keys else f"CAST(NULL AS {sql})" for name, sql in _KEYS.items())
    columns = ", ".join([quote_sql_string(table.table_name), *own])
    if isinstance(table, EnrichedTable):
        return _ENRICHED.format(columns=columns, changes=_build_session_changes_sql(lake), own=_OWN, keys=keys)
    if isinstance(table, RollingAverage):
        return _build_recomputed_averages_sql(lake, table, columns, keys)
    return _build_recomputed_product_sql(table, columns, keys, retained)


def _build_recomputed_product_sql(product: Product, columns: str, keys: str, retained: str | None) -> str:
    cut = product.bucket_ms is not None and "topic" in product.keys and retained is not None
    start = _START.format(first=f"{FIRST_MS}L", last=f"{LAST_MS}L", length=product.bucket_ms)
    return _PRODUCT.format(
        columns=columns,
        keys=keys,
        kind="numbers" if product.source.is_numeric else "texts",
        start="CAST(NULL AS TIMESTAMP)" if product.bucket_ms is None else start,
        window=START,
        late=build_late_change_condition_sql(product),
        of_source=build_event_source_condition_sql(product.source),
        kept=_KEPT.format(retained=retained, table=quote_sql_string(product.table_name), window=START) if cut else "",
        within="" if product.bucket_ms is None else f"WHERE e.{START} IS NOT NULL",
    )


def _build_recomputed_averages_sql(lake: Lake, series: RollingAverage, columns: str, keys: str) -> str:
    return _AVERAGE.format(
        columns=columns,
        keys=keys,
        held=", ".join(f"t.{quote(name)}" for name in series.row_keys),
        whose=", ".join(f"own.{quote(name)}" for name in series.row_keys),
        own=" AND ".join(f"own.{quote(name)} = e.{quote(name)}" for name in series.row_keys),
        place=", ".join(f"own.{quote(name)}" for name in series.sort_columns),
        order=", ".join(f"t.{quote(name)}" for name in series.sort_columns),
        same=" AND ".join(f"t.{quote(name)} = own.{quote(name)}" for name in series.keys),
        table=lake.to_sql_identifier(series.table_name),
    )
