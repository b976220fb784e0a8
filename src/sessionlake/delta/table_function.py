"""Creates SQL table functions: functions whose result is a table, computed from the lake's tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RELATION = "(SELECT {columns} FROM {table})"


def build_subquery_sql(table: str, columns: Iterable[str]) -> str:
    """Returns a SQL subquery that selects only these columns of a table, for the body of a table function.

    The body should read tables only through such subqueries. If a table has a column with the name of a parameter, SQL
    would take the column.

    Args:
        table: the table's name in SQL.
        columns: quoted column names, or SQL expressions with aliases.
    """
    return _RELATION.format(columns=", ".join(columns), table=table)


def create_table_function(
    spark: SparkSession, lake: Lake, function: str, parameters: str, columns: str, body: str
) -> str:
    """Creates or replaces a SQL table function, and returns the name by which SQL calls it.

    In a catalog the function is permanent and belongs to its schema. On a laptop it exists until the session ends, and
    the tables that its body names must exist.

    Args:
        spark: the session.
        lake: the lake that the function belongs to.
        function: two-level name, as in `silver.session_as_of`.
        parameters: the parameters, as SQL declares them: names and types.
        columns: the result columns, as SQL declares them: names and types.
        body: the function's query in SQL.

    Raises:
        LakeError: Spark refuses to create it.
    """
    from pyspark.errors import PySparkException

    kind, name = lake.storage.build_create_function_target(*function.split("."))
    try:
        spark.sql(f"CREATE OR REPLACE {kind} {name}({parameters}) RETURNS TABLE ({columns}) RETURN {body}")
    except PySparkException as error:
        reason = (str(error).splitlines() or [""])[0]
        fix = "Run `sessionlake run all --once`, which creates the tables that the function reads"
        if lake.storage.functions_persist:
            fix = "Grant CREATE FUNCTION on the function's schema"
        raise LakeError(f"the SQL function {name} cannot be created ({reason})", fix=fix) from error
    return name
