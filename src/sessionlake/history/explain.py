"""What a figure of gold is made of: its events, their Kafka offsets, the batches that brought them, and the logic."""

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
from sessionlake.delta.storage.values import rows_of
from sessionlake.errors import LakeError, NotThereError, UsageError
from sessionlake.gold.aggregate.late import WITH_PLACE
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import PARTITION, names_sessions
from sessionlake.gold.changes import declared_in, events_of, is_late, select_changes, with_seq_order
from sessionlake.gold.declared.tables import GoldTable, tables_of
from sessionlake.gold.enrich.table import BATCH, SILVER_NAMES, EnrichedTable
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.tables.expiry import describe_floors, read_floors
from sessionlake.gold.tables.notes import LOGIC
from sessionlake.ledger.entries import earliest_after_rebuild
from sessionlake.ledger.progress import changes_read
from sessionlake.ledger.retained import last_removed_position, read_heads
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings
from sessionlake.spark.reading_plan import require_condition
from sessionlake.streaming.checkpoint import last_committed, reads_initial_snapshot
from sessionlake.streaming.errors import explain_sql_error
from sessionlake.streaming.handover import version_reached

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)
_OF_BATCH = ("batch_id", "source_from", "source_to", "committed_at", "code_version")


@dataclass(frozen=True)
class Offsets:
    """The messages of one topic-partition that are in a figure."""

    topic: str
    partition: int
    first: int
    last: int
    messages: int


@dataclass(frozen=True)
class GoldBatch:
    """A batch of gold that brought some of a figure's events, by the ledger.

    Attributes:
        silver_batches: the first and last of silver's that it took in.
        with_earlier: whether it stands for all of gold's batches up to it, too: silver was rebuilt since, so that
            nothing tells any more which of them brought the events.
    """

    batch: int
    silver_batches: tuple[int, int]
    committed_at: datetime
    code_version: str
    with_earlier: bool = False


@dataclass(frozen=True)
class Explained:
    """One row of a table of gold.

    Attributes:
        key: what tells it apart.
        figures: its results.
        events: how many it was made of, of the changes that are still there.
        logic: what the table's rows rest on.
        holds: whether the message that was asked for is in it; None if none was, or it cannot be told.
        gone_before: retention has removed changes that were committed before, of which the row may be made, too; None
            if all of its are there.
    """

    table: str
    key: Mapping[str, Any]
    figures: Mapping[str, Any]
    events: int
    offsets: tuple[Offsets, ...]
    batches: tuple[GoldBatch, ...]
    logic: str | None
    holds: bool | None
    gone_before: datetime | None


