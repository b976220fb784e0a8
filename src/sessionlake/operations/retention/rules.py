"""The rules for how far old messages may be removed. Pure: facts in, limits out.

This module knows no time. Its callers pass what is old enough, as offsets or batches committed before a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.ledger.retained import LIMITS
from sessionlake.protocol.types import TopicPartition


def message_limits(
    aged: Mapping[TopicPartition, int], read: Iterable[Mapping[TopicPartition, int]], held: pa.Table
) -> dict[TopicPartition, int]:
    """Returns the last offset that may be removed from `bronze.messages`, by topic-partition.

    Everything before it is removed as well, so what is left has no holes. A session of which silver keeps state stays
    complete. A message that silver holds back may still go to quarantine, and the state may have to be rebuilt.

    Args:
        aged: The last offset that is old enough.
        read: For each reader, the last offset that it has read.
        held: `topic, partition, first_offset` of the sessions of which silver keeps state.
    """
    limits = dict(aged)
    for ends in read:
        limits = {place: min(limit, ends.get(place, -1)) for place, limit in limits.items()}
    for row in held.select(["topic", "partition", "first_offset"]).to_pylist():
        place = row["topic"], row["partition"]
        if place in limits:
            limits[place] = min(limits[place], (row["first_offset"] or 0) - 1)
    return {place: limit for place, limit in limits.items() if limit >= 0}


def as_place_limits(ends: Mapping[TopicPartition, int]) -> pa.Table:
    """Converts offsets by topic-partition to limits."""
    rows = [{"topic": topic, "partition": number, "limit": limit} for (topic, number), limit in sorted(ends.items())]
    return pa.Table.from_pylist(rows, LIMITS)


def advance_limits(before: pa.Table, now: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Combines two tables of limits. Of each key the higher limit wins, so limits never move back."""
    both = pa.concat_tables([before, now]).group_by([*keys]).aggregate([("limit", "max"), ("highest_timestamp", "max")])
    return as_limits(both.rename_columns([*keys, "limit", "highest_timestamp"]).filter(pc.field("limit") >= 0))


def as_limits(rows: pa.Table) -> pa.Table:
    """Adds the missing columns of `LIMITS`, as null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in LIMITS
    ]
    return pa.Table.from_arrays(columns, schema=LIMITS)
