"""Keeps `ops.topics` up to date: compares it with Kafka, applies `kafka.on_topic_change`, and checks every batch.

The decisions themselves are in `bronze.topic_rules`.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from sessionlake.bronze.topic_rules import (
    MAY_BE_ABSENT,
    SUBSCRIBED,
    SeenTopic,
    TopicAbsences,
    TopicUpdate,
    decide_update,
)
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, TOPICS, TOPICS_APP
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, TopicChangedError, UnknownTopicError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.absent import NO_END, find_offset_after_runs, read_absent_runs
from sessionlake.ledger.entries import OffsetRange, TableOutput
from sessionlake.ledger.progress import read_layer_offsets
from sessionlake.ledger.topics import (
    PartitionOffsets,
    Topic,
    TopicState,
    read_topics,
    select_latest_generations,
    write_topics,
)
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming.losses import refuse_unknown_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Time between two checks of topics that are not subscribed to, and between two writes of the next offsets of topics.
_IDLE_CHECK_SECONDS = 60.0
# Time between two checks while a topic is missing that may come back.
_RECHECK_SECONDS = 1.0
# A topic may vanish this many times in a row while Kafka is asked about it.
_RUN_AGAIN = "Run `sessionlake run bronze` again, if it has not started again by itself"
_MAX_LOOKS = 5


class TopicRegister:
    """The topics of `ops.topics` in memory: their state, ids and offsets. Several threads may use it."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._kafka = settings.kafka
        self._admin = KafkaAdmin(spark, settings)
        self._matches = re.compile(settings.kafka.topic_pattern).fullmatch
        self._open = True
        self._lock = threading.RLock()
        self._token, self._writes = lake.storage.lease_token(BRONZE), count()
        self._rows = {(row.topic, row.generation): row for row in read_topics(spark, lake)}
        self._written = dict(self._rows)
        self._saved_at = self._looked_at = time.monotonic()
        self._is_version_recorded = False
        self._excluded: frozenset[str] = frozenset()
        self._refresh = settings.bronze.topic_refresh.total_seconds()
        self._absences = TopicAbsences()

    @property
    def topics(self) -> dict[str, Topic]:
        """The last generation of every topic in `ops.topics`, by name."""
        return select_latest_generations(self._rows.values())

    def list_topics_to_exclude(self) -> frozenset[str]:
        """Returns the names of topics to which a query that starts now must not subscribe, and remembers them."""
        self._excluded = frozenset(name for name, row in self.topics.items() if row.state not in SUBSCRIBED)
        return self._excluded

    @property
    def offset_shifts(self) -> dict[str, int]:
        """Bronze's offset minus Kafka's for the topics where it is not 0, by topic name."""
        return {name: row.offset_shift for name, row in self.topics.items() if row.offset_shift}

    def list_next_offsets(self) -> dict[TopicPartition, int]:
        """Returns the next Kafka offset to read, for each topic-partition of subscribed topics."""
        return {place: part.next_offset - shift for place, part, shift in self._list_subscribed_partitions()}

    def read_kafka_ends(self) -> dict[TopicPartition, int]:
        """Returns one past the last readable Kafka offset, for each topic-partition of subscribed topics.

        Raises:
            BrokerError: Kafka does not answer, or one of the topics is gone.
        """
        return self._admin.read_last_stable_offsets(place for place, _, _ in self._list_subscribed_partitions())

    def list_ends(self) -> dict[TopicPartition, int]:
        """Returns one past bronze's last offset, for each topic-partition with messages in bronze.

        The messages may be of an earlier topic of the same name.
        """
        ends: dict[TopicPartition, int] = {}
        with self._lock:
            for row in self._rows.values():
                for part in (part for part in row.partitions if part.next_offset > part.first_offset):
                    place = row.topic, part.partition
                    ends[place] = max(part.next_offset, ends.get(place, 0))
        return ends

    def has_topic_seen_before(self, moment: datetime) -> bool:
        """Returns True if a topic was first seen before the moment."""
        return any(row.first_seen < moment for row in self._rows.values())

    def select_fully_read(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Returns the topic-partitions among `places` of which bronze has read every message that Kafka has.

        Raises:
            BrokerError: Kafka does not answer, or one of the topics is gone.
        """
        known = self.topics
        lasting = [row for name, row in known.items() if row.state not in MAY_BE_ABSENT and self._matches(name)]
        read = {(row.topic, part.partition): part.next_offset for row in lasting for part in row.partitions}
        asked = [place for place in places if place in read]  # without topic-partitions of deleted topics
        held = self._admin.read_offsets(asked) if asked else {}
        waiting = {place for place, (_, end) in held.items() if end + known[place[0]].offset_shift != read[place]}
        return {*places} - waiting

    @property
    def is_kafka_unreachable(self) -> bool:
        """True if Kafka did not answer the last request."""
        return self._admin.away

    def require_answer(self) -> None:
        """Checks that Kafka answers.

        Raises:
            BrokerError: It does not answer.
            AccessError: It refuses this client.
        """
        with self._lock:
            self._read_topic_ids()

    def check_topics(self) -> None:
        """Compares all topics with Kafka, applies `kafka.on_topic_change`, and writes `ops.topics`.

        This takes several seconds if a topic is missing, because only a steady absence counts as a deletion.

        Raises:
            BrokerError: Kafka does not answer.
            LossError: `ops.topics` lacks a topic that the ledger has messages of.
            TopicChangedError: A topic was deleted, created again or cut, and the rule is `fail`.
        """
        with self._lock:
            self._apply_ledger_offsets()
            decision = self._decide_update()
            self._apply_update(decision)
            self.save_topics()
        if decision.refusals:
            raise TopicChangedError(
                f"bronze: {'; '.join(decision.refusals)}",
                why="kafka.on_topic_change is fail, so bronze stops. No table was changed but ops.topics",
                fix="Set `kafka.on_topic_change` and run bronze again: `forget` keeps what was captured and stops "
                "reading the topic; `restart` keeps what was captured and reads what the topic has now from its "
                "beginning. Messages that were not read are lost either way",
            )

    def _decide_update(self) -> TopicUpdate:
        """Asks Kafka about all topics and decides about changes. Asks again if a topic vanishes meanwhile."""
        left = _MAX_LOOKS
        while True:
            ids = self._read_topic_ids()
            while self._absences.unconfirmed_topics:
                time.sleep(_RECHECK_SECONDS)
                ids = self._read_topic_ids()
            try:
                return self._decide_for_topics({name for name in (*self.topics, *ids) if self._matches(name)}, ids)
            except UnknownTopicError:
                left -= 1
                if not left:
                    raise
                time.sleep(_RECHECK_SECONDS)

    def needs_restart(self) -> bool:
        """Returns True if the running query must be stopped, because its subscription no longer fits Kafka's topics.

        Otherwise it records new and inactive topics. It asks Kafka at most once per `bronze.topic_refresh`, or once a
        second while a topic is missing.

        Raises:
            BrokerError: Kafka does not answer.
        """
        now = time.monotonic()
        if now - self._looked_at < (
            min(_RECHECK_SECONDS, self._refresh) if self._absences.unconfirmed_topics else self._refresh
        ):
            return False
        self._looked_at = now
        with self._lock:
            ids, known = self._read_topic_ids(), self.topics
            mine = {name for name in ids if self._matches(name)}
            is_any_recreated = any(_has_other_id(known[name], ids[name]) for name in mine & known.keys())
            if self._absences.deleted_topics or is_any_recreated:
                # A restart needs this answer. Without it, the query keeps running.
                read_seen_topics(self._admin, mine, ids)
                return True
            self._apply_update(self._decide_for_topics(mine - known.keys(), ids))
            if now - self._saved_at < _IDLE_CHECK_SECONDS:
                return False
            decision = self._decide_for_topics(mine & self._find_activity_candidates(), ids)
            if any(self._is_restart_required(row) for row in decision.rows):
                read_seen_topics(self._admin, mine, ids)
                return True
            self._apply_update(decision)
            self.save_topics()
        return False

    def admit_topics(self, topics: Iterable[str]) -> None:
        """Checks that a batch's topics are still the topics that bronze knows, and records new ones.

        A topic's id must be stored before its first messages: only the id tells it from a later topic of that name.

        Raises:
            BrokerError: Kafka does not answer, or does not list one of the topics.
            TopicChangedError: A topic was deleted and created again.
        """
        with self._lock:
            ids, known, asked = self._read_topic_ids(), self.topics, set(topics)
            for name in asked:
                if name not in ids:
                    raise BrokerError(
                        f"bronze: Kafka does not list topic {name}, whose messages bronze was about to read: the "
                        "topic was just deleted, or is new",
                        why="Nothing of this batch was committed",
                        fix=_RUN_AGAIN,
                    )
                if name not in known:
                    self._apply_update(self._decide_for_topics([name], ids))
                elif _has_other_id(known[name], ids[name]):
                    raise TopicChangedError(
                        f"bronze: topic {name} was deleted and created again while bronze read it",
                        why="Nothing of this batch was committed",
                        fix=_RUN_AGAIN,
                    )
            if asked - {name for name, _ in self._written}:
                self._write_topics()

    def take_unrecorded_version(self) -> tuple[TableOutput, ...]:
        """Returns the version of `ops.topics`, for the next ledger entry; empty if the ledger has this version already.

        By these versions bronze notices that the table was replaced by an older copy. With such a copy, messages of a
        topic that was created again would be read twice.
        """
        with self._lock:
            if self._is_version_recorded:
                return ()
            self._is_version_recorded = True
            return (TableOutput(TOPICS, self._lake.latest_version(self._spark, TOPICS), 0),)

    def note_read_offsets(self, ranges: Iterable[OffsetRange]) -> None:
        """Moves the next offsets past a batch that is committed.

        Args:
            ranges: The offsets of the batch, including those without a message.
        """
        with self._lock:
            known, now = self.topics, datetime.now(UTC)
            for item in ranges:
                row = _advance_topic(known[item.topic], item.partition, item.first, item.last + 1, now)
                known[item.topic] = self._rows[row.topic, row.generation] = row

    def save_topics(self) -> None:
        """Writes `ops.topics` if it has changed. A new `last_seen` alone is written once an hour."""
        with self._lock:
            self._saved_at = time.monotonic()
            if _round_last_seen_to_hour(self._rows) != _round_last_seen_to_hour(self._written):
                self._write_topics()

    def close(self) -> None:
        """Writes pending changes and disconnects from Kafka. A second call does nothing."""
        if self._open:
            self._open = False
            try:
                self.save_topics()
            finally:
                self._admin.close()

    def _write_topics(self) -> None:
        txn = Txn(TOPICS_APP, next(self._writes)).fenced_by(self._token) if self._token else None
        write_topics(self._spark, self._lake, self._rows.values(), txn)
        self._written, self._is_version_recorded = dict(self._rows), False

    def _list_subscribed_partitions(self) -> Iterator[tuple[TopicPartition, PartitionOffsets, int]]:
        """Yields each topic-partition of subscribed topics with its offsets and its offset shift."""
        for row in self.topics.values():
            if row.state in SUBSCRIBED and self._matches(row.topic):
                for part in row.partitions:
                    yield (row.topic, part.partition), part, row.offset_shift

    def _read_topic_ids(self) -> dict[str, str | None]:
        """Returns the ids of Kafka's topics by name, and records which of bronze's topics Kafka does not list."""
        try:
            ids = self._admin.read_topic_ids()
        except BrokerError:
            self._absences = TopicAbsences()  # the broker that answers next may have just started
            raise
        known = {name for name, row in self.topics.items() if row.state not in MAY_BE_ABSENT and self._matches(name)}
        self._absences = self._absences.count_look(known - ids.keys(), time.monotonic())
        return ids

    def _find_activity_candidates(self) -> set[str]:
        """Returns the names of topics without messages for `kafka.inactive_after`, whether inactive already or not."""
        since = datetime.now(UTC) - self._kafka.inactive_after
        rows = self.topics.values()
        states = {TopicState.ACTIVE, TopicState.INACTIVE}
        return {row.topic for row in rows if row.state in states and (row.last_message_at or row.first_seen) <= since}

    def _is_restart_required(self, row: Topic) -> bool:
        """Returns True if the running query lacks a topic that it must read, or reads one that it must not."""
        return row.topic in self._excluded if row.state in SUBSCRIBED else row.state is not TopicState.INACTIVE

    def _decide_for_topics(self, names: Iterable[str], ids: dict[str, str | None]) -> TopicUpdate:
        looked, kafka = set(names), self._kafka
        return decide_update(
            {name: row for name, row in self.topics.items() if name in looked},
            read_seen_topics(self._admin, looked & ids.keys(), ids),
            rule=kafka.on_topic_change,
            now=datetime.now(UTC),
            inactive_after=kafka.inactive_after,
        )

    def _apply_update(self, decision: TopicUpdate) -> None:
        self._rows |= {(row.topic, row.generation): row for row in decision.rows}

    def _apply_ledger_offsets(self) -> None:
        """Moves each `next_offset` past the offsets in the ledger, and past recorded offsets without a message."""
        known, now = self.topics, datetime.now(UTC)
        reader = self._lake.reader(self._spark)
        taken = read_layer_offsets(reader, BRONZE)
        refuse_unknown_topics(known, (span.topic for span in taken))
        absent = read_absent_runs(reader, {(span.topic, span.partition): (span.last + 1, NO_END) for span in taken})
        for span in taken:
            end = find_offset_after_runs(absent.get((span.topic, span.partition), ()), span.last + 1)
            row = _advance_topic(known[span.topic], span.partition, span.first, end, now)
            known[span.topic] = self._rows[row.topic, row.generation] = row


def _round_last_seen_to_hour(rows: Mapping[tuple[str, int], Topic]) -> list[Topic]:
    """Returns the rows with `last_seen` cut to the full hour."""
    return [replace(row, last_seen=row.last_seen.replace(minute=0, second=0, microsecond=0)) for row in rows.values()]


def read_seen_topics(
    admin: KafkaAdmin, topic_names: Iterable[str], ids: Mapping[str, str | None], *, committed: bool = False
) -> dict[str, SeenTopic]:
    """Asks Kafka for the partitions and offsets of topics.

    Args:
        admin: The connection to Kafka.
        topic_names: The topics to ask for.
        ids: Ids of at least these topics, by name.
        committed: If true, a partition ends before the first message of an open transaction.

    Raises:
        BrokerError: Kafka does not answer, or one of the topics is gone.
    """
    asked = sorted(topic_names)
    spans: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in asked}
    if asked:
        for (topic, number), span in admin.read_offsets(admin.list_partitions(asked), committed=committed).items():
            spans[topic][number] = span
    return {name: SeenTopic(ids[name], found) for name, found in spans.items()}


def _advance_topic(row: Topic, partition: int, first: int, end: int, now: datetime) -> Topic:
    """Returns the topic's row after offsets `[first, end)` of a partition were read.

    Offsets of earlier generations are ignored.
    """
    parts = {part.partition: part for part in row.partitions}
    part = parts.get(partition)
    if part is None:
        if end <= row.offset_shift:
            return row
        begin = max(first, row.offset_shift)
        part = PartitionOffsets(partition, begin, begin, begin)
    if end <= part.next_offset:
        return row
    begun = part.first_offset if part.next_offset > part.first_offset else max(first, part.first_offset)
    parts[partition] = PartitionOffsets(partition, begun, end, max(end, part.end_offset))
    state = TopicState.ACTIVE if row.state is TopicState.INACTIVE else row.state
    at = max(now, row.last_message_at or now)
    held = tuple(parts[number] for number in sorted(parts))
    return replace(row, state=state, partitions=held, last_message_at=at, last_seen=max(now, row.last_seen))


def _has_other_id(row: Topic, present_id: str | None) -> bool:
    """Returns True if Kafka's topic with this id is not the row's topic, or if the row's topic had been deleted."""
    if row.state is TopicState.DELETED:
        return True
    return row.topic_id is not None and present_id is not None and row.topic_id != present_id
