"""The notes of stream time beside a checkpoint: written by the driver with every batch, read by the tasks that pack.

They follow from bronze, so nothing is lost with them: what is missing when a stream starts is looked up there. And
each batch must go on from the offsets where the ledger ends, by what its shards say they went on from: so notes that
lack messages stop a batch before anything of it is committed. They are stored before the ledger's entry is: those of a
batch that is in the ledger lack no silence either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sessionlake.bronze.kafka_times import counted_time_column
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.faults import fault_point
from sessionlake.errors import LakeError
from sessionlake.integrity.clock import BEGINNING, LaneTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.integrity.stream_times import SCHEMA, StreamTimes
from sessionlake.ledger.retained import beginnings, describe_beginning
from sessionlake.ledger.silences import read_silences
from sessionlake.protocol.chunk import read_ipc, write_ipc
from sessionlake.protocol.types import Int64s, TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import PartitionCounts, ShardReport
from sessionlake.streaming.checkpoint import last_planned, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTLED, _RECENT = "settled.arrow", "recent.arrow"


@dataclass(frozen=True)
class StoredTimes:
    """Notes as they are stored, looked up where the messages are packed; see `integrity.clock.TimesBefore`."""

    folder: str

    def before(self, names: Sequence[TopicPartition], first: Int64s) -> tuple[Int64s, Int64s]:
        """See `integrity.clock.TimesBefore`."""
        return _read(Path(self.folder)).before(names, first)


def stored_times(settings: Settings, layer: str) -> StoredTimes:
    """The notes of a layer's stream."""
    return StoredTimes(f"{settings.checkpoint(layer)}.stream_times")


class StreamTimesLog:
    """The notes of one stream, as its driver keeps them."""

    def __init__(self, layer: str, folder: Path, times: StreamTimes) -> None:
        self._layer, self._folder, self._times = layer, folder, times

    @classmethod
    def begin(
        cls, spark: SparkSession, settings: Settings, layer: str, ends: Mapping[TopicPartition, int]
    ) -> StreamTimesLog:
        """The notes before a stream's next batch, which are stored by then.

        Args:
            ends: the last offset of each topic-partition before that batch. Those whose time is not noted, as of an
                older version's checkpoint, or of one put back from a backup, are looked up in bronze.
        """
        folder = Path(stored_times(settings, layer).folder)
        folder.mkdir(parents=True, exist_ok=True)
        names, last = list(ends), np.array(list(ends.values()), np.int64)
        time, offset = _read(folder).before(names, last + 1)
        known = dict(zip(names, time.tolist(), strict=True))
        missing = {name: ends[name] for name, noted in zip(names, (offset == last).tolist(), strict=True) if not noted}
        known |= _of_bronze(spark, Lake(settings), missing)
        if missing or last_planned(settings.checkpoint(layer)) is None:  # all of bronze is looked through for them
            for silence in read_silences(Lake(settings).reader(spark)):
                if silence.behind <= ends.get(silence.place, BEGINNING):  # it comes before what is behind
                    known[silence.place] = max(known[silence.place], silence.until)
        log = cls(layer, folder, StreamTimes())
        log._store(StreamTimes().noted(LaneTime(*name, known[name], end) for name, end in ends.items()))
        return log

    def advance(self, batch: Iterable[PartitionCounts], reports: Iterable[ShardReport]) -> None:
        """Notes where a batch has come to, before the ledger does: so all that is in the ledger is noted.

        Of a batch that is made once more, what was before it is still found.
        """
        self._store(self._times.noted(ends_of(batch, reports)))
        fault_point(f"after:{self._layer}.stream_times")

    def _store(self, times: StreamTimes) -> None:
        if times.settled is not self._times.settled:
            write_atomically(self._folder / _SETTLED, write_ipc(times.settled))
        write_atomically(self._folder / _RECENT, write_ipc(times.recent))
        self._times = times


def require_continued(layer: str, batch: Iterable[PartitionCounts], ends: Mapping[TopicPartition, int]) -> None:
    """Returns if each topic-partition's stream time went on from where the batch before ended.

    Args:
        ends: the last offset of each topic-partition before the batch.

    Raises:
        LakeError: naming the first that did not.
    """
    for part in batch:
        end = ends.get((part.topic, part.partition), BEGINNING)
        if part.messages and part.since != end:
            raise LakeError(
                f"{layer}: topic {part.topic}, partition {part.partition}: stream time was known up to offset "
                f"{part.since}, but the batch goes on behind offset {end}. Nothing of it was committed. Run it again: "
                "what is not noted beside the checkpoint is looked up in bronze when a stream starts"
            )


def ends_of(batch: Iterable[PartitionCounts], reports: Iterable[ShardReport]) -> Iterable[LaneTime]:
    """Where a batch's topic-partitions stand after it: those with messages, and those that were but silent."""
    silent = sorted((lane for report in reports for lane in report.silences), key=lambda lane: (lane.offset, lane.time))
    ends = {(lane.topic, lane.partition): lane for lane in silent}
    for part in batch:
        if part.messages:
            ends[part.topic, part.partition] = LaneTime(part.topic, part.partition, part.stream_time, part.last)
    return ends.values()


def _read(folder: Path) -> StreamTimes:
    # The recent ones first: whoever puts notes together writes the settled ones first.
    recent, settled = (_notes(folder / name) for name in (_RECENT, _SETTLED))
    return StreamTimes(settled, recent)


def _notes(file: Path) -> pa.Table:
    """What is in a file; nothing if it is not there, or not in this format: notes are only copies."""
    try:
        found = read_ipc(file.read_bytes())
    except (FileNotFoundError, pa.ArrowInvalid):
        return SCHEMA.empty_table()
    return found if found.schema.equals(SCHEMA, check_metadata=True) else SCHEMA.empty_table()


def _of_bronze(spark: SparkSession, lake: Lake, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The highest time (ms) that messages of each topic-partition say up to an offset of it; `NO_TIME` if none does.

    Raises:
        LakeError: retention has removed messages behind it.
    """
    from pyspark.sql import functions as F

    if not ends:
        return {}
    gone = {place: at for place, at in beginnings(lake.reader(spark)).items() if place in ends}
    for place, at in gone.items():
        if at.last_removed > ends[place]:
            raise LakeError(
                f"{describe_beginning(place, at)}: stream time up to offset {ends[place]} cannot be told. The "
                "checkpoint is older than the tables: put the newer one back"
            )
    wanted = spark.createDataFrame(
        [(*name, end) for name, end in ends.items()], "topic string, partition int, end long"
    )
    topics = sorted({topic for topic, _ in ends})
    in_reach = F.col("topic").isin(topics) & (F.col("offset") <= max(ends.values()))  # files without any are not read
    messages = lake.read(spark, MESSAGES).where(in_reach).join(F.broadcast(wanted), ["topic", "partition"])
    said = F.max(counted_time_column(lake.settings))
    highest = messages.where("offset <= end").groupBy("topic", "partition").agg(F.coalesce(said, F.lit(NO_TIME)))
    found = dict.fromkeys(ends, NO_TIME) | {(row[0], row[1]): row[2] for row in highest.collect()}
    return found | {place: max(found[place], at.highest_ms) for place, at in gone.items()}
