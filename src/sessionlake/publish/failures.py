"""Translates failures of Spark, Delta and Kafka while a table is published into errors with a remedy.

The original failures do not name the topic, and do not say what was already sent.
"""

from __future__ import annotations

from sessionlake.errors import BrokerError, LakeError, SessionlakeError
from sessionlake.spark.failures import KnownSparkFailure, parse_spark_failure
from sessionlake.streaming.errors import SCHEMA_CHANGED
from sessionlake.streaming.query import LayerQuery


class PublishQuery(LayerQuery):
    """The running streaming query that publishes a table to a topic."""

    def __init__(self, layer: str, checkpoint: str, topic: str) -> None:
        super().__init__(layer, checkpoint)
        self._topic = topic

    @property
    def restart_hint(self) -> str:
        """A text for errors that says how to publish the table from the start.

        Publishing from the start needs an empty topic, because the old topic keeps rows that the table no longer has.
        """
        return (
            f"publish into a new topic (--topic), or delete topic {self._topic} and the folder {self.checkpoint} and "
            "run the command again"
        )

    def _explain_query_error(self, error: BaseException) -> SessionlakeError:
        if isinstance(self._raised or error, SessionlakeError):
            return super()._explain_query_error(error)
        failure = parse_spark_failure(error)
        for cause in _CAUSES:
            if cause.matches_failure(failure):
                meaning = cause.remedy.format(topic=self._topic, restart_hint=self.restart_hint)
                return cause.error_class(f"{self.layer}: {meaning}\n  Spark says: {failure}")
        return super()._explain_query_error(error)


_KAFKA = "org.apache.kafka.common.errors"
# Known failures of Spark, Delta and Kafka, with the error to raise instead.
_CAUSES = (
    KnownSparkFailure(
        LakeError,
        "changes that were not published yet are gone from the table. VACUUM and log cleanup remove them after "
        "delta.deletedFileRetentionDuration and delta.logRetentionDuration, or the change feed was off for a while. "
        "Publish the table from the start: {restart_hint}",
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
    KnownSparkFailure(
        LakeError,
        "the table was dropped and created again since it was published last, so its topic still has rows of the "
        "former table. Publish it from the start: "
        "{restart_hint}",
        conditions=("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
    ),
    KnownSparkFailure(
        LakeError,
        "columns were added to the table while it was published. Run the command again: it resumes with them",
        conditions=(
            *SCHEMA_CHANGED,
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE",
            "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE_USE_SCHEMA_LOG",
        ),
    ),
    KnownSparkFailure(
        BrokerError,
        "a row is larger than topic {topic} allows. Raise the topic's max.message.bytes and run the command again. It "
        "sends the whole batch again, which changes nothing for readers that have a part of it",
        types=(f"{_KAFKA}.RecordTooLargeException",),
    ),
    KnownSparkFailure(
        BrokerError,
        "Kafka does not accept the messages. Run the command again once it does: it resumes where it stopped",
        types=(
            f"{_KAFKA}.TimeoutException",
            f"{_KAFKA}.NotEnoughReplicasException",
            f"{_KAFKA}.NotEnoughReplicasAfterAppendException",
        ),
    ),
)
