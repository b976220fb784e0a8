"""What a layer's job asks before it writes: whether its tables are those that its checkpoint and settings go with."""

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
from sessionlake.errors import LakeError, LossError
from sessionlake.integrity.rules import RuleBook
from sessionlake.ledger.books import LedgerReader, to_dicts
from sessionlake.ledger.retained import read_head
from sessionlake.settings.model import Integrity, Settings
from sessionlake.streaming.checkpoint import way_on
from sessionlake.streaming.generations import Generations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

FILLED = {
    BRONZE: (MESSAGES,),
    SILVER: (PROGRESS, QUARANTINE),
    GOLD: (AVERAGES, METRICS_1M, DISTINCT_VALUES),
}
"""Every batch of a layer leaves rows in one of these, of gold every one that has a number or a text."""


def refuse_fresh_checkpoint(spark: SparkSession, lake: Lake, settings: Settings, layer: str) -> None:
    """Stops a job whose checkpoint is new while its tables are not: it would write everything twice.

    Raises:
        LossError: naming the checkpoint and what to do.
    """
    checkpoint = settings.checkpoint(layer)
    if Generations(checkpoint, layer).present.app_id is not None:
        return
    entries = list(to_dicts(LedgerReader(lake.reader(spark)).current(("layer", eq, layer))))
    of_rebuild = [entry["app_id"].startswith(REBUILD) for entry in entries]
    # What is rebuilt is filled by right, and handed over. Gold is emptied: what it has is of a batch since.
    begins_empty = not entries or (layer == GOLD and not Path(f"{checkpoint}.handover").exists())
    if not all(of_rebuild) or (begins_empty and is_filled(spark, lake, layer)):
        raise LossError(
            f"the checkpoint {checkpoint} is new, but the {layer} tables already hold data: running on would write "
            "everything twice",
            fix=way_on(layer),
        )


def is_filled(spark: SparkSession | None, lake: Lake, layer: str) -> bool:
    """Whether the layer has taken in anything, by its tables alone."""
    return any(lake.reader(spark).any(table) for table in FILLED.get(layer, ()))


def refuse_removed_history(reader: TableReader, settings: Settings) -> None:
    """Stops a job that would fold sessions from their first change on, of which changes are gone.

    Raises:
        LakeError: a topic has become one of class `once` since retention has removed changes of it.
    """
    found = read_head(reader, CHANGES)
    if found is None:
        return
    rules = RuleBook(settings.capture)
    for (topic,) in sorted(reader.count_by(RETAINED, ["topic"], ("table", eq, CHANGES), ("limit", ge, 0))):
        if rules.of(topic).integrity is Integrity.ONCE:
            raise LakeError(
                f"topic {topic} is of class once, whose sessions are folded from their first change on, but "
                f"{found.summary}: set the class back"
            )
