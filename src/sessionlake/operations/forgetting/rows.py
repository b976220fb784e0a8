"""The rows of one session in the lake's tables: counted, removed, or, in bronze, blanked."""

from __future__ import annotations

from operator import eq
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa

from sessionlake.delta.commit import erase_messages, remove_rows
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
from sessionlake.delta.storage.session_rows import SessionRows
from sessionlake.delta.storage.spark_writes import rewrite_with_spark
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.entries import OffsetRange
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import stopped_at
from sessionlake.streaming.manifest import note_going_on

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

Session = tuple[str, str]
"""Topic and id."""
_APPENDED = (CHANGES, PROGRESS, QUARANTINE, EVENTS, CUTS, SNAPSHOTS, SNAPSHOT_INDEX, PROCESSOR_ERRORS, DECISIONS)
MERGED = (ROWS, SESSIONS)
"""Rows of these change."""
_NAMING = (MESSAGES, SESSIONS, CHANGES, QUARANTINE, EVENTS, PROCESSOR_ERRORS, DECISIONS)
"""Tables that tell which topics a session is in: what has only broken messages is no more than in quarantine."""
_MARKED = (*MERGED, RETAINED)
"""Of these tables, files can have rows that are marked as gone: they are written anew, whatever rows there are."""
BOOKS = (LEDGER, POSITIONS, RETAINED)
"""What the lake notes of itself, and sessions in it."""


def tables_of(spark: SparkSession, lake: Lake) -> list[str]:
    """The tables there are, beside bronze, that rows of a session are removed from."""
    own = [processor.into for processor in lake.settings.processors]
    return [table for table in dict.fromkeys([*_APPENDED, *MERGED, *own]) if lake.exists(spark, table)]


def topics_of(reader: TableReader, session: str) -> list[str]:
    """The topics with a session of this id, by its messages, and, where these are gone, by what was made of them."""
    found: set[str] = set()
    for table in _NAMING:
        own = SessionRows.of(table, "", session)
        for batch in reader.batches(table, (own.id_column, eq, own.value), columns=["topic"]):
            found.update(batch.column("topic").unique().to_pylist())
    return sorted(found)


def offsets_of(reader: TableReader, session: Session) -> list[OffsetRange]:
    """Where the session's messages are in bronze: between which offsets of each partition, and how many."""
    own = ("topic", eq, session[0]), ("key", eq, session[1].encode())
    parts = [pa.Table.from_batches([part]) for part in reader.batches(MESSAGES, *own, columns=["partition", "offset"])]
    if not parts:
        return []
    told = [("offset", how) for how in ("min", "max", "count")]
    found = pa.concat_tables(parts).group_by("partition").aggregate(told)
    rows = sorted(found.to_pylist(), key=lambda row: row["partition"])
    return [OffsetRange(session[0], r["partition"], r["offset_min"], r["offset_max"], r["offset_count"]) for r in rows]


def counts_of(spark: SparkSession, lake: Lake, session: Session) -> dict[str, int]:
    """How many rows of the session each table has."""
    own = {table: SessionRows.of(table, *session) for table in tables_of(spark, lake)}
    return {table: lake.storage.count_rows(spark, table, rows) for table, rows in own.items()}


def remove(spark: SparkSession, lake: Lake, table: str, session: Session) -> None:
    """Removes the session's rows from a table."""
    rows = SessionRows.of(table, *session)
    if table in _MARKED:
        rewrite_with_spark(lake.storage, spark, table, rows, lambda merge: merge.whenMatchedDelete())
    else:
        remove_rows(spark, lake, table, rows)


def blank(spark: SparkSession, lake: Lake, session: Session) -> None:
    """Leaves of the session's messages in bronze only where and when they were."""
    rows = SessionRows.of(MESSAGES, *session)
    if lake.storage.count_rows(spark, MESSAGES, rows):
        erase_messages(spark, lake, MESSAGES, rows)


def clean_books(spark: SparkSession, lake: Lake, session: Session) -> None:
    """Takes the session out of what the lake notes of itself."""
    for table in (LEDGER, POSITIONS):
        _without_decisions(spark, lake, table, session)
    # Rows of no session have an empty text: there is none of that id.
    if session[1] and lake.exists(spark, RETAINED):
        remove(spark, lake, RETAINED, session)


def clean_notes(settings: Settings, layers: list[str], session: Session) -> None:
    """Removes the notes of where layers stopped, if it was at this session."""
    for layer in layers:
        stop = stopped_at(settings, layer)
        if stop is not None and (stop.topic, stop.session_id) == session:
            note_going_on(settings, layer)


def _without_decisions(spark: SparkSession, lake: Lake, table: str, session: Session) -> None:
    """Takes the decisions about the session out of what batches noted of them."""
    from pyspark.sql import functions as F

    if not lake.exists(spark, table):
        return

    def is_own(decision: Column) -> Column:
        return (decision["topic"] == F.lit(session[0])) & (decision["session_id"] == F.lit(session[1]))

    rows = lake.read(spark, table)
    if rows.where(F.exists("decisions", is_own)).isEmpty():
        return
    left = rows.withColumn("decisions", F.filter("decisions", lambda decision: ~is_own(decision))).localCheckpoint()
    lake.overwrite(spark, table, left, Txn(f"forget:{uuid4().hex}", 0), "{}")
