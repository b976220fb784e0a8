"""SQL over the lake's tables by their two-level names, as they are now or as of one batch of the ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sessionlake.cli.context import say
from sessionlake.cli.show import OutputFormat, Rows, cells_of, show, show_table
from sessionlake.cli.sql_names import names_in, renamed, without_prefixes
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
from sessionlake.spark.reading_plan import Name, Reads, reads_of
from sessionlake.spark.session import separate_session
from sessionlake.streaming.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FUNCTIONS = {
    f"silver.{SESSION_AS_OF}": create_session_as_of,
    f"gold.{METRICS_BETWEEN}": create_metrics_between,
    f"gold.{DATA_QUALITY_SINCE}": create_quality_since,
    f"gold.{FIGURES_WITH}": create_figures_with,
}
"""What creates each of the lake's SQL functions, by the name that it has in a catalog; on a laptop it has no schema."""


def check(settings: Settings, sql: str) -> None:
    """Refuses, before Spark is started, a statement over tables that are not there yet.

    Raises:
        UsageError: there is no statement.
        LakeError: a local table that it names has not been created yet.
    """
    if not sql.strip():
        raise UsageError('query: expected one statement, as in "SELECT * FROM silver.sessions"')
    lake, known = Lake(settings), tables(settings)
    named = [str(one) for one in names_in(without_prefixes(sql)) if str(one) in known]
    asked = dict.fromkeys(DEFINITIONS[name].main if name in DEFINITIONS else name for name in named)
    missing = [table for table in asked if lake.is_known_missing(table)]
    if missing:
        raise LakeError(
            f"query: {', '.join(missing)} is not there yet in {settings.place}: "
            "fill it with `sessionlake run all --once`, or name another home with SESSIONLAKE_HOME"
        )


def answer(spark: SparkSession, settings: Settings, sql: str, form: OutputFormat) -> None:
    """Writes the answer to one statement to standard output, and says which of its tables are kept for a time.

    Raises:
        UsageError: Spark does not accept it, it does more than read, or it fails while it is computed.
    """
    read, rows = _asked(spark, settings, sql)
    show(*rows, form)
    kept = [one.table for one in settings.gold.products] + [tier.table for tier in TIERS]
    through = [tier.table for tier in TIERS] if f"gold.{METRICS_BETWEEN}" in read else []
    named = [table for table in kept if table in {*read, *through}]
    for table, floors in read_floors(Lake(settings).reader(spark), named).items():
        say(describe_floors(table, floors))


def fetch(spark: SparkSession, settings: Settings, sql: str) -> tuple[list[str], Rows]:
    """Column names and rows of the answer to one statement.

    Raises:
        UsageError: as `answer`.
    """
    return _asked(spark, settings, sql)[1]


def _asked(spark: SparkSession, settings: Settings, sql: str) -> tuple[list[str], tuple[list[str], Rows]]:
    """The lake's tables and functions that a statement reads, and its answer.

    Only these are opened: opening all would take longer than most answers.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    lake = Lake(settings)
    text = placed(lake, sql)
    try:
        reads = reads_of(spark, text, _functions(lake).keys())
        named = _known(lake, reads)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    _open(spark, lake, tables(settings) if reads.lists and not named else named)
    try:
        return named, cells_of(spark.sql(text).toArrow())
    except (PySparkException, Py4JError) as error:  # what is raised while it is computed need not be one of Spark's
        told = refused("query", error)
        if isinstance(told, UsageError) and not named:
            told = UsageError(f"{told} Tables: {', '.join(tables(settings))}")
        raise told from error


def _open(spark: SparkSession, lake: Lake, names: Sequence[str]) -> None:
    """Makes tables, views and functions known to Spark by their names."""
    lake.register(spark, [name for name in names if name in tables(lake.settings) and name not in DEFINITIONS])
    if not lake.storage.functions_persist:  # else those that write have created them
        create_views(spark, lake, [name for name in names if name in DEFINITIONS])
        for name in names:
            if name in FUNCTIONS:
                FUNCTIONS[name](spark, lake)


def _functions(lake: Lake) -> dict[str, str]:
    """The lake's functions by what they are called where they are, in lower case."""
    return {".".join(_parts(lake.storage.function_kind_and_name(*name.split("."))[1])): name for name in FUNCTIONS}


def _known(lake: Lake, reads: Reads) -> list[str]:
    """The tables and functions of the lake that a statement reads.

    Raises:
        UsageError: it reads other tables.
    """
    here = {_parts(lake.storage.sql_name(table)): table for table in tables(lake.settings)}
    others = sorted(".".join(name) for name in reads.tables if name not in here)
    if others and others[0] in here.values():
        raise UsageError(f"name {others[0]} in full here: {lake.storage.sql_name(others[0])}")
    if others:
        raise UsageError(
            f"{others[0]} is not a table of the lake. query reads nothing else, neither other tables nor files. "
            f"Tables: {', '.join(here.values())}"
        )
    functions = _functions(lake)
    return [*(here[name] for name in sorted(reads.tables)), *(functions[name] for name in sorted(reads.functions))]


def _parts(name: str) -> Name:
    """The parts of a name as SQL writes it, in lower case."""
    quoted = name.startswith("`")
    parts = name[1:-1].split("`.`") if quoted else name.split(".")
    return tuple(part.replace("``", "`").lower() for part in parts)


def placed(lake: Lake, sql: str) -> str:
    """The statement with the names that the lake's tables, views and functions have where they are.

    Others are columns of what the statement itself calls so, or are named in full.
    """
    known = {*tables(lake.settings), *FUNCTIONS}
    return renamed(without_prefixes(sql), lambda one: lake.storage.sql_name(str(one)) if str(one) in known else None)


def tables(settings: Settings) -> list[str]:
    """Names of the lake's tables and views, those that the configuration adds among them."""
    return [*TABLES, *DEFINITIONS, *settings.own_tables]


def answer_as_of(spark: SparkSession, settings: Settings, sql: str, batch: int, form: OutputFormat) -> int:
    """Writes the answer to a statement over silver's tables as of one batch; returns the batch that was read.

    Raises:
        LakeError: there is no such batch.
        UsageError: it names other tables, does more than read, or Spark does not accept it.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    bare, named = as_views(sql)
    try:
        reads = reads_of(spark, bare)
    except UsageError as error:
        raise UsageError(f"query: {error}") from None
    if other := sorted(".".join(name) for name in reads.tables - {(table,) for table in named}):
        raise _refuse_now(other[0])
    point = as_of_batch(spark, settings, batch)
    own = separate_session(spark)  # its views hide nothing from others
    try:
        for table in named:
            point.read(own, f"silver.{table}").createOrReplaceTempView(table)
        show_table(own.sql(bare).toArrow(), form)
    except (PySparkException, Py4JError) as error:
        raise refused("query", error) from error
    return point.batch


def as_views(sql: str) -> tuple[str, list[str]]:
    """The statement with the names of silver's tables less their schema, and those names.

    Raises:
        UsageError: it names a table that would be read as it is now.
    """
    found = names_in(sql)
    if other := [str(one) for one in found if str(one) not in SILVER_WRITES]:
        raise _refuse_now(other[0])
    return renamed(sql, lambda one: quote(one.name)), sorted({one.name for one in found})


def _refuse_now(name: str) -> UsageError:
    return UsageError(
        f"query: {name} cannot be read as of a batch of silver; these can, by these names: {', '.join(SILVER_WRITES)}"
    )
