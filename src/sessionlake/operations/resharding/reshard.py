"""`sessionlake reshard N`: moves the states of silver, processors and gold into N shards, and has the streams resume.

The states after a layer's last batch are split by session and joined again by the new shards. A new checkpoint of the
same query starts with them, so nothing is read again.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD, MESSAGES, SILVER
from sessionlake.delta.storage.faults import inject_fault_if_requested
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.declared.tables import build_declared_gold_schemas
from sessionlake.gold.rebuilding.states import delete_files_of_owners_at_rebuild
from sessionlake.gold.tables.table_properties import store_gold_shard_count as note_gold_shards
from sessionlake.operations.pipeline import run_layer_until_caught_up
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.resharding.layers import (
    count_shards_of_states,
    get_configured_shard_count,
    list_sharded_layers,
    replace_configured_shard_count,
    reshard_layer_states,
)
from sessionlake.settings.model import Settings
from sessionlake.silver.states import has_state
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import read_last_planned_batch
from sessionlake.streaming.errors import convert_to_layer_error
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import OperationJournal, refuse_interrupted_operations
from sessionlake.streaming.manifest import record_shard_count
from sessionlake.streaming.operation import RESHARD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ReportProgress = Callable[[str], None]


class _ReshardPlan(msgspec.Struct, frozen=True):
    """The journal's record of a resharding whose new states are prepared.

    Attributes:
        name: The id of the resharding, which is part of the names of the prepared states.
        shards: The new number of shards.
        layers: The layers whose states change, in order.
        former: The former number of shards by layer; without layers that had no states.
    """

    name: str
    shards: int
    layers: list[str]
    former: dict[str, int] = {}


def reshard_layers(
    spark: SparkSession, settings: Settings, shards: int, report: ReportProgress = lambda _: None
) -> list[str]:
    """Moves the states of each layer that is configured with `shards` shards into this number of shards.

    This process must have claimed all layers. The same call finishes a resharding that was interrupted.

    Returns:
        The layers whose states were moved.

    Raises:
        UsageError: No layer is configured with this number of shards, or a resharding to another number was
            interrupted.
        LakeError: A layer cannot finish its batch, or another operation was interrupted.
    """
    journal = OperationJournal.read_journal(settings, RESHARD, _ReshardPlan)
    if journal is None:
        plan = _prepare_resharding(spark, settings, shards, report)
        if plan is None:
            return []
        journal = OperationJournal.create_journal(settings, RESHARD, plan)
    plan = journal.inputs
    if plan.shards != shards:
        raise UsageError(
            f"reshard: moving the states to {plan.shards} shards was interrupted, and must be finished first",
            why="Layers can have different numbers of shards until then",
            fix=f"Run `sessionlake reshard {plan.shards}`, which finishes it",
        )
    for layer in plan.layers:
        journal.run_step_if_unfinished(layer, partial(_replace_layer_states, spark, settings, plan, layer, report))
        report(f"{layer} now has {shards} shards")
    journal.remove_journal()
    return plan.layers


def cancel_resharding(spark: SparkSession, settings: Settings) -> list[str]:
    """Cancels an interrupted resharding. Layers whose states were not replaced yet stay as they are.

    This process must have claimed all layers.

    Returns:
        The layers whose states were replaced already, and which therefore keep the new number of shards.

    Raises:
        UsageError: No resharding was interrupted.
    """
    journal = OperationJournal.read_journal(settings, RESHARD, _ReshardPlan)
    if journal is None:
        raise UsageError(
            "reshard --cancel: no resharding is unfinished, so there is nothing to cancel",
            fix="Run `sessionlake reshard NUMBER` to move the states to another number of shards",
        )
    plan = journal.inputs
    moved = [layer for layer in plan.layers if handover.is_handover_active(settings, plan.name, layer)]
    for layer in moved:
        _activate_resharded_states(spark, settings, plan, layer)
    journal.remove_journal()
    for layer in plan.layers:
        handover.discard_prepared_handover(settings, layer)
    return moved


def _prepare_resharding(
    spark: SparkSession, settings: Settings, shards: int, report: ReportProgress
) -> _ReshardPlan | None:
    """Builds the states of each layer in the new number of shards, and stores them beside the present ones.

    Returns:
        The plan that replaces the present states by them; None if all layers have this number of shards already.
    """
    refuse_interrupted_operations(settings)
    Lake(settings).require_columns(spark, REPLAYED)
    layers = [layer for layer in list_sharded_layers(settings) if get_configured_shard_count(settings, layer) == shards]
    if not layers:
        raise UsageError(
            f"reshard: {shards} shards are asked for, but silver.shards is {settings.silver.shards} "
            f"and gold.shards is {settings.gold.shards}",
            why="Layers start with the number in the configuration, and would refuse states with another number",
            fix=f"First set silver.shards, gold.shards or both to {shards} in the configuration",
        )
    name, changed, former = uuid.uuid4().hex[:12], list[str](), dict[str, int]()
    for layer in layers:
        before = _read_former_shard_count(spark, settings, layer)
        if before not in (None, shards):
            _prepare_resharded_states(spark, settings, layer, before, shards, name, report)
            changed.append(layer)
            if handover.is_handover_prepared(settings, name, layer):  # a layer without states has nothing to prepare
                former[layer] = before
    if not changed:
        return None
    inject_fault_if_requested("before:reshard.journal")
    Lake(
        settings
    ).storage.require_claims_still_held()  # otherwise another process may have changed the states meanwhile
    return _ReshardPlan(name, shards, changed, former)


def _read_former_shard_count(spark: SparkSession, settings: Settings, layer: str) -> int | None:
    """Returns the number of shards in a layer's states; None if the layer has no states."""
    shards = count_shards_of_states(spark, settings, layer)
    if shards is not None or not has_state(settings, layer):
        return shards
    if layer in (SILVER, GOLD):
        raise LakeError(
            f"reshard: an older version of sessionlake wrote the states of {layer} and did not store "
            "their number of shards",
            fix=f"First run `sessionlake run {layer} --once` with {layer}.shards set to their number, which stores it",
        )
    return handover.read_shard_count(settings)  # a processor that has read nothing yet


