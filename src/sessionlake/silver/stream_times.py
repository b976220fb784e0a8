"""Notes of stream time beside a checkpoint: the driver writes them with every batch, and the packing tasks read them.

A note has the stream time of a topic-partition at the offset where a batch ended. Notes are only copies of what bronze
says: notes that are missing when a stream starts are looked up there. Every shard reports the offset from which its
stream time continued, and each batch must continue where the ledger ends. So missing notes stop a batch before anything
is committed. Notes are written before the ledger entry, so the silences of a batch in the ledger are never missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from sessionlake.bronze.kafka_times import build_valid_kafka_time_column
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.errors import LakeError
from sessionlake.integrity.clock import BEGINNING, PartitionStreamTime
from sessionlake.integrity.cursor import NO_TIME
from sessionlake.integrity.stream_times import NOTES_SCHEMA, StreamTimesAtBatchEnds
from sessionlake.ledger.retained import describe_partition_start, read_partition_starts
from sessionlake.ledger.silences import read_silences
from sessionlake.protocol.chunk import decode_ipc, encode_ipc
from sessionlake.protocol.types import Int64s, TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.fold.schemas import PartitionMessageCounts, ShardReport
from sessionlake.streaming.checkpoint import read_last_planned_batch, write_atomically

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SETTLED, _RECENT = "settled.arrow", "recent.arrow"


@dataclass(frozen=True)
class StoredStreamTimes:
    """Looks up stream times in the notes in a folder.

    Implements `EarlierStreamTimes` for the tasks that pack messages.
    """

    folder: str

    def read_stream_times_before(self, partitions: Sequence[TopicPartition], offsets: Int64s) -> tuple[Int64s, Int64s]:
        """Returns each topic-partition's stream time (ms) before an offset, and the offset up to which it was computed.

        Args:
            partitions: Topic-partitions, each once.
            offsets: For each topic-partition, the offset before which its stream time is wanted.
        """
        return _read_all_notes(Path(self.folder)).read_stream_times_before(partitions, offsets)


def open_stored_stream_times(settings: Settings, layer: str) -> StoredStreamTimes:
    """Returns the object that looks up the stream times which a layer's batches have stored."""
    return StoredStreamTimes(f"{settings.checkpoint_path(layer)}.stream_times")


class StreamTimesLog:
    """Stores the stream times of one streaming query, in a folder beside its checkpoint. Runs in the driver.

    The folder has notes: each says what a topic-partition's stream time was at an offset.
    """

    def __init__(self, layer: str, folder: Path, times: StreamTimesAtBatchEnds) -> None:
        self._layer, self._folder, self._times = layer, folder, times

    @classmethod
    def open_log(
        cls, spark: SparkSession, settings: Settings, layer: str, last_offsets: Mapping[TopicPartition, int]
    ) -> StreamTimesLog:
        """Stores the stream times from before a stream's next batch. Returns the log that will add later ones.

        Args:
            spark: The Spark session.
            settings: The settings of the lake.
            layer: The layer.
            last_offsets: The last offset of each topic-partition before that batch. If no stream time is stored for
                this offset, for example because the checkpoint was restored from a backup, it is looked up in bronze.
        """
        folder = Path(open_stored_stream_times(settings, layer).folder)
        folder.mkdir(parents=True, exist_ok=True)
        names, last = list(last_offsets), np.array(list(last_offsets.values()), np.int64)
        time, offset = _read_all_notes(folder).read_stream_times_before(names, last + 1)
        known = dict(zip(names, time.tolist(), strict=True))
        missing = {
            name: last_offsets[name] for name, noted in zip(names, (offset == last).tolist(), strict=True) if not noted
        }
        known |= _read_stream_times_from_bronze(spark, Lake(settings), missing)
        if (
            missing or read_last_planned_batch(settings.checkpoint_path(layer)) is None
        ):  # then notes of silences may be missing too
            for silence in read_silences(Lake(settings).reader(spark)):
                if silence.behind <= last_offsets.get(
                    silence.topic_partition, BEGINNING
                ):  # it is before the next batch
                    known[silence.topic_partition] = max(known[silence.topic_partition], silence.until)
        log = cls(layer, folder, StreamTimesAtBatchEnds())
        log._store_notes(
            StreamTimesAtBatchEnds().add_stream_times(
                PartitionStreamTime(*name, known[name], end) for name, end in last_offsets.items()
            )
        )
        return log

    def add_batch_notes(self, partitions: Iterable[PartitionMessageCounts], reports: Iterable[ShardReport]) -> None:
        """Stores the stream times after a batch. Must run before the batch's ledger entry is written.

        So every batch in the ledger has its notes. The notes from before the batch stay, in case the batch is repeated.

        Args:
            partitions: The counts of the batch by topic-partition.
            reports: The shards' reports about the batch.
        """
        self._store_notes(self._times.add_stream_times(list_stream_times_after_batch(partitions, reports)))
        inject_fault_if_requested(f"after:{self._layer}.stream_times")

    def _store_notes(self, notes: StreamTimesAtBatchEnds) -> None:
        if notes.settled is not self._times.settled:
            write_atomically(self._folder / _SETTLED, encode_ipc(notes.settled))
        write_atomically(self._folder / _RECENT, encode_ipc(notes.recent))
        self._times = notes


