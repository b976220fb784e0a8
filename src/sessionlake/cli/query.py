"""Runs SQL statements over the lake's tables, by names such as `silver.sessions`, now or as of one batch of silver."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from sessionlake.cli.engines.choice import run_statement_on_chosen_engine
from sessionlake.cli.engines.expired_rows import describe_expired_rows
from sessionlake.cli.engines.interface import EngineName, QueryResult, SqlStatement
from sessionlake.cli.engines.versions import LakeAtVersions, insert_version_clauses, read_latest_table_versions
from sessionlake.cli.show import OutputFormat, Rows, convert_to_names_and_rows, show_rows, show_table
from sessionlake.cli.sql_names import (
    find_sql_parameters,
    find_table_and_function_names,
    replace_prefixed_table_names,
    replace_table_and_function_names,
)
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import FUNCTIONS
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.sql.views import DEFINITIONS, create_views
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.silver.merge.feed_views import create_feed_views, list_feed_view_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.spark.reading_plan import Name, TablesAndFunctionsUsed

_PREFIX = "prefix"
"""The parameter with which the bundle's queries name the schemas of a deployment. On a laptop it is empty."""


def require_existing_tables(settings: Settings, sql: str) -> None:
    """Checks, before Spark is started, that the tables that a statement reads exist.

    Raises:
        UsageError: The statement is empty.
        LakeError: A local table that it reads has not been created yet.
    """
    if not sql.strip():
        raise UsageError(
            "query: the statement is empty", fix='Give one statement, such as "SELECT * FROM silver.sessions"'
        )
    lake, known = Lake(settings), list_table_names(settings)
    named = [str(one) for one in find_table_and_function_names(replace_prefixed_table_names(sql)) if str(one) in known]
    needed = dict.fromkeys(list_view_sources(settings).get(name, name) for name in named)
    missing = [table for table in needed if lake.is_known_missing(table)]
    if missing:
        raise LakeError(
            f"query: {', '.join(missing)} does not exist yet in {settings.location}",
            fix="Fill it with `sessionlake run all --once`, or name another home with SESSIONLAKE_HOME",
        )


def prepare_statement(settings: Settings, sql: str, arguments: Mapping[str, str] | None = None) -> SqlStatement:
    """Returns a `SqlStatement`: the SQL, its arguments, and the present version of each table that it reads.

    Args:
        settings: The configuration.
        sql: The statement.
        arguments: The texts of its parameters, by name.

    Raises:
        UsageError: An argument has no parameter in the statement.
    """
    given = {name: text for name, text in (arguments or {}).items() if (name, text) != (_PREFIX, "")}
    text = sql if _PREFIX in given else replace_prefixed_table_names(sql)
    if unused := sorted(given.keys() - {name for name, _, _ in find_sql_parameters(text)}):
        raise UsageError(
            f"query: --param {unused[0]} is not used: the statement has no parameter :{unused[0]}",
            fix=f"Write :{unused[0]} in the statement where its value belongs, or leave out --param {unused[0]}",
        )
    names = [str(one) for one in find_table_and_function_names(text)]
    if any(function.partition(".")[2] in text.lower() for function in FUNCTIONS):
        names = list_table_names(settings)
    reads = [table for name in names for table in (DEFINITIONS[name].reads.values() if name in DEFINITIONS else [name])]
    views = list_feed_view_sources(settings.capture)
    known = {*list_table_names(settings)} - views.keys()
    tables = [table for table in (views.get(name, name) for name in reads) if table in known]
    return SqlStatement(text, given, read_latest_table_versions(Lake(settings), tables))


def run_query(
    settings: Settings,
    sql: str,
    arguments: Mapping[str, str],
    engine: EngineName,
    call_with_spark: Callable[[Callable[[SparkSession], QueryResult]], QueryResult],
    say: Callable[[str], None],
) -> QueryResult:
    """Runs a statement and returns its result: with Sail if that gives the same result as Spark, otherwise with Spark.

    Args:
        settings: The configuration.
        sql: The statement.
        arguments: The texts of its parameters, by name.
        engine: The engine that the user wants.
        call_with_spark: Calls a function with a new Spark session.
        say: Shows a line to the user.

    Raises:
        UsageError: The statement is not accepted, it does more than read, or it fails while it is computed.
    """

    def run_with_spark(statement: SqlStatement) -> QueryResult:
        return call_with_spark(lambda spark: SparkEngine(spark, settings).run(statement))

    return run_statement_on_chosen_engine(
        settings, lambda: prepare_statement(settings, sql, arguments), engine, run_with_spark, say
    )


def print_query_result(result: QueryResult, form: OutputFormat, say: Callable[[str], None]) -> None:
    """Prints the result of a statement, and shows its notes, such as that retention has removed rows."""
    show_rows(*convert_to_names_and_rows(result.rows), form)
    for note in result.notes:
        say(note)


