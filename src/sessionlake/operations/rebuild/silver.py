"""`sessionlake rebuild silver`: builds silver again from bronze, and replaces the live tables.

The new tables are built in staging tables. Then they are published one after another, each in one commit that records
the version of the code and of the configuration. The ledger entry comes last. Delta's time travel still reads the
former tables. If the publication is interrupted, the same command finishes it; until then the stream does not start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, MESSAGES, PROGRESS, SESSIONS, SILVER_TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.integrity.state import ShardState
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput, hash_settings_of_layers
from sessionlake.ledger.progress import read_last_batch_number
from sessionlake.ledger.retained import delete_removal_records
from sessionlake.operations.rebuild import publishing
from sessionlake.operations.rebuild.compare import (
    BOOKKEEPING,
    COMPARED,
    SilverTablesComparison,
    compare_live_with_staging_tables,
)
from sessionlake.operations.rebuild.endings import (
    empty_gold_to_recompute,
    has_gold_unread_changes,
    reject_later_commits_of_query,
)
from sessionlake.operations.rebuild.preflight import choose_bronze_version, require_other_sessions_keepable
from sessionlake.operations.rebuild.publishing import (
    RebuildPublishPlan,
    add_batch_column,
    build_rebuild_ledger_entry,
    finish_publishing_rebuild,
    iterate_states_by_shard,
    replace_table,
)
from sessionlake.operations.rebuild.replay import (
    REPLAYED,
    ReplayResult,
    SessionSelection,
    is_bronze_small,
    open_lake_to_replace_silver,
    remove_staging_tables,
    replay_messages_into_staging,
)
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import Settings
from sessionlake.silver.job import LAYER
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.states import read_shard_states
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.streaming import handover
from sessionlake.streaming.journal import OperationJournal, record_tables_being_built, refuse_interrupted_operations
from sessionlake.streaming.operation import REBUILD_SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = SessionSelection()


@dataclass(frozen=True)
class SilverRebuildResult:
    """The result of rebuilding silver.

    Attributes:
        version: The version of `bronze.messages` from which silver was built.
        batch: The batch number of the rebuild in silver.
        messages: The number of messages read.
        comparison: The result of comparing the former tables with the new ones; None if they were not compared.
        columns: A text that says how the former columns differ from the declared ones; None if they do not. If they
            do, the tables were not compared.
        finished_interrupted: True if a rebuild that was interrupted while it was published was finished.
        empties_gold: True if gold was emptied, so that its next run computes it again.
    """

    version: int
    batch: int
    messages: int
    comparison: SilverTablesComparison | None
    columns: str | None = None
    finished_interrupted: bool = False
    empties_gold: bool = False


def rebuild_silver_tables(
    spark: SparkSession,
    settings: Settings,
    *,
    version: int | None = None,
    selection: SessionSelection = EVERYTHING,
    slice_messages: int | None = None,
    compares: bool = True,
    start_over: bool = False,
) -> SilverRebuildResult:
    """Builds silver again from bronze, and replaces the live tables.

    If a rebuild was interrupted while it was published, finishes that one instead.

    Args:
        version: The version of `bronze.messages` to build from; None means the latest. The stream resumes after it.
        selection: The sessions to rebuild; all others stay as they are.
        slice_messages: About how many messages are read at a time; None means the default.
        compares: True to compare the live tables with the new ones. False to count all as changed unread.
        start_over: True to build everything again instead of finishing an interrupted rebuild.

    Raises:
        LakeError: Bronze has no such version, or another operation was interrupted; if sessions are chosen, also if
            silver has not read all of bronze or other columns are declared.
    """
    refuse_interrupted_operations(settings, LAYER, except_for=[REBUILD_SILVER], from_bronze=True)
    journal, compares = (None, False) if start_over else (find_interrupted_silver_rebuild(settings), compares)
    lake, columns = open_lake_to_replace_silver(spark, settings)
    with disable_code_generation(spark, enabled=is_bronze_small(spark, lake)):
        if journal is not None:
            _publish_rebuilt_tables(spark, settings, lake, journal)
            return _build_silver_rebuild_result(journal.inputs, None, finished=True)
        started = datetime.now(UTC)
        version = choose_bronze_version(spark, lake, version)
        with record_tables_being_built(settings, REBUILD_SILVER, version):
            readable, compares = compares, compares and columns is None
            if compares:
                TableMerger(spark, settings).merge_all_pending_batches()
            if not selection.includes_all_sessions:
                require_other_sessions_keepable(spark, lake, version, selection, columns)
            replayed = replay_messages_into_staging(spark, settings, version=version, slice_messages=slice_messages)
            if not selection.includes_all_sessions:
                _copy_unchosen_sessions_to_staging(spark, settings, lake, selection)
            comparison = compare_live_with_staging_tables(spark, settings, lake) if compares else None
            plan = _build_publish_plan(spark, lake, replayed, comparison, started, readable=readable)
            states = _read_states_to_resume_from(spark, settings, replayed, selection)
            publishing.prepare_handover(settings, LAYER, plan, states)
            lake.storage.require_claims_still_held()  # another process may have changed silver meanwhile
        _publish_rebuilt_tables(spark, settings, lake, OperationJournal.create_journal(settings, REBUILD_SILVER, plan))
        return _build_silver_rebuild_result(plan, comparison, columns)


def _build_silver_rebuild_result(
    plan: RebuildPublishPlan,
    comparison: SilverTablesComparison | None,
    columns: str | None = None,
    *,
    finished: bool = False,
) -> SilverRebuildResult:
    """Returns the result of a rebuild.

    Args:
        plan: The plan that was published.
        comparison: The result of comparing the tables; None if they were not compared.
        columns: A text that says how the former columns differ from the declared ones; None if they do not.
        finished: True if an interrupted rebuild was finished.
    """
    messages = plan.counts["messages"]
    return SilverRebuildResult(plan.version, plan.batch, messages, comparison, columns, finished, plan.must_empty_gold)


def find_interrupted_silver_rebuild(settings: Settings) -> OperationJournal[RebuildPublishPlan] | None:
    """Returns the journal of a rebuild that was interrupted while it replaced silver's tables; None if there is none.

    Raises:
        DataLossError: The journal cannot be read.
    """
    return OperationJournal.read_journal(settings, REBUILD_SILVER, RebuildPublishPlan)


def cancel_rebuild(spark: SparkSession, settings: Settings) -> None:
    """Cancels an interrupted rebuild of silver that has not replaced a table yet.

    This process must have claimed all layers.

    Raises:
        UsageError: No rebuild was interrupted.
        LakeError: A table was replaced already, or it is not known whether one was.
    """
    publishing.cancel_unpublished_rebuild(
        spark, Lake(settings), REBUILD_SILVER, LAYER, REPLAYED, lambda: remove_staging_tables(spark, settings)
    )


def _copy_unchosen_sessions_to_staging(
    spark: SparkSession, settings: Settings, lake: Lake, selection: SessionSelection
) -> None:
    """Copies the rows of sessions that are not rebuilt from silver's live tables into the staging tables."""
    staging = Lake(settings).build_staging_lake()
    for table in REPLAYED:
        rebuilt = staging.read(spark, table).where(selection.build_spark_condition())
        others = lake.read(spark, table).where(~selection.build_spark_condition())
        rows = rebuilt.unionByName(others).localCheckpoint()
        staging.overwrite_table(spark, table, rows, Txn("fill-up", 0), "{}")


