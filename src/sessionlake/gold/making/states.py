"""A table of averages that was made anew: its states begin by what it holds, as if they had forgotten all of that."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import pyarrow as pa

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, SESSIONS
from sessionlake.gold.aggregate.sources import PARTITION
from sessionlake.gold.fold.pack import SEPARATOR
from sessionlake.gold.fold.resharding import MarkedShards
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import TrackedAverages
from sessionlake.gold.fold.state import marks_of
from sessionlake.protocol.chunk import read_ipc, write_ipc
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import write_whole

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

MADE = "sessionlake.made"
"""Property of a table of averages: a name for when it was made anew last, to which states must belong.

In front of a dash it has the last of gold's batches that the table was made of.
"""
_NO_OWNERS = pa.table({"mark": pa.array([], pa.uint64()), "newest": pa.array([], pa.int64())})


def folder(settings: Settings) -> Path:
    """Where is noted what tables held that were made anew."""
    return Path(f"{settings.checkpoint(GOLD)}.made")


def shard_of(owner: Sequence[str], shards: int) -> Column:
    """Where a change, or a row, is folded; see `RollingAverage.owner`. All sessions of an id are in one place."""
    from pyspark.sql import functions as F

    names = (quote(name) for name in owner if name != PARTITION)
    return F.pmod(F.xxhash64(*names), F.lit(shards)).cast("int")


def restart_states(
    spark: SparkSession, lake: Lake, settings: Settings, series: RollingAverage, rows: DataFrame
) -> None:
    """Has the states begin anew by the table's rows."""
    made = f"{handover.next_batch(settings, GOLD) - 1}-{uuid4().hex[:12]}"
    _store(settings, series, made, _owners_in(series, settings.gold.shards, rows))
    lake.set_property(spark, series.table, MADE, made)


def rebuilt_up_to(spark: SparkSession, lake: Lake, series: RollingAverage) -> int:
    """The last of gold's batches that the table was made anew of, -1 if none: later restatements are of its rows."""
    behind, _, _ = lake.storage.properties(spark, series.table).get(MADE, "").rpartition("-")
    return int(behind or -1)


def tracked_averages(spark: SparkSession, lake: Lake, settings: Settings, series: RollingAverage) -> TrackedAverages:
    """The table, and how its states begin."""
    made = lake.storage.properties(spark, series.table).get(MADE, "")
    if made and not handover.next_batch(settings, GOLD):
        # Gold begins anew, with tables that are empty.
        lake.set_property(spark, series.table, MADE, "")
        return TrackedAverages(series)
    if not made:
        return TrackedAverages(series)
    held = _StoredOwners(str(folder(settings) / f"{series.name}.{made}"))
    if not Path(held.folder).is_dir():
        # Rows that came since do no harm: their shards have states already.
        _store(settings, series, made, _owners_in(series, settings.gold.shards, lake.read(spark, series.table)))
    return TrackedAverages(series, made, held)


@dataclass(frozen=True)
class _StoredOwners:
    """What a table was made of, by shard: all owners that ever were, read where the shard is folded."""

    folder: str

    def __call__(self, shard: int) -> pa.Table:
        file = Path(self.folder) / f"{shard}.arrow"
        return read_ipc(file.read_bytes()) if file.exists() else _NO_OWNERS


def _owners_in(series: RollingAverage, shards: int, rows: DataFrame) -> pa.Table:
    from pyspark.sql import functions as F

    owner = [*map(quote, series.owner)]
    name = F.concat_ws(SEPARATOR, *owner).alias("name")
    newest = rows.groupBy(*owner).agg(F.max("ts").alias("newest"))
    return _hash_names(newest.select(shard_of(series.owner, shards).alias("shard"), name, "newest"))


def _hash_names(named: DataFrame) -> pa.Table:
    """With hashes in the place of names."""
    columns = ", ".join(f"{name} {kind}" for name, kind in named.dtypes if name != "name")
    found = named.mapInArrow(_append_hashes, f"{columns}, mark bigint").toArrow().combine_chunks()
    place = found.schema.get_field_index("mark")
    return found.set_column(place, "mark", found["mark"].combine_chunks().view(pa.uint64()))


def _append_hashes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A `mapInArrow` function; Spark has no unsigned numbers."""
    for batch in batches:
        marks = pa.array(marks_of(batch.column("name").to_pylist()).view(np.int64))
        yield batch.drop_columns(["name"]).append_column("mark", marks)


def marked_shards(spark: SparkSession, lake: Lake, series: RollingAverage, shards: int) -> MarkedShards:
    """Where everyone is folded who may be forgotten: sessions by the one row that each has, others by the table."""
    from pyspark.sql import functions as F

    table = SESSIONS if series.of_session else series.table
    if not lake.exists(spark, table):
        return MarkedShards(np.empty(0, np.uint64), np.empty(0, np.int64))
    owner = [*map(quote, series.owner)]
    name = F.concat_ws(SEPARATOR, *owner).alias("name")
    owners = lake.read(spark, table).select(*owner).distinct()
    return MarkedShards.of(_hash_names(owners.select(shard_of(series.owner, shards).alias("shard"), name)))


def remove_forgotten_owners(settings: Settings) -> None:
    """Removes what is noted of other shards; whoever needs it looks it up in the tables."""
    shutil.rmtree(folder(settings), ignore_errors=True)


def _store(settings: Settings, series: RollingAverage, made: str, held: pa.Table) -> None:
    beside = folder(settings)
    for older in beside.glob(f"{series.name}.*"):
        shutil.rmtree(older) if older.is_dir() else older.unlink()
    partial = beside / f"{series.name}.partial"
    partial.mkdir(parents=True)
    held = held.sort_by([("shard", "ascending"), ("mark", "ascending")])
    shards, firsts = np.unique(held["shard"].to_numpy(), return_index=True)
    for shard, (first, end) in zip(shards, pairwise([*firsts, held.num_rows]), strict=True):
        own = held.slice(first, end - first).select(_NO_OWNERS.column_names)
        write_whole(partial / f"{shard}.arrow", write_ipc(own))
    partial.rename(beside / f"{series.name}.{made}")
