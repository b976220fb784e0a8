"""A table function for SQL: `session_as_of(session, time)` returns any session's exact table at any stream time.

It starts from the nearest earlier stored table of the session, and adds the changes applied since. If a session has
late fills (class `once`), it folds all its changes in seq order. The result equals that of `history.asof`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.ddl import quote_sql_string
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    LEDGER,
    PROGRESS,
    RETAINED,
    ROWS,
    SESSION_AS_OF,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.delta.schemas.tables import TABLES, list_fixed_columns
from sessionlake.delta.table_function import build_subquery_sql, create_table_function
from sessionlake.protocol.names import add_internal_prefix, quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The last writer of each column counts. A delete or a clear writes absence over everything before it. Inside the query
# the declared columns have internal names: a declared name may equal the function's, a parameter's or a part's name.
_BODY = """
WITH disordered AS (
  SELECT DISTINCT topic, partition FROM {progress} WHERE session_id = session_as_of.of_session AND beneath
), base AS (
  SELECT topic, partition, max(struct(position, snapshot_at, reason)) AS _cut
  FROM {kept} LEFT ANTI JOIN disordered USING (topic, partition)
  WHERE session_id = session_as_of.of_session AND snapshot_at < session_as_of.as_of
    AND _batch <= (SELECT max(source_to) FROM {ledger} WHERE layer = 'silver_tables')
  GROUP BY topic, partition
), floors AS (
  {floors}
), writes AS (
  SELECT topic, partition, NULL AS row_id, {none}, {no_marks},
    CASE WHEN disordered.topic IS NOT NULL OR coalesce(base._cut.position, -1) < floors._floor
      THEN raise_error({refusal})
      ELSE 'none' END AS change,
    CAST(array() AS ARRAY<STRING>) AS _set, named_struct('life', 0L, 'place', 0L, 'ordinal', -1) AS _at
  FROM floors LEFT JOIN base USING (topic, partition) LEFT JOIN disordered USING (topic, partition)
  UNION ALL
  SELECT topic, partition, row_id, {columns}, {marks}, 'upsert' AS change, array({names}) AS _set,
    named_struct('life', 0L, 'place', position, 'ordinal', -1) AS _at
  FROM {snapshots} JOIN base USING (topic, partition)
  WHERE session_id = session_as_of.of_session AND struct(position, snapshot_at, reason) = base._cut
  UNION ALL
  SELECT topic, partition, row_id, {columns}, {marks}, change, _set,
    CASE WHEN disordered.topic IS NULL THEN named_struct('life', 0L, 'place', _position, 'ordinal', ordinal)
      ELSE named_struct('life', _life, 'place', _seq, 'ordinal', ordinal) END AS _at
  FROM {changes} LEFT JOIN base USING (topic, partition) LEFT JOIN disordered USING (topic, partition)
  WHERE session_id = session_as_of.of_session AND _applied_at <= session_as_of.as_of
    AND _position > coalesce(base._cut.position, -1)
), cleared AS (
  SELECT topic, partition, max(_at) AS _at FROM writes WHERE change = 'clear' GROUP BY topic, partition
), deleted AS (
  SELECT topic, partition, row_id, max(_at) AS _at FROM writes WHERE change = 'delete'
  GROUP BY topic, partition, row_id
), present AS (
  SELECT writes.*
  FROM writes LEFT JOIN cleared USING (topic, partition) LEFT JOIN deleted USING (topic, partition, row_id)
  WHERE change = 'upsert' AND (cleared._at IS NULL OR writes._at > cleared._at)
    AND (deleted._at IS NULL OR writes._at > deleted._at)
)
SELECT topic, session_as_of.of_session AS session_id, row_id, {last_values}, {last_marks}, partition
FROM present GROUP BY topic, partition, row_id
"""
_KEPT = """(
    SELECT topic, partition, session_id, position, snapshot_at, reason, _batch FROM {index}
    UNION ALL
    SELECT topic, partition, session_id, position, snapshot_at, reason, _batch FROM {cuts} WHERE changes IS NULL
  )"""
_FLOORS = """SELECT topic, partition, `limit` AS _floor FROM {retained}
  WHERE `table` = '{table}' AND `limit` IS NOT NULL AND session_id = session_as_of.of_session"""
_NO_FLOORS = "SELECT 'none' AS topic, 0 AS partition, 0L AS _floor WHERE false"
_REFUSAL = (
    f"{CHANGES} does not reach back that far: maintain.retention has removed rows. "
    "Run `sessionlake session as-of`, which says from when on this session's table is known"
)
_MARKS = ("_rescued", "_epoch", "_seq", "_ts", "_offset")


def create_session_as_of(spark: SparkSession, lake: Lake) -> str:
    """Creates the SQL function `session_as_of(of_session STRING, as_of TIMESTAMP)`, and returns its full name.

    In a catalog it is permanent, in the schema of silver's tables. On a laptop it exists only in this Spark session,
    and the tables must exist. Raises a `LakeError` if it cannot be created.
    """
    rows = ", ".join(f"{quote(name)} {sql}" for name, sql in TABLES[ROWS].list_column_types(lake.settings))
    floors = _FLOORS.format(retained=lake.to_sql_identifier(RETAINED), table=CHANGES)
    known = floors if lake.exists(spark, RETAINED) else _NO_FLOORS
    parameters, body = "of_session STRING, as_of TIMESTAMP", _build_body_sql(lake, _build_kept_sql(spark, lake), known)
    return create_table_function(spark, lake, f"silver.{SESSION_AS_OF}", parameters, rows, body)


def _build_kept_sql(spark: SparkSession, lake: Lake) -> str:
    """Returns SQL that selects the cuts whose tables are stored, including those from before the index existed."""
    index, cuts = lake.to_sql_identifier(SNAPSHOT_INDEX), lake.to_sql_identifier(CUTS)
    return _KEPT.format(index=index, cuts=cuts) if lake.exists(spark, SNAPSHOT_INDEX) else cuts


def _build_body_sql(lake: Lake, kept_cuts_sql: str, floors_sql: str) -> str:
    """Returns the function's SQL query, from SQL for the stored cuts and the removed positions."""
    declared = [column.name for column in lake.settings.capture.declared_columns]
    inside = [add_internal_prefix(str(place)) for place in range(len(declared))]
    pairs = [*zip(declared, inside, strict=True)]
    renamed = [f"{quote(name)} AS {own}" for name, own in pairs]
    read = {
        name: build_subquery_sql(lake.to_sql_identifier(table), [*map(quote, list_fixed_columns(table)), *renamed])
        for name, table in (("snapshots", SNAPSHOTS), ("changes", CHANGES))
    }
    return _BODY.format(
        **read,
        progress=lake.to_sql_identifier(PROGRESS),
        kept=kept_cuts_sql,
        floors=floors_sql,
        none=", ".join(f"NULL AS {own}" for own in inside),
        no_marks=", ".join(f"NULL AS {name}" for name in _MARKS),
        refusal=quote_sql_string(_REFUSAL),
        ledger=lake.to_sql_identifier(LEDGER),
        columns=", ".join(inside),
        names=", ".join(map(quote_sql_string, declared)),
        marks=", ".join(_MARKS),
        last_values=", ".join(
            f"max_by({own}, CASE WHEN array_contains(_set, {quote_sql_string(name)}) THEN _at END) AS {quote(name)}"
            for name, own in pairs
        ),
        last_marks=", ".join(f"max_by({name}, _at) AS {name}" for name in _MARKS),
    )
