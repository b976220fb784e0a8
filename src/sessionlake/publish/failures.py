"""What stops a publication, told with the way on: Spark and Delta know neither the topic nor what became of it."""

from __future__ import annotations

from sessionlake.errors import BrokerError, LakeError, SessionlakeError
from sessionlake.spark.failures import KnownFailure, parse_failure
from sessionlake.streaming.errors import SCHEMA_CHANGED
from sessionlake.streaming.query import LayerQuery


class PublishQuery(LayerQuery):
    """A running publication."""

    def __init__(self, layer: str, checkpoint: str, topic: str) -> None:
        super().__init__(layer, checkpoint)
        self._topic = topic

    @property
    def anew(self) -> str:
        """How to publish from the beginning. In the topic as it is, rows that are gone by now would live on."""
        return (
            f"publish into a new topic (--topic), or delete topic {self._topic} and the folder {self.checkpoint} and "
            "run it again"
        )

    def _explain(self, error: BaseException) -> SessionlakeError:
        if isinstance(self._raised or error, SessionlakeError):
            return super()._explain(error)
        failure = parse_failure(error)
        for cause in _CAUSES:
            if cause.fits(failure):
                meaning = cause.remedy.format(topic=self._topic, anew=self.anew)
                return cause.error(f"{self.layer}: {meaning}\n  Spark says: {failure}")
        return super()._explain(error)


_KAFKA = "org.apache.kafka.common.errors"
# What Spark, Delta or Kafka say, and what it means for a publication.
_CAUSES = (
    KnownFailure(
        LakeError,
        "changes that were not sent yet are gone from the table: VACUUM and the expiry of its log remove them after "
        "delta.deletedFileRetentionDuration and delta.logRetentionDuration, or its change feed was off for a while. "
        "To have a topic with the table as it is, {anew}",
        conditions=(
            "FAILED_READ_FILE.FILE_NOT_EXIST",
            "FAILED_READ_FILE.DBR_FILE_NOT_EXIST",
            "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
            "DELTA_LOG_FILE_NOT_FOUND",
            "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
            "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
            "DELTA_MISSING_CHANGE_DATA",
        ),
    ),
    KnownFailure(
        LakeError,
        "the table was made anew since the last run. To have a topic with the table as it is, {anew}",
        conditions=("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
    ),
    KnownFailure(
        LakeError,
        "columns were added to the table while it was published. Run it again: it goes on with them",
        conditions=(
            *SCHEMA_CHANGED,
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG",
        ),
    ),
    KnownFailure(
        BrokerError,
        "a row is larger than topic {topic} takes. Raise the topic's max.message.bytes and run it again: it sends "
        "the whole batch once more, which changes nothing for whoever has a part of it",
        types=(f"{_KAFKA}.RecordTooLargeException",),
    ),
    KnownFailure(
        BrokerError,
        "Kafka does not take the messages. When it does, run it again: it goes on where it ended",
        types=(
            f"{_KAFKA}.TimeoutException",
            f"{_KAFKA}.NotEnoughReplicasException",
            f"{_KAFKA}.NotEnoughReplicasAfterAppendException",
        ),
    ),
)
