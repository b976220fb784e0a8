"""Keeps `ops.topics`: looks at Kafka, has the rule decide, and guards every batch against a topic made anew."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

from sessionlake.bronze.topic_rules import GONE, READ, Absences, Seen, TopicUpdate, decide
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, TOPICS, TOPICS_APP
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import BrokerError, TopicChangedError, UnknownTopicError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.absent import NO_END, recorded_runs, skip_runs
from sessionlake.ledger.entries import OffsetRange, TableOutput
from sessionlake.ledger.progress import offset_spans
from sessionlake.ledger.topics import PartitionOffsets, Topic, TopicState, latest_generations, read_topics, write_topics
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming.losses import refuse_unknown_topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Between two looks at the ends of topics that are not subscribed to, and two notes of how far the others are.
_SLOW_SECONDS = 60.0
# Between two looks while a topic is missing that may yet be there again.
_SOON_SECONDS = 1.0
# So often in a row a topic may go while Kafka is asked about it.
_LOOKS = 5


class TopicBook:
    """What bronze knows of its topics. Batches and whoever watches the query may use it at the same time."""

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings) -> None:
        self._spark = spark
        self._lake = lake
        self._kafka = settings.kafka
        self._admin = KafkaAdmin(spark, settings)
        self._matches = re.compile(settings.kafka.topic_pattern).fullmatch
        self._open = True
        self._lock = threading.RLock()
        self._token, self._writes = lake.storage.token(BRONZE), count()
        self._rows = {(row.topic, row.generation): row for row in read_topics(spark, lake)}
        self._written = dict(self._rows)
        self._saved_at = self._looked_at = time.monotonic()
        self._is_noted = False
        self._pruned: frozenset[str] = frozenset()
        self._refresh = settings.bronze.topic_refresh.total_seconds()
        self._absences = Absences()

    @property
    def topics(self) -> dict[str, Topic]:
        """The last generation of every topic."""
        return latest_generations(self._rows.values())

    def prune(self) -> frozenset[str]:
        """The topics that a query which starts now is not to subscribe to."""
        self._pruned = frozenset(name for name, row in self.topics.items() if row.state not in READ)
        return self._pruned

    @property
    def shifts(self) -> dict[str, int]:
        """What to add to Kafka's offsets, of topics where it is not 0."""
        return {name: row.offset_shift for name, row in self.topics.items() if row.offset_shift}

    def positions(self) -> dict[TopicPartition, int]:
        """Kafka offsets from which on the subscribed topics are to be read."""
        return {place: part.next_offset - shift for place, part, shift in self._subscribed()}

    def kafka_ends(self) -> dict[TopicPartition, int]:
        """One past the last Kafka offset that may be read now of each of these topic-partitions.

        Raises:
            BrokerError: Kafka does not answer, or has one of them no longer.
        """
        return self._admin.committed_ends(place for place, _, _ in self._subscribed())

    def ends(self) -> dict[TopicPartition, int]:
        """One past the last offset that bronze has, of topic-partitions that it has any message of.

        That may be one of a topic that was there before the present one of its name.
        """
        found: dict[TopicPartition, int] = {}
        with self._lock:
            for row in self._rows.values():
                for part in (part for part in row.partitions if part.next_offset > part.first_offset):
                    place = row.topic, part.partition
                    found[place] = max(part.next_offset, found.get(place, 0))
        return found

    def has_older(self, moment: datetime) -> bool:
        """Whether a topic was seen before a moment."""
        return any(row.first_seen < moment for row in self._rows.values())

    def read_whole(self, places: Collection[TopicPartition]) -> set[TopicPartition]:
        """Those of some topic-partitions of which Kafka has no message that bronze may yet read.

        Raises:
            BrokerError: Kafka does not answer, or has one of them no longer.
        """
        known = self.topics
        lasting = [row for name, row in known.items() if row.state not in GONE and self._matches(name)]
        read = {(row.topic, part.partition): part.next_offset for row in lasting for part in row.partitions}
        asked = [place for place in places if place in read]  # others are of a topic that was there before
        held = self._admin.offsets(asked) if asked else {}
        waiting = {place for place, (_, end) in held.items() if end + known[place[0]].offset_shift != read[place]}
        return {*places} - waiting

    @property
    def away(self) -> bool:
        """Whether Kafka did not answer the last question."""
        return self._admin.away

    def require_answer(self) -> None:
        """Returns if Kafka answers.

        Raises:
            BrokerError: it does not.
            AccessError: it refuses this client.
        """
        with self._lock:
            self._ids()

    def look(self) -> None:
        """Compares everything with Kafka and writes down what came of it, by the configured rule.

        Takes seconds if a topic is missing: see `Absences`.

        Raises:
            BrokerError: Kafka does not answer.
            LossError: the table lacks a topic that the ledger has messages of.
            TopicChangedError: the rule is `fail`, and a topic was deleted, created anew or cut.
        """
        with self._lock:
            self._take_in_ledger()
            decision = self._decision()
            self._take_over(decision)
            self.save()
        if decision.refusals:
            raise TopicChangedError(_refusal(decision.refusals))

    def _decision(self) -> TopicUpdate:
        """About all topics; one that goes while Kafka is asked about it is no reason to end."""
        left = _LOOKS
        while True:
            ids = self._ids()
            while self._absences.doubtful:
                time.sleep(_SOON_SECONDS)
                ids = self._ids()
            try:
                return self._decide({name for name in (*self.topics, *ids) if self._matches(name)}, ids)
            except UnknownTopicError:
                left -= 1
                if not left:
                    raise
                time.sleep(_SOON_SECONDS)

    def disturbed(self) -> bool:
        """Whether the running query's subscription no longer fits Kafka: then it is time to stop it and to `look`.

        Asks Kafka no more often than topics are to be noticed.

        Raises:
            BrokerError: it does not answer this, or what `look` asks.
        """
        now = time.monotonic()
        if now - self._looked_at < (min(_SOON_SECONDS, self._refresh) if self._absences.doubtful else self._refresh):
            return False
        self._looked_at = now
        with self._lock:
            ids, known = self._ids(), self.topics
            mine = {name for name in ids if self._matches(name)}
            if self._absences.deleted or any(_differs(known[name], ids[name]) for name in mine & known.keys()):
                seen_topics(self._admin, mine, ids)  # who stops the query asks this: without an answer it goes on
                return True
            self._take_over(self._decide(mine - known.keys(), ids))
            if now - self._saved_at < _SLOW_SECONDS:
                return False
            decision = self._decide(mine & self._quiet(), ids)
            if any(self._calls_for_a_start(row) for row in decision.rows):
                seen_topics(self._admin, mine, ids)
                return True
            self._take_over(decision)
            self.save()
        return False

    def admit(self, topics: Iterable[str]) -> None:
        """Returns if these topics are still the ones that they were when they were last looked at.

        A topic's first messages are committed only once its id is written down: it tells it from one made anew.

        Raises:
            BrokerError: Kafka does not answer, or does not list one.
            TopicChangedError: one is another topic of the same name.
        """
        with self._lock:
            ids, known, asked = self._ids(), self.topics, set(topics)
            for name in asked:
                if name not in ids:
                    raise BrokerError(
                        f"bronze: topic {name} was deleted while it was read, or Kafka does not list it yet"
                    )
                if name not in known:
                    self._take_over(self._decide([name], ids))
                elif _differs(known[name], ids[name]):
                    raise TopicChangedError(f"bronze: topic {name} was deleted and created anew while it was read")
            if asked - {name for name, _ in self._written}:
                self._write()

    def unnoted(self) -> tuple[TableOutput, ...]:
        """Which version the table is at, for the next entry, if the entries since it was written do not tell.

        So a copy of before is known as one: by it, messages of a topic made anew would be taken in a second time.
        """
        with self._lock:
            if self._is_noted:
                return ()
            self._is_noted = True
            return (TableOutput(TOPICS, self._lake.latest_version(self._spark, TOPICS), 0),)

    def advance(self, ranges: Iterable[OffsetRange]) -> None:
        """Takes note of a batch that is committed."""
        with self._lock:
            known, now = self.topics, datetime.now(UTC)
            for item in ranges:
                row = _advanced(known[item.topic], item.partition, item.first, item.last + 1, now)
                known[item.topic] = self._rows[row.topic, row.generation] = row

    def save(self) -> None:
        """Writes the table, if it is not as it should be; that a topic is still there, once an hour."""
        with self._lock:
            self._saved_at = time.monotonic()
            if _with_last_seen_to_the_hour(self._rows) != _with_last_seen_to_the_hour(self._written):
                self._write()

    def close(self) -> None:
        """Writes what is not written yet and leaves Kafka; closing again does nothing."""
        if self._open:
            self._open = False
            try:
                self.save()
            finally:
                self._admin.close()

    def _write(self) -> None:
        txn = Txn(TOPICS_APP, next(self._writes)).fenced_by(self._token) if self._token else None
        write_topics(self._spark, self._lake, self._rows.values(), txn)
        self._written, self._is_noted = dict(self._rows), False

    def _subscribed(self) -> Iterator[tuple[TopicPartition, PartitionOffsets, int]]:
        """Topic-partitions that are to be read, each with its offsets and their shift."""
        for row in self.topics.values():
            if row.state in READ and self._matches(row.topic):
                for part in row.partitions:
                    yield (row.topic, part.partition), part, row.offset_shift

    def _ids(self) -> dict[str, str | None]:
        """Kafka's topics and their ids; notes which of those that bronze knows are missing."""
        try:
            ids = self._admin.topic_ids()
        except BrokerError:
            self._absences = Absences()  # who answers next may have just started
            raise
        known = {name for name, row in self.topics.items() if row.state not in GONE and self._matches(name)}
        self._absences = self._absences.after(known - ids.keys(), time.monotonic())
        return ids

    def _quiet(self) -> set[str]:
        """Topics that may become inactive, or be so no longer."""
        since = datetime.now(UTC) - self._kafka.inactive_after
        rows = self.topics.values()
        states = {TopicState.ACTIVE, TopicState.INACTIVE}
        return {row.topic for row in rows if row.state in states and (row.last_message_at or row.first_seen) <= since}

    def _calls_for_a_start(self, row: Topic) -> bool:
        """Whether the running query must not go on without a topic, or with it."""
        return row.topic in self._pruned if row.state in READ else row.state is not TopicState.INACTIVE

    def _decide(self, names: Iterable[str], ids: dict[str, str | None]) -> TopicUpdate:
        looked, kafka = set(names), self._kafka
        return decide(
            {name: row for name, row in self.topics.items() if name in looked},
            seen_topics(self._admin, looked & ids.keys(), ids),
            rule=kafka.on_topic_change,
            now=datetime.now(UTC),
            inactive_after=kafka.inactive_after,
        )

    def _take_over(self, decision: TopicUpdate) -> None:
        self._rows |= {(row.topic, row.generation): row for row in decision.rows}

    def _take_in_ledger(self) -> None:
        """Brings `next_offset` to where the ledger is, and past offsets without a message."""
        known, now = self.topics, datetime.now(UTC)
        reader = self._lake.reader(self._spark)
        taken = offset_spans(reader, BRONZE)
        refuse_unknown_topics(known, (span.topic for span in taken))
        absent = recorded_runs(reader, {(span.topic, span.partition): (span.last + 1, NO_END) for span in taken})
        for span in taken:
            end = skip_runs(absent.get((span.topic, span.partition), ()), span.last + 1)
            row = _advanced(known[span.topic], span.partition, span.first, end, now)
            known[span.topic] = self._rows[row.topic, row.generation] = row


