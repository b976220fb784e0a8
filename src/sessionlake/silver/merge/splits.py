"""Records the event `split_session` for session ids that a range of batches has used in a second partition.

State forgets a session after twice its timeout. So whether an id occurs in another partition is looked up in
`sessions`, which has a row for every session. Only sessions that started in the range can use an id a second time.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import append_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import EVENTS, SESSIONS
from sessionlake.delta.storage.reading import Condition, TableReader, TooLargeError, is_in
from sessionlake.delta.storage.txn import Txn
from sessionlake.integrity.outcome import IntegrityEventKind
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.entries import TableOutput
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import TopicPartition
from sessionlake.silver.merge.batch_range import NAMED_SESSIONS
from sessionlake.silver.tables.splits import ID, build_split_events, find_split_sessions
from sessionlake.spark.frames import Rows, convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Number of session ids looked up at once: their rows must fit into the driver.
_AT_ONCE = 100_000
_PLACE = ("topic", "partition")


def record_split_sessions(
    spark: SparkSession,
    lake: Lake,
    session_rows: Rows,
    first_offsets: Mapping[TopicPartition, int],
    batch: int,
    txn: Txn,
) -> tuple[TableOutput, ...]:
    """Appends `split_session` events that are missing to `integrity_events`. Without any, commits nothing.

    Args:
        spark: The Spark session.
        lake: The lake.
        session_rows: The rows that were merged into `sessions`.
        first_offsets: The first offset of each topic-partition in the range.
        batch: The last batch of the range.
        txn: The transaction.

    Returns:
        The version of `integrity_events` and the number of events, for the ledger; empty if there are none.
    """
    reader, rules = lake.reader(spark), JudgingRuleLookup(lake.settings.capture)
    columns = [*SESSION, "first_offset"]
    held = (
        session_rows
        if isinstance(session_rows, pa.Table)
        else convert_to_spark_frame(spark, session_rows).select(*columns).toArrow()
    )
    sessions = held.select(columns)
    parts = [
        *_find_missing_events_in_parts(reader, lake, select_started_sessions(sessions, first_offsets).select(ID), rules)
    ]
    if not parts:
        return ()
    events = pa.concat_tables(parts)
    append_rows(spark, lake, EVENTS, events.append_column("_batch", pa.repeat(batch, events.num_rows)), txn)
    return (TableOutput(EVENTS, lake.latest_version(spark, EVENTS), events.num_rows),)


def select_started_sessions(sessions: pa.Table, first_offsets: Mapping[TopicPartition, int]) -> pa.Table:
    """Returns the sessions whose life started in the range, and those of topic-partitions without a first offset.

    Args:
        sessions: Rows of `sessions`.
        first_offsets: The first offset of each topic-partition in the range.
    """
    known = pa.array([f"{topic}\0{partition}" for topic, partition in first_offsets], pa.string())
    start = pa.array([*first_offsets.values()], pa.int64())
    places = pc.binary_join_element_wise(*(pc.cast(sessions[name], pa.string()) for name in _PLACE), "\0")
    began = pc.greater_equal(sessions["first_offset"], start.take(pc.index_in(places, value_set=known)))
    return sessions.filter(pc.fill_null(began, fill_value=True))


def _find_missing_events_in_parts(
    reader: TableReader, lake: Lake, ids: pa.Table, rules: JudgingRuleLookup
) -> Iterator[pa.Table]:
    """Yields the events of sessions whose id is in several partitions, if `integrity_events` does not have them yet.

    Each yielded table has the events of a limited number of ids. `ids` are rows with topic and session id.
    """
    ids = _select_distinct_ids(ids)
    for start in range(0, ids.num_rows, _AT_ONCE):
        yield from _find_missing_events(reader, lake, ids.slice(start, _AT_ONCE), rules)


def _select_distinct_ids(rows: pa.Table) -> pa.Table:
    """Returns topic and session id of the rows, each pair once."""
    return rows.group_by(list(ID)).aggregate([])


def _find_missing_events(
    reader: TableReader, lake: Lake, ids: pa.Table, rules: JudgingRuleLookup
) -> Iterator[pa.Table]:
    """Yields the `split_session` events that are missing for these session ids.

    If the rows of all ids do not fit into the driver's memory, it looks up each half of the ids alone.
    """
    try:
        split = find_split_sessions(_read_sessions_with_ids(reader, lake, SESSIONS, ids))
        recorded = ("event", operator.eq, str(IntegrityEventKind.SPLIT_SESSION))
        known = (
            _read_sessions_with_ids(reader, lake, EVENTS, _select_distinct_ids(split), recorded)
            if split.num_rows
            else None
        )
    except TooLargeError:
        half = ids.num_rows // 2
        for part in (ids.slice(0, half), ids.slice(half)):
            yield from _find_missing_events(reader, lake, part, rules)
        return
    if known is not None:
        events = build_split_events(split, known, rules)
        if events.num_rows:
            yield events


def _read_sessions_with_ids(
    reader: TableReader, lake: Lake, table: str, ids: pa.Table, *conditions: Condition
) -> pa.Table:
    """Returns the sessions, as `topic, partition, session_id`, of a table's rows that have one of these ids."""
    names = pc.unique(ids["session_id"]).to_pylist()
    named: list[Condition] = [("session_id", is_in, names)] if len(names) <= NAMED_SESSIONS else []
    most = lake.driver_limits.driver_bytes if ids.num_rows > 1 else None  # one id has few rows: one for each partition
    found = reader.read_arrow_table(
        table, *named, *conditions, columns=_list_columns_to_read(conditions), sessions=ids, max_bytes=most
    )
    return found.select(SESSION)


def _list_columns_to_read(conditions: tuple[Condition, ...]) -> list[str]:
    """Returns the columns to read: those of a session, and those that the conditions compare."""
    return [*SESSION, *(name for name, _, _ in conditions)]
