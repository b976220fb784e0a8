"""Packs rows of `bronze.messages` by shard, for the stream of silver, for processors and for rebuilds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.names import MESSAGES, SILVER
from sessionlake.errors import LakeError
from sessionlake.integrity.clock import EarlierStreamTimes
from sessionlake.protocol.silence import Silence
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.pack import ShardMessagePacker
from sessionlake.silver.stream_times import open_stored_stream_times
from sessionlake.streaming.checkpoint import choose_restart_options, read_last_planned_batch
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.payloads import build_feed_decoder, build_message_decode_rules
from sessionlake.streaming.sharded import PACKED_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def build_packed_stream(
    spark: SparkSession,
    lake: Lake,
    settings: Settings,
    layer: str,
    topic_pattern: str = ".*",
    resume_from: Handover | None = None,
) -> DataFrame:
    """Returns the stream of bronze's messages, packed by shard: rows `shard int, chunk binary`.

    A chunk is an Arrow table with decoded messages of one shard.

    Args:
        spark: The Spark session.
        lake: The lake.
        settings: The settings of the lake.
        layer: The layer whose checkpoint and stored stream times are used.
        topic_pattern: A regular expression that matches the whole name of each topic to read.
        resume_from: The handover to start from; messages before it are not read again. None to start with all messages.
    """
    options = {"maxFilesPerTrigger": settings.silver.max_files_per_trigger, **SKIP_REMOVALS}
    if resume_from is not None:
        options["startingVersion"] = resume_from.bronze_version + 1
    elif read_last_planned_batch(settings.checkpoint_path(layer)) is None:
        options |= _read_options_of_first_read(spark, lake, layer)
    else:
        options |= choose_restart_options(settings.checkpoint_path(layer))
    raw = lake.stream_table(spark, MESSAGES, settings.silver.max_bytes_per_trigger, options)
    return pack_messages(raw, settings, topic_pattern, open_stored_stream_times(settings, layer))


def pack_messages(
    messages: DataFrame,
    settings: Settings,
    topic_pattern: str,
    earlier_times: EarlierStreamTimes,
    silences: tuple[Silence, ...] = (),
) -> DataFrame:
    """Packs rows of `bronze.messages` by shard: decodes them, and returns rows `shard int, chunk binary`.

    Args:
        messages: The rows.
        settings: The settings of the lake.
        topic_pattern: Regular expression that matches the whole name of each topic to read.
        earlier_times: Looks up stream times from before the messages.
        silences: Silences that are not among the messages.
    """
    from pyspark.sql import functions as F

    shards = settings.silver.shards
    shard = F.pmod(F.xxhash64("topic", "key"), F.lit(shards)).cast("int").alias("shard")
    feeds = build_feed_decoder(settings.capture, shards)
    packer = ShardMessagePacker(
        build_message_decode_rules(settings.capture), shards, feeds, topic_pattern, earlier_times, silences
    )
    return messages.select(shard, *packer.bronze_columns).mapInArrow(packer, PACKED_SCHEMA)


def _read_options_of_first_read(spark: SparkSession, lake: Lake, layer: str) -> dict[str, int]:
    """Returns the options of a stream that reads all of bronze for the first time.

    Raises:
        LakeError: A stream cannot read all of bronze. The error says how to build the layer instead.
    """
    try:
        return lake.storage.choose_commit_order_read_options(spark, MESSAGES)
    except LakeError as error:
        name = SILVER if layer == SILVER else f"processor:{layer.removeprefix('processor-')}"
        raise LakeError(
            f"{layer}: {error.what}",
            why=error.why,
            fix=f"Run `sessionlake rebuild {name}`, which builds it from all that bronze has",
        ) from error
