"""The times that messages in `bronze.messages` say, as stream time counts them: see `protocol.kafka_time`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.arrow import milliseconds_of
from sessionlake.protocol.kafka_time import NO_KAFKA_TIME, in_future, said_times
from sessionlake.protocol.message import INT64_MAX
from sessionlake.protocol.types import Int64s
from sessionlake.settings.model import Settings, milliseconds

if TYPE_CHECKING:
    from pyspark.sql import Column

TIMED_BY = ("timestamp", "ingested_at")
"""The columns that tell it."""


def said_time(settings: Settings, messages: str = "") -> Column:
    """The time (ms) that a row's message says; null where it says none.

    Args:
        messages: alias of the table, if it has one.
    """
    from pyspark.sql import functions as F

    kafka_ts, ingested = (F.unix_millis(F.col(f"{messages}.{name}" if messages else name)) for name in TIMED_BY)
    skew = milliseconds(settings.capture.max_future_skew)
    believed = F.coalesce(kafka_ts - F.lit(skew) <= ingested, F.lit(col=True))
    return F.when((kafka_ts != F.lit(NO_KAFKA_TIME)) & believed, kafka_ts)


def said_times_of(rows: pa.Table | pa.RecordBatch, settings: Settings) -> Int64s:
    """The time (ms) that the message of each row says, `UNSAID` where it says none.

    Args:
        rows: with the columns `TIMED_BY`.
    """
    kafka_ts, ingested = (milliseconds_of(rows[name]) for name in TIMED_BY)
    stamps = kafka_ts.to_numpy(zero_copy_only=False)
    read = pc.fill_null(ingested, INT64_MAX).to_numpy(zero_copy_only=False)
    return said_times(stamps, in_future(stamps, read, milliseconds(settings.capture.max_future_skew)))
