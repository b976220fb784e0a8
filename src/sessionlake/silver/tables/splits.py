"""The event `split_session`: an id that occurs in several partitions of a topic, and so names as many sessions.

Each of these sessions has the event once. It follows from which sessions there are, and from nothing else: partitions
have no order between them, so the event names no offset and no time. Pure.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.outcome import Action, EventKind
from sessionlake.integrity.rules import RuleBook
from sessionlake.protocol.arrow import SESSION, is_of_sessions
from sessionlake.silver.fold.schemas import EVENTS_SCHEMA

ID = ("topic", "session_id")
"""What several sessions have in common if their id is split."""


def split_sessions(sessions: pa.Table) -> pa.Table:
    """The sessions whose id occurs in several partitions of their topic.

    Args:
        sessions: `SESSION`, each once: all sessions of the ids that they have.
    """
    partitions = sessions.group_by(list(ID)).aggregate([("partition", "count")])
    split = partitions.filter(pc.greater(partitions["partition_count"], 1)).select(ID)
    return sessions.select(SESSION).join(split, list(ID), join_type="left semi")


def split_events(split: pa.Table, known: pa.Table, rules: RuleBook) -> pa.Table:
    """The events of sessions whose id is split, less those that were recorded before; columns as `EVENTS_SCHEMA`.

    Args:
        split: see `split_sessions`.
        known: `SESSION` of those that were recorded.
    """
    new = split.filter(pc.invert(is_of_sessions(split, known))).combine_chunks()
    given = {
        **{name: new[name] for name in SESSION},
        "event": pa.repeat(str(EventKind.SPLIT_SESSION), new.num_rows),
        "action": pa.repeat(str(Action.RECORDED), new.num_rows),
        "integrity": pa.array([str(rules.of(topic).integrity) for topic in new["topic"].to_pylist()], pa.string()),
    }
    columns = [given.get(field.name, pa.nulls(new.num_rows, field.type)) for field in EVENTS_SCHEMA]
    return pa.table(columns, schema=EVENTS_SCHEMA)
