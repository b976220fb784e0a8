"""SQL over silver's tables as of one batch of the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.cli.show import OutputFormat, collected, show
from sessionlake.cli.sql_names import names_in, renamed
from sessionlake.errors import UsageError
from sessionlake.history.batch_as_of import SILVER_WRITES, as_of_batch
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.spark.reading_plan import reads_of
from sessionlake.spark.session import own_session
from sessionlake.streaming.errors import refused

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
        raise _refused(other[0])
    point = as_of_batch(spark, settings, batch)
    own = own_session(spark)  # its views hide nothing from others
    try:
        for table in named:
            point.read(own, f"silver.{table}").createOrReplaceTempView(table)
        show(*collected(own.sql(bare)), form)
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
        raise _refused(other[0])
    return renamed(sql, lambda one: quote(one.name)), sorted({one.name for one in found})


def _refused(name: str) -> UsageError:
    return UsageError(
        f"query: {name} cannot be read as of a batch of silver; these can, by these names: {', '.join(SILVER_WRITES)}"
    )
