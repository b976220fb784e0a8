"""Runs SQL over the lake's tables, by names such as `silver.sessions`, as they are now or as of one batch of silver."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.cli.context import say
from sessionlake.cli.show import OutputFormat, Rows, cells_of, show, show_table
from sessionlake.cli.sql_names import names_in, rename, without_prefixes
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.aggregate.standard import TIERS
from sessionlake.gold.sql.definitions import METRICS_BETWEEN, create_metrics_between
from sessionlake.gold.sql.figures_with import FIGURES_WITH, create_figures_with
from sessionlake.gold.sql.views import DATA_QUALITY_SINCE, DEFINITIONS, create_quality_since, create_views
from sessionlake.gold.tables.expiry import describe_floors, read_floors
from sessionlake.history.batch_as_of import SILVER_WRITES, as_of_batch
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.sql_function import SESSION_AS_OF, create_session_as_of
from sessionlake.spark.reading_plan import Name, NamesRead, find_names_read
from sessionlake.spark.session import separate_session
from sessionlake.streaming.errors import explain_sql_error

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = {
    f"silver.{SESSION_AS_OF}": create_session_as_of,
    f"gold.{METRICS_BETWEEN}": create_metrics_between,
    f"gold.{DATA_QUALITY_SINCE}": create_quality_since,
    f"gold.{FIGURES_WITH}": create_figures_with,
}
"""What creates each SQL function of the lake, by its name in a catalog. On a laptop the names have no schema."""


def require_tables(settings: Settings, sql: str) -> None:
    """Refuses, before Spark is started, a statement that reads tables which do not exist yet.

    Raises:
        UsageError: The statement is empty.
        LakeError: A local table that it reads has not been created yet.
    """
    if not sql.strip():
        raise UsageError(
            "query: the statement is empty", fix='Give one statement, such as "SELECT * FROM silver.sessions"'
        )
    lake, known = Lake(settings), table_names(settings)
    named = [str(one) for one in names_in(without_prefixes(sql)) if str(one) in known]
    needed = dict.fromkeys(DEFINITIONS[name].main if name in DEFINITIONS else name for name in named)
    missing = [table for table in needed if lake.is_known_missing(table)]
    if missing:
        raise LakeError(
            f"query: {', '.join(missing)} does not exist yet in {settings.place}",
            fix="Fill it with `sessionlake run all --once`, or name another home with SESSIONLAKE_HOME",
        )


def answer(spark: SparkSession, settings: Settings, sql: str, form: OutputFormat) -> None:
    """Writes the result of a statement to standard output. Warns of tables from which retention has removed rows.

    Raises:
        UsageError: Spark does not accept the statement, it does more than read, or it fails while it is computed.
    """
    read, rows = _run(spark, settings, sql)
    show(*rows, form)
    kept = [one.table for one in settings.gold.products] + [tier.table for tier in TIERS]
    through = [tier.table for tier in TIERS] if f"gold.{METRICS_BETWEEN}" in read else []
    named = [table for table in kept if table in {*read, *through}]
    for table, floors in read_floors(Lake(settings).reader(spark), named).items():
        say(describe_floors(table, floors))


def fetch(spark: SparkSession, settings: Settings, sql: str) -> tuple[list[str], Rows]:
    """Returns the column names and rows of a statement's result.

    Raises:
        UsageError: Spark does not accept the statement, it does more than read, or it fails while it is computed.
    """
    return _run(spark, settings, sql)[1]


def _run(spark: SparkSession, settings: Settings, sql: str) -> tuple[list[str], tuple[list[str], Rows]]:
    """Returns the lake's tables and functions that a statement reads, and its result.

    Registers only these tables, because registering all of them would take longer than most statements.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    lake = Lake(settings)
    text = with_stored_names(lake, sql)
    try:
        reads = find_names_read(spark, text, _functions(lake).keys())
        named = _require_known(lake, reads)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    _register(spark, lake, table_names(settings) if reads.lists and not named else named)
    try:
        return named, cells_of(spark.sql(text).toArrow())
    except (PySparkException, Py4JError) as error:  # errors during the computation can be Py4J's
        refusal = explain_sql_error("query", error)
        if isinstance(refusal, UsageError) and not named:
            refusal = UsageError(str(refusal), fix=f"Tables of the lake are: {', '.join(table_names(settings))}")
        raise refusal from error


