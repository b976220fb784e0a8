"""`sessionlake bronze skip`: makes bronze leave out a message that Spark cannot read, by an operator's decision.

Spark's stream cannot leave an offset out of a batch. So bronze's query is ended, as in `recover bronze`. The messages
before the skipped one are read in batch and committed, and the skipped one is recorded in `ops.absent_offsets`. Then a
new generation of the checkpoint starts after it. The command can be repeated after a crash.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sessionlake.bronze.batch_ranges import PlannedOffsets, read_stored_ranges_of_batch
from sessionlake.bronze.compare import OFFSET_COLUMNS
from sessionlake.bronze.gaps import record_transaction_gaps
from sessionlake.bronze.job import (
    LAYER,
    build_bronze_ledger_entry,
    convert_to_bronze_columns,
)
from sessionlake.bronze.reading import read_kafka_messages
from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.bronze.unreadable import is_about_unreadable_message
from sessionlake.delta.commit import commit_staged_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, MESSAGES, TOPICS
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.absent import AbsentOffsetReason, OffsetInterval, record_absent_offsets
from sessionlake.ledger.entries import Ledger, OffsetRange
from sessionlake.ledger.erasures import erase_forgotten_messages, read_erasure_receipts
from sessionlake.operations.recover.bronze import end_bronze_query, start_recovered_checkpoint
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake.streaming.manifest import forget_message_that_stopped_layer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class SkipDecision:
    """An operator's decision that bronze leaves out a range of messages of one topic-partition.

    Attributes:
        topic: The topic.
        partition: The partition.
        first: The first offset to leave out, numbered as in `bronze.messages`.
        last: The last offset to leave out.
        who: The user who decided.
        why: The user's reason.
    """

    topic: str
    partition: int
    first: int
    last: int
    who: str
    why: str

    @property
    def topic_partition(self) -> TopicPartition:
        """The topic and partition of the messages."""
        return self.topic, self.partition

    @property
    def ledger_record(self) -> dict[str, object]:
        """The decision as the ledger stores it. The message's session is unknown."""
        decision = "skip" if self.first == self.last else f"skip to {self.last}"
        return {"topic": self.topic, "session_id": "", "offset": self.first, "decision": decision}

    @property
    def skipped_offsets(self) -> OffsetInterval:
        """The offsets at which bronze will have no message, as `[first, last + 1)`."""
        return self.first, self.last + 1


def skip_offsets(spark: SparkSession, settings: Settings, decision: SkipDecision) -> int:
    """Makes bronze leave out a range of messages: commits the messages before it, and lets bronze resume after it.

    This process must have claimed bronze.

    Returns:
        The number of messages committed.

    Raises:
        UsageError: Bronze has already read past these offsets, Kafka does not have them, or an earlier message cannot
            be read either.
        LakeError: The lake has no bronze, or its tables or checkpoint cannot be read.
    """
    lake = Lake(settings)
    if not lake.exists(spark, MESSAGES):
        raise LakeError(
            f"bronze skip: {settings.lake_location} has no bronze.messages, so bronze has not run there",
            fix="Set SESSIONLAKE_HOME to the home of the lake. For a new lake, run `sessionlake run bronze`",
        )
    lake.create_or_update_tables(spark, [MESSAGES, LEDGER, TOPICS])
    generations = CheckpointGenerations(settings.checkpoint_path(LAYER), LAYER)
    with closing(TopicRegister(spark, lake, settings)) as book:
        book.update_topics_from_kafka()
        _read_next_bronze_offset(book, decision)  # raises its errors before anything changes
        app_id, number, _ = end_bronze_query(spark, lake, settings)
        book.update_topics_from_kafka()  # because `end_bronze_query` may have added entries to the ledger
        start = _read_next_bronze_offset(book, decision)
        txn = Txn(app_id, number + 1)
        messages = _commit_messages_before_skip(spark, lake, book, (start, decision.first), decision, txn)
        inject_fault_if_requested("after:bronze.skipped")
        start_recovered_checkpoint(settings, generations, number + 2, app_id)
    forget_message_that_stopped_layer(settings, LAYER)
    return messages


