"""`sessionlake reshard N`: states of silver, processors and gold come into N shards, and their streams go on with them.

A layer's states are those after its last batch, and what it has read until then stays read: they are taken apart by
session, put together by the new shards, and handed over to a new checkpoint of the same query.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, GOLD, MESSAGES, SILVER
from sessionlake.delta.storage.faults import fault_point
from sessionlake.errors import LakeError, UsageError
from sessionlake.gold.declared.tables import schemas_of
from sessionlake.gold.making.states import forget_held
from sessionlake.gold.tables.notes import note_shards
from sessionlake.operations.pipeline import to_the_end
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.resharding.journal import Journal
from sessionlake.operations.resharding.layers import configured, layers_of, moved_states, present, with_shards
from sessionlake.processors.job import refuse_interrupted
from sessionlake.settings.model import Settings
from sessionlake.silver.states import has_state
from sessionlake.streaming import handover
from sessionlake.streaming.checkpoint import last_planned
from sessionlake.streaming.errors import explain
from sessionlake.streaming.guards import refuse_half_changed, refuse_interrupted_rebuild
from sessionlake.streaming.handover import Handover

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


def reshard(spark: SparkSession, settings: Settings, shards: int, say: Say = lambda _: None) -> list[str]:
    """Has the layers whose configuration says so go on with this number of shards; which ones were changed.

    All layers must be claimed. One that died is finished by the same call.

    Raises:
        UsageError: the configuration has no layer with this number, or a resharding to another one was interrupted.
        LakeError: a layer cannot come to the end of a batch, or something else was interrupted.
    """
    journal = Journal.read(settings)
    if journal is None:
        journal = _prepared(spark, settings, shards, say)
    elif journal.shards != shards:
        raise UsageError(
            f"a resharding to {journal.shards} was interrupted: run `sessionlake reshard {journal.shards}`"
        )
    if journal is None:
        return []
    for layer in journal.layers:
        _repair(spark, settings, journal, layer, say)
        _bring_into_force(spark, settings, journal, layer)
        say(f"{layer} goes on with {shards} shards")
    journal.end(settings)
    return journal.layers


def cancel(spark: SparkSession, settings: Settings) -> list[str]:
    """Ends a resharding that was interrupted, and leaves the layers whose states were not replaced as they are.

    All layers must be claimed.

    Returns:
        The layers whose states were replaced already, which have the new number of shards.

    Raises:
        UsageError: none was interrupted.
    """
    journal = Journal.read(settings)
    if journal is None:
        raise UsageError("reshard --cancel: no resharding was interrupted, so there is nothing to give up")
    moved = [layer for layer in journal.layers if handover.is_named(handover.in_force(settings, layer), journal.name)]
    for layer in moved:
        _bring_into_force(spark, settings, journal, layer)
    journal.end(settings)
    for layer in journal.layers:
        handover.discard_prepared(settings, layer)
    return moved


def _prepared(spark: SparkSession, settings: Settings, shards: int, say: Say) -> Journal | None:
    """Leaves everything as it is, with the new states beside it; None if there is nothing to change."""
    _refuse_interrupted(settings)
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
    journal = Journal(name, shards, changed, former)
    journal.write(settings)
    return journal


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


def _refuse_interrupted(settings: Settings) -> None:
    refuse_interrupted_rebuild(settings)
    refuse_half_changed(settings)
    for own in settings.processors:
        refuse_interrupted(settings, own)


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
        handover.prepare(settings, begin, rows, layer, handover.query_of(settings, layer))
    except Exception as error:  # what reads the states says what is wrong with them, and Spark passes it on
        raise explain(error, layer, settings.checkpoint(layer)) from error
    fault_point(f"after:{layer}.prepared")


def _repair(spark: SparkSession, settings: Settings, journal: Journal, layer: str, say: Say) -> None:
    """Prepares a layer's states again if what was prepared is damaged or gone, and the former states still count."""
    if handover.is_named(handover.in_force(settings, layer), journal.name) or layer not in journal.former:
        return
    if not handover.is_prepared(settings, journal.name, layer):
        _prepare(spark, settings, layer, journal.former[layer], journal.shards, journal.name, say)


def _bring_into_force(spark: SparkSession, settings: Settings, journal: Journal, layer: str) -> None:
    """Every step can be taken twice."""
    lake = Lake(settings, schemas_of(settings))
    ready = handover.read(handover.prepared(settings, layer), layer)
    begin = ready if handover.is_named(ready, journal.name) else handover.in_force(settings, layer)
    if begin is not None and handover.is_named(begin, journal.name):
        lake.add_version(spark, CHANGES if layer == GOLD else MESSAGES, begin.bronze_version)
        lake.storage.require_claims()
        handover.go_on(spark, settings, journal.name, layer)
    if layer == GOLD:
        forget_held(settings)
        fault_point("after:gold.held")
        note_shards(spark, lake, journal.shards)
    if layer == SILVER:
        handover.note_shards(with_shards(settings, SILVER, journal.shards))
    fault_point(f"after:{layer}.resharded")