def fetch_query_result(spark: SparkSession, settings: Settings, sql: str) -> tuple[list[str], Rows]:
    """Runs a statement with Spark, and returns the column names and rows of its result.

    Raises:
        UsageError: Spark does not accept the statement, it does more than read, or it fails while it is computed.
    """
    return convert_to_names_and_rows(SparkEngine(spark, settings).run(prepare_statement(settings, sql)).rows)


class SparkEngine:
    """An engine that runs statements with Spark.

    It registers only the tables, views and functions that a statement reads, because registering all of them would take
    longer than most statements.
    """

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark, self._settings = spark, settings

    def run(self, statement: SqlStatement) -> QueryResult:
        """Runs a statement and returns its result.

        Raises:
            UsageError: Spark does not accept the statement, it does more than read, or it fails while it is computed.
        """
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from sessionlake.spark.frames import convert_variants_to_json
        from sessionlake.spark.reading_plan import find_tables_and_functions
        from sessionlake.streaming.errors import explain_sql_error

        spark, lake = self._spark, LakeAtVersions(self._settings, statement.versions)
        text = replace_by_stored_names(lake, insert_version_clauses(statement.sql, statement.versions))
        try:
            reads = find_tables_and_functions(spark, text, _map_stored_names_to_functions(lake).keys())
            named = _require_names_of_lake(lake, reads)
        except UsageError as error:
            raise UsageError(f"query: {error}") from None
        _register_lake_names_in_spark(
            spark, lake, list_table_names(self._settings) if reads.lists and not named else named
        )
        try:
            rows = convert_variants_to_json(spark.sql(text, dict(statement.arguments))).toArrow()
        except (PySparkException, Py4JError) as error:  # errors during the computation can be Py4J's
            refusal = explain_sql_error("query", error)
            if isinstance(refusal, UsageError) and not named:
                known = ", ".join(list_table_names(self._settings))
                refusal = UsageError(str(refusal), fix=f"Tables of the lake are: {known}")
            raise refusal from error
        return QueryResult(rows, named, describe_expired_rows(lake.reader(spark), self._settings, named))


def _register_lake_names_in_spark(spark: SparkSession, lake: Lake, names: Sequence[str]) -> None:
    """Makes tables, views and functions of the lake known to Spark under their two-level names."""
    known, views = list_table_names(lake.settings), list_view_sources(lake.settings)
    lake.make_tables_queryable_by_sql(spark, [name for name in names if name in known and name not in views])
    create_lake_views(spark, lake, names)
    if not lake.storage.functions_persist:  # a catalog keeps those that the layers have created
        creators = _import_sql_function_creators() if any(name in FUNCTIONS for name in names) else {}
        for name in names:
            if name in creators:
                creators[name](spark, lake)


def _import_sql_function_creators() -> dict[str, Callable[[SparkSession, Lake], Any]]:
    """Returns the functions that create the lake's SQL functions in Spark, by the SQL function's name."""
    from sessionlake.gold.sql.definitions import create_sql_function_metrics_between
    from sessionlake.gold.sql.figures_with import create_sql_function_figures_with
    from sessionlake.gold.sql.views import create_sql_function_data_quality_since
    from sessionlake.silver.merge.sql_function import create_session_as_of

    creators = (
        create_session_as_of,
        create_sql_function_metrics_between,
        create_sql_function_data_quality_since,
        create_sql_function_figures_with,
    )
    return dict(zip(FUNCTIONS, creators, strict=True))


def create_lake_views(spark: SparkSession, lake: Lake, names: Sequence[str]) -> None:
    """Creates those of the named views that must be created for each Spark session. In a catalog they exist already."""
    if not lake.storage.functions_persist:
        create_views(spark, lake, [name for name in names if name in DEFINITIONS])
        create_feed_views(spark, lake, names)


def _map_stored_names_to_functions(lake: Lake) -> dict[str, str]:
    """Returns the names of the lake's SQL functions by the full, lower-case name under which the storage has each."""
    return {
        ".".join(_split_sql_name(lake.storage.build_create_function_target(*name.split("."))[1])): name
        for name in FUNCTIONS
    }


