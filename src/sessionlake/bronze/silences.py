"""Notes which topic-partitions have been silent for long: as a fact in `bronze.messages`, at its place in the order.

A silence is written down when Kafka says that there is no message behind those that bronze has, and before any that
comes later is: see `protocol.silence`. It is noted twice, when the sessions before it have expired, and when they are
forgotten. Since when a topic-partition is silent, the ledger tells.
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

from sessionlake.bronze.kafka_times import said_time
from sessionlake.bronze.topic_book import TopicBook
from sessionlake.delta.catalog.leases import Moment
from sessionlake.delta.commit import append
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, MESSAGES, SILENCES_APP
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.offset_ranges import offsets_condition
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.progress import last_commits_since
from sessionlake.ledger.silences import read_silences, without_silences
from sessionlake.protocol.silence import Silence, decode, encode
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.streaming.checkpoint import write_whole

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
_MS = timedelta(milliseconds=1)
# Between two looks.
_LOOK_SECONDS = 60.0
# Of a topic-partition's last messages, so many offsets are asked for the time that they had come to.
_LAST = 1_000
# As many topic-partitions are asked for at once, and told of in one row.
_AT_ONCE = 500


class Silences:
    """What bronze knows of silent topic-partitions.

    Args:
        book: says how far each has been read, and what Kafka has of it.
    """

    def __init__(self, spark: SparkSession, lake: Lake, settings: Settings, book: TopicBook) -> None:
        self._spark, self._lake, self._settings, self._book = spark, lake, settings, book
        after = settings.bronze.silent_after
        self._after = None if after is None else max(after, settings.capture.session_timeout)
        self._notes = notes_of(settings)
        self._last: dict[TopicPartition, Moment] = {}
        self._begun, self._lock = False, threading.Lock()
        self._noted: dict[TopicPartition, Silence] = {}
        self._behind: dict[TopicPartition, tuple[int, int]] = {}  # what is next, and the last message's offset
        self._looked_at = time.monotonic()
        self._token, self._writes = lake.storage.token(BRONZE), count()

    def is_time(self) -> bool:
        """Whether to look for silent topic-partitions once more."""
        if self._after is None:
            return False
        pause = min(_LOOK_SECONDS, self._after.total_seconds() / 4)
        return time.monotonic() - self._looked_at >= pause

    def advance(self, ranges: Iterable[OffsetRange]) -> None:
        """Takes note of a batch that is committed."""
        now = _now()
        with self._lock:
            self._last |= {(item.topic, item.partition): now for item in ranges if item.messages}

    def found(self) -> list[tuple[Silence, int]]:
        """The silences that are to be written down, each with the offset that the next message would have.

        Raises:
            BrokerError: Kafka does not answer.
        """
        self._looked_at = time.monotonic()
        if self._after is None:
            return []
        now = _now()
        ends = self._book.ends()
        # Time by which a clock was set is no silence.
        lasting = {place: now.shortest_since(last) for place, last in self._since(now, self._after, ends).items()}
        due = [place for place, lasted in lasting.items() if self._is_due(place, ends[place], lasted)]
        silent = self._book.read_whole(due) if due else set()
        new: list[tuple[Silence, int]] = []
        for places in _some(sorted(silent)):
            for place, (behind, highest, is_said) in self._ends_of({place: ends[place] for place in places}).items():
                self._behind[place] = ends[place], behind
                if self._is_due(place, ends[place], lasting[place]):
                    lasted = lasting[place] // _MS
                    if not is_said:  # stream time of such messages begins when bronze read them
                        new.append((Silence(*place, behind, highest, 0), ends[place]))
                    new.append((Silence(*place, behind, highest + lasted, lasted), ends[place]))
        return new

    def write(self, found: Iterable[tuple[Silence, int]]) -> None:
        """Writes silences down; not those that a message has ended since. No batch may be committed meanwhile."""
        ends = self._book.ends()
        silent = [silence for silence, end in found if ends.get(silence.place) == end]
        if not silent:
            return
        values = [encode(some) for some in _some(silent)]
        written = _now()
        rows = pa.Table.from_pylist(
            [{"value": value, "ingested_at": written.wall} for value in values], arrow_schema(MESSAGES)
        )
        append(self._spark, self._lake, MESSAGES, rows, self._txn())
        self._lake.storage.require_claims()
        self._noted |= {silence.place: silence for silence in silent}
        self._note()

    def _txn(self) -> Txn:
        """The next; without leases the table's version tells them apart, whatever the clock says."""
        if self._token:
            return Txn(SILENCES_APP, next(self._writes)).fenced_by(self._token)
        return Txn(f"{SILENCES_APP}:after", self._lake.latest_version(self._spark, MESSAGES))

    def _since(
        self, now: Moment, after: timedelta, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, Moment]:
        """When each topic-partition's last message came, as far as that matters."""
        if not self._begun:
            if not self._book.has_older(now.wall - after):
                return {}
            reader = self._lake.reader(self._spark)
            long_ago = now.wall - 3 * after
            before = dict.fromkeys(ends, long_ago) | last_commits_since(reader, BRONZE, long_ago)
            told = sorted(self._told(reader), key=attrgetter("behind", "lasted"))
            self._noted = {one.place: one for one in told}
            self._note()
            with self._lock:
                self._begun, self._last = True, {p: now.at_wall(at) for p, at in before.items()} | self._last
        with self._lock:
            return {place: last for place, last in self._last.items() if place in ends}

    def _told(self, reader: TableReader) -> Iterable[Silence]:
        """The last silences of each topic-partition; all, looked for in all of bronze, where they are not noted."""
        with suppress(OSError, LakeError):
            return [*decode([self._notes.read_bytes()])]
        return read_silences(reader)

    def _note(self) -> None:
        """Notes the last silences beside the checkpoint. One that is not, since the process died, may be told again."""
        write_whole(self._notes, encode(self._noted.values()))

    def _is_due(self, place: TopicPartition, end: int, lasted: timedelta) -> bool:
        """Whether a silence before the offset `end` is to be told, for the first time or for the second."""
        noted, (known, behind) = self._noted.get(place), self._behind.get(place, (end, end - 1))
        told = timedelta(0)
        if noted is not None and noted.behind == (behind if known == end else end - 1):
            told = noted.lasted * _MS
        after = self._after or lasted
        return told <= after < lasted or told <= 2 * after < lasted

    def _ends_of(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, tuple[int, int, bool]]:
        """The last message's offset, the highest time (ms) of the last ones, and whether Kafka's timestamps say it.

        If none of them says a time, it is when bronze read them.
        """
        from pyspark.sql import functions as F

        messages = without_silences(self._lake.read(self._spark, MESSAGES))
        last = messages.where(offsets_condition({place: (end - _LAST, end - 1) for place, end in ends.items()}))
        said, read = F.max(said_time(self._settings)), F.max(F.unix_millis("ingested_at"))
        found = last.groupBy("topic", "partition").agg(F.max("offset"), F.coalesce(said, read), said.isNotNull())
        return {(row[0], row[1]): (row[2], row[3], row[4]) for row in found.collect()}


def notes_of(settings: Settings) -> Path:
    """Where the last silences are noted: a copy of what bronze holds."""
    return Path(f"{settings.checkpoint(BRONZE)}.silences.json")


def _now() -> Moment:
    return Moment.now()


def _some(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))
