"""What bronze reads: Kafka, archives on disk, or Kinesis; one is chosen by `bronze.source`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.bronze import job, streamed
from sessionlake.bronze.archive import source as archives
from sessionlake.bronze.streamed import Streamed
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE
from sessionlake.errors import ConfigError, LossError
from sessionlake.kafka.clients import require_broker
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.kafka import ArchiveSettings, KinesisSettings, SourceKind
from sessionlake.settings.model import Settings
from sessionlake.spark.session import on_platform
from sessionlake.streaming.checkpoint import last_planned, recovery_hint
from sessionlake.streaming.query import LayerQuery

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def require(settings: Settings) -> None:
    """Returns if the source can be read, as far as that is seen before Spark is started.

    Raises:
        BrokerError: Kafka does not answer.
        AccessError: it does not let this client in.
        ConfigError: there is no such folder, or no such connector here.
    """
    source = _streamed(settings)
    if source is None:
        require_broker(settings)
    else:
        source.require()


def start(
    spark: SparkSession,
    settings: Settings,
    *,
    once: bool = False,
    on_batch: Callable[[LedgerEntry], None] | None = None,
    on_wait: Callable[[str], None] | None = None,
) -> LayerQuery:
    """Starts bronze from its source; see `job.start` and `streamed.start`."""
    streamed.refuse_other_source(spark, Lake(settings), settings.bronze.source)
    source = _streamed(settings)
    if source is None:
        return job.start(spark, settings, once=once, on_batch=on_batch, on_wait=on_wait)
    source.require()
    return streamed.start(spark, settings, source, once=once, on_batch=on_batch)


def _streamed(settings: Settings) -> Streamed | None:
    """The source, if it is a stream and nothing more; None: it is Kafka."""
    bronze = settings.bronze
    if bronze.source is SourceKind.ARCHIVE and bronze.archive is not None:
        return Archives(bronze.archive)
    if bronze.source is SourceKind.KINESIS and bronze.kinesis is not None:
        return Kinesis(bronze.kinesis)
    return None


class Archives:
    """A folder of archives: each message once, at the offset that its archive says."""

    name = str(SourceKind.ARCHIVE)

    def __init__(self, settings: ArchiveSettings) -> None:
        self._path, self._limit = settings.path, int(settings.max_bytes_per_trigger)

    def require(self) -> None:
        """See `Streamed`."""
        if not Path(self._path).is_dir():
            raise ConfigError(f"bronze.archive.path: {self._path} is no folder: name the one that has the archives")

    def stream(self, spark: SparkSession, checkpoint: Path) -> DataFrame:
        """See `Streamed`."""
        archives.register(spark)
        options = {"path": self._path, "taken": json.dumps(_taken(checkpoint)), "limit": self._limit}
        return spark.readStream.format(archives.NAME).options(**options).load()

    def has_more(self, checkpoint: Path) -> bool:
        """See `Streamed`."""
        before = _taken(checkpoint)
        return archives.taken(Path(self._path), before, self._limit) != before

    def messages(self, rows: DataFrame, ends: Mapping[TopicPartition, int]) -> DataFrame:
        """See `Streamed`."""
        del ends
        return rows


def _taken(checkpoint: Path) -> archives.Taken:
    """Where the stream of a checkpoint ends: what the last line of its newest plan says."""
    planned = last_planned(checkpoint)
    if planned is None:
        return dict(archives.NOTHING)
    file = checkpoint / "offsets" / str(planned)
    try:
        found: archives.Taken = json.loads(file.read_text(encoding="utf-8").splitlines()[-1])
    except (OSError, ValueError, IndexError) as error:
        raise LossError(
            f"bronze: the checkpoint file {file} cannot be read ({error})", fix=recovery_hint(BRONZE)
        ) from error
    return found


class Kinesis:
    """Streams of Kinesis: a topic each, a shard a partition, offsets in the order of sequence numbers.

    A sequence number has some 56 digits and does not fit an offset: messages are numbered as they are captured, from
    where the ledger ends. A batch that is made once more gives the same numbers.
    """

    name = str(SourceKind.KINESIS)

    def __init__(self, settings: KinesisSettings) -> None:
        self._settings = settings

    def require(self) -> None:
        """See `Streamed`."""
        if not on_platform():
            raise ConfigError(
                "bronze.source is kinesis, whose connector is part of Databricks' runtime and of no other: run bronze "
                "there, or set bronze.source to kafka or archive here"
            )

    def stream(self, spark: SparkSession, checkpoint: Path) -> DataFrame:
        """See `Streamed`."""
        del checkpoint
        own = self._settings
        options: dict[str, Any] = {"initialPosition": "trim_horizon", **own.options}
        return (
            spark.readStream.format("kinesis")
            .options(**options)
            .option("streamName", own.streams)
            .option("region", own.region)
            .load()
        )

    def has_more(self, checkpoint: Path) -> bool:
        """See `Streamed`."""
        del checkpoint
        return False  # its connector takes all that is there

    def messages(self, rows: DataFrame, ends: Mapping[TopicPartition, int]) -> DataFrame:
        """See `Streamed`."""
        from pyspark.sql import Window
        from pyspark.sql import functions as F

        number = F.regexp_extract("shardId", r"(\d+)$", 1).cast("int")
        order = Window.partitionBy("stream", "shardId").orderBy(F.length("sequenceNumber"), "sequenceNumber")
        before = F.lit(-1).cast("bigint")
        if ends:
            pairs = (F.lit(item) for (topic, part), end in ends.items() for item in (f"{part} {topic}", end))
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
