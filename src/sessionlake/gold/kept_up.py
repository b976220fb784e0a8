"""Which tables gold keeps up, as `gold.rolling_average` notes it: one that it does not name has missed something."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT_UP = "sessionlake.products"
"""Property of `gold.rolling_average`: the tables that gold keeps up, without `gold.`.

After gold was emptied, until it starts: all tables that were.
"""


def kept_up(spark: SparkSession, lake: Lake) -> list[str] | None:
    """The names of the tables; None if gold has never noted them."""
    noted = lake.storage.properties(spark, AVERAGES).get(KEPT_UP)
    return None if noted is None else noted.split(",") if noted else []


def note_names(spark: SparkSession, lake: Lake, names: Iterable[str]) -> None:
    """Notes the names of the tables that take in what comes from now on."""
    wanted = sorted(names)
    if kept_up(spark, lake) != wanted:
        lake.set_property(spark, AVERAGES, KEPT_UP, ",".join(wanted))
