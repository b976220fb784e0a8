"""The checks of a layer. Its start makes most of them; some are made only by `sessionlake doctor`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    DECISIONS,
    ERASURES,
    GOLD,
    MESSAGES,
    REFERENCE,
    RETAINED,
    SILVER,
    TOPICS,
)
from sessionlake.errors import LakeError
from sessionlake.operations.rebuild.endings import list_gold_tables
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover, manifest
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint
from sessionlake.streaming.generations import CheckpointGenerations, require_intact_checkpoint
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.losses import refuse_lost_ledger, refuse_lost_state
from sessionlake.streaming.restored_tables import refuse_restored_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class CheckSubject(StrEnum):
    """The subject of a check. The values are the names of the lines that `sessionlake doctor` prints."""

    OPERATIONS = "operations"
    CHECKPOINTS = "checkpoints"
    STATES = "states"
    LEDGER = "ledger"
    VERSIONS = "versions"


class PreflightCheck(NamedTuple):
    """One check of a layer.

    Attributes:
        subject: What the check examines.
        require: The check: raises a `LakeError` if something is wrong. It receives the Spark session, which is None for
            local folders.
        at_start: True if the layer's start makes the check. False if only `doctor` makes it.
    """

    subject: CheckSubject
    require: Callable[[SparkSession | None], object]
    at_start: bool = True


def list_layers_and_processors(settings: Settings) -> tuple[str, ...]:
    """Returns the names of the layers that have a checkpoint: bronze, silver, gold, and each processor's."""
    return (BRONZE, SILVER, GOLD, *(processor.layer for processor in settings.processors))


def require_layer_startable(spark: SparkSession, settings: Settings, layer: str) -> None:
    """Makes all checks that a layer's start requires.

    Raises:
        LakeError: A check failed. The text says what is wrong and what to do.
    """
    for check in _list_preflight_checks(settings, layer):
        if check.at_start:
            check.require(spark)


def require_preflight_checks_passed(
    spark: SparkSession | None, settings: Settings, subject: CheckSubject, layers: Iterable[str]
) -> None:
    """Makes all checks of a subject for each of these layers, including those that only `doctor` makes.

    Raises:
        LakeError: The first check that failed. Its text says what is wrong and what to do.
    """
    for layer in layers:
        for check in _list_preflight_checks(settings, layer):
            if check.subject is subject:
                check.require(spark)


def _list_preflight_checks(settings: Settings, layer: str) -> Iterator[PreflightCheck]:
    """Yields the checks of a layer or processor, in the order in which they are made."""
    yield PreflightCheck(CheckSubject.OPERATIONS, lambda _: refuse_interrupted_operations(settings, layer))
    checkpoint = settings.checkpoint_path(layer)
    yield PreflightCheck(CheckSubject.CHECKPOINTS, lambda _: require_intact_checkpoint(checkpoint, layer))
    yield PreflightCheck(
        CheckSubject.CHECKPOINTS, lambda _: _require_query_id_of_checkpoint(settings, layer), at_start=False
    )
    yield PreflightCheck(CheckSubject.CHECKPOINTS, lambda _: manifest.read_commit_manifest(settings, layer))
    yield PreflightCheck(CheckSubject.STATES, lambda _: handover.require_handover_states(settings, layer))
    without_states = {BRONZE, *(processor.layer for processor in settings.processors if processor.key)}
    if layer not in without_states:
        # When a layer starts, Spark itself looks for the states.
        yield PreflightCheck(CheckSubject.STATES, lambda _: refuse_lost_state(settings, layer), at_start=False)
    yield PreflightCheck(CheckSubject.LEDGER, lambda spark: refuse_lost_ledger(spark, settings, layer))
    yield PreflightCheck(
        CheckSubject.VERSIONS, lambda spark: refuse_restored_tables_of_layers(spark, settings, [layer])
    )


def refuse_restored_tables_of_layers(spark: SparkSession | None, settings: Settings, layers: Iterable[str]) -> None:
    """Checks that no table which these layers read or write was restored to an older version.

    Raises:
        DataLossError: A table was restored to an older version. The text names it.
    """
    tables = dict.fromkeys(table for layer in layers for table in _list_tables_of_layer(settings, layer))
    refuse_restored_tables(spark, Lake(settings), tables)


def _require_query_id_of_checkpoint(settings: Settings, layer: str) -> None:
    """Checks that a checkpoint folder, if it exists, has the file with the query's id."""
    folder = Path(settings.checkpoint_path(layer))
    if folder.is_dir() and CheckpointGenerations(str(folder), layer).current_generation.app_id is None:
        raise LakeError(f"the checkpoint {folder} has no file `metadata`", fix=build_checkpoint_recovery_hint(layer))


def _list_tables_of_layer(settings: Settings, layer: str) -> tuple[str, ...]:
    """Returns the tables that a layer or processor reads, and those that are written for it."""
    for processor in settings.processors:
        if processor.layer == layer:
            read = processor.source if processor.key else MESSAGES
            return (processor.output_table,) if read.startswith(REFERENCE) else (read, processor.output_table)
    return {
        BRONZE: (MESSAGES, TOPICS, ERASURES, RETAINED),
        SILVER: (MESSAGES, *REPLAYED, DECISIONS),
        GOLD: (CHANGES, *list_gold_tables(settings)),
    }[layer]
