"""The rows of one session in the lake's tables: counted, removed, or erased in bronze."""

from __future__ import annotations

from operator import eq
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from sessionlake.delta.commit import erase_session_rows, remove_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    DECISIONS,
    EVENTS,
    LEDGER,
    MESSAGES,
    POSITIONS,
    PROCESSOR_ERRORS,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    ROWS,
    SESSIONS,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.session_rows import SessionRowSelection
from sessionlake.delta.storage.spark_writes import rewrite_rows_with_spark
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.entries import OffsetRange
from sessionlake.operations.forgetting.messages import (
    find_message_offset_ranges_of_session,
    select_session_messages_in_bronze,
)
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import read_message_that_stopped_layer
from sessionlake.streaming.manifest import forget_message_that_stopped_layer

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

TopicSession = tuple[str, str]
"""Topic and id of a session."""
_APPENDED = (CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, SNAPSHOTS, SNAPSHOT_INDEX, PROCESSOR_ERRORS, DECISIONS)
MERGED = (ROWS, SESSIONS)
"""Tables whose rows are changed by MERGE. All others are only appended to."""
_NAMING = (MESSAGES, SESSIONS, CHANGES, QUARANTINE, EVENTS, PROCESSOR_ERRORS, DECISIONS)
"""The tables in which a session's topics are looked up.

A session with only malformed messages is in quarantine alone.
"""
_MARKED = (*MERGED, RETAINED)
"""Tables whose files can have rows that are marked as deleted.

Their files are rewritten, even if no live row is removed.
"""
BOOKKEEPING = (LEDGER, POSITIONS, RETAINED)
"""The lake's tables about itself, which can name sessions."""


def list_tables_with_sessions(spark: SparkSession, lake: Lake) -> list[str]:
    """Returns the existing tables, other than bronze, from which a session's rows are removed."""
    processor_tables = [processor.output_table for processor in lake.settings.processors]
    return [table for table in dict.fromkeys([*_APPENDED, *MERGED, *processor_tables]) if lake.exists(spark, table)]


def find_topics_of_session(reader: TableReader, session_id: str, *, by_key: bool = True) -> list[str]:
    """Returns the topics that have a session of this id, in bronze or in a table made from bronze.

    Args:
        reader: Reads the tables.
        session_id: Id of the session.
        by_key: False if the Kafka key is not the session's id. Bronze is not searched then.
    """
    topics: set[str] = set()
    for table in _NAMING if by_key else _NAMING[1:]:
        rows = SessionRowSelection.select_rows_of_session(table, "", session_id, by_key=by_key)
        for batch in reader.read_batches(table, (rows.id_column, eq, rows.stored_session_id), columns=["topic"]):
            topics.update(batch.column("topic").unique().to_pylist())
    return sorted(topics)


def find_offset_ranges_of_session(spark: SparkSession, lake: Lake, session: TopicSession) -> list[OffsetRange]:
    """Returns, for each partition, the first and last offset of the session's messages in bronze, and their number."""
    if lake.settings.capture.feeds:
        return find_message_offset_ranges_of_session(spark, lake, *session)
    reader = lake.reader(spark)
    conditions = ("topic", eq, session[0]), ("key", eq, session[1].encode())
    parts = [
        pa.Table.from_batches([part])
        for part in reader.read_batches(MESSAGES, *conditions, columns=["partition", "offset"])
    ]
    if not parts:
        return []
    aggregates = [("offset", function) for function in ("min", "max", "count")]
    ranges = pa.concat_tables(parts).group_by("partition").aggregate(aggregates)
    rows = sorted(ranges.to_pylist(), key=lambda row: row["partition"])
    return [OffsetRange(session[0], r["partition"], r["offset_min"], r["offset_max"], r["offset_count"]) for r in rows]


def count_session_rows(spark: SparkSession, lake: Lake, session: TopicSession) -> dict[str, int]:
    """Returns the number of the session's rows in each table except bronze, by the table's name."""
    rows_by_table = {
        table: _select_session_rows(lake, table, session) for table in list_tables_with_sessions(spark, lake)
    }
    return {table: lake.storage.count_rows(spark, table, rows) for table, rows in rows_by_table.items()}


def _select_session_rows(lake: Lake, table: str, session: TopicSession) -> SessionRowSelection:
    return SessionRowSelection.select_rows_of_session(table, *session, by_key=not lake.settings.capture.feeds)


def remove_session_rows(spark: SparkSession, lake: Lake, table: str, session: TopicSession) -> None:
    """Removes the session's rows from a table."""
    rows = _select_session_rows(lake, table, session)
    if table in _MARKED:
        rewrite_rows_with_spark(lake.storage, spark, table, rows, lambda merge: merge.whenMatchedDelete())
    else:
        remove_rows(spark, lake, table, rows)


def erase_session_messages_in_bronze(spark: SparkSession, lake: Lake, session: TopicSession) -> None:
    """Erases the session's messages in bronze, keeping only their offsets and timestamps."""
    if lake.settings.capture.feeds:
        rows: SessionRowSelection = select_session_messages_in_bronze(spark, lake, *session)
    else:
        rows = SessionRowSelection.select_rows_of_session(MESSAGES, *session)
    if lake.storage.count_rows(spark, MESSAGES, rows):
        erase_session_rows(spark, lake, MESSAGES, rows)


def remove_session_from_operations_tables(spark: SparkSession, lake: Lake, session: TopicSession) -> None:
    """Removes the session's traces from the ledger, from its sums in `ops.positions`, and from `ops.retained`."""
    for table in (LEDGER, POSITIONS):
        _remove_decisions_about_session(spark, lake, table, session)
    # In `ops.retained` an empty session id means that the row is of no session.
    if session[1] and lake.exists(spark, RETAINED):
        remove_session_rows(spark, lake, RETAINED, session)


def remove_stopping_messages_of_session(settings: Settings, layers: list[str], session: TopicSession) -> None:
    """Removes the files that say at which message a layer stopped. Files that name another session stay."""
    for layer in layers:
        stop = read_message_that_stopped_layer(settings, layer)
        if stop is not None and (stop.topic, stop.session_id) == session:
            forget_message_that_stopped_layer(settings, layer)


def _remove_decisions_about_session(spark: SparkSession, lake: Lake, table: str, session: TopicSession) -> None:
    """Removes the operators' decisions about the session from the column `decisions` of a table."""
    from pyspark.sql import functions as F

    if not lake.exists(spark, table):
        return

    def is_about_session(decision: Column) -> Column:
        return (decision["topic"] == F.lit(session[0])) & (decision["session_id"] == F.lit(session[1]))

    rows = lake.read(spark, table)
    if rows.where(F.exists("decisions", is_about_session)).isEmpty():
        return
    left = rows.withColumn(
        "decisions", F.filter("decisions", lambda decision: ~is_about_session(decision))
    ).localCheckpoint()
    lake.overwrite_table(spark, table, left, Txn(f"forget:{uuid4().hex}", 0), "{}")
