"""The sources of bronze: Kafka, archives on disk, or Kinesis. The setting `bronze.source` chooses one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.bronze import job, streamed
from sessionlake.bronze.archive import source as archives
from sessionlake.bronze.streamed import StreamSource
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE
from sessionlake.errors import ConfigError, DataLossError
from sessionlake.kafka.clients import require_reachable_broker
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.kafka import ArchiveSettings, KinesisSettings, SourceKind
from sessionlake.settings.model import Settings
from sessionlake.spark.session import is_on_databricks
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint, read_last_planned_batch
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def require_readable_source(settings: Settings) -> None:
    """Checks that bronze's source can be read, as far as that is possible before Spark is started.

    Raises:
        BrokerError: Kafka does not answer.
        KafkaAccessError: Kafka refuses this client.
        ConfigError: The folder of archives does not exist, or this runtime has no connector for the source.
    """
    source = _build_stream_source(settings)
    if source is None:
        require_reachable_broker(settings)
    else:
        source.require_reachable()


def start_bronze(
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> LayerQuery:
    """Starts bronze on the source that `bronze.source` names.

    Args:
        spark: The session that runs the query.
        settings: The configuration.
        once: If true, the query stops after it has read what the source holds now.
        on_batch: Called with the ledger entry of every committed batch.
        on_wait: Called with a text for the operator when the query waits for Kafka and when it resumes.

    Raises:
        SessionlakeError: Bronze cannot start: the source, the checkpoint or a table is not as it must be.
    """
    streamed.refuse_messages_of_other_source(spark, Lake(settings), settings.bronze.source)
    source = _build_stream_source(settings)
    if source is None:
        return job.start_kafka_job(spark, settings, once=once, on_batch=on_batch, on_wait=on_wait)
    source.require_reachable()
    return streamed.start_bronze_from_stream_source(spark, settings, source, once=once, on_batch=on_batch)


def _build_stream_source(settings: Settings) -> StreamSource | None:
    """Returns bronze's source if Spark can read it as a plain stream (archives or Kinesis); None if it is Kafka."""
    bronze = settings.bronze
    if bronze.source is SourceKind.ARCHIVE and bronze.archive is not None:
        return ArchiveSource(bronze.archive)
    if bronze.source is SourceKind.KINESIS and bronze.kinesis is not None:
        return KinesisSource(bronze.kinesis)
    return None


class ArchiveSource:
    """A folder of archive files as bronze's source.

    Each message is read once and keeps the offset that its archive gives.
    """

    name = str(SourceKind.ARCHIVE)

    def __init__(self, settings: ArchiveSettings) -> None:
        self._path, self._max_bytes = settings.path, int(settings.max_bytes_per_trigger)

    def require_reachable(self) -> None:
        """Checks that the folder of archives exists.

        Raises:
            ConfigError: The folder does not exist.
        """
        if not Path(self._path).is_dir():
            raise ConfigError(
                f"bronze.archive.path: {self._path} is not a folder",
                fix="Set `bronze.archive.path` to the folder that holds the archive files",
            )

    def read_stream(self, spark: SparkSession, checkpoint: Path) -> DataFrame:
        """Returns a stream of the messages in archive files that the checkpoint has not read yet.

        The stream has the columns of `bronze.messages` without `ingested_at`, and `file, member, start, damage,
        detail`.
        """
        archives.register_archive_source(spark)
        options = {
            "path": self._path,
            "position": json.dumps(_read_checkpoint_position(checkpoint)),
            "limit": self._max_bytes,
        }
        return spark.readStream.format(archives.NAME).options(**options).load()

    def has_unread_messages(self, checkpoint: Path) -> bool:
        """Returns True if the folder of archives has files after the last one that the checkpoint has read."""
        before = _read_checkpoint_position(checkpoint)
        return archives.find_position_after_next_batch(Path(self._path), before, self._max_bytes) != before

    def convert_batch_to_messages(self, rows: DataFrame, last_offsets: Mapping[TopicPartition, int]) -> DataFrame:
        """Returns the rows of an archive stream unchanged: they already have the columns of `bronze.messages`."""
        del last_offsets
        return rows


