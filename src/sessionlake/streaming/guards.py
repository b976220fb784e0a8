"""Checks before a job writes: do its tables belong to the same run of the stream as its checkpoint and settings?"""

from __future__ import annotations

from operator import eq, ge
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    AVERAGES,
    BRONZE,
    CHANGES,
    DISTINCT_VALUES,
    GOLD,
    MESSAGES,
    METRICS_1M,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    SILVER,
)
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import REBUILD
from sessionlake.errors import DataLossError, LakeError
from sessionlake.integrity.rules import JudgingRuleLookup
from sessionlake.ledger.books import LedgerReader, iterate_rows_as_dicts
from sessionlake.ledger.retained import read_removal_record_of_table
from sessionlake.settings.model import Settings
from sessionlake.settings.section import Integrity
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint
from sessionlake.streaming.generations import CheckpointGenerations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

EVIDENCE_TABLES = {
    BRONZE: (MESSAGES,),
    SILVER: (PROGRESS, QUARANTINE),
    GOLD: (AVERAGES, METRICS_1M, DISTINCT_VALUES),
}
"""Tables by which a layer's work shows: each of its batches adds rows to one of them (gold: if it has any values)."""


def refuse_new_checkpoint_over_data(spark: SparkSession, lake: Lake, settings: Settings, layer: str) -> None:
    """Refuses to start a layer with a new checkpoint if its tables have data. All data would be written twice.

    A new checkpoint is allowed after a rebuild, which fills or empties the tables itself.

    Raises:
        DataLossError: The checkpoint is new and the tables are not empty. The error says what to do.
    """
    checkpoint = settings.checkpoint_path(layer)
    if CheckpointGenerations(checkpoint, layer).current_generation.app_id is not None:
        return
    entries = list(
        iterate_rows_as_dicts(LedgerReader(lake.reader(spark)).read_entries_since_rebuild(("layer", eq, layer)))
    )
    of_rebuild = [entry["app_id"].startswith(REBUILD) for entry in entries]
    # A rebuild may have filled the tables; then it has left a handover. Gold's rebuild empties the tables instead, so
    # data in gold with a handover is from a later batch.
    begins_empty = not entries or (layer == GOLD and not Path(f"{checkpoint}.handover").exists())
    if not all(of_rebuild) or (begins_empty and has_layer_data(spark, lake, layer)):
        raise DataLossError(
            f"the checkpoint {checkpoint} of {layer} is new or was removed, but the layer's tables already hold data",
            why="The layer would start from the beginning and write all rows again",
            fix=build_checkpoint_recovery_hint(layer),
        )


def has_layer_data(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Returns True if the layer's tables have rows, which shows that the layer has processed messages."""
    return any(lake.reader(spark).has_rows(table) for table in EVIDENCE_TABLES.get(layer, ()))


def refuse_class_once_with_removed_changes(reader: TableReader, settings: Settings) -> None:
    """Refuses to start if a topic of class `once` lacks changes in `silver.session_changes` that retention has removed.

    Under class `once`, a session is computed from its first change on.

    Raises:
        LakeError: A topic was set to class `once` after retention had removed some of its changes.
    """
    found = read_removal_record_of_table(reader, CHANGES)
    if found is None:
        return
    rules = JudgingRuleLookup(settings.capture)
    for (topic,) in sorted(reader.count_rows_by(RETAINED, ["topic"], ("table", eq, CHANGES), ("limit", ge, 0))):
        if rules.find_judging_rules(topic).integrity is Integrity.ONCE:
            raise LakeError(
                f"topic {topic} has the class once (capture.integrity), but {found.removal_description}",
                why="Under class once, a session's table is computed from its first change on, so all its "
                "changes are needed",
                fix="Set the class of the topic back to what it was before",
            )
