"""Silences in `bronze.messages`: rows without topic, partition and offset, which are no messages (`protocol.silence`).

They stand in the table of the messages since that is what gives them their place: whoever reads it in the order of its
commits comes to a silence behind the messages before it, and before those behind it. Conditions on a topic or on
offsets pass over them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.reading import Condition, TableReader, is_null
from sessionlake.protocol.silence import Silence, decode

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

IS_SILENCE: Condition = ("topic", is_null, None)
"""Of a row that tells of silences."""


def read_silences(reader: TableReader) -> list[Silence]:
    """All that bronze tells of."""
    return [*decode(row["value"] for row in reader.rows(MESSAGES, IS_SILENCE, columns=["value"]))]


def silences_in(bronze: DataFrame) -> list[Silence]:
    """All that rows of `bronze.messages` tell of."""
    return [*decode(bytes(row["value"]) for row in bronze.where("topic IS NULL").select("value").collect())]


def without_silences(bronze: DataFrame) -> DataFrame:
    """The rows of `bronze.messages` that are messages."""
    return bronze.where("topic IS NOT NULL")