def _register(spark: SparkSession, lake: Lake, names: Sequence[str]) -> None:
    """Registers tables, views and functions with Spark under their names."""
    known = table_names(lake.settings)
    lake.register(spark, [name for name in names if name in known and name not in DEFINITIONS])
    if not lake.storage.functions_persist:  # a catalog keeps those that the layers have created
        create_views(spark, lake, [name for name in names if name in DEFINITIONS])
        for name in names:
            if name in FUNCTIONS:
                FUNCTIONS[name](spark, lake)


def _functions(lake: Lake) -> dict[str, str]:
    """Returns the names of the lake's SQL functions, by the full name under which each is stored, in lower case."""
    return {".".join(_parts(lake.storage.function_kind_and_name(*name.split("."))[1])): name for name in FUNCTIONS}


def _require_known(lake: Lake, reads: NamesRead) -> list[str]:
    """Returns the tables and functions of the lake that a statement reads.

    Raises:
        UsageError: The statement reads tables outside the lake.
    """
    known = {_parts(lake.storage.sql_name(table)): table for table in table_names(lake.settings)}
    unknown = sorted(".".join(name) for name in reads.tables if name not in known)
    if unknown and unknown[0] in known.values():
        raise UsageError(f"{unknown[0]} is not found under this name", fix=f"Write {lake.storage.sql_name(unknown[0])}")
    if unknown:
        raise UsageError(
            f"{unknown[0]} is not a table of the lake",
            why="query reads neither other tables nor files",
            fix=f"Use one of these tables: {', '.join(known.values())}",
        )
    functions = _functions(lake)
    return [*(known[name] for name in sorted(reads.tables)), *(functions[name] for name in sorted(reads.functions))]


def _parts(name: str) -> Name:
    """Splits a name in SQL syntax, such as silver.`sessions`, into its parts in lower case."""
    quoted = name.startswith("`")
    parts = name[1:-1].split("`.`") if quoted else name.split(".")
    return tuple(part.replace("``", "`").lower() for part in parts)


def with_stored_names(lake: Lake, sql: str) -> str:
    """Returns the statement with the full names under which the lake's tables, views and functions are stored.

    Other names are left unchanged: they are defined in the statement itself, or are full names already.
    """
    known = {*table_names(lake.settings), *FUNCTIONS}
    return rename(without_prefixes(sql), lambda one: lake.storage.sql_name(str(one)) if str(one) in known else None)


def table_names(settings: Settings) -> list[str]:
    """Returns the names of all tables and views of the lake, with those that the configuration adds."""
    return [*TABLES, *DEFINITIONS, *settings.added_tables]


def answer_as_of(spark: SparkSession, settings: Settings, sql: str, batch: int, form: OutputFormat) -> int:
    """Writes the result of a statement over silver's tables as of one batch. Returns the batch that was read.

    Raises:
        UsageError: The statement reads other tables, does more than read, or Spark does not accept it.
        LakeError: The batch is not in the ledger, or its versions were removed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    bare, named = without_schemas(sql)
    try:
        reads = find_names_read(spark, bare)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    if other := sorted(".".join(name) for name in reads.tables - {(table,) for table in named}):
        raise _not_of_silver(other[0])
    point = as_of_batch(spark, settings, batch)
    private = separate_session(spark)  # so that these views hide no tables from other users of the session
    try:
        for table in named:
            point.read(private, f"silver.{table}").createOrReplaceTempView(table)
        show_table(private.sql(bare).toArrow(), form)
    except (PySparkException, Py4JError) as error:
        raise explain_sql_error("query", error) from error
    return point.batch


def without_schemas(sql: str) -> tuple[str, list[str]]:
    """Returns the statement without the schema of silver's tables, and the names of these tables.

    Raises:
        UsageError: The statement reads a table that cannot be read as of a batch.
    """
    names = names_in(sql)
    if other := [str(one) for one in names if str(one) not in SILVER_WRITES]:
        raise _not_of_silver(other[0])
    return rename(sql, lambda one: quote(one.name)), sorted({one.name for one in names})


def _not_of_silver(name: str) -> UsageError:
    return UsageError(
        f"query: {name} cannot be read as of a batch of silver",
        fix=f"Use only these tables, by these names: {', '.join(SILVER_WRITES)}",
    )
