"""Explains a row of a gold table: the events it is computed from, their Kafka offsets and batches, and the logic.

An event is a number or text that a change of silver set.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_, eq, ge, itemgetter, le, lt
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD, LEDGER
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.delta.storage.values import convert_to_row_dicts
from sessionlake.errors import LakeError, NotFoundError, UsageError
from sessionlake.gold.aggregate.late import WITH_PLACE
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import PARTITION, have_session_keys
from sessionlake.gold.changes import add_seq_order, build_event_filter, get_value_columns, select_changes, select_events
from sessionlake.gold.declared.tables import GoldTable, list_declared_gold_tables
from sessionlake.gold.enrich.table import BATCH, SILVER_NAMES, EnrichedTable
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.tables.expiry import describe_expiry, read_expiry_times
from sessionlake.gold.tables.table_properties import LOGIC
from sessionlake.ledger.entries import find_earliest_commit_time_after_rebuild
from sessionlake.ledger.progress import read_change_progress
from sessionlake.ledger.retained import read_last_removed_position, read_removal_records_without_limits
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings
from sessionlake.spark.reading_plan import require_own_columns_only
from sessionlake.streaming.checkpoint import is_reading_initial_snapshot, read_last_committed_batch
from sessionlake.streaming.errors import explain_sql_error
from sessionlake.streaming.handover import read_version_reached_by_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OF_BATCH = ("batch_id", "source_from", "source_to", "committed_at", "code_version")


@dataclass(frozen=True)
class SourceOffsetSpan:
    """The messages of one topic-partition from which a row is computed.

    Attributes:
        first, last: The lowest and the highest offset of these messages.
        messages: The number of these messages. Between `first` and `last` there may be others.
    """

    topic: str
    partition: int
    first: int
    last: int
    messages: int


@dataclass(frozen=True)
class GoldBatch:
    """A batch of gold, from the ledger, that added events to a row.

    Attributes:
        batch: Number of the batch.
        silver_batches: The first and the last silver batch that the batch read.
        committed_at: When the batch was committed.
        code_version: Version of sessionlake that committed the batch.
        with_earlier: True if this stands for all gold batches up to this one. Silver was rebuilt since, and it is no
            longer known which of these batches added the events.
    """

    batch: int
    silver_batches: tuple[int, int]
    committed_at: datetime
    code_version: str
    with_earlier: bool = False


@dataclass(frozen=True)
class ExplainedGoldRow:
    """One row of a table of gold, and the events that it is computed from.

    Attributes:
        table: Name of the table.
        key: The row's key columns, by name.
        figures: The row's results, by column.
        events: Number of events that the row is computed from. Events of changes that retention removed do not count.
        offsets: The messages of these events, one item per topic-partition.
        batches: Gold's batches that added these events.
        logic: A text or hash that identifies the settings and code that computed the row; None if it is not recorded.
        holds: True if the row is computed from the requested message too. None if no message was requested, or if
            this is not known because changes were removed.
        gone_before: None if all changes of the row exist. Otherwise retention has removed changes that were committed
            before this time, and some of them may belong to the row.
    """

    table: str
    key: Mapping[str, Any]
    figures: Mapping[str, Any]
    events: int
    offsets: tuple[SourceOffsetSpan, ...]
    batches: tuple[GoldBatch, ...]
    logic: str | None
    holds: bool | None
    gone_before: datetime | None


@dataclass(frozen=True)
class _ChangesReadByGold:
    """The rows of `session_changes` that gold has read.

    Attributes:
        rows: The changes.
        settings: The configuration.
        renumbered: Number of silver's last rebuild. Changes from before it have this batch number. None if silver was
            not rebuilt.
    """

    rows: DataFrame
    settings: Settings
    renumbered: int | None


def explain(
    spark: SparkSession,
    settings: Settings,
    table: str,
    where: str,
    *,
    message: tuple[int, int] | None = None,
    at_most: int = 3,
) -> tuple[list[ExplainedGoldRow], bool]:
    """Explains the rows of a gold table that meet a condition, in the order of their keys.

    Args:
        where: A SQL condition on the table's columns; empty for all rows.
        message: Partition and offset of a message. The result says whether each row is computed from it.
        at_most: The most rows to explain.

    Returns:
        The explained rows, and True if more rows meet the condition.

    Raises:
        UsageError: Gold has no such table, or its rows do not come from single messages.
        LakeError: The table does not exist yet.
        NotFoundError: No row meets the condition.
    """
    known = {one.table_name: one for one in list_declared_gold_tables(settings)}
    for own in settings.gold.products:
        if own.table == table and own.source is not None:
            raise UsageError(
                f"{table} cannot be explained by messages, because it is computed from rows of {own.source}",
                fix=f"To see the rows behind a figure, query {own.source} with the figure's values of "
                f"{', '.join(filter(None, [*own.keys, own.time]))}. To check all figures, run `sessionlake verify "
                "gold`",
            )
    if table not in known:
        raise UsageError(f"{table!r} is not a table that `explain` knows", fix=f"Name one of {', '.join(known)}")
    lake = Lake(settings)
    if not lake.exists(spark, table):
        raise LakeError(
            f"{table} does not exist yet in {settings.location}", fix="Run `sessionlake run all --once` to fill it"
        )
    rows, reader = _read_gold_rows_where(spark, lake, known[table], where, at_most + 1), lake.reader(spark)
    if not rows:
        begins = "".join(f"; {describe_expiry(*found)}" for found in read_expiry_times(reader, [table]).items())
        what = f"{table} has no row with {where}" if where else f"{table} has no rows"
        raise NotFoundError(what + begins, fix=f"Look at the rows that {table} has with `sessionlake query`")
    changes = _select_changes_read_by_gold(spark, lake, reader)
    logic = lake.storage.read_properties(spark, table).get(LOGIC)
    explained = [_explain_gold_row(reader, changes, known[table], row, message, logic) for row in rows[:at_most]]
    return explained, len(rows) > at_most


def _read_gold_rows_where(spark: SparkSession, lake: Lake, table: GoldTable, where: str, at_most: int) -> list[Row]:
    """Returns the rows of a gold table that meet a SQL condition, sorted by key, at most `at_most` of them.

    Raises:
        UsageError: Spark rejects the condition, or it fails at run time.
    """
    from pyspark.errors import PySparkException

    if where:
        require_own_columns_only(spark, "explain: --where", where)
    rows = lake.read(spark, table.table_name)
    try:
        rows = rows.where(where) if where else rows
        return _collect_rows(rows.orderBy(*map(quote, table.row_keys)).limit(at_most))
    except PySparkException as error:
        raise explain_sql_error("explain", error) from error


def _select_changes_read_by_gold(spark: SparkSession, lake: Lake, reader: TableReader) -> _ChangesReadByGold:
    from pyspark.sql import functions as F

    taken = read_change_progress(reader)
    last = -1 if taken is None else taken.batch
    if not _has_read_only_complete_batches(lake.settings):
        last -= 1  # gold may have read only a part of silver's last batch
    rows = lake.read(spark, CHANGES).where(F.col("_batch") <= last)
    return _ChangesReadByGold(rows, lake.settings, None if taken is None else taken.renumbered)


def _has_read_only_complete_batches(settings: Settings) -> bool:
    """Returns True if gold has read every silver batch of which it has read a part.

    Raises:
        LakeError: This is not known, because gold is still reading the changes from before its first start.
    """
    if is_reading_initial_snapshot(settings.checkpoint_path(GOLD)):
        raise LakeError(
            f"gold is still reading the rows that {CHANGES} had when gold started for the first time",
            why="Until it has read them all, it is not known which of them are in gold's figures",
            fix="Wait until `sessionlake status` shows that gold has read all batches of silver, and run this again",
        )
    batch = read_last_committed_batch(settings.checkpoint_path(GOLD))
    return batch is None or read_version_reached_by_batch(settings, GOLD, batch)[1]


def _explain_gold_row(
    reader: TableReader,
    changes: _ChangesReadByGold,
    table: GoldTable,
    row: Row,
    message: tuple[int, int] | None,
    logic: str | None,
) -> ExplainedGoldRow:
    keys = table.row_keys
    shown = {name for name in row if name not in keys and (name in table.result_columns or not name.startswith("_"))}
    events = _select_source_events_of_gold_row(changes, table, row)
    found = _collect_rows(events.groupBy("topic", "partition").agg(*_build_offset_range_aggregates()))
    silver_numbers = [one["batch"] for one in _collect_rows(events.select("batch").distinct())]
    key = {name: row[name] for name in keys}
    made_of = sum(one["events"] for one in found)
    gone = None if _does_row_confirm_event_count(table, row, made_of) else _find_time_until_changes_removed(reader, key)
    holds = None if message is None else _contains_events_of_message(events, message)
    return ExplainedGoldRow(
        table=table.table_name,
        key=key,
        figures={name: value for name, value in row.items() if name in shown},
        events=made_of,
        offsets=tuple(
            SourceOffsetSpan(part["topic"], part["partition"], part["first"], part["last"], part["messages"])
            for part in found
        ),
        batches=tuple(_read_gold_batches_of_silver_batches(reader, sorted(silver_numbers), changes.renumbered)),
        logic=logic,
        holds=None if gone is not None and not holds else holds,
        gone_before=gone,
    )


def _does_row_confirm_event_count(table: GoldTable, row: Row, event_count: int) -> bool:
    """Returns True if the row's own values show that it is computed from exactly this number of events."""
    if isinstance(table, EnrichedTable):
        return event_count == 1
    return isinstance(table, RollingAverage) and bool(event_count == row["points"])


