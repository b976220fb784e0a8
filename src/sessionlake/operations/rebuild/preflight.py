"""The checks before a rebuild of silver: does bronze have the chosen sessions, and can all other sessions be kept?"""

from __future__ import annotations

from operator import eq
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import MESSAGES, SESSIONS, SILVER
from sessionlake.delta.storage.reading import Condition, TableReader, is_in
from sessionlake.errors import LakeError, UsageError
from sessionlake.integrity.clock import BEGINNING
from sessionlake.ledger.offset_log import OffsetLog
from sessionlake.ledger.progress import read_last_offsets
from sessionlake.ledger.retained import read_partition_starts, read_removal_records_without_limits
from sessionlake.ledger.silences import drop_silences, select_silences
from sessionlake.operations.rebuild.replay import REPLAYED, SessionSelection
from sessionlake.settings.model import Settings
from sessionlake.silver.mappings import refuse_changed_feeds
from sessionlake.silver.states import read_state_and_ledger_batch
from sessionlake.silver.unread import read_unread_silences
from sessionlake.streaming import handover
from sessionlake.streaming.manifest import require_finished_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def require_other_sessions_keepable(
    spark: SparkSession, lake: Lake, version: int, selection: SessionSelection, column_difference: str | None
) -> None:
    """Checks that chosen sessions can be rebuilt while all other sessions stay as they are.

    Args:
        version: The version of `bronze.messages` to build from.
        selection: The sessions to rebuild.
        column_difference: A text that says how the tables' columns differ from the declared ones; None if they do not.

    Raises:
        UsageError: Bronze has no message of a chosen session.
        LakeError: Columns differ, a feed has changed, rows were removed, a batch is half committed, or silver has not
            read all of bronze.
    """
    _require_declared_columns(column_difference)
    _require_no_rows_removed_by_retention(lake.reader(spark))
    require_finished_batch(lake.settings, SILVER)
    _require_unchanged_feeds(lake.reader(spark), lake.settings)
    _require_sessions_in_bronze(spark, lake, version, selection)
    handover.refuse_changed_shard_count(lake.settings)
    require_silver_read_all_bronze(spark, lake, version)


def _require_sessions_in_bronze(spark: SparkSession, lake: Lake, version: int, selection: SessionSelection) -> None:
    """Checks that bronze has messages of each chosen topic and session. If not, the name is probably wrong.

    Raises:
        UsageError: Bronze has no message of a chosen topic or session. The text names it.
    """
    from pyspark.sql import functions as F

    source = lake.read(spark, MESSAGES, version)
    of_topic = source if selection.topic is None else source.where(F.col("topic") == selection.topic)
    where = "" if selection.topic is None else f" of topic {selection.topic}"
    if of_topic.isEmpty():
        raise UsageError(
            f"rebuild silver: {MESSAGES}@v{version} has no message{where}",
            fix='`sessionlake query "SELECT topic FROM ops.topics"` shows the topics that bronze has',
        )
    keys = [session.encode() for session in selection.sessions]
    if lake.settings.capture.feeds:  # the Kafka key does not name the session
        known = _read_chosen_session_ids_in_silver(lake.reader(spark), selection)
    else:
        rows = of_topic.where(F.col("key").isin(keys)).select("key").distinct().collect() if keys else []
        known = {bytes(row["key"]) for row in rows}
    for session, key in zip(selection.sessions, keys, strict=True):
        if key not in known:
            raise UsageError(
                f"rebuild silver: {MESSAGES}@v{version} has no message of session {session!r}{where}",
                fix='Look for its id with `sessionlake query "SELECT topic, session_id FROM silver.sessions"`',
            )


def _read_chosen_session_ids_in_silver(reader: TableReader, selection: SessionSelection) -> set[bytes]:
    """Returns those of the chosen session ids that `silver.sessions` has, encoded in UTF-8."""
    topic: list[Condition] = [] if selection.topic is None else [("topic", eq, selection.topic)]
    named: Condition = ("session_id", is_in, list(selection.sessions))
    return {row["session_id"].encode() for row in reader.read_rows(SESSIONS, *topic, named, columns=["session_id"])}


