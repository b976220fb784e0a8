"""What `sessionlake trace` shows: the path of one message through the layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sessionlake.delta.storage.far_times import OutOfRangeTime
from sessionlake.history.content import FeedReadingExplanation
from sessionlake.history.fate import MessageFate
from sessionlake.protocol.types import Row


@dataclass(frozen=True)
class BatchCommit:
    """One micro-batch of a layer, from the ledger.

    Attributes:
        batch: Id of the batch.
        app_id: Application id of the batch's Delta transactions.
        committed_at: When the batch was committed.
        versions: For each table that the batch wrote, the table's version after that.
        recovered: True if the ledger's entry stands for all batches up to this one, because their entries were lost.
    """

    batch: int
    app_id: str
    committed_at: datetime
    versions: Mapping[str, int]
    recovered: bool


@dataclass(frozen=True)
class SilverMerge(BatchCommit):
    """A MERGE into `session_rows` and `sessions`, with the first and the last silver batch that it merged."""

    first_batch: int
    last_batch: int


@dataclass(frozen=True)
class TracedMessage:
    """A message as bronze stores it, with its content decoded by the current configuration.

    Attributes:
        key, session_id: The message's Kafka key, and the id of its session.
        type, seq, ts: The message's type, seq and event time (ms); None if the message is malformed.
        timestamp: The message's Kafka timestamp.
        value_bytes: Size of the message's value in bytes.
        ingested_at: When bronze read the message; None if it is not known.
        reading: How its feed reads it; None if the message has the form of sessionlake.
        has_erased_parts: True if the parts of forgotten sessions are erased in the message.
    """

    key: bytes | None
    session_id: str | None
    type: str | None
    seq: int | None
    ts: int | None
    timestamp: datetime | OutOfRangeTime
    value_bytes: int
    ingested_at: datetime | None
    reading: FeedReadingExplanation | None = None
    has_erased_parts: bool = False


@dataclass(frozen=True)
class MessageJudgement:
    """What silver decided about the message, why, and in which batch.

    Attributes:
        fate: What happened to the message.
        reason: Why the message is in quarantine; None if it is not.
        batch: The silver batch that decided. None while the message is held back, and if the batch is not known.
        committed_at: When that batch was committed; None if this is not known.
        integrity: Integrity class of the topic.
        events: The message's rows of `integrity_events`.
        broken_by: The row of `integrity_events` that broke the session, if the reason is `session_broken`.
    """

    fate: MessageFate
    reason: str | None
    batch: int | None
    committed_at: datetime | None
    integrity: str
    events: list[Row] = field(default_factory=list)
    broken_by: Row | None = None


@dataclass(frozen=True)
class TracedMessagePart:
    """What a message says about one session, and what silver decided about that part.

    Attributes:
        session_id, type, seq, ts: The part's session, type, seq and event time (ms); None if the part is malformed.
        judgement: What silver decided.
        tables: The merge of the deciding batch into `session_rows` and `sessions`; None if it is not merged yet.
        changes: The part's rows of `session_changes`, in order. `set` has the columns that the message set.
        session: The current row of the session; None if there is none.
    """

    session_id: str | None
    type: str | None
    seq: int | None
    ts: int | None
    judgement: MessageJudgement
    tables: SilverMerge | None
    changes: list[Row]
    session: Row | None


@dataclass(frozen=True)
class MessageTrace:
    """The path of one message through the layers.

    Attributes:
        topic, partition, offset: Where the message is in Kafka.
        bronze: The batch of bronze that read the message.
        message: The message as bronze stores it.
        silver: The batch of silver that read it. `judgement.batch` is later if the message was held back.
        judgement: What silver decided.
        tables: The merge of the deciding batch into `session_rows` and `sessions`; None if it is not merged yet.
        changes: The message's rows of `session_changes`, in order. `set` has the columns that the message set.
        session: The current row of the message's session; None if there is none.
        other_parts: The further parts of a message that concerns several sessions. `message`, `judgement`, `tables`,
            `changes` and `session` are about its first part.
    """

    topic: str
    partition: int
    offset: int
    bronze: BatchCommit
    message: TracedMessage
    silver: BatchCommit
    judgement: MessageJudgement
    tables: SilverMerge | None
    changes: list[Row]
    session: Row | None
    other_parts: list[TracedMessagePart] = field(default_factory=list)