def require_continued_stream_times(
    layer: str, partitions: Iterable[PartitionMessageCounts], last_offsets: Mapping[TopicPartition, int]
) -> None:
    """Checks that each topic-partition's stream time continued from the offset at which the previous batch ended.

    Args:
        layer: The layer, for the error.
        partitions: The counts of the batch by topic-partition.
        last_offsets: The last offset of each topic-partition before the batch.

    Raises:
        LakeError: A stream time continued from another offset. The error names the first such topic-partition.
    """
    for part in partitions:
        end = last_offsets.get((part.topic, part.partition), BEGINNING)
        if part.messages and part.previous_offset != end:
            raise LakeError(
                f"{layer}: topic {part.topic}, partition {part.partition}: the stream time is known up to "
                f"offset {part.previous_offset}, but the batch begins after offset {end}",
                why="Without the stream time between them, messages may be judged wrongly. Nothing of the "
                "batch was committed",
                fix="Run the layer again: at its start, it looks up missing stream times in bronze",
            )


def list_stream_times_after_batch(
    partitions: Iterable[PartitionMessageCounts], reports: Iterable[ShardReport]
) -> Iterable[PartitionStreamTime]:
    """Returns stream time and last offset of each topic-partition that has messages or silences in a batch.

    Args:
        partitions: The counts of the batch by topic-partition.
        reports: The shards' reports about the batch.
    """
    silent = sorted((lane for report in reports for lane in report.silences), key=lambda lane: (lane.offset, lane.time))
    ends = {(lane.topic, lane.partition): lane for lane in silent}
    for part in partitions:
        if part.messages:
            ends[part.topic, part.partition] = PartitionStreamTime(
                part.topic, part.partition, part.stream_time, part.last_offset
            )
    return ends.values()


def _read_all_notes(folder: Path) -> StreamTimesAtBatchEnds:
    """Reads the stream times that a layer has stored in a folder. Files that do not exist count as empty."""
    # If both files are rewritten, the settled one is written first. So it is read last, to miss no note.
    recent, settled = (_read_notes(folder / name) for name in (_RECENT, _SETTLED))
    return StreamTimesAtBatchEnds(settled, recent)


def _read_notes(file: Path) -> pa.Table:
    """Reads a file of notes. Returns no notes if it is missing or has another format, because notes are only copies."""
    try:
        found = decode_ipc(file.read_bytes())
    except (FileNotFoundError, pa.ArrowInvalid):
        return NOTES_SCHEMA.empty_table()
    return found if found.schema.equals(NOTES_SCHEMA, check_metadata=True) else NOTES_SCHEMA.empty_table()


def _read_stream_times_from_bronze(
    spark: SparkSession, lake: Lake, last_offsets: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Returns, by topic-partition, the highest timestamp (ms) in bronze up to its offset in `last_offsets`.

    It is `NO_TIME` if no message has a timestamp.

    Raises:
        LakeError: Retention has removed messages after an offset in `last_offsets`.
    """
    from pyspark.sql import functions as F

    if not last_offsets:
        return {}
    gone = {place: at for place, at in read_partition_starts(lake.reader(spark)).items() if place in last_offsets}
    for place, at in gone.items():
        last_offset = last_offsets[place]
        if at.last_removed > last_offset:
            raise LakeError(
                f"{describe_partition_start(place, at)}, so the stream time up to offset {last_offset}, "
                "which the checkpoint needs, is not known any more",
                why="The checkpoint is older than the tables",
                fix="Restore the newest backup of the checkpoint",
            )
    wanted = spark.createDataFrame(
        [(*name, end) for name, end in last_offsets.items()], "topic string, partition int, end long"
    )
    topics = sorted({topic for topic, _ in last_offsets})
    in_reach = F.col("topic").isin(topics) & (
        F.col("offset") <= max(last_offsets.values())
    )  # lets Delta skip other files
    messages = lake.read(spark, MESSAGES).where(in_reach).join(F.broadcast(wanted), ["topic", "partition"])
    said = F.max(build_valid_kafka_time_column(lake.settings))
    highest = messages.where("offset <= end").groupBy("topic", "partition").agg(F.coalesce(said, F.lit(NO_TIME)))
    found = dict.fromkeys(last_offsets, NO_TIME) | {(row[0], row[1]): row[2] for row in highest.collect()}
    return found | {place: max(found[place], at.highest_ms) for place, at in gone.items()}
