"""The initial states of tables of averages that were rebuilt. They treat all owners in the table as forgotten.

An owner is a session, or a row across sessions. A rebuild writes the table's rows, but not the newest points that a
state keeps. So the state of each shard starts with the hash and the newest event time of each of its owners. From these
it knows that older points exist in the table.
"""

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
from sessionlake.gold.fold.resharding import NewShardsByOwnerHash
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import TrackedAverageTable
from sessionlake.gold.fold.state import hash_owner_names
from sessionlake.protocol.chunk import decode_ipc, encode_ipc
from sessionlake.protocol.names import quote
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import write_atomically

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

REBUILD_ID = "sessionlake.made"
"""Property of a table of averages: the id of its last rebuild, which states must have.

The id is `<batch>-<random>`, where `<batch>` is the last batch of gold that the rebuild includes.
"""
_NO_OWNERS = pa.table({"mark": pa.array([], pa.uint64()), "newest": pa.array([], pa.int64())})


def get_owners_at_rebuild_folder(settings: Settings) -> Path:
    """Returns the folder that stores, per rebuilt table of averages and shard, a file of the owners at the rebuild."""
    return Path(f"{settings.checkpoint_path(GOLD)}.made")


def build_shard_column(owner_columns: Sequence[str], shards: int) -> Column:
    """Returns a Spark column that computes the shard of a change, or of a row of a table of averages.

    All sessions with the same id are in one shard, whatever their partition.

    Args:
        owner_columns: The columns whose values decide the shard (`RollingAverage.owner_columns`).
        shards: Number of shards.
    """
    from pyspark.sql import functions as F

    names = (quote(name) for name in owner_columns if name != PARTITION)
    return F.pmod(F.xxhash64(*names), F.lit(shards)).cast("int")


def reset_states_after_rebuild(
    spark: SparkSession, lake: Lake, settings: Settings, series: RollingAverage, rows: DataFrame
) -> None:
    """Makes gold discard its states of a rebuilt table of averages.

    The next states start with the owners (sessions, or rows across sessions) that the table's new rows have.

    Args:
        series: The table of averages.
        rows: The table's new rows.
    """
    rebuild_id = f"{handover.read_next_batch_number(settings, GOLD) - 1}-{uuid4().hex[:12]}"
    _write_files_of_owners_at_rebuild(
        settings, series, rebuild_id, _list_owners_with_shards(series, settings.gold.shards, rows)
    )
    lake.set_property(spark, series.table_name, REBUILD_ID, rebuild_id)


def read_last_batch_of_rebuild(spark: SparkSession, lake: Lake, series: RollingAverage) -> int:
    """Returns the number of the last batch of gold that a table's last rebuild includes; -1 if it was never rebuilt."""
    behind, _, _ = lake.storage.read_properties(spark, series.table_name).get(REBUILD_ID, "").rpartition("-")
    return int(behind or -1)


def build_tracked_averages(
    spark: SparkSession, lake: Lake, settings: Settings, series: RollingAverage
) -> TrackedAverageTable:
    """Returns a table of averages with what its states start from: the id of its last rebuild, and the owners then.

    An owner is a session, or a row across sessions. If the file of owners is lost, it is computed from the table.
    """
    rebuild_id = lake.storage.read_properties(spark, series.table_name).get(REBUILD_ID, "")
    if rebuild_id and not handover.read_next_batch_number(settings, GOLD):
        # Gold starts from the beginning, with empty tables.
        lake.set_property(spark, series.table_name, REBUILD_ID, "")
        return TrackedAverageTable(series)
    if not rebuild_id:
        return TrackedAverageTable(series)
    held = _OwnersAtRebuildReader(str(get_owners_at_rebuild_folder(settings) / f"{series.name}.{rebuild_id}"))
    if not Path(held.folder).is_dir():
        # Rows added since the rebuild do no harm: their shards already have states.
        _write_files_of_owners_at_rebuild(
            settings,
            series,
            rebuild_id,
            _list_owners_with_shards(series, settings.gold.shards, lake.read(spark, series.table_name)),
        )
    return TrackedAverageTable(series, rebuild_id, held)


