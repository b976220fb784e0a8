"""SQL over silver's tables as of one batch of the ledger."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sessionlake.commands.query import mentioned
from sessionlake.commands.show import OutputFormat, collected, show
from sessionlake.commands.sql_names import QUOTED, renamed
from sessionlake.config import Settings
from sessionlake.errors import UsageError
from sessionlake.history.batch_as_of import SILVER_WRITES, as_of_batch
from sessionlake.protocol.names import quote
from sessionlake.runtime.failures import one_line
from sessionlake.runtime.spark import own_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OTHER = re.compile(r"\b(?:from|join)\s+(`?\w+`?\s*\.\s*[\w.`]+)", re.IGNORECASE)


def answer_as_of(spark: SparkSession, settings: Settings, sql: str, batch: int, form: OutputFormat) -> int:
    """Writes the answer to a statement over silver's tables as of one batch; returns the batch that was read.

    Raises:
        LakeError: there is no such batch.
        UsageError: it names other tables, or Spark does not accept it.
    """
    from pyspark.errors import PySparkException

    bare, named = as_views(sql)
    point = as_of_batch(spark, settings, batch)
    own = own_session(spark)  # its views hide nothing from others
    try:
        for table in named:
            point.read(own, f"silver.{table}").createOrReplaceTempView(table)
        show(*collected(own.sql(bare)), form)
    except PySparkException as error:
        raise UsageError(f"query: {one_line(str(error))} Tables: {', '.join(SILVER_WRITES)}") from error
    return point.batch


def as_views(sql: str) -> tuple[str, list[str]]:
    """The statement with the names of silver's tables less their schema, outside of strings and comments; those names.

    Raises:
        UsageError: it names a table that would be read as it is now.
    """
    named: set[str] = set()

    def bare(schema: str, name: str) -> str | None:
        if f"{schema}.{name}" not in SILVER_WRITES:
            return None
        named.add(name)
        return quote(name)

    text = renamed(sql, bare)
    rest = QUOTED.sub(" ", text)
    other = _OTHER.search(rest)
    if left := [*mentioned(rest), *([other[1]] if other else [])]:
        raise UsageError(
            f"query: {left[0]} cannot be read as of a batch of silver; these can, by these names: "
            f"{', '.join(SILVER_WRITES)}"
        )
    return text, sorted(named)
