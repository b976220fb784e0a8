"""`sessionlake reshard N`: states of silver, processors and gold come into N shards, and their streams go on with them.

A layer's states are those after its last batch, and what it has read until then stays read: they are taken apart by
session, put together by the new shards, and handed over to a new checkpoint of the same query.
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
from sessionlake.delta.storage.faults import fault_point
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.declared.tables import schemas_of
from sessionlake.gold.making.states import remove_forgotten_owners
from sessionlake.gold.tables.notes import store_shards as note_gold_shards
from sessionlake.operations.pipeline import to_the_end
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.resharding.layers import configured, layers_of, moved_states, present, with_shards
from sessionlake.settings.model import Settings
from sessionlake.silver.states import has_state
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import last_planned
from sessionlake.streaming.errors import explain
from sessionlake.streaming.handover import Handover
from sessionlake.streaming.journal import Journal, require_uninterrupted
from sessionlake.streaming.manifest import note_shards
from sessionlake.streaming.operation import RESHARD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


class _Plan(msgspec.Struct, frozen=True):
    """What a resharding brings into force: prepared before it replaces anything.

    Attributes:
        name: of its handovers.
        shards: how many there will be.
        layers: whose states change, in order.
        former: the number of shards that the states of each were of, if it has any.
    """

    name: str
    shards: int
    layers: list[str]
    former: dict[str, int] = {}


def reshard(spark: SparkSession, settings: Settings, shards: int, say: Say = lambda _: None) -> list[str]:
    """Has the layers whose configuration says so go on with this number of shards; which ones were changed.

    All layers must be claimed. One that died is finished by the same call.

    Raises:
        UsageError: the configuration has no layer with this number, or a resharding to another one was interrupted.
        LakeError: a layer cannot come to the end of a batch, or something else was interrupted.
    """
    journal = Journal.read(settings, RESHARD, _Plan)
    if journal is None:
        plan = _prepared(spark, settings, shards, say)
        if plan is None:
            return []
        journal = Journal.begin(settings, RESHARD, plan)
    plan = journal.inputs
    if plan.shards != shards:
        raise UsageError(f"a resharding to {plan.shards} was interrupted: run `sessionlake reshard {plan.shards}`")
    for layer in plan.layers:
        journal.take(layer, partial(_move, spark, settings, plan, layer, say))
        say(f"{layer} goes on with {shards} shards")
    journal.end()
    return plan.layers


def cancel(spark: SparkSession, settings: Settings) -> list[str]:
    """Ends a resharding that was interrupted, and leaves the layers whose states were not replaced as they are.

    All layers must be claimed.

    Returns:
        The layers whose states were replaced already, which have the new number of shards.

    Raises:
        UsageError: none was interrupted.
    """
    journal = Journal.read(settings, RESHARD, _Plan)
    if journal is None:
        raise UsageError("reshard --cancel: no resharding was interrupted, so there is nothing to give up")
    plan = journal.inputs
    moved = [layer for layer in plan.layers if handover.is_in_force(settings, plan.name, layer)]
    for layer in moved:
        _bring_into_force(spark, settings, plan, layer)
    journal.end()
    for layer in plan.layers:
        handover.discard_prepared(settings, layer)
    return moved


def _prepared(spark: SparkSession, settings: Settings, shards: int, say: Say) -> _Plan | None:
    """Prepares the new states beside the present ones; None if there is nothing to change."""
    require_uninterrupted(settings)
    Lake(settings).require_columns(spark, REPLAYED)
    layers = [layer for layer in layers_of(settings) if configured(settings, layer) == shards]
    if not layers:
        raise UsageError(
            f"silver.shards is {settings.silver.shards} and gold.shards is {settings.gold.shards}: the configuration "
            f"says how many shards jobs start with, so set silver.shards, gold.shards or both to {shards} first"
        )
    name, changed, former = uuid.uuid4().hex[:12], list[str](), dict[str, int]()
    for layer in layers:
        before = _former(spark, settings, layer)
        if before not in (None, shards):
            _prepare(spark, settings, layer, before, shards, name, say)
            changed.append(layer)
            if handover.is_prepared(settings, name, layer):  # a layer without states has nothing to prepare
                former[layer] = before
    if not changed:
        return None
    fault_point("before:reshard.journal")
    Lake(settings).storage.require_claims()  # what was prepared is of what nobody else has gone on from
    return _Plan(name, shards, changed, former)


def _former(spark: SparkSession, settings: Settings, layer: str) -> int | None:
    """The number of shards that a layer's states are of; None if it has none."""
    found = present(spark, settings, layer)
    if found is not None or not has_state(settings, layer):
        return found
    if layer in (SILVER, GOLD):
        raise LakeError(
            f"a version that did not note it made {layer}'s states: run `sessionlake run {layer} --once` with the "
            f"{layer}.shards that they are of first"
        )
    return handover.shards(settings)  # of a processor that has been given nothing yet


def _prepare(spark: SparkSession, settings: Settings, layer: str, before: int, after: int, name: str, say: Say) -> None:
    """Puts a layer's states in other shards together, if it has any; it is brought to the end of a version first."""
    try:
        version = handover.taken_in(settings, layer)
        ended = version is not None or last_planned(settings.checkpoint(layer)) is None
    except LakeError:
        ended = False
    if not ended:
        say(f"{layer}: takes in what is there, with {before} shards")
        to_the_end(spark, with_shards(settings, layer, before), layer, threading.Event())
        version = handover.taken_in(settings, layer)
    if version is None:
        return
    say(f"{layer}: its states come from {before} shards into {after}")
    states = moved_states(spark, settings, layer, before, after)
    begin = Handover(version, handover.next_batch(settings, layer), after, name)
    rows = ((row["shard"], bytes(row["chunk"])) for row in states.toLocalIterator())
    try:
        handover.prepare(settings, begin, rows, layer, same_query=True)
    except Exception as error:  # what reads the states says what is wrong with them, and Spark passes it on
        raise explain(error, layer, settings.checkpoint(layer)) from error
    fault_point(f"after:{layer}.prepared")


def _move(spark: SparkSession, settings: Settings, plan: _Plan, layer: str, say: Say) -> None:
    """Has a layer go on from the new states; prepares them again if they are damaged or gone."""
    is_moved = handover.is_in_force(settings, plan.name, layer)
    if not is_moved and layer in plan.former and not handover.is_prepared(settings, plan.name, layer):
        _prepare(spark, settings, layer, plan.former[layer], plan.shards, plan.name, say)
    _bring_into_force(spark, settings, plan, layer)


def _bring_into_force(spark: SparkSession, settings: Settings, plan: _Plan, layer: str) -> None:
    """Can be repeated after a crash."""
    lake = Lake(settings, schemas_of(settings))
    found = (handover.read(handover.prepared(settings, layer), layer), handover.in_force(settings, layer))
    begin = next((one for one in found if one is not None and one.rebuild == plan.name), None)
    if begin is not None:
        lake.ensure_version_after(spark, CHANGES if layer == GOLD else MESSAGES, begin.bronze_version)
        lake.storage.require_claims()
        handover.swap(spark, settings, plan.name, layer)
    if layer == GOLD:
        remove_forgotten_owners(settings)
        fault_point("after:gold.held")
        note_gold_shards(spark, lake, plan.shards)
    if layer == SILVER:
        note_shards(with_shards(settings, SILVER, plan.shards))
    fault_point(f"after:{layer}.resharded")
