"""SQL over the lake's tables by their two-level names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessionlake.commands.context import say
from sessionlake.commands.show import OutputFormat, Rows, collected, show
from sessionlake.commands.sql_names import COMMENT, QUOTED, renamed
from sessionlake.config import Settings
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.aggregate.tiers import TIERS
from sessionlake.gold.definitions import METRICS_BETWEEN, create_metrics_between
from sessionlake.gold.expiry import floors_in, told
from sessionlake.gold.figures_with import FIGURES_WITH, create_figures_with
from sessionlake.gold.views import DATA_QUALITY_SINCE, DEFINITIONS, create_quality_since, create_views
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import Lake
from sessionlake.runtime.failures import failure_of, one_line
from sessionlake.silver.merge.sql_function import SESSION_AS_OF, create_session_as_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_READS = ("select", "with", "values", "from", "table", "describe", "desc", "show", "explain")
# Behind these a statement may go on to write what it reads: WITH … DELETE FROM, FROM … INSERT INTO.
_BEFORE_WRITES = ("with", "from")
_WRITES = re.compile(
    r"\b(insert\s+(?:into|overwrite)|delete\s+from|merge\s+(?:with\s+schema\s+evolution\s+)?into|update\b(?=.*\bset))\b",
    re.IGNORECASE | re.DOTALL,
)
_UNSAID = re.compile(rf"`[^`]*`|\br'[^']*'|\br\"[^\"]*\"|{QUOTED.pattern}", re.IGNORECASE | re.DOTALL)
_OWN = tuple(TABLES)
_LISTS = ("show", "describe", "desc")
FUNCTIONS = {
    f"silver.{SESSION_AS_OF}": create_session_as_of,
    f"gold.{METRICS_BETWEEN}": create_metrics_between,
    f"gold.{DATA_QUALITY_SINCE}": create_quality_since,
    f"gold.{FIGURES_WITH}": create_figures_with,
}
"""What creates each of the lake's SQL functions, by the name that it has in a catalog; on a laptop it has no schema."""


def check(settings: Settings, sql: str) -> None:
    """Refuses, before Spark is started, what cannot be answered.

    Raises:
        UsageError: it is no statement that reads.
        LakeError: a local table that it names has not been created yet.
    """
    require_reading(sql)
    lake = Lake(settings)
    named = mentioned(sql, tables(settings))
    asked = dict.fromkeys(DEFINITIONS[name].main if name in DEFINITIONS else name for name in named)
    missing = [table for table in asked if lake.surely_lacks(table)]
    if missing:
        raise LakeError(
            f"query: {', '.join(missing)} is not there yet in {settings.place}: "
            "fill it with `sessionlake run all --once`, or name another home with SESSIONLAKE_HOME"
        )


def require_reading(sql: str) -> None:
    """Refuses a statement that does not read.

    Raises:
        UsageError: it begins with another word, or goes on, behind what it reads, with one that writes.
    """
    first = first_word(sql)
    if first in _BEFORE_WRITES and (found := _WRITES.search(_UNSAID.sub(" ", sql))):
        raise UsageError(f"query: the statement goes on with {' '.join(found[1].split()).upper()}; query reads only")
    if first not in _READS:
        raise UsageError(
            f"query: the statement begins with {first.upper() or 'nothing'!r}; "
            f"query reads only: {', '.join(word.upper() for word in _READS)}"
        )


def answer(spark: SparkSession, settings: Settings, sql: str, form: OutputFormat) -> None:
    """Writes the answer to one statement to standard output, and says which of its tables are kept for a time.

    Raises:
        UsageError: Spark does not accept it, or it fails while it is computed.
    """
    show(*fetch(spark, settings, sql), form)
    named = mentioned(sql, [one.table for one in settings.gold.products] + [tier.table for tier in TIERS])
    if METRICS_BETWEEN in sql.lower():
        named += [tier.table for tier in TIERS if tier.table not in named]
    for table, floors in floors_in(Lake(settings).reader(spark), named).items():
        say(told(table, floors))


def fetch(spark: SparkSession, settings: Settings, sql: str) -> tuple[list[str], Rows]:
    """Column names and rows of the answer to one statement.

    Only the tables that it names are opened: opening all would take longer than most answers.

    Raises:
        UsageError: as `answer`.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    named, lake = mentioned(sql, tables(settings)), Lake(settings)
    opened = tables(settings) if first_word(sql) in _LISTS and not named else named
    lake.register(spark, [name for name in opened if name not in DEFINITIONS])
    if not lake.storage.keeps_functions:  # else those that write have created them
        create_views(spark, lake, [name for name in opened if name in DEFINITIONS])
        for function, create in FUNCTIONS.items():
            if re.search(rf"\b{function.split('.')[1]}\s*\(", COMMENT.sub(" ", sql), re.IGNORECASE):
                create(spark, lake)
    try:
        return collected(spark.sql(placed(lake, sql)))
    except PySparkException as error:
        hint = "" if named else f" Tables: {', '.join(tables(settings))}"
        raise UsageError(f"query: {one_line(str(error))}{hint}") from error
    except Py4JError as error:  # what is raised while it is computed need not be one of Spark's
        raise UsageError(f"query: {failure_of(error)}") from error


def placed(lake: Lake, sql: str) -> str:
    """The statement with the names that the lake's tables, views and functions have where they are.

    Others are columns of what the statement itself calls so, or are named in full.
    """
    known = {*tables(lake.settings), *FUNCTIONS}

    def name_of(schema: str, name: str) -> str | None:
        return lake.storage.sql_name(f"{schema}.{name}") if f"{schema}.{name}" in known else None

    return renamed(sql, name_of)


def tables(settings: Settings) -> list[str]:
    """Names of the lake's tables and views, those that the configuration adds among them."""
    return [*TABLES, *DEFINITIONS, *settings.own_tables]


def mentioned(sql: str, known: Iterable[str] = _OWN) -> list[str]:
    """Names of the lake's tables in the statement, each once."""
    bare = COMMENT.sub(" ", sql).replace("`", "").lower()
    return [table for table in known if re.search(rf"(?<![\w.]){re.escape(table)}(?!\w)", bare)]


def first_word(sql: str) -> str:
    """The statement's first keyword, in lower case."""
    found = re.match(r"[\s(]*([a-z]+)", COMMENT.sub(" ", sql).lower())
    return found[1] if found else ""
