"""Finds the silences in bronze that come after everything that a layer has read.

The ledger does not contain silences, because they have no offsets. So they are read where the layer's stream would read
them: in the versions of bronze after the last one that the layer has read. Bronze keeps these until the layer reads
them.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.ledger.silences import read_silences, select_silences
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sessionlake.delta.storage.txn import Txn


def read_unread_silences(
    spark: SparkSession, settings: Settings, layer: str, last_offsets: Mapping[TopicPartition, int]
) -> frozenset[Silence]:
    """Returns the silences after the last messages that a layer has processed, which it has not read yet.

    Silences before a processed message were read with earlier batches. Silences after an unread message are unread too.

    Args:
        spark: The Spark session.
        settings: The settings of the lake.
        layer: Silver, or a processor.
        last_offsets: For each topic-partition, the last offset in the layer's batches in the ledger.

    Raises:
        LakeError: The checkpoint does not say which versions of bronze the layer has read.
    """
    lake = Lake(settings)
    last = read_last_batch_number(lake.reader(spark), layer)
    if last is None or not any(
        one.behind == last_offsets.get(one.topic_partition) for one in read_silences(lake.reader(spark))
    ):
        return frozenset()
    following = handover.read_next_version_after_batch(settings, layer, last)
    if following > lake.latest_version(spark, MESSAGES):
        return frozenset()
    return _read_silences_after(spark, lake, following, f"{settings.checkpoint_path(layer)}.unread")


def _read_silences_after(spark: SparkSession, lake: Lake, bronze_version: int, checkpoint: str) -> frozenset[Silence]:
    """Returns the silences that were written to bronze in this version or later.

    Rows that compaction copied do not count.
    """
    found: set[Silence] = set()

    def collect_silences_of_batch(rows: DataFrame, _: Txn) -> None:
        found.update(select_silences(rows))

    options = {"startingVersion": bronze_version, **SKIP_REMOVALS}
    frame = lake.stream_table(spark, MESSAGES, lake.settings.silver.max_bytes_per_trigger, options)
    shutil.rmtree(checkpoint, ignore_errors=True)
    query = LayerQuery("unread silences", checkpoint)
    query.start(frame, collect_silences_of_batch, trigger=timedelta(0), once=True).wait()
    shutil.rmtree(checkpoint)
    return frozenset(found)
