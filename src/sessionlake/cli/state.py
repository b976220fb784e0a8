"""`sessionlake state`: shows the contents of silver's state store."""

from __future__ import annotations

import operator
from dataclasses import astuple
from typing import TYPE_CHECKING

from sessionlake.cli.show import OutputFormat, show_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import PROGRESS
from sessionlake.delta.storage.reading import Condition
from sessionlake.errors import UsageError
from sessionlake.history.asof import choose_topic_partition_of_session
from sessionlake.history.state import STATS, compute_shard_state_stats, convert_times_to_iso, find_session_state
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings
from sessionlake.silver.states import compute_shard_of_session, read_shard_states

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def show_session_state(
    spark: SparkSession,
    settings: Settings,
    session: str,
    topic: str | None,
    form: OutputFormat,
    partition: int | None = None,
) -> None:
    """Prints the state of one session: one row per field, or one JSON object in which times are milliseconds.

    Raises:
        UsageError: Silver keeps no state of the session, or several topics or partitions have its id.
    """
    topic, partition = _find_topic_partition_of_session(spark, settings, session, topic, partition)
    shard = compute_shard_of_session(spark, settings, topic, session)
    stored = next((state for _, state in read_shard_states(spark, settings, shard)), None)
    if stored is None:
        raise UsageError(
            f"state: shard {shard}, which holds session {session!r} of topic {topic}, has no state yet",
            fix="Run `sessionlake run silver --once` first",
        )
    state = {"shard": shard, **find_session_state(stored, topic, partition, session)}
    if form is OutputFormat.TABLE:
        fields = [(name, value) for name, value in convert_times_to_iso(state).items() if value not in (None, [])]
        show_rows(("field", "value"), fields, form)
    else:
        show_rows(list(state), [list(state.values())], form)


def show_state_stats(spark: SparkSession, settings: Settings, form: OutputFormat) -> None:
    """Prints counts and size of each shard's state, sorted by number. A table for people ends with a row of sums."""
    rows = sorted(
        astuple(compute_shard_state_stats(shard, state)) for shard, state in read_shard_states(spark, settings)
    )
    if form is OutputFormat.TABLE and rows:
        rows.append(("all", *(sum(column) for column in list(zip(*rows, strict=True))[1:])))
    show_rows(STATS, rows, form)


def _find_topic_partition_of_session(
    spark: SparkSession, settings: Settings, session: str, topic: str | None, partition: int | None
) -> TopicPartition:
    conditions: list[Condition] = [("session_id", operator.eq, session)]
    conditions += [] if topic is None else [("topic", operator.eq, topic)]
    rows = Lake(settings).reader(spark).read_rows(PROGRESS, *conditions, columns=["topic", "partition"])
    place = choose_topic_partition_of_session(session, {(row["topic"], row["partition"]) for row in rows}, partition)
    if place is None:
        raise UsageError(
            f"state: session {session!r} is unknown",
            fix='Look for its id with `sessionlake query "SELECT session_id FROM silver.sessions"`',
        )
    return place