def _with_last_seen_to_the_hour(rows: Mapping[tuple[str, int], Topic]) -> list[Topic]:
    """The rows, with the hour in which each topic was last seen."""
    return [replace(row, last_seen=row.last_seen.replace(minute=0, second=0, microsecond=0)) for row in rows.values()]


def seen_topics(
    admin: KafkaAdmin, names: Iterable[str], ids: Mapping[str, str | None], *, committed: bool = False
) -> dict[str, Seen]:
    """What Kafka shows of topics that it has.

    Args:
        ids: the topics' own, by name.
        committed: whether a partition ends before the first message of an open transaction.

    Raises:
        BrokerError: it does not answer, or has one of them no longer.
    """
    asked = sorted(names)
    spans: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in asked}
    if asked:
        for (topic, number), span in admin.offsets(admin.partitions(asked), committed=committed).items():
            spans[topic][number] = span
    return {name: Seen(ids[name], found) for name, found in spans.items()}


def _advanced(row: Topic, partition: int, first: int, end: int, now: datetime) -> Topic:
    """The row after the offsets `[first, end)`; those before its generation are none of it."""
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


def _differs(row: Topic, there: str | None) -> bool:
    """Whether Kafka's topic of the name, which has this id, is another than the row's, or was deleted before."""
    if row.state is TopicState.DELETED:
        return True
    return row.topic_id is not None and there is not None and row.topic_id != there


def _refusal(reasons: tuple[str, ...]) -> str:
    return (
        f"bronze: {'; '.join(reasons)}. No table was changed but ops.topics. Decide what is to become of it and run "
        "again with kafka.on_topic_change: forget (what was captured stays, the topic is not read any more) or restart "
        "(what is there now is read from its beginning, behind what was captured); messages that were not read are lost"
    )
