"""Reads the offset ranges that Spark planned for a Kafka batch, from files in the checkpoint."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sessionlake.delta.schemas.names import BRONZE
from sessionlake.errors import DataLossError, LakeError
from sessionlake.protocol.types import TopicPartition
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint

Offsets = dict[TopicPartition, int]
INITIAL_OFFSETS_FILE = Path("sources", "0", "0")
"""File in a checkpoint with the offsets at which the query started."""
_VERSION = "v1"
_SEEN_SECONDS, _LOOK_SECONDS = 60.0, 0.2


def wait_for_planned_batch_files(checkpoint: str | Path, batch_id: int, seconds: float = _SEEN_SECONDS) -> None:
    """Waits until Python can read the files in which Spark planned the current batch, or until the time is over.

    Spark's JVM writes them to the object store. Python reads them through a volume's mount, where they may appear
    later.

    Args:
        checkpoint: Folder of the checkpoint.
        batch_id: Spark's number of the batch.
        seconds: The longest time to wait for each file.
    """
    deadline = time.monotonic() + seconds
    for name in (_build_planned_batch_path(batch_id), INITIAL_OFFSETS_FILE):
        while not (Path(checkpoint) / name).is_file() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def read_planned_ranges(checkpoint: str | Path, batch_id: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Returns the Kafka offsets `(start, end)` that a batch reads, for every topic-partition with new messages.

    A partition that the previous batch did not have starts at the query's initial offset for it, or else at 0: Spark
    reads partitions that appear later from their beginning, or fails.

    Args:
        checkpoint: Folder of the checkpoint.
        batch_id: Spark's number of the batch.

    Raises:
        DataLossError: The checkpoint lacks the batch, or its file cannot be read.
        LakeError: Spark wrote the file in another format version.
    """
    ends = read_kafka_offsets_file(Path(checkpoint) / _build_planned_batch_path(batch_id))
    starts = read_kafka_offsets_file(Path(checkpoint) / INITIAL_OFFSETS_FILE)
    if batch_id:
        starts |= read_kafka_offsets_file(Path(checkpoint) / _build_planned_batch_path(batch_id - 1))
    ranges = {place: (starts.get(place, 0), end) for place, end in ends.items()}
    return {place: (start, end) for place, (start, end) in ranges.items() if end > start}


def read_kafka_offsets_file(file: Path) -> Offsets:
    """Reads Kafka offsets by topic-partition from one of Spark's files in a checkpoint.

    The file has the offsets at which a batch ends, or those at which the query started. It has a version line, for
    batches a metadata line, and then one line of JSON with the offsets.

    Raises:
        DataLossError: The file is missing or cannot be read.
        LakeError: Spark wrote the file in another format version.
    """
    try:
        version, *lines = file.read_bytes().removeprefix(b"\0").decode().splitlines()
        if version != _VERSION:
            raise LakeError(
                f"bronze: the checkpoint file {file} has the format {version!r}, but this Spark version "
                f"writes {_VERSION!r}",
                why="Bronze cannot tell from it which messages it has read",
                fix="Run bronze with the Spark version that wrote the checkpoint",
            )
        ends = msgspec.json.decode(lines[-1], type=dict[str, dict[int, int]])
    except (OSError, ValueError, IndexError, msgspec.MsgspecError) as error:
        raise DataLossError(
            f"bronze: the checkpoint file {file} cannot be read ({error})",
            why="It says which messages bronze has read",
            fix=build_checkpoint_recovery_hint(BRONZE),
        ) from error
    return {(topic, partition): end for topic, found in ends.items() for partition, end in found.items()}


def _build_planned_batch_path(batch_id: int) -> Path:
    return Path("offsets", str(batch_id))
