"""N, as the tables were built with it: averages over 8 and over 16 points must not stand side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.errors import LAST_RESORT, LakeError
from sessionlake.lake.names import AVERAGES
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PROPERTY = "sessionlake.rollingPoints"


def hold_window(spark: SparkSession, lake: Lake, window: int) -> None:
    """Notes N in `gold.rolling_average` the first time, and compares it ever after.

    Raises:
        LakeError: the table was built with another N.
    """
    detail = lake.delta(spark, AVERAGES).detail().select("properties").first()
    built = None if detail is None else detail["properties"].get(_PROPERTY)
    if built is None:
        spark.sql(f"ALTER TABLE {lake.identifier(AVERAGES)} SET TBLPROPERTIES ('{_PROPERTY}' = '{window}')")
    elif built != str(window):
        raise LakeError(
            f"gold.rolling_points is {window}, but gold's tables were built with {built}: set it back. {LAST_RESORT}"
        )