def _read_checkpoint_position(checkpoint: Path) -> archives.Position:
    """Returns the position in the folder of archives up to which the checkpoint has planned batches."""
    planned = read_last_planned_batch(checkpoint)
    if planned is None:
        return dict(archives.STREAM_START)
    file = checkpoint / "offsets" / str(planned)
    try:
        position: archives.Position = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise DataLossError(
            f"bronze: the checkpoint file {file} cannot be read ({error})",
            why="It says which messages bronze has read",
            fix=build_checkpoint_recovery_hint(BRONZE),
        ) from error
    return position


class KinesisSource:
    """Streams of Kinesis as bronze's source. Each stream becomes a topic, and each of its shards a partition.

    A sequence number has about 56 digits and does not fit an offset. So messages are numbered in the order of their
    sequence numbers, starting after the last offset in the ledger. A repeated batch gives the same numbers.
    """

    name = str(SourceKind.KINESIS)

    def __init__(self, settings: KinesisSettings) -> None:
        self._settings = settings

    def require_reachable(self) -> None:
        """Checks that the Kinesis connector is available.

        Raises:
            ConfigError: This is not a Databricks runtime.
        """
        if not is_on_databricks():
            raise ConfigError(
                "bronze.source is kinesis, but this is not a Databricks runtime",
                why="Only Databricks' runtime has the Kinesis connector",
                fix="Run bronze on Databricks, or set `bronze.source` to kafka or archive",
            )

    def read_stream(self, spark: SparkSession, checkpoint: Path) -> DataFrame:
        """Returns a stream of Kinesis records in the connector's columns.

        A new checkpoint starts at the oldest record.
        """
        del checkpoint
        kinesis = self._settings
        options: dict[str, Any] = {"initialPosition": "trim_horizon", **kinesis.options}
        return (
            spark.readStream.format("kinesis")
            .options(**options)
            .option("streamName", kinesis.streams)
            .option("region", kinesis.region)
            .load()
        )

    def has_unread_messages(self, checkpoint: Path) -> bool:
        """Returns False: one query of the Kinesis connector reads everything that Kinesis holds."""
        del checkpoint
        return False

    def convert_batch_to_messages(self, rows: DataFrame, last_offsets: Mapping[TopicPartition, int]) -> DataFrame:
        """Converts Kinesis records to messages, numbered after the last offset of each topic-partition."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        number = F.regexp_extract("shardId", r"(\d+)$", 1).cast("int")
        order = Window.partitionBy("stream", "shardId").orderBy(F.length("sequenceNumber"), "sequenceNumber")
        before = F.lit(-1).cast("bigint")
        if last_offsets:
            pairs = (F.lit(item) for (topic, part), end in last_offsets.items() for item in (f"{part} {topic}", end))
            place = F.concat_ws(" ", number.cast("string"), F.col("stream"))
            before = F.coalesce(F.create_map(*pairs)[place].cast("bigint"), before)
        return rows.select(
            F.col("stream").alias("topic"),
            number.alias("partition"),
            (before + F.row_number().over(order)).alias("offset"),
            F.col("approximateArrivalTimestamp").alias("timestamp"),
            F.lit(1).alias("timestamp_type"),
            F.encode("partitionKey", "UTF-8").alias("key"),
            F.col("data").alias("value"),
            F.lit(None).cast("array<struct<key:string,value:binary>>").alias("headers"),
            *(
                F.lit(None).cast(kind).alias(name)
                for name, kind in (
                    ("file", "string"),
                    ("member", "string"),
                    ("start", "bigint"),
                    ("damage", "string"),
                    ("detail", "string"),
                )
            ),
        )
