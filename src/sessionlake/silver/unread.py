"""Finds the silences in bronze after everything that a layer has read.

The ledger does not contain silences, because they have no offsets. So they are read as the layer's stream would read
them: from the next version of bronze on, which is kept as long as the stream has not read it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING

from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.ledger.progress import last_batch
from sessionlake.ledger.silences import read_silences, silences_in
from sessionlake.protocol.silence import Silence
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sessionlake.delta.storage.txn import Txn


def unread_silences(
    spark: SparkSession, settings: Settings, layer: str, ends: Mapping[TopicPartition, int]
) -> frozenset[Silence]:
    """Returns the silences after the last messages that a layer has processed, which it has not read yet.

    Silences before a processed message were read before it, and no silence after an unread message was read.

    Args:
        spark: The session.
        settings: The settings of the lake.
        layer: Silver, or a processor.
        ends: The last offset of each topic-partition in the layer's batches in the ledger.

    Raises:
        LakeError: It is not known what the layer has read.
    """
    lake = Lake(settings)
    last = last_batch(lake.reader(spark), layer)
    if last is None or not any(one.behind == ends.get(one.place) for one in read_silences(lake.reader(spark))):
        return frozenset()
    following = handover.next_version(settings, layer, last)
    if following > lake.latest_version(spark, MESSAGES):
        return frozenset()
    return _read(spark, lake, following, f"{settings.checkpoint(layer)}.unread")


def _read(spark: SparkSession, lake: Lake, version: int, checkpoint: str) -> frozenset[Silence]:
    """Reads the silences written from a version of bronze on. Compacted files do not repeat them."""
    found: set[Silence] = set()

    def gather(rows: DataFrame, _: Txn) -> None:
        found.update(silences_in(rows))

    options = {"startingVersion": version, **SKIP_REMOVALS}
    frame = lake.stream(spark, MESSAGES, lake.settings.silver.max_bytes_per_trigger, options)
    shutil.rmtree(checkpoint, ignore_errors=True)
    query = LayerQuery("unread silences", checkpoint)
    query.start(frame, gather, trigger=timedelta(0), once=True).wait()
    shutil.rmtree(checkpoint)
    return frozenset(found)