def _read_states_to_resume_from(
    spark: SparkSession, settings: Settings, replayed: ReplayResult, selection: SessionSelection
) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the encoded state of each shard, from which silver's stream will resume.

    If only some sessions are rebuilt, these are the live states with the rebuilt sessions replaced.
    """
    rebuilt = iterate_states_by_shard(replayed.states)
    if selection.includes_all_sessions:
        yield from rebuilt
        return
    columns, live = settings.capture.declared_columns, dict(read_shard_states(spark, settings))
    for shard, chunk in rebuilt:
        state = ShardState.decode_shard_state(live.get(shard, chunk), columns)
        state.replace_sessions(ShardState.decode_shard_state(chunk, columns), selection)
        yield shard, state.encode_shard_state(columns)


def _build_publish_plan(
    spark: SparkSession,
    lake: Lake,
    replayed: ReplayResult,
    comparison: SilverTablesComparison | None,
    started: datetime,
    *,
    readable: bool,
) -> RebuildPublishPlan:
    """Returns the plan to publish the built tables.

    Args:
        replayed: The result of the replay.
        comparison: The result of comparing the tables; None if all count as changed.
        started: When the rebuild started.
        readable: False if the live tables cannot be read.
    """
    last = read_last_batch_number(lake.reader(spark), LAYER)
    if last is None and readable:  # the ledger is lost
        last = _find_last_batch_in_progress_table(spark, lake)
    plan = RebuildPublishPlan.create_publish_plan(
        replayed.version, 0 if last is None else last + 1, started, replayed.partitions
    )
    plan.changed = sorted(COMPARED if comparison is None else comparison.tables)
    plan.gold_is_behind = has_gold_unread_changes(spark, lake.settings, lake)
    return plan


def _find_last_batch_in_progress_table(spark: SparkSession, lake: Lake) -> int | None:
    """Returns the number of the last batch in `session_progress`; None if the table is empty."""
    from pyspark.sql import functions as F

    newest = lake.read(spark, PROGRESS).agg(F.max("_batch")).first()
    return None if newest is None else newest[0]


def _publish_rebuilt_tables(
    spark: SparkSession, settings: Settings, lake: Lake, journal: OperationJournal[RebuildPublishPlan]
) -> None:
    """Replaces silver's tables and states by the rebuilt ones, in the journal's steps. Empties gold if necessary."""
    plan = journal.inputs
    handover.require_prepared_handover(settings, plan.rebuild, LAYER, REBUILD_SILVER.damaged)
    reject_later_commits_of_query(spark, lake, LAYER, REPLAYED)
    reports = {
        table: journal.run_step_if_unfinished(table, partial(_replace_live_table, spark, lake, plan, table))
        for table in REPLAYED
    }
    outputs = [TableOutput(table, report["version"], report["rows"]) for table, report in reports.items()]
    if plan.must_empty_gold:
        journal.run_step_if_unfinished(
            GOLD, lambda: empty_gold_to_recompute(spark, settings, lake, plan.rebuild, plan.batch, plan.started_at)
        )
    entry = build_rebuild_ledger_entry(LAYER, plan, outputs, hash_settings_of_layers(settings), settings.capture)
    Ledger(lake).write_entry(spark, entry)
    Ledger(lake).write_entry(spark, _build_merge_ledger_entry(settings, plan))
    delete_removal_records(spark, lake, REPLAYED)
    finish_publishing_rebuild(spark, lake, LAYER, journal, lambda: remove_staging_tables(spark, settings))


def _replace_live_table(spark: SparkSession, lake: Lake, plan: RebuildPublishPlan, table: str) -> dict[str, int]:
    """Replaces the live rows of a table by the rebuilt ones. Returns its `version` and number of `rows` after that.

    A table whose rows are equal is not written, so that its readers have nothing to do.
    """
    staging = Lake(lake.settings).build_staging_lake()
    rows = _select_rows_to_publish(spark, staging, table)
    rows = add_batch_column(rows, plan.batch) if BOOKKEEPING in rows.columns else rows
    columns = lake.storage.read_column_types(spark, table) != staging.storage.read_column_types(spark, table)
    if columns or table in plan.changed or table not in COMPARED or BOOKKEEPING in rows.columns:
        replace_table(spark, lake, table, rows, plan, hash_settings_of_layers(lake.settings), replaces_columns=columns)
    written = staging.reader(spark).count_rows(SESSIONS if table == PROGRESS else table)
    return {"version": lake.latest_version(spark, table), "rows": written}


def _select_rows_to_publish(spark: SparkSession, staging: Lake, table: str) -> DataFrame:
    """Returns a staging table's rows as they are published.

    Of `session_progress`, only the last row of each session is published.
    """
    from pyspark.sql import functions as F

    if table != PROGRESS:
        return staging.read_small_table_into_memory(spark, table)
    # A session that ever had a late fill needs another way to reconstruct its table at a moment.
    late_fills = (
        staging.read_small_table_into_memory(spark, PROGRESS).groupBy(*SESSION).agg(F.max("beneath").alias("beneath"))
    )
    latest = staging.read_small_table_into_memory(spark, SESSIONS).join(late_fills, list(SESSION), "left")
    return latest.withColumns({"beneath": F.coalesce("beneath", F.lit(col=False)), "_batch": F.lit(0)})


def _build_merge_ledger_entry(settings: Settings, plan: RebuildPublishPlan) -> LedgerEntry:
    """Returns the ledger entry which says that the rebuild's batch is merged into silver's tables."""
    return LedgerEntry(
        layer=SILVER_TABLES,
        txn=Txn(f"{plan.txn.app_id}:{SILVER_TABLES}", plan.batch),
        source=MESSAGES,
        source_from=plan.batch,
        source_to=plan.batch,
        started_at=plan.started_at,
        messages=plan.counts["messages"],
        config_hash=hash_settings_of_layers(settings),
    )
