"""Kafka times of rows in `bronze.messages`: which timestamps count for stream time, on Spark and on Arrow.

A timestamp does not count if it is missing (-1) or too far ahead of the time at which bronze read the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import convert_timestamps_to_milliseconds
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, find_kafka_times_in_future, replace_times_not_counted
from sessionlake.protocol.message import INT64_MAX
from sessionlake.protocol.types import Int64s
from sessionlake.settings.model import Settings
from sessionlake.settings.section import milliseconds

if TYPE_CHECKING:
    from pyspark.sql import Column

TIME_COLUMNS = ("timestamp", "ingested_at")
"""The columns of `bronze.messages` that decide a message's time."""


def build_valid_kafka_time_column(settings: Settings, messages: str = "") -> Column:
    """Returns a Spark column with the Kafka timestamp of each row of `bronze.messages`, in milliseconds since 1970.

    It is null if the timestamp does not count for stream time: it is missing or too far in the future.

    Args:
        settings: `capture.max_future_skew` decides how far ahead a timestamp may be.
        messages: Alias of `bronze.messages` in the query; empty if it has none.
    """
    from pyspark.sql import functions as F

    kafka_ts, ingested = (F.unix_millis(F.col(f"{messages}.{name}" if messages else name)) for name in TIME_COLUMNS)
    skew = milliseconds(settings.capture.max_future_skew)
    believed = F.coalesce(kafka_ts - F.lit(skew) <= ingested, F.lit(col=True))
    return F.when((kafka_ts != F.lit(NO_KAFKA_TIME)) & believed, kafka_ts)


def compute_valid_kafka_times(rows: pa.Table | pa.RecordBatch, settings: Settings) -> Int64s:
    """Returns the Kafka timestamp of each row of `bronze.messages`, in milliseconds since 1970.

    It is `NOT_COUNTED` if the timestamp does not count for stream time: it is missing or too far in the future.

    Args:
        rows: Rows with the columns `TIME_COLUMNS`.
        settings: `capture.max_future_skew` decides how far ahead a timestamp may be.
    """
    kafka_ts, ingested = (convert_timestamps_to_milliseconds(rows[name]) for name in TIME_COLUMNS)
    stamps = kafka_ts.to_numpy(zero_copy_only=False)
    read = pc.fill_null(ingested, INT64_MAX).to_numpy(zero_copy_only=False)
    return replace_times_not_counted(
        stamps, find_kafka_times_in_future(stamps, read, milliseconds(settings.capture.max_future_skew))
    )