def choose_bronze_version(spark: SparkSession, lake: Lake, version: int | None) -> int:
    """Returns the version of bronze to build from; None means the latest.

    Raises:
        LakeError: Bronze has no such version.
    """
    latest = lake.latest_version(spark, MESSAGES)
    if version is not None and not 0 <= version <= latest:
        raise LakeError(
            f"rebuild silver: {MESSAGES} has no version {version}; its latest is {latest}",
            fix=f"Choose a version from 0 to {latest}",
        )
    return latest if version is None else version


def _require_declared_columns(column_difference: str | None) -> None:
    """Checks that the tables have the declared columns, because sessions that are not rebuilt would lack new ones.

    Args:
        column_difference: A text that says how the columns differ; None if they do not.

    Raises:
        LakeError: The columns differ.
    """
    if column_difference is not None:
        raise LakeError(
            f"rebuild silver: {column_difference}, so single sessions cannot be rebuilt",
            why="The rows of all other sessions would lack the new columns",
            fix="Run `sessionlake rebuild silver` without --topic and --sessions, which rebuilds all sessions",
        )


def _require_no_rows_removed_by_retention(reader: TableReader) -> None:
    """Checks that retention has removed no rows of silver. It does not record of which sessions it has removed rows.

    Raises:
        LakeError: Retention has removed rows of silver.
    """
    cut = [entry for table, entry in sorted(read_removal_records_without_limits(reader).items()) if table in REPLAYED]
    if cut:
        raise LakeError(
            f"rebuild silver: {cut[0].removal_description}, so single sessions cannot be rebuilt",
            why="The rebuilt sessions would have the removed rows again, but ops.retained says that they are removed. "
            "Only a rebuild of all sessions also resets ops.retained",
            fix="Run `sessionlake rebuild silver` without --topic and --sessions, which rebuilds all sessions",
        )


def _require_unchanged_feeds(reader: TableReader, settings: Settings) -> None:
    """Checks that feeds read messages as before, because sessions that are not rebuilt were read in that way.

    Raises:
        LakeError: The mapping of a feed has changed.
    """
    topics = {topic for topic, _ in read_last_offsets(reader, SILVER)}
    refuse_changed_feeds(
        reader, settings, handover.read_next_batch_number(settings) - 1, topics, doing="rebuild silver"
    )


def require_silver_read_all_bronze(spark: SparkSession, lake: Lake, version: int) -> None:
    """Checks that silver has read all of bronze, including silences.

    Otherwise silver's states and the rebuilt ones belong to different offsets, and cannot be combined.

    Raises:
        LakeError: Silver has not read all of bronze, or has read messages that bronze does not have.
    """
    from pyspark.sql import functions as F

    of_states, last = read_state_and_ledger_batch(spark, lake.settings)
    if of_states != last:
        raise LakeError(
            "rebuild silver: silver was interrupted in its last batch, so single sessions cannot be rebuilt",
            fix="Run `sessionlake run silver --once` first, or `sessionlake rebuild silver` for all sessions",
        )
    bronze = lake.read(spark, MESSAGES, version)
    last_offsets = drop_silences(bronze).groupBy("topic", "partition").agg(F.max("offset")).collect()
    held = {(row[0], row[1]): row[2] for row in last_offsets}
    gone = {place: at.last_removed for place, at in read_partition_starts(lake.reader(spark)).items()}
    ends = OffsetLog.load_from_ledger(spark, lake, SILVER).last_offsets
    # A topic-partition that retention has emptied has nothing to read.
    read = {place: end for place, end in ends.items() if place in held or gone.get(place, BEGINNING) < end}
    unread = read_unread_silences(spark, lake.settings, SILVER, ends)
    if held != read or not unread.isdisjoint(select_silences(bronze)):
        raise LakeError(
            f"rebuild silver: silver has not read exactly the messages of {MESSAGES}@v{version}, so "
            "single sessions cannot be rebuilt",
            why="They would be ahead of or behind the other sessions",
            fix="Run `sessionlake run silver --once` first, or `sessionlake rebuild silver` for all sessions",
        )
