"""Up to where rows may go, whatever the settings say: one rule a table. Pure: what is known in, limits out.

Age is never looked at here: what is old enough comes in, as offsets or batches that were committed before a moment.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.lake.retained import LIMITS
from sessionlake.protocol.arrow import SESSION, are_of, session_keys
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


def of_changes(kept: pa.Table, filled_late: pa.Table, once: Collection[str]) -> pa.Table:
    """The last position that may go from `session_changes`, of each session: that of its last whole table that is old.

    So each later moment is told from that table and the changes since. A session that has had a late fill, or may ever
    get one, keeps all: its tables are folded in seq order, from its first change on, where no whole table will do.

    Args:
        kept: cuts whose tables are kept, and old enough: `topic, session_id, position`.
        filled_late: the sessions that have had a late fill.
        once: the topics whose messages may be filled in late, by their class.
    """
    last = kept.group_by([*SESSION]).aggregate([("position", "max")]).rename_columns([*SESSION, "limit"])
    in_seq_order = pc.is_in(last["topic"], value_set=pa.array(once, pa.string()))
    return limits_of(last.filter(pc.invert(pc.or_(in_seq_order, are_of(last, filled_late)))))


def of_snapshots(kept: pa.Table, changes: pa.Table) -> pa.Table:
    """The last position up to which cuts and whole tables may go, of each session: before its last one that is old.

    That which its changes go on from stays as well.

    Args:
        kept: as for `of_changes`.
        changes: the limits of `session_changes`.
    """
    last = kept.group_by([*SESSION]).aggregate([("position", "max")]).rename_columns([*SESSION, "limit"])
    floors = changes["limit"].take(pc.index_in(session_keys(last), value_set=session_keys(changes)))
    least = pc.min_element_wise(last["limit"], floors)  # nulls are passed over
    return limits_of(last.set_column(last.schema.get_field_index("limit"), "limit", pc.subtract(least, 1)))


def of_progress(last: pa.Table) -> pa.Table:
    """The last batch that may go from `session_progress`, of each life of a session: the one before its last.

    Args:
        last: `topic, session_id, first_offset, _batch`, of the last row of each.
    """
    return last.set_column(last.schema.get_field_index("_batch"), "limit", pc.subtract(last["_batch"], 1))


def of_places(ends: Mapping[TopicPartition, int]) -> pa.Table:
    """Offsets by topic-partition as limits."""
    rows = [{"topic": topic, "partition": number, "limit": limit} for (topic, number), limit in sorted(ends.items())]
    return pa.Table.from_pylist(rows, LIMITS)


def limits_of(rows: pa.Table) -> pa.Table:
    """Limits by session, of those that have one."""
    found = rows.filter(pc.greater_equal(rows["limit"], 0))
    columns = [
        found[field.name].cast(field.type) if field.name in found.column_names else pa.nulls(found.num_rows, field.type)
        for field in LIMITS
    ]
    return pa.Table.from_arrays(columns, schema=LIMITS)


def advanced(before: pa.Table, now: pa.Table, keys: Sequence[str]) -> pa.Table:
    """Limits that are never moved back."""
    both = pa.concat_tables([before, now]).group_by([*keys]).aggregate([("limit", "max"), ("highest_timestamp", "max")])
    return limits_of(both.rename_columns([*keys, "limit", "highest_timestamp"]))