@dataclass(frozen=True)
class _OwnersAtRebuildReader:
    """A function that reads a shard's owners at a table's rebuild: `mark uint64, newest bigint`. It runs on workers.

    Attributes:
        folder: The folder with one file per shard. A shard without a file had no owners.
    """

    folder: str

    def __call__(self, shard: int) -> pa.Table:
        file = Path(self.folder) / f"{shard}.arrow"
        return decode_ipc(file.read_bytes()) if file.exists() else _NO_OWNERS


def _list_owners_with_shards(series: RollingAverage, shards: int, rows: DataFrame) -> pa.Table:
    from pyspark.sql import functions as F

    owner = [*map(quote, series.owner_columns)]
    name = F.concat_ws(SEPARATOR, *owner).alias("name")
    newest = rows.groupBy(*owner).agg(F.max("ts").alias("newest"))
    return _collect_with_name_hashes(
        newest.select(build_shard_column(series.owner_columns, shards).alias("shard"), name, "newest")
    )


def _collect_with_name_hashes(named: DataFrame) -> pa.Table:
    """Collects rows as an Arrow table, with the column `mark` (hash of the name) instead of the column `name`."""
    columns = ", ".join(f"{name} {kind}" for name, kind in named.dtypes if name != "name")
    found = named.mapInArrow(_replace_names_by_hashes, f"{columns}, mark bigint").toArrow().combine_chunks()
    place = found.schema.get_field_index("mark")
    return found.set_column(place, "mark", found["mark"].combine_chunks().view(pa.uint64()))


def _replace_names_by_hashes(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A `mapInArrow` function that replaces the column `name` by its hash, the column `mark`.

    The hashes are signed, since Spark has no unsigned integers.
    """
    for batch in batches:
        marks = pa.array(hash_owner_names(batch.column("name").to_pylist()).view(np.int64))
        yield batch.drop_columns(["name"]).append_column("mark", marks)


def read_shards_of_owners_by_hash(
    spark: SparkSession, lake: Lake, series: RollingAverage, shards: int
) -> NewShardsByOwnerHash:
    """Returns the shard of each owner of the series of a table of averages, by hash of the owner's name.

    An owner is a session, read from `silver.sessions`, or a row across sessions, read from the table of averages.

    Args:
        series: The table of averages.
        shards: Number of shards.
    """
    from pyspark.sql import functions as F

    table = SESSIONS if series.is_per_session else series.table_name
    if not lake.exists(spark, table):
        return NewShardsByOwnerHash(np.empty(0, np.uint64), np.empty(0, np.int64))
    owner = [*map(quote, series.owner_columns)]
    name = F.concat_ws(SEPARATOR, *owner).alias("name")
    owners = lake.read(spark, table).select(*owner).distinct()
    return NewShardsByOwnerHash.from_table(
        _collect_with_name_hashes(owners.select(build_shard_column(series.owner_columns, shards).alias("shard"), name))
    )


def delete_files_of_owners_at_rebuild(settings: Settings) -> None:
    """Deletes the files of owners of rebuilt tables, for example when the number of shards changes.

    They are computed from the tables again when they are needed.
    """
    shutil.rmtree(get_owners_at_rebuild_folder(settings), ignore_errors=True)


def _write_files_of_owners_at_rebuild(
    settings: Settings, series: RollingAverage, rebuild_id: str, owners: pa.Table
) -> None:
    beside = get_owners_at_rebuild_folder(settings)
    for older in beside.glob(f"{series.name}.*"):
        shutil.rmtree(older) if older.is_dir() else older.unlink()
    partial = beside / f"{series.name}.partial"
    partial.mkdir(parents=True)
    owners = owners.sort_by([("shard", "ascending"), ("mark", "ascending")])
    shards, firsts = np.unique(owners["shard"].to_numpy(), return_index=True)
    for shard, (first, end) in zip(shards, pairwise([*firsts, owners.num_rows]), strict=True):
        own = owners.slice(first, end - first).select(_NO_OWNERS.column_names)
        write_atomically(partial / f"{shard}.arrow", encode_ipc(own))
    partial.rename(beside / f"{series.name}.{rebuild_id}")