def _read_next_bronze_offset(topic_register: TopicRegister, decision: SkipDecision) -> int:
    """Returns the offset that bronze reads next in the topic-partition.

    Raises:
        UsageError: Bronze does not read the topic-partition or has already read past the offsets, or Kafka does not
            have them.
    """
    place, shift = decision.topic_partition, topic_register.offset_shifts.get(decision.topic, 0)
    name = f"topic {decision.topic}, partition {decision.partition}"
    positions = topic_register.list_next_offsets()
    if place not in positions:
        raise UsageError(
            f"bronze skip: bronze does not read {name}",
            fix='`sessionlake query "SELECT topic, state FROM ops.topics"` shows which topics bronze reads',
        )
    start, end = positions[place] + shift, topic_register.read_kafka_ends()[place] + shift
    if decision.first < start:
        raise UsageError(
            f"bronze skip: {name}: bronze has already passed offset {decision.first}, and reads offset {start} next",
            why="Only a message that bronze has not passed can be skipped",
            fix=f"Give an offset from {start} on. If bronze is not stopped at a message, there is nothing "
            "to skip: run `sessionlake run bronze`",
        )
    if decision.last >= end:
        raise UsageError(
            f"bronze skip: {name}: Kafka has no message at offset {decision.last}; its last one is at {end - 1}",
            fix=f"Give an offset up to {end - 1}",
        )
    return start


def _commit_messages_before_skip(
    spark: SparkSession,
    lake: Lake,
    topic_register: TopicRegister,
    earlier: OffsetInterval,
    decision: SkipDecision,
    txn: Txn,
) -> int:
    """Commits the messages before the skipped ones, and records the skipped offsets.

    Returns the number of messages committed.

    Args:
        topic_register: The topics that bronze reads.
        earlier: The offsets to commit before the skipped ones, as `[start, end)`.
        decision: The operator's decision.
        txn: The transaction of the messages.

    Raises:
        UsageError: One of these messages cannot be read either.
    """
    started = datetime.now(UTC)
    ranges: tuple[OffsetRange, ...] = ()
    if earlier[0] < earlier[1]:
        try:
            _commit_kafka_messages(spark, lake, topic_register, {decision.topic_partition: earlier}, txn)
        except Exception as error:
            if not is_about_unreadable_message(error):
                raise
            raise UsageError(
                f"bronze skip: topic {decision.topic}, partition {decision.partition}: another message that cannot be "
                f"read is before this one, between offsets {earlier[0]} and {earlier[1] - 1}",
                why="Bronze would stop there again",
                fix="Run `sessionlake run bronze --once`, whose error names that message. Skip it first",
            ) from error
        ranges = read_stored_ranges_of_batch(spark, lake, {decision.topic_partition: earlier})
    # The batch's own transaction may have recorded gaps already, so the decision needs another id.
    of_decision = Txn(f"{txn.app_id}:skipped", txn.version)
    skipped = {decision.topic_partition: [decision.skipped_offsets]}
    record_absent_offsets(
        spark, lake, skipped, of_decision, reason=AbsentOffsetReason.SKIPPED, who=decision.who, why=decision.why
    )
    entry = build_bronze_ledger_entry(lake.settings, txn, ranges, lake.latest_version(spark, MESSAGES), started)
    Ledger(lake).write_entry(spark, replace(entry, decisions=(decision.ledger_record,)))
    topic_register.remember_read_offsets([OffsetRange(*decision.topic_partition, earlier[0], decision.last, 0)])
    return entry.messages


def _commit_kafka_messages(
    spark: SparkSession, lake: Lake, topic_register: TopicRegister, planned: PlannedOffsets, txn: Txn
) -> None:
    """Reads messages of one topic-partition from Kafka, and commits them in the same way as a batch of the stream.

    Args:
        planned: The topic-partition, and its range of offsets in `bronze.messages`, as `[first, end)`.
    """
    settings, shifts = lake.settings, topic_register.offset_shifts
    ((place, (first, end)),) = planned.items()
    shift = shifts.get(place[0], 0)
    read = read_kafka_messages(spark, settings, {place: (first - shift, end - shift)}, fail_on_loss=True)
    # A single file, because silver may read the files of a commit in any order.
    rows = erase_forgotten_messages(
        convert_to_bronze_columns(read, shifts), read_erasure_receipts(lake.reader(spark))
    ).coalesce(1)
    with lake.storage.stage_rows(spark, MESSAGES, rows) as staged:
        topic_register.record_topics_of_batch([place[0]])
        if staged.count_rows() != end - first and not settings.kafka.allow_offset_gaps:
            record_transaction_gaps(spark, lake, planned, staged.read_columns(*OFFSET_COLUMNS), shifts, txn)
        commit_staged_rows(lake, MESSAGES, staged, txn)
