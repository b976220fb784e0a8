"""Ledger entries, which record what one micro-batch of one layer read and wrote. A batch writes its entry last."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import eq
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.build import read_code_version
from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, LEDGER, SILVER
from sessionlake.delta.schemas.tables import arrow_schema
from sessionlake.delta.storage.reading import Condition, TableReader, starts_with
from sessionlake.delta.storage.txn import REBUILD, Txn
from sessionlake.ledger.books import LedgerReader
from sessionlake.protocol.types import Row
from sessionlake.settings.feed_history import FeedMapping
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WRITTEN_BY_REBUILD: Condition = ("app_id", starts_with, REBUILD)
_NEVER = datetime.fromtimestamp(0, UTC)
RECOVERED = "recovered"
"""Value of `source` in an entry that was reconstructed from tables, for one batch or for a batch and all before it."""


@dataclass(frozen=True)
class OffsetRange:
    """The offsets of one topic-partition that a batch read.

    Attributes:
        topic: the Kafka topic.
        partition: the Kafka partition.
        first: the lowest offset read.
        last: the highest offset read.
        messages: number of messages read. It is lower than the number of offsets if some offsets have no message.
    """

    topic: str
    partition: int
    first: int
    last: int
    messages: int

    @property
    def missing_messages(self) -> int:
        """Number of offsets in the range minus number of messages in it. Negative if an offset has several messages."""
        return self.last - self.first + 1 - self.messages


@dataclass(frozen=True)
class TableOutput:
    """A batch's write to one table.

    Attributes:
        table: the table's two-level name.
        version: the table's Delta version after the write.
        rows: number of rows written.
    """

    table: str
    version: int
    rows: int


@dataclass(frozen=True)
class LedgerEntry:
    """The row of `ops.ledger` about one micro-batch of one layer.

    Attributes:
        layer: the layer's name.
        txn: Delta transaction of the batch: application id and batch number.
        source: the table or system that was read.
        started_at: wall-clock time at which the batch started.
        source_from: first Delta version or batch number that was read of the source; None if it has neither.
        source_to: last Delta version or batch number that was read of the source; None if it has neither.
        offsets: the offsets of the messages read, by topic-partition.
        outputs: the tables written.
        messages: number of messages read.
        applied: number of parts applied. A feed can split a message into several parts.
        duplicates: number of parts dropped as duplicates.
        quarantined: number of parts quarantined.
        held: number of parts that wait in the state for earlier messages.
        ignored: number of parts that their feed ignores.
        parts: number of parts of the messages; None if every message has one part. In silver, it is the sum of the five
            numbers before it.
        config_hash: hash of the settings that affect the results, from `hash_settings_of_layers`.
        decisions: operators' decisions that the batch followed (`topic, partition, session_id, offset, decision`).
        feeds: for each topic, how silver or a processor read its messages; None for other layers.
    """

    layer: str
    txn: Txn
    source: str
    started_at: datetime
    source_from: int | None = None
    source_to: int | None = None
    offsets: tuple[OffsetRange, ...] = ()
    outputs: tuple[TableOutput, ...] = ()
    messages: int = 0
    applied: int = 0
    duplicates: int = 0
    quarantined: int = 0
    held: int = 0
    ignored: int = 0
    parts: int | None = None
    config_hash: str = field(default="")
    decisions: tuple[Mapping[str, object], ...] = ()
    feeds: Sequence[FeedMapping] | None = None


class Ledger:
    """Appends entries to the ledger, with commit times that show which entries came before and after a rebuild.

    The machine's clock alone is not enough, since it can be set to an earlier time. So a rebuild's entry gets a later
    commit time than all entries of its layer and all earlier rebuilds. Entries that the layer writes afterwards get a
    later commit time than the rebuild. A job uses one instance, because its layer is not rebuilt while it runs.

    Args:
        lake: the lake that has the ledger.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._rebuilt: dict[str, datetime] = {}

    def write_entry(self, spark: SparkSession, entry: LedgerEntry, txn: Txn | None = None) -> None:
        """Appends an entry to `ops.ledger`. If a batch runs again after a crash, the entry of the first run stays.

        Args:
            spark: the session to write with.
            entry: the entry.
            txn: Delta transaction of the append; None to use the entry's own.
        """
        row = _convert_entry_to_row(entry, max(datetime.now(UTC), self._find_earliest_commit_time(spark, entry)))
        append_rows(spark, self._lake, LEDGER, pa.Table.from_pylist([row], arrow_schema(LEDGER)), txn or entry.txn)

    def _find_earliest_commit_time(self, spark: SparkSession, entry: LedgerEntry) -> datetime:
        """Returns the earliest commit time that the entry may get.

        An entry of a rebuild must be later than all entries of its layer and all rebuilds. Other entries must be later
        than the last rebuild of their layer.
        """
        if entry.txn.app_id.startswith(REBUILD):
            books = LedgerReader(self._lake.reader(spark))
            return _compute_time_after_last_commit(
                chain(books.read_entries(("layer", eq, entry.layer)), books.read_entries(_WRITTEN_BY_REBUILD))
            )
        if entry.layer not in self._rebuilt:
            self._rebuilt[entry.layer] = find_earliest_commit_time_after_rebuild(self._lake.reader(spark), entry.layer)
        return self._rebuilt[entry.layer]


def find_earliest_commit_time_after_rebuild(reader: TableReader, layer: str) -> datetime:
    """Returns the commit time of the layer's last rebuild plus one microsecond; 1970 if it was never rebuilt.

    The result is in the future if the clock of the machine now shows an earlier time than at the rebuild.
    """
    return _compute_time_after_last_commit(LedgerReader(reader).read_entries(("layer", eq, layer), _WRITTEN_BY_REBUILD))


def _compute_time_after_last_commit(entries: Iterator[pa.RecordBatch]) -> datetime:
    times = [pc.max(batch.column("committed_at")).as_py() for batch in entries]
    return max((time for time in times if time is not None), default=_NEVER) + timedelta(microseconds=1)


def _convert_entry_to_row(entry: LedgerEntry, committed_at: datetime) -> Row:
    return {
        "layer": entry.layer,
        "app_id": entry.txn.app_id,
        "batch_id": entry.txn.version,
        "source": entry.source,
        "source_from": entry.source_from,
        "source_to": entry.source_to,
        "offsets": [asdict(item) for item in entry.offsets],
        "outputs": [asdict(item) for item in entry.outputs],
        "messages": entry.messages,
        "parts": entry.messages if entry.parts is None else entry.parts,
        "applied": entry.applied,
        "duplicates": entry.duplicates,
        "quarantined": entry.quarantined,
        "held": entry.held,
        "ignored": entry.ignored,
        "started_at": entry.started_at,
        "committed_at": committed_at,
        "code_version": read_code_version(),
        "config_hash": entry.config_hash,
        "decisions": list(entry.decisions),
        "feeds": None if entry.feeds is None else [feed._asdict() for feed in entry.feeds],
    }


_SETTINGS_THAT_DECIDE_RESULTS: dict[str, set[str]] = {SILVER: {"snapshot_interval"}, GOLD: {"rolling_points"}}


def hash_settings_of_layers(settings: Settings, *layers: str) -> str:
    """Returns a hash of the settings that affect the results of these layers, as 16 hexadecimal digits.

    Args:
        settings: the settings.
        layers: `silver`, `gold` or both; none means both.
    """
    deciding = {layer: _SETTINGS_THAT_DECIDE_RESULTS[layer] for layer in layers or _SETTINGS_THAT_DECIDE_RESULTS}
    text = settings.capture.model_dump_json() + settings.model_dump_json(include=deciding)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
