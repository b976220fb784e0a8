"""What a rebuild of silver asks before it begins: whether bronze has what is named, and sessions can be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, SILVER
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.clock import BEGINNING
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.retained import beginnings, read_heads
from sessionlake.ledger.silences import silences_in, without_silences
from sessionlake.operations.rebuild.replay import REPLAYED, Selection
from sessionlake.silver.states import last_batches
from sessionlake.silver.unread import unread_silences
from sessionlake.streaming import handover
from sessionlake.streaming.manifest import refuse_half_committed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_kept_sessions(
    spark: SparkSession, lake: Lake, version: int, selection: Selection, columns: str | None
) -> None:
    """Returns if some sessions can be rebuilt while all others stay as they are.

    Args:
        version: of bronze.
        selection: the sessions to rebuild.
        columns: what of the tables' columns is not as it is declared.

    Raises:
        UsageError: bronze has no message of one that is named.
        LakeError: columns differ, rows were removed, a batch is half committed, or silver has not read all of bronze.
    """
    _require_columns(columns)
    _require_uncut(lake.reader(spark))
    refuse_half_committed(lake.settings, SILVER)
    _require_known(spark, lake, version, selection)
    handover.refuse_other_shards(lake.settings)
    require_level(spark, lake, version)


def _require_known(spark: SparkSession, lake: Lake, version: int, selection: Selection) -> None:
    """Refuses a topic, or a session, that bronze has no message of: it is misspelt.

    Raises:
        UsageError: naming what is unknown.
    """
    from pyspark.sql import functions as F

    source = lake.read(spark, MESSAGES, version)
    of_topic = source if selection.topic is None else source.where(F.col("topic") == selection.topic)
    where = "" if selection.topic is None else f" of topic {selection.topic}"
    if of_topic.isEmpty():
        raise UsageError(f"{MESSAGES}@v{version} has no message{where}")
    keys = [session.encode() for session in selection.sessions]
    found = of_topic.where(F.col("key").isin(keys)).select("key").distinct().collect() if keys else []
    known = {bytes(row["key"]) for row in found}
    for session, key in zip(selection.sessions, keys, strict=True):
        if key not in known:
            raise UsageError(f"{MESSAGES}@v{version} has no message of session {session!r}{where}")


def version_of(spark: SparkSession, lake: Lake, version: int | None) -> int:
    """The version of bronze to build from."""
    latest = lake.latest_version(spark, MESSAGES)
    if version is not None and not 0 <= version <= latest:
        raise LakeError(f"{MESSAGES} has versions 0 to {latest}, not {version}")
    return latest if version is None else version


def _require_columns(other: str | None) -> None:
    """Sessions that stay have their values in the columns that the tables have.

    Raises:
        LakeError: other ones are declared.
    """
    if other is not None:
        raise LakeError(f"{other}: sessions cannot be rebuilt one by one into other columns; rebuild everything")


def _require_uncut(reader: TableReader) -> None:
    """What is gone is noted of tables, not of the sessions that would be whole again.

    Raises:
        LakeError: retention has removed rows of silver.
    """
    cut = [found for table, found in sorted(read_heads(reader).items()) if table in REPLAYED]
    if cut:
        raise LakeError(f"{cut[0].summary}: sessions cannot be rebuilt one by one; rebuild everything")


def require_level(spark: SparkSession, lake: Lake, version: int) -> None:
    """Only a silver that has taken in all of bronze, silences too, can keep sessions and have others rebuilt.

    Raises:
        LakeError: it has not.
    """
    from pyspark.sql import functions as F

    of_states, last = last_batches(spark, lake.settings)
    if of_states != last:
        raise LakeError(
            "silver has not ended its last batch: run `sessionlake run silver --once` first, or rebuild everything"
        )
    bronze = lake.read(spark, MESSAGES, version)
    last_offsets = without_silences(bronze).groupBy("topic", "partition").agg(F.max("offset")).collect()
    held = {(row[0], row[1]): row[2] for row in last_offsets}
    gone = {place: at.last_removed for place, at in beginnings(lake.reader(spark)).items()}
    ends = OffsetLog.load(spark, lake, SILVER).last_offsets
    # Of a topic-partition that retention has emptied there is nothing to take in.
    taken_in = {place: end for place, end in ends.items() if place in held or gone.get(place, BEGINNING) < end}
    unread = unread_silences(spark, lake.settings, SILVER, ends)
    if held != taken_in or not unread.isdisjoint(silences_in(bronze)):
        raise LakeError(
            f"silver has not taken in just what {MESSAGES}@v{version} holds, so its sessions cannot be rebuilt one by "
            "one: run `sessionlake run silver --once` first, or rebuild everything"
        )
