"""`sessionlake rebuild silver`: silver from bronze once more, in the place of the live tables.

A rebuild is built beside the live tables, then published table by table, each in one commit that says by which code and
configuration; its ledger row comes last. What it replaces stays reachable by time travel. An interrupted publication is
finished by running the command again; until then the stream refuses to start.
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
from sessionlake.ledger.entries import Ledger, LedgerEntry, TableOutput, config_hash
from sessionlake.ledger.progress import last_batch
from sessionlake.ledger.retained import clear_retained
from sessionlake.operations.rebuild import publishing
from sessionlake.operations.rebuild.compare import BOOKKEEPING, COMPARED, Verified, compare_tables
from sessionlake.operations.rebuild.endings import gold_is_behind, reset_gold, retire_query
from sessionlake.operations.rebuild.preflight import require_kept_sessions, version_of
from sessionlake.operations.rebuild.publishing import Plan, bronze_ledger_entry, finish, numbered, replace, stored
from sessionlake.operations.rebuild.replay import (
    REPLAYED,
    Replayed,
    Selection,
    clear,
    is_small,
    replay,
    to_replace,
)
from sessionlake.protocol.arrow import SESSION
from sessionlake.settings.model import Settings
from sessionlake.silver.job import LAYER
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.silver.states import shard_states
from sessionlake.spark.interpreted import interpreted
from sessionlake.streaming import handover
from sessionlake.streaming.journal import Journal, building, require_uninterrupted
from sessionlake.streaming.operation import REBUILD_SILVER

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERYTHING = Selection()


@dataclass(frozen=True)
class Rebuilt:
    """The outcome.

    Attributes:
        version: of bronze.
        batch: the number the rebuild has among silver's batches.
        messages: how many it took in.
        verified: how the tables before it compare; None if nothing was compared.
        columns: what of the columns before it is not as it is declared now; then nothing was compared.
        finished: whether it finished an interrupted publication.
        empties_gold: whether gold is emptied, to be computed anew.
    """

    version: int
    batch: int
    messages: int
    verified: Verified | None
    columns: str | None = None
    finished: bool = False
    empties_gold: bool = False


def rebuild(
    spark: SparkSession,
    settings: Settings,
    *,
    version: int | None = None,
    selection: Selection = EVERYTHING,
    slice_messages: int | None = None,
    compares: bool = True,
    start_over: bool = False,
) -> Rebuilt:
    """Builds silver from bronze and puts it in the place of the live tables.

    One that was interrupted while it was published is finished instead.

    Args:
        version: of bronze to build from, the latest by default; the stream goes on behind it.
        selection: the sessions to replace; all others stay as they are.
        compares: whether the live tables are compared; if not, as where they have columns that are not declared so,
            they are not read, and count as changed.
        start_over: builds everything again, instead of finishing one that was interrupted.

    Raises:
        LakeError: bronze has no such version, or another operation was interrupted; or sessions are chosen and silver
            is not where bronze is, a batch is half committed, or other columns are declared.
    """
    require_uninterrupted(settings, LAYER, but=[REBUILD_SILVER], from_bronze=True)
    compares = compares and not start_over
    journal = None if start_over else interrupted(settings)
    lake, columns = to_replace(spark, settings)
    with interpreted(spark, when=is_small(spark, lake)):
        if journal is not None:
            _publish(spark, settings, lake, journal)
            return _outcome(journal.inputs, None, finished=True)
        started = datetime.now(UTC)
        version = version_of(spark, lake, version)
        with building(settings, REBUILD_SILVER, version):
            readable, compares = compares, compares and columns is None
            if compares:
                TableMerger(spark, settings).catch_up()
            if not selection.everything:
                require_kept_sessions(spark, lake, version, selection, columns)
            replayed = replay(spark, settings, version=version, slice_messages=slice_messages)
            if not selection.everything:
                _fill_up(spark, settings, lake, selection)
            found = compare_tables(spark, settings, lake) if compares else None
            plan = _plan(spark, lake, replayed, found, started, readable=readable)
            publishing.prepare(settings, LAYER, plan, _states(spark, settings, replayed, selection))
            lake.storage.require_claims()  # somebody else may have gone on meanwhile
        _publish(spark, settings, lake, Journal.begin(settings, REBUILD_SILVER, plan))
        return _outcome(plan, found, columns)


def _outcome(plan: Plan, found: Verified | None, columns: str | None = None, *, finished: bool = False) -> Rebuilt:
    messages = plan.counts["messages"]
    return Rebuilt(plan.version, plan.batch, messages, found, columns, finished, plan.empties_gold)


def interrupted(settings: Settings) -> Journal[Plan] | None:
    """The rebuild that was interrupted while it replaced the tables; None if none was.

    Raises:
        LossError: its journal cannot be read.
    """
    return Journal.read(settings, REBUILD_SILVER, Plan)


def cancel(spark: SparkSession, settings: Settings) -> None:
    """Cancels a rebuild that was interrupted before it replaced a table.

    All layers must be claimed.

    Raises:
        UsageError: none was interrupted.
        LakeError: a table was replaced, or that cannot be told.
    """
    publishing.cancel(spark, Lake(settings), REBUILD_SILVER, LAYER, REPLAYED, lambda: clear(spark, settings))


def _fill_up(spark: SparkSession, settings: Settings, lake: Lake, selection: Selection) -> None:
    """Puts the live rows of all other sessions into the staging tables, in the place of their own."""
    beside = Lake(settings).staging()
    for table in REPLAYED:
        own = beside.read(spark, table).where(selection.rows())
        others = lake.read(spark, table).where(~selection.rows())
        rows = own.unionByName(others).localCheckpoint()
        beside.overwrite(spark, table, rows, Txn("fill-up", 0), "{}")


def _states(
    spark: SparkSession, settings: Settings, replayed: Replayed, selection: Selection
) -> Iterator[tuple[int, bytes]]:
    """The states to go on from: the rebuilt ones, or the live ones with the rebuilt sessions in them."""
    rebuilt = stored(replayed.states)
    if selection.everything:
        yield from rebuilt
        return
    columns, live = settings.capture.declared, dict(shard_states(spark, settings))
    for shard, chunk in rebuilt:
        state = ShardState.decode(live.get(shard, chunk), columns)
        state.replace_sessions(ShardState.decode(chunk, columns), selection)
        yield shard, state.encode(columns)


def _plan(
    spark: SparkSession, lake: Lake, replayed: Replayed, found: Verified | None, started: datetime, *, readable: bool
) -> Plan:
    last = last_batch(lake.reader(spark), LAYER)
    if last is None and readable:  # a ledger that is lost
        last = _newest(spark, lake)
    plan = Plan.of(replayed.version, 0 if last is None else last + 1, started, replayed.partitions)
    plan.changed = sorted(COMPARED if found is None else found.tables)
    plan.gold_is_behind = gold_is_behind(spark, lake.settings, lake)
    return plan


def _newest(spark: SparkSession, lake: Lake) -> int | None:
    """The last batch that the tables have rows of."""
    from pyspark.sql import functions as F

    found = lake.read(spark, PROGRESS).agg(F.max("_batch")).first()
    return None if found is None else found[0]


def _publish(spark: SparkSession, settings: Settings, lake: Lake, journal: Journal[Plan]) -> None:
    plan = journal.inputs
    handover.require_prepared(settings, plan.rebuild, LAYER, REBUILD_SILVER.damaged)
    retire_query(spark, lake, LAYER, REPLAYED)
    reports = {table: journal.take(table, partial(_replace, spark, lake, plan, table)) for table in REPLAYED}
    outputs = [TableOutput(table, told["version"], told["rows"]) for table, told in reports.items()]
    if plan.empties_gold:
        journal.take(GOLD, lambda: reset_gold(spark, settings, lake, plan.rebuild, plan.batch, plan.started_at))
    Ledger(lake).write(spark, bronze_ledger_entry(LAYER, plan, outputs, config_hash(settings)))
    Ledger(lake).write(spark, _merged(settings, plan))
    clear_retained(spark, lake, REPLAYED)
    finish(spark, lake, LAYER, journal, lambda: clear(spark, settings))


def _replace(spark: SparkSession, lake: Lake, plan: Plan, table: str) -> dict[str, int]:
    """Puts the rebuilt rows of a table in the place of the live ones; returns the version and the number of rows.

    A table whose rows are the same stays as it is: whoever follows it has nothing to do.
    """
    beside = Lake(lake.settings).staging()
    rows = _built(spark, beside, table)
    rows = numbered(rows, plan.batch) if BOOKKEEPING in rows.columns else rows
    columns = lake.storage.columns(spark, table) != beside.storage.columns(spark, table)
    if columns or table in plan.changed or table not in COMPARED or BOOKKEEPING in rows.columns:
        replace(spark, lake, table, rows, plan, config_hash(lake.settings), columns=columns)
    written = beside.reader(spark).count(SESSIONS if table == PROGRESS else table)
    return {"version": lake.latest_version(spark, table), "rows": written}


def _built(spark: SparkSession, beside: Lake, table: str) -> DataFrame:
    """A table as it is published; of `session_progress`, one batch that leaves every session where it stands."""
    from pyspark.sql import functions as F

    if table != PROGRESS:
        return beside.read_small_in_memory(spark, table)
    # Whether a message was ever applied beneath newer ones decides how the table of a moment is told.
    beneath = beside.read_small_in_memory(spark, PROGRESS).groupBy(*SESSION).agg(F.max("beneath").alias("beneath"))
    latest = beside.read_small_in_memory(spark, SESSIONS).join(beneath, list(SESSION), "left")
    return latest.withColumns({"beneath": F.coalesce("beneath", F.lit(col=False)), "_batch": F.lit(0)})


def _merged(settings: Settings, plan: Plan) -> LedgerEntry:
    return LedgerEntry(
        layer=SILVER_TABLES,
        txn=Txn(f"{plan.txn.app_id}:{SILVER_TABLES}", plan.batch),
        source=MESSAGES,
        source_from=plan.batch,
        source_to=plan.batch,
        started_at=plan.started_at,
        messages=plan.counts["messages"],
        config_hash=config_hash(settings),
    )
