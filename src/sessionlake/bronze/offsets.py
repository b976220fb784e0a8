"""A Kafka batch's offset ranges, from the checkpoint's own log: what Spark set out to read."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from sessionlake.delta.schemas.names import BRONZE
from sessionlake.errors import LakeError, LossError
from sessionlake.protocol.types import TopicPartition
from sessionlake.streaming.checkpoint import recovery_hint

Offsets = dict[TopicPartition, int]
INITIAL = Path("sources", "0", "0")
"""In a checkpoint, where the query began."""
_VERSION = "v1"
_SEEN_SECONDS, _LOOK_SECONDS = 60.0, 0.2


def wait_until_seen(checkpoint: str | Path, batch_id: int, seconds: float = _SEEN_SECONDS) -> None:
    """Returns when what Spark has noted of the batch that it is at can be seen here, or the time is over.

    Spark's JVM writes it to the store; through a volume's mount, as Python reads it, it may be seen later.
    """
    deadline = time.monotonic() + seconds
    for name in (_plan(batch_id), INITIAL):
        while not (Path(checkpoint) / name).is_file() and time.monotonic() < deadline:
            time.sleep(_LOOK_SECONDS)


def planned_ranges(checkpoint: str | Path, batch_id: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Offsets `[start, end)` of every topic-partition that the batch, by Spark's own number, advances.

    A partition that the previous batch did not know starts at the query's initial offset for it, else at 0:
    Spark reads partitions that appear later from their beginning, or fails.

    Raises:
        LakeError: the checkpoint lacks the batch.
    """
    ends = read_offsets(Path(checkpoint) / _plan(batch_id))
    starts = read_offsets(Path(checkpoint) / INITIAL)
    if batch_id:
        starts |= read_offsets(Path(checkpoint) / _plan(batch_id - 1))
    ranges = {place: (starts.get(place, 0), end) for place, end in ends.items()}
    return {place: (start, end) for place, (start, end) in ranges.items() if end > start}


def read_offsets(file: Path) -> Offsets:
    """Parses a log file: a version line, for batches a metadata line, then one JSON line of the source.

    Raises:
        LakeError: it cannot be read, or is of another version.
    """
    try:
        version, *lines = file.read_bytes().removeprefix(b"\0").decode().splitlines()
        if version != _VERSION:
            raise LakeError(
                f"bronze: the checkpoint file {file} is of version {version!r}, this sessionlake reads {_VERSION!r}: "
                "run the Spark that the checkpoint was written by"
            )
        ends = msgspec.json.decode(lines[-1], type=dict[str, dict[int, int]])
    except (OSError, ValueError, IndexError, msgspec.MsgspecError) as error:
        raise LossError(
            f"bronze: the checkpoint file {file} cannot be read ({error})", fix=recovery_hint(BRONZE)
        ) from error
    return {(topic, partition): end for topic, found in ends.items() for partition, end in found.items()}


def _plan(batch_id: int) -> Path:
    return Path("offsets", str(batch_id))
