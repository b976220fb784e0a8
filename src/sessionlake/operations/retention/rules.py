"""Up to where rows of places may go, whatever the settings say. Pure: what is known in, limits out.

Age is never looked at here: what is old enough comes in, as offsets or batches that were committed before a moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.ledger.retained import LIMITS
from sessionlake.protocol.types import TopicPartition


def of_messages(
    aged: Mapping[TopicPartition, int], read: Iterable[Mapping[TopicPartition, int]], held: pa.Table
) -> dict[TopicPartition, int]:
    """The last offset that may go from `bronze.messages`, of each topic-partition.

    All before it goes, too: what is left is without holes. A session that silver remembers stays whole: what it holds
    back can still come into quarantine, with its message, and its state could be made anew.

    Args:
        aged: the last offset that is old enough.
        read: the last offset that a reader has taken in, for each reader.
        held: `topic, partition, first_offset` of what silver remembers.
    """
    limits = dict(aged)
    for ends in read:
        limits = {place: min(limit, ends.get(place, -1)) for place, limit in limits.items()}
    for row in held.select(["topic", "partition", "first_offset"]).to_pylist():
        place = row["topic"], row["partition"]
        if place in limits:
            limits[place] = min(limits[place], (row["first_offset"] or 0) - 1)
    return {place: limit for place, limit in limits.items() if limit >= 0}


def of_places(ends: Mapping[TopicPartition, int]) -> pa.Table:
    """Offsets by topic-partition as limits."""
    rows = [{"topic": topic, "partition": number, "limit": limit} for (topic, number), limit in sorted(ends.items())]
    return pa.Table.from_pylist(rows, LIMITS)


def advanced(before: pa.Table, now: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Limits that are never moved back."""
    both = pa.concat_tables([before, now]).group_by([*keys]).aggregate([("limit", "max"), ("highest_timestamp", "max")])
    return as_limits(both.rename_columns([*keys, "limit", "highest_timestamp"]).filter(pc.field("limit") >= 0))


def as_limits(rows: pa.Table) -> pa.Table:
    """Limits of places or sessions, with all columns."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in LIMITS
    ]
    return pa.Table.from_arrays(columns, schema=LIMITS)
