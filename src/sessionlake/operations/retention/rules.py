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


def compute_removal_limits_of_messages(
    old_enough: Mapping[TopicPartition, int],
    read_offsets: Iterable[Mapping[TopicPartition, int]],
    sessions_in_state: pa.Table,
) -> dict[TopicPartition, int]:
    """Returns, by topic-partition, the last offset that may be removed from `bronze.messages`.

    All messages before this offset are removed too, so that bronze has no gaps. Sessions of which silver has state keep
    all messages. Silver may have to rebuild the state, or to put a message that is held back into quarantine.

    Args:
        old_enough: By topic-partition, the last offset that is old enough.
        read_offsets: For each layer or processor that reads messages, the last offsets that it has read, by
            topic-partition.
        sessions_in_state: A row `topic, partition, first_offset` for each session of which silver has state.
    """
    limits = dict(old_enough)
    for ends in read_offsets:
        limits = {place: min(limit, ends.get(place, -1)) for place, limit in limits.items()}
    for row in sessions_in_state.select(["topic", "partition", "first_offset"]).to_pylist():
        place = row["topic"], row["partition"]
        if place in limits:
            limits[place] = min(limits[place], (row["first_offset"] or 0) - 1)
    return {place: limit for place, limit in limits.items() if limit >= 0}


def build_table_of_partition_removal_limits(last_offsets: Mapping[TopicPartition, int]) -> pa.Table:
    """Returns a table of limits from the last offsets that may be removed. Its column `session_id` is null."""
    rows = [
        {"topic": topic, "partition": number, "limit": limit} for (topic, number), limit in sorted(last_offsets.items())
    ]
    return pa.Table.from_pylist(rows, LIMITS)


def merge_removal_limits(recorded: pa.Table, further: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Joins two tables of limits by key. For each key, the higher limit and the later timestamp count.

    Args:
        recorded: The limits so far.
        further: The limits to add.
        keys: The key columns: `topic` and `partition`, and for limits of sessions also `session_id`.
    """
    both = (
        pa.concat_tables([recorded, further])
        .group_by([*keys])
        .aggregate([("limit", "max"), ("highest_timestamp", "max")])
    )
    return convert_rows_to_limits_table(
        both.rename_columns([*keys, "limit", "highest_timestamp"]).filter(pc.field("limit") >= 0)
    )


def convert_rows_to_limits_table(rows: pa.Table) -> pa.Table:
    """Returns the rows as a table of limits: `topic, partition, session_id, limit, highest_timestamp`.

    Missing columns are null.
    """
    columns = [
        rows[field.name].cast(field.type) if field.name in rows.column_names else pa.nulls(rows.num_rows, field.type)
        for field in LIMITS
    ]
    return pa.Table.from_arrays(columns, schema=LIMITS)
