"""Adds the raw key and value from bronze to quarantined messages, which the quarantine stores unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, QUARANTINE
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.delta.storage.offset_ranges import build_offsets_condition, compute_enclosing_ranges
from sessionlake.delta.storage.reading import TableReader, TooLargeError, build_key_conditions
from sessionlake.silver.fold.schemas import ShardReport
from sessionlake.spark.frames import Rows, convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PLACE = ("topic", "partition", "offset")
_RAW = ("key", "value")
_COLUMNS = [name for name, _ in TABLES[QUARANTINE].column_types]


def add_raw_messages(spark: SparkSession, lake: Lake, rows: Rows, reports: Iterable[ShardReport]) -> Rows:
    """Returns a batch's rows for the quarantine, with key and value of the raw messages from bronze.

    Few rows are completed without Spark, which would need about a second even for them.

    Args:
        spark: The Spark session.
        lake: The lake.
        rows: The rows without the columns of the raw message.
        reports: The shards' reports about the batch, which contain the offsets of the quarantined messages.
    """
    if isinstance(rows, pa.Table) and rows.num_rows <= lake.driver_limits.few_messages:
        with suppress(TooLargeError):
            return _add_raw_messages_in_driver(lake.reader(spark), rows, lake.driver_limits.driver_bytes)
    return join_raw_messages(lake.read(spark, MESSAGES), convert_to_spark_frame(spark, rows), reports)


def _add_raw_messages_in_driver(bronze: TableReader, rows: pa.Table, max_bytes: int) -> pa.Table:
    """Adds key and value from bronze to rows for the quarantine, without Spark.

    Raises:
        TooLargeError: The rows to read have more than `max_bytes`.
    """
    near = build_key_conditions(rows, _PLACE, bronze.read_table_schema(MESSAGES))
    found = bronze.read_arrow_table(MESSAGES, *near, columns=[*_PLACE, *_RAW], max_bytes=max_bytes)
    return rows.join(found, [*_PLACE], join_type="inner").select(_COLUMNS)


def join_raw_messages(bronze: DataFrame, rows: DataFrame, reports: Iterable[ShardReport]) -> DataFrame:
    """Returns rows for the quarantine with key and value of the raw messages, as a Spark frame.

    Args:
        bronze: The frame of `bronze.messages`.
        rows: The rows without the columns of the raw message.
        reports: The shards' reports about the batch that quarantined these messages.
    """
    from pyspark.sql import functions as F

    where = build_offsets_condition(compute_enclosing_ranges(item for report in reports for item in report.quarantined))
    raw = bronze.where(where).select(*_PLACE, *_RAW)
    return F.broadcast(rows).join(raw, [*_PLACE]).select(*_COLUMNS)
