"""What a figure of gold is made of: its events, their Kafka offsets, the batches that brought them, and the logic."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import reduce
from operator import and_, eq, ge, le
from typing import TYPE_CHECKING, Any

from sessionlake.config import Settings
from sessionlake.errors import NotThereError, UsageError
from sessionlake.gold.aggregate.late import APPLIED, PLACE
from sessionlake.gold.aggregate.product import START
from sessionlake.gold.aggregate.sources import MARKS
from sessionlake.gold.changes import declared_in, events_of, is_late, marks
from sessionlake.gold.declared import GoldTable, tables_of
from sessionlake.gold.enrich.table import BATCH, SOURCES, Enriched
from sessionlake.gold.expiry import floors_in, told
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.products import LOGIC
from sessionlake.gold.recompute import version_read
from sessionlake.lake.ledger import rebuilt_by
from sessionlake.lake.names import CHANGES, GOLD, LEDGER
from sessionlake.lake.storage import quote
from sessionlake.lake.tables import Lake
from sessionlake.protocol.types import Row

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_EPOCH = datetime.fromtimestamp(0, UTC)
_MILLISECOND = timedelta(milliseconds=1)


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
    """A batch of gold that brought some of a figure's events, by the ledger."""

    batch: int
    silver_batches: tuple[int, int]
    committed_at: datetime
    code_version: str


@dataclass(frozen=True)
class Explained:
    """One row of a table of gold.

    Attributes:
        key: what tells it apart.
        figures: its results.
        events: how many it was made of.
        logic: what the table's rows rest on.
        holds: whether the message that was asked for is in it; None if none was.
    """

    table: str
    key: Mapping[str, Any]
    figures: Mapping[str, Any]
    events: int
    offsets: tuple[Offsets, ...]
    batches: tuple[GoldBatch, ...]
    logic: str | None
    holds: bool | None


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
        NotThereError: no row meets the condition.
    """
    lake = Lake(settings)
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
    keys = known[table].row_keys
    frame = lake.read(spark, table).where(where) if where else lake.read(spark, table)
    rows = _rows(frame.orderBy(*map(quote, keys)).limit(at_most + 1))
    if not rows:
        begins = "".join(f"; {told(*found)}" for found in floors_in(lake.reader(spark), [table]).items())
        raise NotThereError((f"{table} has no row with {where}" if where else f"{table} has no rows") + begins)
    explained = [_explained(spark, lake, settings, known[table], row, message) for row in rows[:at_most]]
    return explained, len(rows) > at_most


def _explained(
    spark: SparkSession,
    lake: Lake,
    settings: Settings,
    table: GoldTable,
    row: Row,
    message: tuple[int, int] | None,
) -> Explained:
    keys = table.row_keys
    events = _of_row(spark, lake, settings, table, row)
    found = _rows(events.groupBy("topic", "partition").agg(*_spans()))
    return Explained(
        table=table.table,
        key={name: row[name] for name in keys},
        figures={name: value for name, value in row.items() if name not in keys and not name.startswith("_")},
        events=sum(one["events"] for one in found),
        offsets=tuple(
            Offsets(one["topic"], one["partition"], one["first"], one["last"], one["messages"]) for one in found
        ),
        batches=tuple(_gold_batches(lake, spark, [one["batch"] for one in _rows(events.select("batch").distinct())])),
        logic=lake.storage.properties(spark, table.table).get(LOGIC),
        holds=None if message is None else _holds(events, message),
    )


def _rows(frame: DataFrame) -> list[Row]:
    return frame.toArrow().to_pylist()


def _spans() -> list[Any]:
    from pyspark.sql import functions as F

    return [
        F.count("*").alias("events"),
        F.countDistinct("offset").alias("messages"),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    ]


def _of_row(spark: SparkSession, lake: Lake, settings: Settings, table: GoldTable, row: Row) -> DataFrame:
    """The events that a row is made of."""
    from pyspark.sql import functions as F

    if isinstance(table, Enriched):
        changes = lake.read(spark, CHANGES, version_read(settings)).select(
            *(F.col(quote(SOURCES.get(name, name))).alias(name) for name in table.names), F.col(BATCH).alias("batch")
        )
        return changes.where(reduce(and_, (F.col(quote(name)) == F.lit(row[name]) for name in table.row_keys)))
    if isinstance(table, RollingAverage):
        return _of_average(spark, lake, settings, table, row)
    events = _events(spark, lake, settings, row, numbers=table.source.numbers).where(~is_late(table))
    if START in row and table.bucket_ms is not None:
        start = (row[START] - _EPOCH) // _MILLISECOND
        events = events.where(F.col("ts").between(start, start + table.bucket_ms - 1))
    for name in (one for one in table.row_keys if one != START):
        events = events.where(F.col(quote(name)) == F.lit(row[name]))
    return events


def _of_average(spark: SparkSession, lake: Lake, settings: Settings, series: RollingAverage, row: Row) -> DataFrame:
    """The points that an average is of: the row's own, and those before it."""
    from pyspark.sql import functions as F

    events = _events(spark, lake, settings, row, numbers=True).where(F.col("metric") == row["metric"])
    order = F.struct(*series.order)
    place = F.struct(*(F.lit(row[name]).cast(events.schema[name].dataType) for name in series.order))
    until = events.where(order <= place)
    return until.orderBy(order.desc()).limit(row["points"])


def _events(spark: SparkSession, lake: Lake, settings: Settings, row: Row, *, numbers: bool) -> DataFrame:
    """Those of the row's topic, session and table row, where the row is of one."""
    from pyspark.sql import functions as F

    declared = declared_in(settings)
    changes = lake.read(spark, CHANGES, version_read(settings))
    for name in ("topic", "session_id", "row_id"):
        if name in row:
            changes = changes.where(F.col(name) == F.lit(row[name]))
    changes = changes.select(*marks(declared))
    return events_of(changes, declared, (*MARKS, APPLIED, *PLACE, "batch"), numbers=numbers)


def _holds(events: DataFrame, message: tuple[int, int]) -> bool:
    partition, offset = message
    return not events.where(f"partition = {int(partition)} AND offset = {int(offset)}").isEmpty()


def _gold_batches(lake: Lake, spark: SparkSession, brought: Sequence[int]) -> Iterator[GoldBatch]:
    """Gold's batches that took in these of silver's, since it was emptied."""
    if not brought:
        return
    reader, of_gold = lake.reader(spark), ("layer", eq, GOLD)
    since = ("committed_at", ge, rebuilt_by(reader, GOLD))
    rows = reader.rows(LEDGER, of_gold, ("source_to", ge, min(brought)), ("source_from", le, max(brought)), since)
    for row in sorted(rows, key=lambda found: found["committed_at"]):
        span = (row["source_from"], row["source_to"])
        if any(span[0] <= batch <= span[1] for batch in brought):
            yield GoldBatch(row["batch_id"], span, row["committed_at"], row["code_version"])