def _prepare_resharded_states(
    spark: SparkSession,
    settings: Settings,
    layer: str,
    old_count: int,
    new_count: int,
    resharding_id: str,
    say: ReportProgress,
) -> None:
    """Builds and stores a layer's states in the new number of shards. First lets the layer finish its batches."""
    try:
        version = handover.read_last_processed_version(settings, layer)
        ended = version is not None or read_last_planned_batch(settings.checkpoint_path(layer)) is None
    except LakeError:
        ended = False
    if not ended:
        say(f"{layer}: processes what is available, with {old_count} shards")
        run_layer_until_caught_up(
            spark, replace_configured_shard_count(settings, layer, old_count), layer, threading.Event()
        )
        version = handover.read_last_processed_version(settings, layer)
    if version is None:
        return
    say(f"{layer}: moving its states from {old_count} shards into {new_count}")
    states = reshard_layer_states(spark, settings, layer, old_count, new_count)
    begin = Handover(version, handover.read_next_batch_number(settings, layer), new_count, resharding_id)
    rows = ((row["shard"], bytes(row["chunk"])) for row in states.toLocalIterator())
    try:
        handover.prepare_handover(settings, begin, rows, layer, same_query=True)
    except Exception as error:  # Spark passes on the error of the code that reads the states
        raise convert_to_layer_error(error, layer, settings.checkpoint_path(layer)) from error
    inject_fault_if_requested(f"after:{layer}.prepared")


def _replace_layer_states(
    spark: SparkSession, settings: Settings, plan: _ReshardPlan, layer: str, report: ReportProgress
) -> None:
    """Replaces a layer's states by the new ones. Builds the new states again if they are damaged or gone."""
    is_moved = handover.is_handover_active(settings, plan.name, layer)
    if not is_moved and layer in plan.former and not handover.is_handover_prepared(settings, plan.name, layer):
        _prepare_resharded_states(spark, settings, layer, plan.former[layer], plan.shards, plan.name, report)
    _activate_resharded_states(spark, settings, plan, layer)


def _activate_resharded_states(spark: SparkSession, settings: Settings, plan: _ReshardPlan, layer: str) -> None:
    """Replaces a layer's states by the prepared ones, and records the new number of shards.

    Safe to repeat after a crash.
    """
    lake = Lake(settings, build_declared_gold_schemas(settings))
    handovers = (
        handover.read_handover(handover.find_prepared_handover_folder(settings, layer), layer),
        handover.read_active_handover(settings, layer),
    )
    begin = next(
        (candidate for candidate in handovers if candidate is not None and candidate.rebuild == plan.name), None
    )
    if begin is not None:
        lake.ensure_version_after(spark, CHANGES if layer == GOLD else MESSAGES, begin.bronze_version)
        lake.storage.require_claims_still_held()
        handover.activate_handover(spark, settings, plan.name, layer)
    if layer == GOLD:
        delete_files_of_owners_at_rebuild(settings)
        inject_fault_if_requested("after:gold.held")
        note_gold_shards(spark, lake, plan.shards)
    if layer == SILVER:
        record_shard_count(replace_configured_shard_count(settings, SILVER, plan.shards))
    inject_fault_if_requested(f"after:{layer}.resharded")
