"""What stops a publication, told with the way on: Spark and Delta know neither the topic nor what became of it."""

from __future__ import annotations

from dataclasses import dataclass

from sessionlake.errors import BrokerError, LakeError, SessionlakeError
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
        text, told = str(error), super()._explain(error)
        for cause in _CAUSES:
            if any(phrase in text for phrase in cause.phrases):
                meaning = cause.meaning.format(topic=self._topic, anew=self.anew)
                said = str(told).removeprefix(f"{self.layer} stopped: ")
                return cause.error(f"{self.layer}: {meaning}\n  Spark says: {said}")
        return told


@dataclass(frozen=True)
class _Cause:
    """Phrases of Spark's, Delta's or Kafka's, and what they mean for a publication."""

    phrases: tuple[str, ...]
    error: type[SessionlakeError]
    meaning: str


_CAUSES = (
    _Cause(
        (
            "FAILED_READ_FILE.FILE_NOT_EXIST",
            "DELTA_CHANGE_DATA_FILE_NOT_FOUND",
            "DELTA_LOG_FILE_NOT_FOUND",
            "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
            "DELTA_MISSING_CHANGE_DATA",
        ),
        LakeError,
        "changes that were not sent yet are gone from the table: VACUUM and the expiry of its log remove them after "
        "delta.deletedFileRetentionDuration and delta.logRetentionDuration, or its change feed was off for a while. "
        "To have a topic with the table as it is, {anew}",
    ),
    _Cause(
        ("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
        LakeError,
        "the table was made anew since the last run. To have a topic with the table as it is, {anew}",
    ),
    _Cause(
        ("DELTA_SCHEMA_CHANGED", "DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE"),
        LakeError,
        "columns were added to the table while it was published. Run it again: it goes on with them",
    ),
    _Cause(
        ("RecordTooLargeException",),
        BrokerError,
        "a row is larger than topic {topic} takes. Raise the topic's max.message.bytes and run it again: it sends "
        "the whole batch once more, which changes nothing for whoever has a part of it",
    ),
    _Cause(
        ("not present in metadata", "Expiring ", "NotEnoughReplicas", "TimeoutException"),
        BrokerError,
        "Kafka does not take the messages. When it does, run it again: it goes on where it ended",
    ),
)
