"""Averages of series with points older than their tails: computed from all their points, which the table holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.storage.interface import Limits
from sessionlake.delta.storage.reading import TableReader, TooLargeError, of_keys
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.gold.fold.outputs import reported
from sessionlake.gold.fold.pack import PLACE_BITS, ReadChanges, place_of
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import recompute, series_names
from sessionlake.gold.references.taken import PART
from sessionlake.protocol.names import quote
from sessionlake.protocol.types import Payloads
from sessionlake.spark.frames import map_groups
from sessionlake.streaming.carried import sent
from sessionlake.streaming.sharded import FOLDED_SCHEMA, folded_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# So many sessions, or rows, are named to Delta, which then skips files; beyond that most files are touched anyhow.
_NAMED = 200
_PLACE = f"shiftleft(cast(partition AS BIGINT), {PLACE_BITS}) | offset"


def beyond_ddl(series: RollingAverage) -> str:
    """Columns of the points that go on to the table."""
    keys = ", ".join(f"{name} string" for name in series.texts)
    order = "".join(f", {name} bigint" for name in series.seq_order)
    return f"{keys}, ts bigint, ordinal int, value double, place bigint, partition bigint, offset bigint{order}"


def recomputed(beyond: DataFrame, held: DataFrame, series: RollingAverage, *, shards: int) -> DataFrame:
    """Rows that follow from the points.

    Args:
        beyond: new points, columns as in `beyond_ddl`.
        held: the table, with all points before this batch; a replay may find this batch's there, too.
        shards: in how many groups to work; each must fit into memory.

    Returns:
        `kind string, payload binary`, as the fold's.
    """
    from pyspark.sql import functions as F

    keys = [*map(quote, series.keys)]
    history = _narrowed(held, beyond, series).join(
        F.broadcast(beyond.select(*keys).distinct()), list(series.keys), "left_semi"
    )
    place = F.col("position") if series.of_session else F.expr(_PLACE)
    revision = F.coalesce("revision", F.lit(0)).cast("bigint")
    partition = F.col(PARTITION).cast("bigint").alias(PARTITION)
    points = history.select(
        *map(quote, series.texts), "ts", "ordinal", "value", place.alias("place"), partition,
        F.lit(None).cast("bigint").alias("offset"), *series.seq_order, revision.alias("revision"),
        F.lit(col=False).alias("fresh"),
    ).unionByName(_as_new(beyond))  # fmt: skip

    def call(table: pa.Table) -> pa.Table:
        return folded_table(_emitted(table, series))

    shard = F.pmod(F.xxhash64(*keys), F.lit(shards))
    return map_groups(points, shard, call, FOLDED_SCHEMA)


def recomputed_at_hand(beyond: pa.Table, held: TableReader, series: RollingAverage, limits: Limits) -> Payloads | None:
    """Rows that follow from points at hand, as `recomputed` has them, without Spark; None if it takes too much memory.

    Args:
        held: reads the table.
        limits: of what is done in the driver.
    """
    if beyond.num_rows > limits.driver_changes:
        return None
    places = ["position"] if series.of_session else ["partition", "offset"]
    columns = [*dict.fromkeys([*series.keys, "ts", "ordinal", "value", *places, *series.seq_order, "revision"])]
    conditions = of_keys(beyond, series.keys, held.schema(series.table))
    try:
        rows = held.table(series.table, *conditions, columns=columns, at_most=limits.driver_bytes // PART)
    except TooLargeError:
        return None
    names = pc.unique(series_names(beyond, series))
    rows = rows.filter(pc.is_in(series_names(rows, series), value_set=names))
    numbers = [rows[name].cast(pa.int64()).to_numpy() for name in places]
    history = rows.select([*series.texts, "ts", "ordinal", "value", *series.seq_order])
    history = history.append_column(PARTITION, rows[PARTITION].cast(pa.int64()))
    history = history.append_column("place", pa.array(numbers[0] if series.of_session else place_of(*numbers)))
    history = history.append_column("revision", pc.fill_null(rows["revision"].cast(pa.int64()), 0))
    new = beyond.append_column("revision", pa.repeat(pa.scalar(0, pa.int64()), beyond.num_rows))
    points = [_marked(history, fresh=False), _marked(new, fresh=True)]
    return _emitted(pa.concat_tables(points, promote_options="default"), series)


def _emitted(points: pa.Table, series: RollingAverage) -> Payloads:
    return sent(reported(ReadChanges(), 0, recompute(points, series)))


def _marked(points: pa.Table, *, fresh: bool) -> pa.Table:
    return points.append_column("fresh", pa.repeat(fresh, points.num_rows))


def new_points(events: DataFrame, series: RollingAverage) -> DataFrame:
    """Events as points that `recompute` takes for new.

    Args:
        events: with `partition`, `offset` and what `by_seq` adds.
    """
    from pyspark.sql import functions as F

    places = ("partition", "offset")
    place = F.col("position") if series.of_session else F.expr(_PLACE)
    columns = [*map(quote, series.texts), "ts", "ordinal", "value", place.alias("place"), *series.seq_order]
    return _as_new(events.select(*columns, *(F.col(name).cast("bigint").alias(name) for name in places)))


def _as_new(points: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    return points.withColumns({"revision": F.lit(0).cast("bigint"), "fresh": F.lit(col=True)})


def _narrowed(held: DataFrame, beyond: DataFrame, series: RollingAverage) -> DataFrame:
    """Less what files of other sessions, or of other rows, hold, if the points are of few."""
    from pyspark.sql import functions as F

    name = "session_id" if series.of_session else series.keys[0] if "row_id" not in series.keys else "row_id"
    named = [row[0] for row in beyond.select(name).distinct().limit(_NAMED + 1).collect()]
    return held if len(named) > _NAMED else held.where(F.col(name).isin(named))