@dataclass(frozen=True)
class _Changes:
    """Silver's changes that gold has taken in.

    Attributes:
        renumbered: see `ledger.progress.ChangesRead`.
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
) -> tuple[list[Explained], bool]:
    """Explains the rows of a table of gold that meet a condition, the first of them in the order of their keys.

    Args:
        where: in SQL, over the table's columns.
        message: partition and offset of a message, of which it is said whether it is in the figures.
        at_most: so many rows.

    Returns:
        The rows, and whether there are more.

    Raises:
        UsageError: the table is none of gold's.
        LakeError: it has not been made yet.
        NotThereError: no row meets the condition.
    """
    known = {one.table: one for one in tables_of(settings)}
    for own in settings.gold.products:
        if own.table == table and own.source is not None:
            raise UsageError(
                f"{table} is made of the rows of {own.source}, which need not be of one message each: those of a "
                f"figure have its {', '.join(own.keys)}{f', and {own.time} in its bucket' * bool(own.bucket)}. "
                "`sessionlake query` shows them, and `sessionlake verify gold` compares every figure with them"
            )
    if table not in known:
        raise UsageError(f"{table!r} cannot be explained: name one of {', '.join(known)}")
    lake = Lake(settings)
    if not lake.exists(spark, table):
        raise LakeError(f"{table} is not there yet in {settings.place}: `sessionlake run all --once` fills it")
    rows, reader = _rows_where(spark, lake, known[table], where, at_most + 1), lake.reader(spark)
    if not rows:
        begins = "".join(f"; {describe_floors(*found)}" for found in read_floors(reader, [table]).items())
        raise NotThereError((f"{table} has no row with {where}" if where else f"{table} has no rows") + begins)
    changes = _taken_in(spark, lake, reader)
    logic = lake.storage.properties(spark, table).get(LOGIC)
    explained = [_explained(reader, changes, known[table], row, message, logic) for row in rows[:at_most]]
    return explained, len(rows) > at_most


def _rows_where(spark: SparkSession, lake: Lake, table: GoldTable, where: str, at_most: int) -> list[Row]:
    """The first rows that meet a condition.

    Raises:
        UsageError: Spark does not accept it, or it fails while it is computed.
    """
    from pyspark.errors import PySparkException

    if where:
        require_condition(spark, "explain: --where", where)
    rows = lake.read(spark, table.table)
    try:
        rows = rows.where(where) if where else rows
        return _rows(rows.orderBy(*map(quote, table.row_keys)).limit(at_most))
    except PySparkException as error:
        raise explain_sql_error("explain", error) from error


def _taken_in(spark: SparkSession, lake: Lake, reader: TableReader) -> _Changes:
    from pyspark.sql import functions as F

    taken = changes_read(reader)
    last = -1 if taken is None else taken.batch
    if not _is_level(lake.settings):
        last -= 1  # of silver's last batch, gold may have read a part
    rows = lake.read(spark, CHANGES).where(F.col("_batch") <= last)
    return _Changes(rows, lake.settings, None if taken is None else taken.renumbered)


def _is_level(settings: Settings) -> bool:
    """Whether gold has read all of each of silver's batches that it has begun to read.

    Raises:
        LakeError: nobody can tell, as it is still at what was there when it began.
    """
    if reads_initial_snapshot(settings.checkpoint(GOLD)):
        raise LakeError(
            f"{GOLD} is still at what {CHANGES} held when it began, which need not come in order: what its figures "
            "are made of can be told once it has read that"
        )
    batch = last_committed(settings.checkpoint(GOLD))
    return batch is None or version_reached(settings, GOLD, batch)[1]


def _explained(
    reader: TableReader,
    changes: _Changes,
    table: GoldTable,
    row: Row,
    message: tuple[int, int] | None,
    logic: str | None,
) -> Explained:
    keys = table.row_keys

    def is_told(name: str) -> bool:
        return name in table.results or not name.startswith("_")

    events = _of_row(changes, table, row)
    found = _rows(events.groupBy("topic", "partition").agg(*_spans()))
    brought = [one["batch"] for one in _rows(events.select("batch").distinct())]
    key = {name: row[name] for name in keys}
    made_of = sum(one["events"] for one in found)
    gone = None if _is_whole(table, row, made_of) else _gone_before(reader, key)
    holds = None if message is None else _holds(events, message)
    return Explained(
        table=table.table,
        key=key,
        figures={name: value for name, value in row.items() if name not in keys and is_told(name)},
        events=made_of,
        offsets=tuple(
            Offsets(one["topic"], one["partition"], one["first"], one["last"], one["messages"]) for one in found
        ),
        batches=tuple(_gold_batches(reader, sorted(brought), changes.renumbered)),
        logic=logic,
        holds=None if gone is not None and not holds else holds,
        gone_before=gone,
    )


def _is_whole(table: GoldTable, row: Row, events: int) -> bool:
    """Whether the row itself says that it is made of so many events."""
    if isinstance(table, EnrichedTable):
        return events == 1
    return isinstance(table, RollingAverage) and bool(events == row["points"])


def _gone_before(reader: TableReader, key: Row) -> datetime | None:
    """Before when changes were committed that are gone and of which a row may be made."""
    cut = read_heads(reader).get(CHANGES)
    if cut is None or not cut.gone:
        return None
    is_of_session = {"topic", "session_id"} <= key.keys()
    if is_of_session and last_removed_position(reader, key["topic"], key.get("partition"), key["session_id"]) is None:
        return None  # none of the row's session
    return cut.before


def _rows(frame: DataFrame) -> list[Row]:
    return rows_of(frame.toArrow())


def _spans() -> list[Any]:
    from pyspark.sql import functions as F

    return [
        F.count("*").alias("events"),
        F.countDistinct("offset").alias("messages"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    ]


def _of_row(changes: _Changes, table: GoldTable, row: Row) -> DataFrame:
    """The events that a row is made of."""
    from pyspark.sql import functions as F

    if isinstance(table, EnrichedTable):
        own = (F.col(SILVER_NAMES.get(name, name)).alias(name) for name in table.row_keys)
        found = changes.rows.select(*own, F.col(BATCH).alias("batch"))
        return found.where(reduce(and_, (F.col(quote(name)) == F.lit(row[name]) for name in table.row_keys)))
    if isinstance(table, RollingAverage):
        return _of_average(changes, table, row)
    key = {name: row[name] for name in table.row_keys}
    events = _events(changes, key, numbers=table.source.numbers).where(~is_late(table))
    if START in key and table.bucket_ms is not None:
        start = (row[START] - _EPOCH) // _MILLISECOND
        events = events.where(F.col("ts").between(start, start + table.bucket_ms - 1))
    for name in (one for one in table.row_keys if one != START):
        events = events.where(F.col(quote(name)) == F.lit(row[name]))
    return events


def _of_average(changes: _Changes, series: RollingAverage, row: Row) -> DataFrame:
    """The points that an average is of: the row's own, and those before it."""
    from pyspark.sql import functions as F

    key = {name: row[name] for name in series.row_keys}
    events = _events(changes, key, numbers=True).where(F.col("metric") == row["metric"])
    order = F.struct(*series.sorted_by)
    place = F.struct(*(F.lit(row[name]).cast(events.schema[name].dataType) for name in series.sorted_by))
    until = events.where(order <= place)
    return until.orderBy(order.desc()).limit(row["points"])


