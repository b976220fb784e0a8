"""A Kafka batch's offset ranges, from the checkpoint's own log: what Spark set out to read."""

from __future__ import annotations

import json
from pathlib import Path

from sessionlake.errors import LakeError
from sessionlake.protocol.types import TopicPartition

Offsets = dict[TopicPartition, int]


def planned_ranges(checkpoint: str | Path, batch_id: int) -> dict[tuple[str, int], tuple[int, int]]:
    """Offsets `[start, end)` of every topic-partition that the batch, by Spark's own number, advances.

    A partition that the previous batch did not know starts at the query's initial offset for it, else at 0:
    Spark reads partitions that appear later from their beginning, or fails.

    Raises:
        LakeError: the checkpoint lacks the batch.
    """
    ends = read_offsets(Path(checkpoint) / "offsets" / str(batch_id))
    starts = read_offsets(Path(checkpoint) / "sources" / "0" / "0")
    if batch_id:
        starts |= read_offsets(Path(checkpoint) / "offsets" / str(batch_id - 1))
    ranges = {place: (starts.get(place, 0), end) for place, end in ends.items()}
    return {place: (start, end) for place, (start, end) in ranges.items() if end > start}


def read_offsets(file: Path) -> Offsets:
    """Parses a log file: a version line, for batches a metadata line, then one JSON line of the source."""
    try:
        content = file.read_bytes().lstrip(b"\0").decode()
        parsed = json.loads(content.splitlines()[-1].lstrip("v1")) if content.count("\n") else json.loads(content[2:])
    except (OSError, ValueError, IndexError) as error:
        raise LakeError(
            f"bronze: the checkpoint file {file} cannot be read ({error}): restore the checkpoint"
        ) from error
    return {(topic, int(partition)): end for topic, found in parsed.items() for partition, end in found.items()}
