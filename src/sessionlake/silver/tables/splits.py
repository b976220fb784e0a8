"""The event `split_session`: a session id that occurs in several partitions of a topic names several sessions.

Each of these sessions gets the event once. The event depends only on which sessions exist. It has no offset and no
time,
because messages of different partitions have no order. Pure.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.outcome import IntegrityEventAction, IntegrityEventKind
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.protocol.arrow import SESSION, mask_rows_of_sessions
from sessionlake.silver.fold.schemas import EVENTS_SCHEMA

ID = ("topic", "session_id")
"""The columns that are equal in sessions with a split id."""


def find_split_sessions(sessions: pa.Table) -> pa.Table:
    """Returns the sessions whose id occurs in several partitions of their topic.

    Args:
        sessions: Rows `topic, partition, session_id`, each session once. If an id occurs, all its sessions must be
            included.
    """
    partitions = sessions.group_by(list(ID)).aggregate([("partition", "count")])
    split = partitions.filter(pc.greater(partitions["partition_count"], 1)).select(ID)
    return sessions.select(SESSION).join(split, list(ID), join_type="left semi")


def build_split_events(split_sessions: pa.Table, known_events: pa.Table, rules: JudgingRuleLookup) -> pa.Table:
    """Returns the `split_session` events that are not recorded yet, as rows for `integrity_events`.

    Args:
        split_sessions: The sessions whose id occurs in several partitions.
        known_events: The sessions whose event is already recorded, as `topic, partition, session_id`.
        rules: The rules of the topics.
    """
    new = split_sessions.filter(pc.invert(mask_rows_of_sessions(split_sessions, known_events))).combine_chunks()
    given = {
        **{name: new[name] for name in SESSION},
        "event": pa.repeat(str(IntegrityEventKind.SPLIT_SESSION), new.num_rows),
        "action": pa.repeat(str(IntegrityEventAction.RECORDED), new.num_rows),
        "integrity": pa.array(
            [str(rules.find_judging_rules(topic).integrity) for topic in new["topic"].to_pylist()], pa.string()
        ),
    }
    columns = [given.get(field.name, pa.nulls(new.num_rows, field.type)) for field in EVENTS_SCHEMA]
    return pa.table(columns, schema=EVENTS_SCHEMA)