def _events(changes: _Changes, key: Row, *, numbers: bool) -> DataFrame:
    """Those of the row's topic, session and table row, where the row is of one."""
    from pyspark.sql import functions as F

    found = changes.rows
    names = ("topic", "session_id", "row_id", *((PARTITION,) if names_sessions(key) else ()))
    for name in names:
        if name in key:
            found = found.where(F.col(name) == F.lit(key[name]))
    found = select_changes(found, changes.settings)
    return with_seq_order(events_of(found, declared_in(changes.settings), (*WITH_PLACE, "batch"), numbers=numbers))


def _holds(events: DataFrame, message: tuple[int, int]) -> bool:
    partition, offset = message
    return not events.where(f"partition = {int(partition)} AND offset = {int(offset)}").isEmpty()


def _gold_batches(reader: TableReader, brought: list[int], renumbered: int | None) -> Iterator[GoldBatch]:
    """Gold's batches that took in these of silver's, which are in order, since it was emptied."""
    if not brought:
        return
    own: list[Condition] = [("layer", eq, GOLD), ("committed_at", ge, earliest_after_rebuild(reader, GOLD))]
    if renumbered in brought:
        yield from _before_rebuild(reader, own, renumbered)
    between = ("source_to", ge, brought[0]), ("source_from", le, brought[-1])
    rows = reader.rows(LEDGER, *own, *between, columns=[*_OF_BATCH, "layer"])
    for row in sorted(rows, key=itemgetter("committed_at")):
        first, last = span = row["source_from"], row["source_to"]
        place = bisect_left(brought, first)
        if place < len(brought) and brought[place] <= last:
            yield GoldBatch(row["batch_id"], span, row["committed_at"], row["code_version"])


def _before_rebuild(reader: TableReader, own: list[Condition], renumbered: int) -> Iterator[GoldBatch]:
    """The last of gold's batches that took in what has the number of silver's rebuild by now, for all of them."""
    if not reader.exists(LEDGER):
        return
    found = reader.table(LEDGER, *own, ("source_to", lt, renumbered), columns=[*_OF_BATCH, "layer"])
    if found.num_rows:
        span = pc.min(found["source_from"]).as_py(), pc.max(found["source_to"]).as_py()
        (last,) = found.sort_by("committed_at").slice(found.num_rows - 1).to_pylist()
        yield GoldBatch(last["batch_id"], span, last["committed_at"], last["code_version"], with_earlier=True)