def _require_names_of_lake(lake: Lake, reads: TablesAndFunctionsUsed) -> list[str]:
    """Returns the names of the lake's tables and functions that a statement reads, as a list.

    Raises:
        UsageError: The statement reads tables outside the lake.
    """
    known = {
        _split_sql_name(lake.storage.get_sql_name_in_query_command(table)): table
        for table in list_table_names(lake.settings)
    }
    unknown = sorted(".".join(name) for name in reads.tables if name not in known)
    if unknown and unknown[0] in known.values():
        raise UsageError(
            f"query: no table has the name {unknown[0]}, because names in this lake have other schemas",
            fix=f"Write {lake.storage.get_sql_name_in_query_command(unknown[0])}",
        )
    if unknown:
        names = {table.rpartition(".")[2]: table for table in known.values()}
        near = get_close_matches(unknown[0].rpartition(".")[2], names, n=1)
        hint = f"Did you mean {names[near[0]]}? " if near else ""
        raise UsageError(
            f"query: {unknown[0]} is not a table of the lake",
            why="The command reads neither other tables nor files",
            fix=f"{hint}The tables are {', '.join(known.values())}",
        )
    functions = _map_stored_names_to_functions(lake)
    return [*(known[name] for name in sorted(reads.tables)), *(functions[name] for name in sorted(reads.functions))]


def _split_sql_name(name: str) -> Name:
    """Returns the parts, in lower case, of a name in SQL syntax, such as silver.`sessions`."""
    quoted = name.startswith("`")
    parts = name[1:-1].split("`.`") if quoted else name.split(".")
    return tuple(part.replace("``", "`").lower() for part in parts)


def replace_by_stored_names(lake: Lake, sql: str) -> str:
    """Returns the statement with the full names that the lake's tables, views and functions have in the storage.

    Other names are left unchanged: they are defined in the statement itself, or are full names already.
    """
    known = {*list_table_names(lake.settings), *FUNCTIONS}
    return replace_table_and_function_names(
        replace_prefixed_table_names(sql),
        lambda one: lake.storage.get_sql_name_in_query_command(str(one)) if str(one) in known else None,
    )


def list_table_names(settings: Settings) -> list[str]:
    """Returns the names of all tables and views of the lake, including those that the configuration declares."""
    return [*TABLES, *list_view_sources(settings), *settings.added_tables]


def list_view_sources(settings: Settings) -> dict[str, str]:
    """Returns, for each view of the lake, the table that must exist for the view to be read."""
    return {name: view.main_source_table for name, view in DEFINITIONS.items()} | list_feed_view_sources(
        settings.capture
    )


def show_query_result_as_of(
    spark: SparkSession,
    settings: Settings,
    sql: str,
    batch: int,
    form: OutputFormat,
    arguments: Mapping[str, str] | None = None,
) -> int:
    """Prints the result of a statement over silver's tables as they were after a batch, and returns that batch.

    It is the last one, up to `batch`, with which a merge ended.

    Args:
        spark: The Spark session.
        settings: The configuration.
        sql: The statement.
        batch: The requested batch of silver.
        form: The format of the output.
        arguments: The texts of the statement's parameters, by name.

    Raises:
        UsageError: The statement reads other tables, does more than read, or Spark does not accept it.
        LakeError: The batch is not in the ledger, or its versions were removed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from sessionlake.history.batch_as_of import as_of_batch
    from sessionlake.spark.reading_plan import find_tables_and_functions
    from sessionlake.spark.session import create_separate_session
    from sessionlake.streaming.errors import explain_sql_error

    bare, named = remove_silver_schema(sql)
    try:
        reads = find_tables_and_functions(spark, bare)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    if other := sorted(".".join(name) for name in reads.tables - {(table,) for table in named}):
        raise _create_not_a_silver_table_error(other[0])
    point = as_of_batch(spark, settings, batch)
    private = create_separate_session(spark)  # so that these views hide no tables from other users of the session
    try:
        for table in named:
            point.read_table(private, f"silver.{table}").createOrReplaceTempView(table)
        show_table(private.sql(bare, dict(arguments or {})).toArrow(), form)
    except (PySparkException, Py4JError) as error:
        raise explain_sql_error("query", error) from error
    return point.batch


def remove_silver_schema(sql: str) -> tuple[str, list[str]]:
    """Returns the statement with `sessions` instead of `silver.sessions` and so on, and the names of these tables.

    Raises:
        UsageError: The statement reads a table that cannot be read as of a batch.
    """
    from sessionlake.history.batch_as_of import SILVER_WRITES

    names = find_table_and_function_names(sql)
    if other := [str(one) for one in names if str(one) not in SILVER_WRITES]:
        raise _create_not_a_silver_table_error(other[0])
    return replace_table_and_function_names(sql, lambda one: quote(one.name)), sorted({one.name for one in names})


def _create_not_a_silver_table_error(name: str) -> UsageError:
    from sessionlake.history.batch_as_of import SILVER_WRITES

    return UsageError(
        f"query: {name} cannot be read as of a batch of silver, because only silver's batches "
        "write the tables that --as-of-batch can read",
        fix=f"Use only these tables, by these names: {', '.join(SILVER_WRITES)}",
    )
