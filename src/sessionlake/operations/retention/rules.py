"""The rules for how far old messages may be removed. Pure: no tables, no clock.

A *limit* is the last offset, position or batch number that may be removed, of a topic-partition or session. This module
knows no time: callers pass the last offset that is old enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.ledger.retained import LIMITS
from sessionlake.protocol.types import TopicPartition


def compute_message_limits(
    aged: Mapping[TopicPartition, int], read: Iterable[Mapping[TopicPartition, int]], held: pa.Table
) -> dict[TopicPartition, int]:
    """Returns the last offset that may be removed from `bronze.messages`, by topic-partition.

    All messages before this offset are removed too, so that bronze has no gaps. Sessions of which silver has state keep
    all messages. Silver may have to rebuild the state, or to put a message that is held back into quarantine.

    Args:
        aged: The last offset that is old enough, by topic-partition.
        read: For each layer or processor that reads messages, the last offset that it has read.
        held: The sessions of which silver has state: `topic, partition, first_offset`.
    """
    limits = dict(aged)
    for ends in read:
        limits = {place: min(limit, ends.get(place, -1)) for place, limit in limits.items()}
    for row in held.select(["topic", "partition", "first_offset"]).to_pylist():
        place = row["topic"], row["partition"]
        if place in limits:
            limits[place] = min(limits[place], (row["first_offset"] or 0) - 1)
    return {place: limit for place, limit in limits.items() if limit >= 0}


def build_partition_limits(last_offsets: Mapping[TopicPartition, int]) -> pa.Table:
    """Returns the last offsets that may be removed, by topic-partition, as a table with the schema `LIMITS`."""
    rows = [
        {"topic": topic, "partition": number, "limit": limit} for (topic, number), limit in sorted(last_offsets.items())
    ]
    return pa.Table.from_pylist(rows, LIMITS)


def advance_limits(before: pa.Table, now: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Combines two tables of limits. For each key, the higher limit and the later timestamp count.

    Args:
        before: The limits so far.
        now: Further limits.
        keys: The columns that identify a limit: topic and partition, or those of a session.
    """
    both = pa.concat_tables([before, now]).group_by([*keys]).aggregate([("limit", "max"), ("highest_timestamp", "max")])
    return build_limits(both.rename_columns([*keys, "limit", "highest_timestamp"]).filter(pc.field("limit") >= 0))


def build_limits(rows: pa.Table) -> pa.Table:
    """Returns the rows with the schema `LIMITS`. Columns that they lack are null."""
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in LIMITS
    ]
    return pa.Table.from_arrays(columns, schema=LIMITS)