def _find_time_until_changes_removed(reader: TableReader, row_key: Row) -> datetime | None:
    """Returns the time before which retention has removed changes that may belong to a row; None if none may.

    Args:
        reader: Reads the tables.
        row_key: The row's key columns.
    """
    cut = read_removal_records_without_limits(reader).get(CHANGES)
    if cut is None or not cut.max_missing_rows:
        return None
    if {"topic", "session_id"} <= row_key.keys():
        last_removed = read_last_removed_position(
            reader, row_key["topic"], row_key.get("partition"), row_key["session_id"]
        )
        return None if last_removed is None else cut.before
    return cut.before


def _collect_rows(frame: DataFrame) -> list[Row]:
    return convert_to_row_dicts(frame.toArrow())


def _build_offset_range_aggregates() -> list[Any]:
    from pyspark.sql import functions as F

    return [
        F.count("*").alias("events"),
        F.countDistinct("offset").alias("messages"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    ]


def _select_source_events_of_gold_row(changes: _ChangesReadByGold, table: GoldTable, row: Row) -> DataFrame:
    """Returns the events from which a row of a gold table is computed."""
    from pyspark.sql import functions as F

    if isinstance(table, EnrichedTable):
        own = (F.col(SILVER_NAMES.get(name, name)).alias(name) for name in table.row_keys)
        found = changes.rows.select(*own, F.col(BATCH).alias("batch"))
        return found.where(reduce(and_, (F.col(quote(name)) == F.lit(row[name]) for name in table.row_keys)))
    if isinstance(table, RollingAverage):
        return _select_points_of_average(changes, table, row)
    key = {name: row[name] for name in table.row_keys}
    events = _select_events_with_row_key(changes, key, numeric=table.source.is_numeric).where(build_event_filter(table))
    if START in key and table.bucket_ms is not None:
        start = (row[START] - _EPOCH) // _MILLISECOND
        events = events.where(F.col("ts").between(start, start + table.bucket_ms - 1))
    for name in (one for one in table.row_keys if one != START):
        events = events.where(F.col(quote(name)) == F.lit(row[name]))
    return events


def _select_points_of_average(changes: _ChangesReadByGold, series: RollingAverage, row: Row) -> DataFrame:
    """Returns the points from which a moving average is computed: the row's own point and those before it."""
    from pyspark.sql import functions as F

    key = {name: row[name] for name in series.row_keys}
    events = _select_events_with_row_key(changes, key, numeric=True).where(F.col("metric") == row["metric"])
    order = F.struct(*series.sort_columns)
    place = F.struct(*(F.lit(row[name]).cast(events.schema[name].dataType) for name in series.sort_columns))
    until = events.where(order <= place)
    return until.orderBy(order.desc()).limit(row["points"])


def _select_events_with_row_key(changes: _ChangesReadByGold, row_key: Row, *, numeric: bool) -> DataFrame:
    """Returns the events that have the same topic, session, row and partition as a row of gold.

    Args:
        changes: The changes to search.
        row_key: The key of gold's row. Columns that it lacks are not compared.
        numeric: True for events that are numbers, False for texts.
    """
    from pyspark.sql import functions as F

    found = changes.rows
    for name in ("topic", "session_id", "row_id", *((PARTITION,) if have_session_keys(row_key) else ())):
        if name in row_key:
            found = found.where(F.col(name) == F.lit(row_key[name]))
    found = select_changes(found, changes.settings)
    declared = get_value_columns(changes.settings)
    return add_seq_order(select_events(found, declared, (*WITH_PLACE, "batch"), numbers=numeric))


def _contains_events_of_message(events: DataFrame, partition_and_offset: tuple[int, int]) -> bool:
    return not events.where("partition = {:d} AND offset = {:d}".format(*partition_and_offset)).isEmpty()


def _read_gold_batches_of_silver_batches(
    reader: TableReader, silver_batches: list[int], last_rebuild_batch: int | None
) -> Iterator[GoldBatch]:
    """Yields the batches of gold since its last rebuild that read one of these silver batches.

    Args:
        reader: Reads the ledger.
        silver_batches: Numbers of the silver batches, ascending.
        last_rebuild_batch: Number of silver's last rebuild. Changes from before it have this batch number. None if
            silver was not rebuilt.
    """
    if not silver_batches:
        return
    rebuilt_at = find_earliest_commit_time_after_rebuild(reader, GOLD)
    own: list[Condition] = [("layer", eq, GOLD), ("committed_at", ge, rebuilt_at)]
    if last_rebuild_batch in silver_batches:
        yield from _summarize_gold_batches_before_rebuild(reader, own, last_rebuild_batch)
    between = ("source_to", ge, silver_batches[0]), ("source_from", le, silver_batches[-1])
    rows = reader.read_rows(LEDGER, *own, *between, columns=[*_OF_BATCH, "layer"])
    for row in sorted(rows, key=itemgetter("committed_at")):
        first, last = span = row["source_from"], row["source_to"]
        place = bisect_left(silver_batches, first)
        if place < len(silver_batches) and silver_batches[place] <= last:
            yield GoldBatch(row["batch_id"], span, row["committed_at"], row["code_version"])


def _summarize_gold_batches_before_rebuild(
    reader: TableReader, gold_conditions: list[Condition], last_rebuild_batch: int
) -> Iterator[GoldBatch]:
    """Yields one item that stands for all gold batches that read changes from before silver's last rebuild, if any.

    Args:
        reader: Reads the ledger.
        gold_conditions: Conditions that select gold's entries.
        last_rebuild_batch: Number of silver's last rebuild.
    """
    if not reader.exists(LEDGER):
        return
    found = reader.read_arrow_table(
        LEDGER, *gold_conditions, ("source_to", lt, last_rebuild_batch), columns=[*_OF_BATCH, "layer"]
    )
    if found.num_rows:
        span = pc.min(found["source_from"]).as_py(), pc.max(found["source_to"]).as_py()
        (last,) = found.sort_by("committed_at").slice(found.num_rows - 1).to_pylist()
        yield GoldBatch(last["batch_id"], span, last["committed_at"], last["code_version"], with_earlier=True)
