"""The settings that gold's tables were built with, where another value would make them wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.config import GoldSettings
from sessionlake.errors import LAST_RESORT, LakeError
from sessionlake.lake.names import AVERAGES
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Averages over 8 and over 16 points must not stand side by side; of other shards, sessions would not find their states.
_HELD = {"sessionlake.rollingPoints": "rolling_points", "sessionlake.goldShards": "shards"}


def hold_settings(spark: SparkSession, lake: Lake, gold: GoldSettings) -> None:
    """Notes the settings in `gold.rolling_average` the first time, and compares them ever after.

    Raises:
        LakeError: the tables were built with other ones.
    """
    built = lake.storage.properties(spark, AVERAGES)
    for key, name in _HELD.items():
        wanted, found = str(getattr(gold, name)), built.get(key)
        if found is None:
            lake.set_property(spark, AVERAGES, key, wanted)
        elif found != wanted:
            raise LakeError(
                f"gold.{name} is {wanted}, but gold's tables were built with {found}: set it back. {LAST_RESORT}"
            )
