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
    KafkaTopic,
    TopicAbsenceCounts,
    TopicsTableUpdate,
    decide_topic_update,
    has_other_topic_id,
    update_topic_after_read,
)
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, TOPICS, TOPICS_APP
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, TopicChangedError, UnknownTopicError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.absent import NO_END, find_offset_after_intervals, read_absent_offset_intervals
from sessionlake.ledger.entries import OffsetRange, TableOutput
from sessionlake.ledger.progress import read_layer_offsets
from sessionlake.ledger.topics import (
    PartitionOffsets,
    TopicGeneration,
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
    """Keeps the rows of `ops.topics` in memory, compares them with Kafka, and writes changes.

    Safe for several threads.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._kafka = settings.kafka
        self._admin = KafkaAdmin(spark, settings)
        self._matches = re.compile(settings.kafka.topic_pattern).fullmatch
        self._open = True
        self._lock = threading.RLock()
        self._token, self._writes = lake.storage.get_fencing_token(BRONZE), count()
        self._rows = {(row.topic, row.generation): row for row in read_topics(spark, lake)}
        self._written = dict(self._rows)
        self._saved_at = self._looked_at = time.monotonic()
        self._is_version_recorded = False
        self._excluded: frozenset[str] = frozenset()
        self._refresh = settings.bronze.topic_refresh.total_seconds()
        self._absences = TopicAbsenceCounts()

    @property
    def topics(self) -> dict[str, TopicGeneration]:
        """The last generation of every topic in `ops.topics`, by name."""
        return select_latest_generations(self._rows.values())

    def list_topics_to_exclude(self) -> frozenset[str]:
        """Returns the names of topics to which bronze's query must not subscribe if it starts now.

        The names are remembered, so that `needs_new_subscription` notices when the running query must read one of them.
        """
        self._excluded = frozenset(name for name, row in self.topics.items() if row.state not in SUBSCRIBED)
        return self._excluded

    @property
    def offset_shifts(self) -> dict[str, int]:
        """Bronze's offset minus Kafka's, by topic name. Topics where it is 0 are left out."""
        return {name: row.offset_shift for name, row in self.topics.items() if row.offset_shift}

    def list_next_offsets(self) -> dict[TopicPartition, int]:
        """Returns the next Kafka offset to read, for each topic-partition of the topics that bronze subscribes to."""
        return {place: part.next_offset - shift for place, part, shift in self._list_subscribed_partitions()}

    def read_kafka_ends(self) -> dict[TopicPartition, int]:
        """Returns one past the last readable offset in Kafka, for each topic-partition of subscribed topics.

        Raises:
            BrokerError: Kafka does not answer, or one of the topics is gone.
        """
        return self._admin.read_last_stable_offsets(place for place, _, _ in self._list_subscribed_partitions())

    def list_bronze_end_offsets(self) -> dict[TopicPartition, int]:
        """Returns one past the last offset in bronze, for each topic-partition that has messages there.

        The messages may be of an earlier topic with the same name.
        """
        ends: dict[TopicPartition, int] = {}
        with self._lock:
            for row in self._rows.values():
                for part in (part for part in row.partitions if part.next_offset > part.first_offset):
                    place = row.topic, part.partition
                    ends[place] = max(part.next_offset, ends.get(place, 0))
        return ends

    def has_topic_seen_before(self, moment: datetime) -> bool:
        """Returns True if bronze first saw at least one topic before the moment."""
        return any(row.first_seen < moment for row in self._rows.values())

    def select_fully_read_partitions(self, topic_partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Returns the topic-partitions among `topic_partitions` of which bronze has read every message that Kafka has.

        Raises:
            BrokerError: Kafka does not answer, or one of the topics is gone.
        """
        known = self.topics
        lasting = [row for name, row in known.items() if row.state not in MAY_BE_ABSENT and self._matches(name)]
        read = {(row.topic, part.partition): part.next_offset for row in lasting for part in row.partitions}
        asked = [place for place in topic_partitions if place in read]  # without topic-partitions of deleted topics
        held = self._admin.read_first_and_end_offsets(asked) if asked else {}
        waiting = {place for place, (_, end) in held.items() if end + known[place[0]].offset_shift != read[place]}
        return {*topic_partitions} - waiting

    @property
    def is_kafka_unreachable(self) -> bool:
        """True if Kafka did not answer the last request."""
        return self._admin.away

    def raise_if_kafka_unreachable(self) -> None:
        """Checks that Kafka answers.

        Raises:
            BrokerError: Kafka does not answer.
            KafkaAccessError: Kafka refuses this client.
        """
        with self._lock:
            self._read_topic_ids()

    def update_topics_from_kafka(self) -> None:
        """Compares all topics with Kafka, applies `kafka.on_topic_change` to changed ones, and writes `ops.topics`.

        This takes several seconds if Kafka does not list a topic: it counts as deleted only after several checks.

        Raises:
            BrokerError: Kafka does not answer.
            DataLossError: `ops.topics` lacks a topic that the ledger has messages of.
            TopicChangedError: A topic was deleted, created again or cut, and the rule is `fail`.
        """
        with self._lock:
            self._update_offsets_from_ledger()
            decision = self._decide_topic_update()
            self._apply_topic_update(decision)
            self.save_topics()
        if decision.refusals:
            raise TopicChangedError(
                f"bronze: {'; '.join(decision.refusals)}",
                why="kafka.on_topic_change is fail, so bronze stops. No table was changed but ops.topics",
                fix="Set `kafka.on_topic_change` and run bronze again: `forget` keeps what was captured and stops "
                "reading the topic; `restart` keeps what was captured and reads what the topic has now from its "
                "beginning. Messages that were not read are lost either way",
            )

    def _decide_topic_update(self) -> TopicsTableUpdate:
        """Asks Kafka about all topics, and returns how the rows of `ops.topics` change.

        If a topic vanishes between two requests, asks again.
        """
        left = _MAX_LOOKS
        while True:
            ids = self._read_topic_ids()
            while self._absences.possibly_deleted_topics:
                time.sleep(_RECHECK_SECONDS)
                ids = self._read_topic_ids()
            try:
                return self._decide_update_of_topics(
                    {name for name in (*self.topics, *ids) if self._matches(name)}, ids
                )
            except UnknownTopicError:
                left -= 1
                if not left:
                    raise
                time.sleep(_RECHECK_SECONDS)

    def needs_new_subscription(self) -> bool:
        """Returns True if bronze's running query must be stopped, because it subscribes to the wrong topics.

        Otherwise records new and inactive topics. Asks Kafka at most once per `bronze.topic_refresh`, or once a second
        while a topic is missing.

        Raises:
            BrokerError: Kafka does not answer.
        """
        now = time.monotonic()
        if now - self._looked_at < (
            min(_RECHECK_SECONDS, self._refresh) if self._absences.possibly_deleted_topics else self._refresh
        ):
            return False
        self._looked_at = now
        with self._lock:
            ids, known = self._read_topic_ids(), self.topics
            mine = {name for name in ids if self._matches(name)}
            is_any_recreated = any(has_other_topic_id(known[name], ids[name]) for name in mine & known.keys())
            if self._absences.deleted_topics or is_any_recreated:
                # A restart needs this answer. Without it, the query keeps running.
                read_kafka_topics(self._admin, mine, ids)
                return True
            self._apply_topic_update(self._decide_update_of_topics(mine - known.keys(), ids))
            if now - self._saved_at < _IDLE_CHECK_SECONDS:
                return False
            decision = self._decide_update_of_topics(mine & self._find_topics_without_messages(), ids)
            if any(self._needs_restart_for_topic(row) for row in decision.rows):
                read_kafka_topics(self._admin, mine, ids)
                return True
            self._apply_topic_update(decision)
            self.save_topics()
        return False

    def record_topics_of_batch(self, topics: Iterable[str]) -> None:
        """Checks that Kafka's topics of a batch are still those in `ops.topics`, and records new ones.

        A topic's id must be stored before its first messages: only the id tells it from a later topic of that name.

        Args:
            topics: Names of the topics in the batch.

        Raises:
            BrokerError: Kafka does not answer, or does not list one of the topics.
            TopicChangedError: A topic was deleted and created again.
        """
        with self._lock:
            ids, known, asked = self._read_topic_ids(), self.topics, set(topics)
            for name in asked:
                if name not in ids:
                    raise BrokerError(
                        f"bronze: Kafka does not list topic {name}: it was just deleted, or is new", fix=_RUN_AGAIN
                    )
                if name not in known:
                    self._apply_topic_update(self._decide_update_of_topics([name], ids))
                elif has_other_topic_id(known[name], ids[name]):
                    raise TopicChangedError(
                        f"bronze: topic {name} was created again while bronze read it", fix=_RUN_AGAIN
                    )
            if asked - {name for name, _ in self._written}:
                self._write_topics()

    def take_topics_output_for_ledger(self) -> tuple[TableOutput, ...]:
        """Returns the version of `ops.topics` for the next ledger entry, as a tuple.

        The tuple is empty if the ledger has it.

        With these versions, bronze notices that the table was replaced by an older copy. With such a copy, messages of
        a topic that was created again would be read twice.
        """
        with self._lock:
            if self._is_version_recorded:
                return ()
            self._is_version_recorded = True
            return (TableOutput(TOPICS, self._lake.latest_version(self._spark, TOPICS), 0),)

    def remember_read_offsets(self, ranges: Iterable[OffsetRange]) -> None:
        """Remembers that bronze has read the offsets of a committed batch, including those without a message."""
        with self._lock:
            known, now = self.topics, datetime.now(UTC)
            for item in ranges:
                row = update_topic_after_read(known[item.topic], item.partition, item.first, item.last + 1, now)
                known[item.topic] = self._rows[row.topic, row.generation] = row

    def save_topics(self) -> None:
        """Writes `ops.topics` if a row has changed. If only `last_seen` has changed, writes once an hour."""
        with self._lock:
            self._saved_at = time.monotonic()
            if _round_last_seen_to_hour(self._rows) != _round_last_seen_to_hour(self._written):
                self._write_topics()

    def close(self) -> None:
        """Writes changes to `ops.topics` and disconnects from Kafka. A second call does nothing."""
        if self._open:
            self._open = False
            try:
                self.save_topics()
            finally:
                self._admin.close()

    def _write_topics(self) -> None:
        txn = Txn(TOPICS_APP, next(self._writes)).add_fencing_token(self._token) if self._token else None
        write_topics(self._spark, self._lake, self._rows.values(), txn)
        self._written, self._is_version_recorded = dict(self._rows), False

    def _list_subscribed_partitions(self) -> Iterator[tuple[TopicPartition, PartitionOffsets, int]]:
        """Yields a tuple for each topic-partition of the topics that bronze subscribes to.

        It has topic and partition, how far the partition was read, and bronze's offset minus Kafka's.
        """
        for row in self.topics.values():
            if row.state in SUBSCRIBED and self._matches(row.topic):
                for part in row.partitions:
                    yield (row.topic, part.partition), part, row.offset_shift

    def _read_topic_ids(self) -> dict[str, str | None]:
        """Returns the ids of Kafka's topics by name; None for a topic without an id.

        Also counts for each topic of bronze how often in a row Kafka has not listed it.

        Raises:
            BrokerError: Kafka does not answer.
        """
        try:
            ids = self._admin.read_topic_ids()
        except BrokerError:
            self._absences = TopicAbsenceCounts()  # the broker that answers next may have just started
            raise
        known = {name for name, row in self.topics.items() if row.state not in MAY_BE_ABSENT and self._matches(name)}
        self._absences = self._absences.count_topics_missing_in_check(known - ids.keys(), time.monotonic())
        return ids

    def _find_topics_without_messages(self) -> set[str]:
        """Returns the names of topics that have had no message for `kafka.inactive_after`."""
        since = datetime.now(UTC) - self._kafka.inactive_after
        rows = self.topics.values()
        states = {TopicState.ACTIVE, TopicState.INACTIVE}
        return {row.topic for row in rows if row.state in states and (row.last_message_at or row.first_seen) <= since}

    def _needs_restart_for_topic(self, row: TopicGeneration) -> bool:
        """Returns True if the running query lacks a topic that it must read, or reads one that it must not.

        Args:
            row: The changed row of `ops.topics`.
        """
        return row.topic in self._excluded if row.state in SUBSCRIBED else row.state is not TopicState.INACTIVE

    def _decide_update_of_topics(self, names: Iterable[str], ids: dict[str, str | None]) -> TopicsTableUpdate:
        looked, kafka = set(names), self._kafka
        return decide_topic_update(
            {name: row for name, row in self.topics.items() if name in looked},
            read_kafka_topics(self._admin, looked & ids.keys(), ids),
            rule=kafka.on_topic_change,
            now=datetime.now(UTC),
            inactive_after=kafka.inactive_after,
        )

    def _apply_topic_update(self, decision: TopicsTableUpdate) -> None:
        self._rows |= {(row.topic, row.generation): row for row in decision.rows}

    def _update_offsets_from_ledger(self) -> None:
        """Updates how far bronze has read each topic-partition, from the ledger and recorded gaps in offsets."""
        known, now, reader = self.topics, datetime.now(UTC), self._lake.reader(self._spark)
        taken = read_layer_offsets(reader, BRONZE)
        refuse_unknown_topics(known, (span.topic for span in taken))
        after = {(span.topic, span.partition): (span.last + 1, NO_END) for span in taken}
        absent = read_absent_offset_intervals(reader, after)
        for span in taken:
            end = find_offset_after_intervals(absent.get((span.topic, span.partition), ()), span.last + 1)
            row = update_topic_after_read(known[span.topic], span.partition, span.first, end, now)
            known[span.topic] = self._rows[row.topic, row.generation] = row


def _round_last_seen_to_hour(rows: Mapping[tuple[str, int], TopicGeneration]) -> list[TopicGeneration]:
    """Returns the rows of `ops.topics` with `last_seen` rounded down to the full hour."""
    return [replace(row, last_seen=row.last_seen.replace(minute=0, second=0, microsecond=0)) for row in rows.values()]


def read_kafka_topics(
    admin: KafkaAdmin, topic_names: Iterable[str], ids: Mapping[str, str | None], *, only_stable: bool = False
) -> dict[str, KafkaTopic]:
    """Asks Kafka for the partitions and offsets of topics.

    Args:
        admin: The connection to Kafka.
        topic_names: The topics to ask for.
        ids: Kafka's id of each of these topics, by name; None for a topic without an id.
        only_stable: If true, a partition ends before the first message of an open transaction.

    Raises:
        BrokerError: Kafka does not answer, or one of the topics is gone.
    """
    asked = sorted(topic_names)
    spans: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in asked}
    found = admin.read_first_and_end_offsets(admin.list_partitions(asked), only_stable=only_stable) if asked else {}
    for (topic, number), span in found.items():
        spans[topic][number] = span
    return {name: KafkaTopic(ids[name], offsets) for name, offsets in spans.items()}
