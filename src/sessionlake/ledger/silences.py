"""Reads silences from `bronze.messages`.

A silence says that a topic-partition brought no message for long (`protocol.silence`). Its row has no topic, partition
and offset, so conditions on these columns skip it. Silences are in the same table as messages because their order
matters: who reads in commit order gets a silence after the messages that came before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.reading import Condition, TableReader, is_null
from sessionlake.protocol.silence import Silence, decode_silences

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IS_SILENCE: Condition = ("topic", is_null, None)
"""Condition that rows with silences meet: `topic` is null."""


def read_silences(reader: TableReader) -> list[Silence]:
    """Returns all silences in `bronze.messages`: notes that a topic-partition has had no message for long."""
    return [*decode_silences(row["value"] for row in reader.read_rows(MESSAGES, IS_SILENCE, columns=["value"]))]


def select_silences(bronze_rows: DataFrame) -> list[Silence]:
    """Returns the silences among rows of `bronze.messages`.

    A silence says that a topic-partition has had no message for long.
    """
    return [
        *decode_silences(bytes(row["value"]) for row in bronze_rows.where("topic IS NULL").select("value").collect())
    ]


def drop_silences(bronze_rows: DataFrame) -> DataFrame:
    """Returns only those rows of `bronze.messages` that are messages, not silences."""
    return bronze_rows.where("topic IS NOT NULL")
