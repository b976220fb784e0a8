"""`sessionlake bronze skip`: has bronze leave out a message that Spark cannot deliver, by an operator's decision.

Spark's stream cannot leave an offset out of a batch. So bronze's query ends here as in `recover bronze`: what lies
before the message is read in batch and committed, the message is recorded in `ops.absent_offsets`, and a new generation
of the checkpoint begins behind it. Killed at any point, the command can be run again.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sessionlake.bronze.compare import OFFSET
from sessionlake.bronze.gaps import explain_gaps
from sessionlake.bronze.job import LAYER, Planned, bronze_ledger_entry, stored_ranges, to_bronze_columns
from sessionlake.bronze.reading import read_kafka_messages
from sessionlake.bronze.topic_book import TopicBook
from sessionlake.bronze.unreadable import is_unreadable
from sessionlake.delta.commit import stage_append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, MESSAGES, TOPICS
from sessionlake.delta.storage.faults import fault_point
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.absent import Reason, Run, record_absent
from sessionlake.ledger.entries import Ledger, OffsetRange
from sessionlake.ledger.erasures import erase_forgotten, read_receipts
from sessionlake.operations.recover.bronze import begin_generation, end_query
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import Generations
from sessionlake.streaming.manifest import note_going_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@dataclass(frozen=True)
class Skipped:
    """A decision to leave messages out.

    Attributes:
        first: offset in `bronze.messages`.
        last: the same, included.
    """

    topic: str
    partition: int
    first: int
    last: int
    who: str
    why: str

    @property
    def place(self) -> TopicPartition:
        """Its topic-partition."""
        return self.topic, self.partition

    @property
    def taken(self) -> dict[str, object]:
        """As the ledger has it; the message's session is not known."""
        decision = "skip" if self.first == self.last else f"skip to {self.last}"
        return {"topic": self.topic, "session_id": "", "offset": self.first, "decision": decision}

    @property
    def run(self) -> Run:
        """The offsets that no message is going to have."""
        return self.first, self.last + 1


def skip(spark: SparkSession, settings: Settings, decided: Skipped) -> int:
    """Commits the messages before those that are left out, and has bronze go on behind them.

    Bronze must be claimed, as for `recover`.

    Returns:
        how many messages were committed.

    Raises:
        UsageError: bronze has passed the offsets, Kafka does not hold them, or another message comes before them.
        LakeError: there is no bronze, or it cannot be read.
    """
    lake = Lake(settings)
    if not lake.exists(spark, MESSAGES):
        raise LakeError(f"there is no bronze in {settings.place}: `sessionlake run bronze` begins one")
    lake.ensure(spark, [MESSAGES, LEDGER, TOPICS])
    generations = Generations(settings.checkpoint(LAYER), LAYER)
    with closing(TopicBook(spark, lake, settings)) as book:
        book.look()
        _require_ahead(book, decided)  # before anything is changed
        app_id, number, _ = end_query(spark, lake, settings)
        book.look()  # at what is booked by now
        start = _require_ahead(book, decided)
        txn = Txn(app_id, number + 1)
        messages = _commit(spark, lake, book, (start, decided.first), decided, txn)
        fault_point("after:bronze.skipped")
        begin_generation(settings, generations, number + 2, app_id)
    note_going_on(settings, LAYER)
    return messages


def _require_ahead(book: TopicBook, decided: Skipped) -> int:
    """The offset that bronze is to read next in the topic-partition."""
    place, shift = decided.place, book.shifts.get(decided.topic, 0)
    told = f"topic {decided.topic}, partition {decided.partition}"
    positions = book.positions()
    if place not in positions:
        raise UsageError(f"{told}: bronze does not read it; `sessionlake status` and ops.topics have what it reads")
    start, end = positions[place] + shift, book.kafka_ends()[place] + shift
    if decided.first < start:
        raise UsageError(f"{told}: bronze has passed offset {decided.first} and goes on at {start}: nothing to skip")
    if decided.last >= end:
        raise UsageError(f"{told}: Kafka has no message at offset {decided.last}: its last one is {end - 1}")
    return start


def _commit(spark: SparkSession, lake: Lake, book: TopicBook, before: Run, decided: Skipped, txn: Txn) -> int:
    started = datetime.now(UTC)
    ranges: tuple[OffsetRange, ...] = ()
    if before[0] < before[1]:
        try:
            _commit_messages(spark, lake, book, {decided.place: before}, txn)
        except Exception as error:
            if not is_unreadable(error):
                raise
            raise UsageError(
                f"topic {decided.topic}, partition {decided.partition}: a message between offsets {before[0]} and "
                f"{before[1] - 1} cannot be read either: `sessionlake run bronze --once` names it; skip it first"
            ) from error
        ranges = stored_ranges(spark, lake, {decided.place: before})
    of_decision = Txn(f"{txn.app_id}:skipped", txn.version)  # the batch's own may have recorded gaps before the message
    skipped = {decided.place: [decided.run]}
    record_absent(spark, lake, skipped, of_decision, reason=Reason.SKIPPED, who=decided.who, why=decided.why)
    entry = bronze_ledger_entry(lake.settings, txn, ranges, lake.latest_version(spark, MESSAGES), started)
    Ledger(lake).write(spark, replace(entry, decisions=(decided.taken,)))
    book.advance([OffsetRange(*decided.place, before[0], decided.last, 0)])
    return entry.messages


def _commit_messages(spark: SparkSession, lake: Lake, book: TopicBook, planned: Planned, txn: Txn) -> None:
    """Commits the messages of one topic-partition, as a batch of the stream would."""
    settings, shifts = lake.settings, book.shifts
    ((place, (first, end)),) = planned.items()
    shift = shifts.get(place[0], 0)
    read = read_kafka_messages(spark, settings, {place: (first - shift, end - shift)}, fail_on_loss=True)
    # One file: silver may read the files of a commit in any order.
    rows = erase_forgotten(to_bronze_columns(read, shifts), read_receipts(lake.reader(spark))).coalesce(1)
    with stage_append(spark, lake, MESSAGES, rows, txn) as written:
        book.admit([place[0]])
        if written.count() != end - first and not settings.kafka.allow_offset_gaps:
            explain_gaps(spark, lake, planned, written.columns(*OFFSET), shifts, txn)
