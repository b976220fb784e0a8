"""Records silences in `bronze.messages`: a topic-partition had no message for long. They advance its stream time.

A silence is written only if Kafka has no message after those in bronze, and before any later message is written. It is
written twice: once when the sessions of the topic-partition have expired, and once when their state may be dropped.
The ledger says when a topic-partition's last message came.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pyarrow as pa

from sessionlake.bronze.kafka_times import build_valid_kafka_time_column
from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.delta.catalog.clocks import ClockReading
from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, MESSAGES, SILENCES_APP
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.offset_ranges import build_offsets_condition
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.progress import read_last_commits_since
from sessionlake.ledger.silences import drop_silences, read_silences
from sessionlake.protocol.silence import Silence, decode_silences, encode_silences
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_MS = timedelta(milliseconds=1)
# The longest time between two checks.
_LOOK_SECONDS = 60.0
# The highest Kafka timestamp of a topic-partition is looked up only among its last messages, this many offsets.
_LAST = 1_000
# The most topic-partitions in one query and in one row.
_AT_ONCE = 500


class SilenceWriter:
    """Finds topic-partitions that have had no message for long, and writes silences about them to `bronze.messages`.

    Args:
        spark: The session to read and write with.
        lake: The lake of bronze.
        settings: `bronze.silent_after` says how long a topic-partition must be silent; None turns silences off.
        topic_register: Says how far each topic-partition was read, and whether Kafka has more messages of it.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, topic_register: TopicRegister) -> None:
        self._spark, self._lake, self._settings, self._book = spark, lake, settings, topic_register
        after = settings.bronze.silent_after
        self._after = None if after is None else max(after, settings.capture.session_timeout)
        self._notes = find_silences_file(settings)
        self._last: dict[TopicPartition, ClockReading] = {}
        self._has_history, self._lock = False, threading.Lock()
        self._noted: dict[TopicPartition, Silence] = {}
        # By topic-partition: one past bronze's last offset, and the offset of its last message.
        self._last_offsets: dict[TopicPartition, tuple[int, int]] = {}
        self._looked_at = time.monotonic()
        self._token, self._writes = lake.storage.get_fencing_token(BRONZE), count()

    def is_silence_check_due(self) -> bool:
        """Returns True if the time for the next check of silent topic-partitions has come."""
        if self._after is None:
            return False
        pause = min(_LOOK_SECONDS, self._after.total_seconds() / 4)
        return time.monotonic() - self._looked_at >= pause

    def remember_read_offsets(self, ranges: Iterable[OffsetRange]) -> None:
        """Remembers for each topic-partition of a committed batch that its last message was read now.

        Args:
            ranges: The offset ranges of the batch.
        """
        now = _read_clocks_now()
        with self._lock:
            self._last |= {(item.topic, item.partition): now for item in ranges if item.messages}

    def find_silences(self) -> list[tuple[Silence, int]]:
        """Returns the silences to write now.

        With each is the offset that the next message of its topic-partition would have.

        Raises:
            BrokerError: Kafka does not answer.
        """
        self._looked_at = time.monotonic()
        if self._after is None:
            return []
        now = _read_clocks_now()
        ends = self._book.list_bronze_end_offsets()
        # A clock that was set forward must not look like a silence, so the shorter of two measured times counts.
        last_moments = self._find_read_times_of_last_messages(now, self._after, ends)
        lasting = {place: now.compute_shortest_time_since(last) for place, last in last_moments.items()}
        due = [place for place, lasted in lasting.items() if self._is_silence_due(place, ends[place], lasted)]
        silent = self._book.select_fully_read_partitions(due) if due else set()
        new: list[tuple[Silence, int]] = []
        for places in _split_partitions_into_groups(sorted(silent)):
            last_messages = self._read_ends_of_partitions({place: ends[place] for place in places})
            for place, (last_offset, highest, has_kafka_time) in last_messages.items():
                self._last_offsets[place] = ends[place], last_offset
                if self._is_silence_due(place, ends[place], lasting[place]):
                    lasted = lasting[place] // _MS
                    if not has_kafka_time:  # stream time of such messages begins when bronze read them
                        new.append((Silence(*place, last_offset, highest, 0), ends[place]))
                    new.append((Silence(*place, last_offset, highest + lasted, lasted), ends[place]))
        return new

    def write_silences(self, silences: Iterable[tuple[Silence, int]]) -> None:
        """Writes silences to `bronze.messages`.

        A silence is dropped if its topic-partition has a new message in bronze.

        No batch may be committed at the same time.

        Args:
            silences: Silences, each with the offset that the topic-partition's next message would have.
        """
        ends = self._book.list_bronze_end_offsets()
        silent = [silence for silence, end in silences if ends.get(silence.topic_partition) == end]
        if not silent:
            return
        values = [encode_silences(group) for group in _split_partitions_into_groups(silent)]
        written = _read_clocks_now()
        rows = pa.Table.from_pylist(
            [{"value": value, "ingested_at": written.wall_time} for value in values], arrow_schema(MESSAGES)
        )
        append_rows(self._spark, self._lake, MESSAGES, rows, self._build_silence_txn())
        self._lake.storage.require_claims_still_held()
        self._noted |= {silence.topic_partition: silence for silence in silent}
        self._save_last_silences()

    def _build_silence_txn(self) -> Txn:
        """Returns the Delta transaction with which the next silences are written.

        With a lease, its number counts the writes of this process. Without leases, it is the version of
        `bronze.messages`.
        """
        if self._token:
            return Txn(SILENCES_APP, next(self._writes)).add_fencing_token(self._token)
        return Txn(f"{SILENCES_APP}:after", self._lake.latest_version(self._spark, MESSAGES))

    def _find_read_times_of_last_messages(
        self, now: ClockReading, after: timedelta, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, ClockReading]:
        """Returns when bronze read the last message of each topic-partition.

        The first call reads the ledger. A message that is older than three times `after` counts as exactly that old.
        The result is empty while bronze has no topic that is older than `after`.

        Args:
            now: The present time.
            after: How long a topic-partition must be silent.
            ends: One past bronze's last offset, by topic-partition.
        """
        if not self._has_history:
            if not self._book.has_topic_seen_before(now.wall_time - after):
                return {}
            reader = self._lake.reader(self._spark)
            long_ago = now.wall_time - 3 * after
            before = dict.fromkeys(ends, long_ago) | read_last_commits_since(reader, BRONZE, long_ago)
            noted = sorted(self._load_last_silence_by_partition(reader), key=attrgetter("behind", "lasted"))
            self._noted = {silence.topic_partition: silence for silence in noted}
            self._save_last_silences()
            with self._lock:
                self._has_history, self._last = (
                    True,
                    {p: now.convert_utc_time(at) for p, at in before.items()} | self._last,
                )
        with self._lock:
            return {place: last for place, last in self._last.items() if place in ends}

    def _load_last_silence_by_partition(self, reader: TableReader) -> Iterable[Silence]:
        """Returns the last silence of each topic-partition, from a file beside the checkpoint.

        If the file is missing or damaged, returns all silences in bronze.
        """
        with suppress(OSError, LakeError):
            return [*decode_silences([self._notes.read_bytes()])]
        return read_silences(reader)

    def _save_last_silences(self) -> None:
        """Saves the last silence of each topic-partition to a file beside the checkpoint.

        If a crash prevents this, bronze may write a silence twice, which does no harm.
        """
        write_atomically(self._notes, encode_silences(self._noted.values()))

    def _is_silence_due(self, topic_partition: TopicPartition, end: int, lasted: timedelta) -> bool:
        """Returns True if a silence must be written now.

        Each pause of a topic-partition gets one silence, later a second one.

        The first is due after the setting `bronze.silent_after`, the second after twice that time.

        Args:
            topic_partition: The topic-partition.
            end: The offset that its next message would have.
            lasted: Time since its last message.
        """
        noted, (known_end, last_offset) = (
            self._noted.get(topic_partition),
            self._last_offsets.get(topic_partition, (end, end - 1)),
        )
        written = timedelta(0)
        if noted is not None and noted.behind == (last_offset if known_end == end else end - 1):
            written = noted.lasted * _MS
        after = self._after or lasted
        return written <= after < lasted or written <= 2 * after < lasted

    def _read_ends_of_partitions(
        self, end_offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, tuple[int, int, bool]]:
        """Returns for each topic-partition the offset of its last message, a time in ms since 1970, and a flag.

        If the flag is True, the time is the highest Kafka timestamp among the last messages that counts for stream
        time. If it is False, no timestamp counts, and the time is when bronze read them.

        Args:
            end_offsets: One past bronze's last offset, by topic-partition.
        """
        from pyspark.sql import functions as F

        messages = drop_silences(self._lake.read(self._spark, MESSAGES))
        last = messages.where(
            build_offsets_condition({place: (end - _LAST, end - 1) for place, end in end_offsets.items()})
        )
        said, read = F.max(build_valid_kafka_time_column(self._settings)), F.max(F.unix_millis("ingested_at"))
        rows = last.groupBy("topic", "partition").agg(F.max("offset"), F.coalesce(said, read), said.isNotNull())
        return {(row[0], row[1]): (row[2], row[3], row[4]) for row in rows.collect()}


def find_silences_file(settings: Settings) -> Path:
    """Returns the path of the file with the last silence of each topic-partition.

    The file may be lost, because all silences are also in bronze.
    """
    return Path(f"{settings.checkpoint_path(BRONZE)}.silences.json")


def _read_clocks_now() -> ClockReading:
    return ClockReading.read_clocks()


def _split_partitions_into_groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
