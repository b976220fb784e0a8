"""The gold stream: reads `silver.session_changes`, folds averages with state, and merges products into their tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import SKIP_REMOVALS, Lake
from sessionlake.delta.schemas.names import AVERAGES, CHANGES, GOLD, LATE_POINTS, LEDGER, RESTATEMENTS, RULES
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError
from sessionlake.gold.aggregate.order import OnceTopics
from sessionlake.gold.aggregate.product import Product
from sessionlake.gold.aggregate.standard import STANDARD
from sessionlake.gold.alerts.rule_loading import delete_rule_evaluation_records
from sessionlake.gold.alerts.step import RuleEvaluationStep
from sessionlake.gold.batch.averages import AverageWriter
from sessionlake.gold.batch.final import FinalRowAppender
from sessionlake.gold.batch.products import ProductMerger, append_late_points
from sessionlake.gold.batch.rows import BatchProductRows, GoldFoldResult
from sessionlake.gold.changes import build_change_columns, get_value_columns
from sessionlake.gold.declared.tables import (
    GoldTable,
    add_final_tables_of_products,
    build_declared_gold_schemas,
    list_declared_averages,
    list_declared_gold_tables,
    list_declared_products,
)
from sessionlake.gold.enrich.table import EnrichedTable
from sessionlake.gold.fold.pack import ChangePacker, build_shard_column_name, list_owner_columns_of_averages
from sessionlake.gold.fold.series import RollingAverage
from sessionlake.gold.fold.shard import GoldShardFold, TrackedAverageTable
from sessionlake.gold.rebuilding.states import build_shard_column, build_tracked_averages
from sessionlake.gold.rebuilding.tables import RebuiltTable, rebuild_table
from sessionlake.gold.references.runtime import (
    BackgroundStep,
    QueryWithBackgroundThreads,
    ReferenceRuntime,
    prepare_reference_tables,
)
from sessionlake.gold.sql.definitions import create_views_and_functions
from sessionlake.gold.tables.expiry import BucketExpiry, start_bucket_expiry
from sessionlake.gold.tables.table_properties import (
    find_complete_tables,
    find_skipped_tables,
    find_tables_to_rebuild,
    mark_table_incomplete,
    require_same_gold_shard_count,
    set_table_properties,
    store_maintained_tables,
)
from sessionlake.ledger.entries import Ledger, LedgerEntry, hash_settings_of_layers
from sessionlake.settings.model import Settings
from sessionlake.settings.section import milliseconds
from sessionlake.spark.interpreted import disable_code_generation
from sessionlake.spark.session import create_separate_session
from sessionlake.streaming.checkpoint import (
    choose_restart_options,
    read_last_committed_batch,
    read_last_planned_batch,
)
from sessionlake.streaming.guards import refuse_new_checkpoint_over_data
from sessionlake.streaming.handover import (
    FoldResumedFromHandover,
    Handover,
    find_active_handover_folder,
    read_active_handover,
)
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.payload_files import PayloadFiles
from sessionlake.streaming.sharded import PACKED_SCHEMA, ShardFold, fold_shards

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LAYER = GOLD
# Silver also drops a session's state at twice its timeout.
_IDLE_TIMEOUTS = 2
# A week, so that a row with one point a day keeps its state, and is not recomputed from the table each time.
_ROW_IDLE = timedelta(days=7)


def start(spark: SparkSession, settings: Settings, *, once: bool = False) -> QueryWithBackgroundThreads:
    """Starts the gold stream. First creates missing tables, and rebuilds tables whose declaration has changed.

    Args:
        once: True to process only what silver holds now, and then end. False to run until stopped.

    Raises:
        LakeError: The checkpoint is new but the tables have rows. Or the tables were built with another number of
            shards. Or a table was built by another declaration. Or a rebuild of silver was interrupted.
    """
    lake, tables = Lake(settings, build_declared_gold_schemas(settings)), list_declared_gold_tables(settings)
    with lake.storage.cache_repeated_reads():
        _check_and_create_tables(spark, lake)
        new = find_tables_to_rebuild(spark, lake, tables)
        lake.create_or_update_tables(
            spark,
            [table.table_name for table in add_final_tables_of_products(table for table in tables if table not in new)],
        )
        if new:
            _catch_up_and_rebuild_tables(spark, lake, new)
        set_table_properties(spark, lake, tables)
        create_views_and_functions(spark, lake)
        return _start_stream(spark, lake, tables, once=once)


def rebuild_tables(
    spark: SparkSession, settings: Settings, tables_to_rebuild: Sequence[GoldTable]
) -> dict[str, RebuiltTable]:
    """Rebuilds tables from all changes in silver, and returns the result of each, by table name.

    First the stream brings all other tables up to date.

    Raises:
        LakeError: Gold cannot start, for one of the reasons that `start` names.
    """
    lake = Lake(settings, build_declared_gold_schemas(settings))
    with lake.storage.cache_repeated_reads():
        _check_and_create_tables(spark, lake)
        return _catch_up_and_rebuild_tables(spark, lake, tables_to_rebuild)


def _check_and_create_tables(spark: SparkSession, lake: Lake) -> None:
    """Checks that gold may start, and creates the tables that every lake has.

    Raises:
        LakeError: Gold may not start.
    """
    refuse_new_checkpoint_over_data(spark, lake, lake.settings, LAYER)
    refuse_interrupted_operations(lake.settings, LAYER)
    lake.create_or_update_tables(spark, [CHANGES, AVERAGES, RESTATEMENTS, LATE_POINTS, LEDGER, RULES])
    prepare_reference_tables(spark, lake, lake.settings)
    require_same_gold_shard_count(spark, lake, lake.settings.gold.shards)


def _catch_up_and_rebuild_tables(
    spark: SparkSession, lake: Lake, tables_to_rebuild: Sequence[GoldTable]
) -> dict[str, RebuiltTable]:
    """Rebuilds tables, and returns the result of each, by table name.

    First the stream brings all other tables up to date, so that all tables include the same changes.
    """
    settings = lake.settings
    for table in tables_to_rebuild:
        mark_table_incomplete(spark, lake, table)
    if any(table in STANDARD for table in tables_to_rebuild):
        delete_rule_evaluation_records(spark, lake)
    others = find_complete_tables(spark, lake, list_declared_gold_tables(settings))
    missed = find_skipped_tables(spark, lake, others)  # the next start rebuilds these
    others = [one for one in others if one not in missed]
    if read_last_planned_batch(settings.checkpoint_path(LAYER)) is not None:
        _start_stream(spark, lake, others, once=True, runs_lookups=False).wait()
    if any(isinstance(table, EnrichedTable) for table in tables_to_rebuild):
        ReferenceRuntime(spark, lake, settings, others, runs_lookups=False).apply_all_corrections()
    rebuilt = {table.table_name: rebuild_table(spark, lake, settings, table) for table in tables_to_rebuild}
    store_maintained_tables(spark, lake, [*others, *tables_to_rebuild])
    return rebuilt


def _start_stream(
    spark: SparkSession, lake: Lake, tables: Sequence[GoldTable], *, once: bool, runs_lookups: bool = True
) -> QueryWithBackgroundThreads:
    """Starts the stream that keeps tables current, and the work that runs in the background.

    Args:
        tables: The tables to keep current.
        once: True to process only what silver holds now, and then end.
        runs_lookups: True if lookups may request rows that are missing in a reference table from its source.
    """
    settings, begin = lake.settings, read_active_handover(lake.settings, LAYER)
    store_maintained_tables(spark, lake, tables)
    query = QueryWithBackgroundThreads(LAYER, settings.checkpoint_path(LAYER))
    references = ReferenceRuntime(spark, lake, settings, tables, runs_lookups=runs_lookups)
    expiry = start_bucket_expiry(
        spark, lake, tables, is_new=begin is None and read_last_planned_batch(query.checkpoint) is None
    )
    batch = _GoldBatchCommitter(spark, lake, tables, references, expiry)
    averages = [
        build_tracked_averages(spark, lake, settings, series)
        for series in list_declared_averages(settings)
        if series in tables
    ]
    first_batch = 0 if begin is None else begin.first_batch
    query.start(
        create_folded_stream(spark, lake, settings, averages, begin),
        batch,
        trigger=settings.gold.trigger,
        once=once,
        txn=lambda name, number: Txn(name, first_batch + number),
    )
    background = [*references.background, *_create_background_rule_steps(spark, lake, batch.rules, first_batch)]
    return query.start_background_threads(background, once=once)


def _create_background_rule_steps(
    spark: SparkSession, lake: Lake, rules: RuleEvaluationStep | None, first_batch: int
) -> Iterator[BackgroundStep]:
    """Yields a background step that applies changed rules between batches, so that they do not wait for new messages.

    Args:
        rules: Evaluates the rules. None if gold evaluates no rules; then no step is yielded.
        first_batch: Number of the first batch of the stream's checkpoint.
    """
    if rules is None:
        return
    checkpoint, session = lake.settings.checkpoint_path(LAYER), create_separate_session(spark)

    def apply_changed_rules() -> bool:
        with rules.lock:
            planned, committed = read_last_planned_batch(checkpoint), read_last_committed_batch(checkpoint)
            last = first_batch + (-1 if committed is None else committed)
            is_complete = planned == committed and last >= 0
            return is_complete and rules.apply_changed_rules(session, last)

    yield BackgroundStep("rules", apply_changed_rules, lake.settings.gold.trigger.total_seconds())


def create_folded_stream(
    spark: SparkSession,
    lake: Lake,
    settings: Settings,
    averages: Sequence[TrackedAverageTable],
    handover: Handover | None,
) -> DataFrame:
    """Returns the stream that computes each micro-batch's rows, shard by shard, with a state per shard.

    Its columns are `kind string, payload binary`: each row holds encoded rows for one kind of table.

    Args:
        averages: The tables of averages to compute.
        handover: The state that a rebuild of gold left for the stream. None if the stream starts from its checkpoint.
    """
    declared, owners = get_value_columns(settings), list_owner_columns_of_averages(one.series for one in averages)
    shards = [
        build_shard_column(owner, settings.gold.shards).alias(build_shard_column_name(i))
        for i, owner in enumerate(owners)
    ]
    options: dict[str, Any] = {**SKIP_REMOVALS}
    if handover is not None:
        options["startingVersion"] = handover.bronze_version + 1
    elif read_last_planned_batch(settings.checkpoint_path(LAYER)) is None:
        with suppress(LakeError):  # gold's results do not depend on the order of reading
            options |= lake.storage.choose_commit_order_read_options(spark, CHANGES)
    else:
        options |= choose_restart_options(settings.checkpoint_path(LAYER))
    read = lake.stream_table(spark, CHANGES, settings.gold.max_bytes_per_trigger, options)
    once = OnceTopics(settings.capture)
    packer = ChangePacker(declared, owners, once if once.is_once_configured else None)
    packed = read.select(*shards, *build_change_columns(declared, once)).mapInArrow(packer, PACKED_SCHEMA)
    idle_ms = _IDLE_TIMEOUTS * milliseconds(settings.capture.session_timeout)
    row_idle_ms = max(idle_ms, milliseconds(_ROW_IDLE))
    fold: ShardFold = GoldShardFold(declared, tuple(averages), list_declared_products(settings), idle_ms, row_idle_ms)
    if handover is not None:
        fold = FoldResumedFromHandover(fold, str(find_active_handover_folder(settings, LAYER)))
    return fold_shards(packed, fold, PayloadFiles.create_for_query(lake.storage.scratch, LAYER))


class _GoldBatchCommitter:
    """Commits each micro-batch: the tables of gold one by one, then the batch's row in the ledger.

    Attributes:
        rules: Evaluates the alert rules. None if gold lacks a table that rules read.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        tables: Sequence[GoldTable],
        references: ReferenceRuntime,
        expiry: BucketExpiry,
    ) -> None:
        self._lake, self._settings, self._ledger, self._expiry = lake, lake.settings, Ledger(lake), expiry
        self._files = PayloadFiles.create_for_query(lake.storage.scratch, LAYER)
        self._files.remove_files()
        self._averages = [table for table in tables if isinstance(table, RollingAverage)]
        self._products = [table for table in tables if isinstance(table, Product)]
        self._finals = FinalRowAppender(spark, lake, self._products, expiry)
        self._all, self._declared = list_declared_products(lake.settings), get_value_columns(lake.settings)
        self._enrich = references.step
        # Rules read all of these tables. Without one of them they are not evaluated, and later start as new rules.
        self.rules = RuleEvaluationStep(lake, lake.settings, expiry) if all(one in tables for one in STANDARD) else None

    def __call__(self, frame: DataFrame, txn: Txn) -> None:
        with nullcontext() if self.rules is None else self.rules.lock:
            self._commit_gold_batch(frame, txn)

    def _commit_gold_batch(self, frame: DataFrame, txn: Txn) -> None:
        started, spark = datetime.now(UTC), frame.sparkSession
        inline, few = self._lake.driver_limits.inline_bytes, self._lake.driver_limits.few_changes
        frame.persist()
        try:
            part = GoldFoldResult.collect_payloads(frame, inline)
            writer = AverageWriter(spark, self._lake, part, txn, self._settings.gold.shards)
            with disable_code_generation(spark, enabled=part.report.read.changes <= few):
                averages = writer.write_averages(self._averages)
                rows = BatchProductRows(spark, part, self._declared, self._all)
                merger = ProductMerger(spark, self._lake, rows, txn, self._expiry, self._finals)
                outputs = [*averages, *merger.merge_batch_into_products(self._products)]
                outputs += self._finals.append_final_rows(spark, part.report.stream_times, txn)
                outputs += append_late_points(spark, self._lake, part, self._products, txn)
                outputs += self._enrich(spark, part.report.read, txn)
                if self.rules is not None:
                    outputs += self.rules(spark, rows, txn)
        finally:
            frame.unpersist()
            self._files.remove_files()
        report = part.report
        entry = LedgerEntry(
            layer=LAYER,
            txn=txn,
            source=CHANGES,
            source_from=report.read.first_batch,
            source_to=report.read.last_batch,
            started_at=started,
            outputs=tuple(outputs),
            messages=report.read.changes,
            applied=report.read.changes,
            config_hash=hash_settings_of_layers(self._settings),
        )
        self._ledger.write_entry(spark, entry)
        self._expiry.remove_expired_buckets(spark, report.times_by_topic)
