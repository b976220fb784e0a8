"""Table functions of SQL over the lake's tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_RELATION = "(SELECT {columns} FROM {table})"


def subquery(table: str, columns: Iterable[str]) -> str:
    """A table for a query, with these columns alone.

    A column that a function's query does not need could be called as the function, or a parameter, is: SQL would take
    the one for the other.

    Args:
        table: as SQL calls it.
        columns: quoted, or expressions with their names.
    """
    return _RELATION.format(columns=", ".join(columns), table=table)


def create_table_function(
    spark: SparkSession, lake: Lake, function: str, parameters: str, columns: str, body: str
) -> str:
    """Creates a function, or says anew what it is, and returns what SQL calls it.

    In a catalog it stays, beside the tables of its schema; on a laptop it is the session's, and the tables that its
    body names must be there.

    Args:
        function: its two-level name.
        parameters: as SQL declares them.
        columns: of its rows, likewise.

    Raises:
        LakeError: it may not be created.
    """
    from pyspark.errors import PySparkException

    kind, name = lake.storage.function_kind_and_name(*function.split("."))
    try:
        spark.sql(f"CREATE OR REPLACE {kind} {name}({parameters}) RETURNS TABLE ({columns}) RETURN {body}")
    except PySparkException as error:
        reason = (str(error).splitlines() or [""])[0]
        way_on = "`sessionlake run all --once` makes the tables that it reads"
        if lake.storage.functions_persist:
            way_on = "grant CREATE FUNCTION on its schema"
        raise LakeError(f"function {name} cannot be created ({reason}): {way_on}") from error
    return name
