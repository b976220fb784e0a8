"""`sessionlake recover`: repairs the lost files of a layer, or the ledger, from the tables that are left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sessionlake.cli.options import RecoverableLayer, Say
from sessionlake.cli.rebuild import GOLD_EMPTIED, report_rebuild
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, GOLD, LEDGER, MESSAGES, SILVER, SILVER_TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.positions import drop_ledger_sums_of_layers
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.maintenance import CLAIM as MAINTENANCE
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.operations.rebuild.replay import REPLAYED, require_complete_bronze
from sessionlake.operations.rebuild.silver import find_interrupted_silver_rebuild, rebuild_silver_tables
from sessionlake.operations.recover import bronze, gold, silver
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.generations import require_intact_checkpoint
from sessionlake.streaming.journal import refuse_interrupted_operations
from sessionlake.streaming.losses import (
    find_first_loss_error,
    has_layer_started,
    lacks_ledger_entries,
    refuse_outdated_ledger,
    refuse_unreadable_rows,
    require_readable_logs,
)
from sessionlake.streaming.operation import REBUILD_SILVER, RECOVER_BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Work = Callable[["SparkSession", Settings, Say], None]
_REBUILDABLE = (SILVER, GOLD)
"""The layers that can be computed again completely."""


def recover_layer(
    spark: SparkSession, settings: Settings, lost: RecoverableLayer, say: Say, *, shorten: bool = False
) -> None:
    """Finds what a layer or the ledger has lost, repairs it, and tells the user what was lost and repaired.

    Args:
        spark: The Spark session.
        settings: The configuration.
        lost: What to repair.
        say: Shows a line to the user.
        shorten: True to recompute gold even if retention has removed changes of silver. Gold then covers less time.

    Raises:
        LakeError: The layer does not exist yet, or the tables from which it is repaired are lost as well.
        UsageError: `shorten` is given for something other than gold or the ledger.
    """
    # Recovering silver can empty gold, and no layer may read half-replaced tables. So all layers are claimed.
    layers = {RecoverableLayer.BRONZE: Layer.BRONZE, RecoverableLayer.GOLD: Layer.GOLD}.get(lost, Layer.ALL)
    work: dict[RecoverableLayer, _Work] = {
        RecoverableLayer.BRONZE: _recover_bronze,
        RecoverableLayer.SILVER: _recover_silver,
        RecoverableLayer.GOLD: partial(_recover_gold, shorten=shorten),
        RecoverableLayer.LEDGER: partial(_recover_ledger, shorten=shorten),
    }
    if shorten and lost not in {RecoverableLayer.GOLD, RecoverableLayer.LEDGER}:
        raise UsageError(
            f"recover {lost}: --shorten-gold has no effect here",
            why="Only `recover gold` and `recover ledger` can start gold later than before",
            fix="Leave out --shorten-gold",
        )
    # Bronze's last batch is read from the table's commits, so nobody else may commit to it meanwhile.
    also = {Layer.ALL: [CLAIM], Layer.BRONZE: [CLAIM, MAINTENANCE]}.get(layers, [])
    if lost is not RecoverableLayer.SILVER:  # for silver, `rebuild` checks this
        of = {RecoverableLayer.BRONZE: BRONZE, RecoverableLayer.GOLD: GOLD}.get(lost, SILVER)
        finished_here = [RECOVER_BRONZE, REBUILD_SILVER] if lost is not RecoverableLayer.GOLD else []
        refuse_interrupted_operations(settings, of, except_for=finished_here)
    with claim_layers(spark, settings, layers, f"recovers {lost}", *also):
        work[lost](spark, settings, say)


def _recover_bronze(spark: SparkSession, settings: Settings, say: Say) -> None:
    recovered = bronze.recover_bronze(spark, settings)
    say(f"found: {recovered.found or 'no fault in the checkpoint; a new one is started in any case'}")
    if recovered.unrecorded:
        say(
            f"{recovered.unrecorded} messages in {MESSAGES} were missing in {LEDGER}: they now have an entry there, "
            "marked as recovered"
        )
    say(
        f"bronze resumes after the last message in its table, with batch {recovered.batch} in generation "
        f"{recovered.generation} of its checkpoint: run `sessionlake run bronze`"
    )


def _recover_silver(spark: SparkSession, settings: Settings, say: Say) -> None:
    recovered = silver.recover_silver(spark, settings)
    for loss in recovered.found:
        say(f"found: {loss}")
    if recovered.rebuilt is None:
        say(
            "found: no loss; nothing was changed. `sessionlake verify silver` compares silver with bronze, "
            "`sessionlake rebuild silver` builds it again in any case"
        )
        return
    report_rebuild(recovered.rebuilt, settings, say)


def _recover_gold(spark: SparkSession, settings: Settings, say: Say, *, shorten: bool) -> None:
    losses = gold.recover_gold(spark, settings, shorten=shorten)
    for loss in losses:
        say(f"found: {loss}")
    say(GOLD_EMPTIED if losses else "found: no loss; nothing was changed")


def _recover_ledger(spark: SparkSession, settings: Settings, say: Say, *, shorten: bool) -> None:
    """Repairs the ledger, and each layer of which the ledger then has no batch. Can be repeated after a crash.

    For bronze, the sums of ledger entries that retention has removed are kept, because nothing else says at which
    offsets its table began.

    Args:
        spark: The Spark session.
        settings: The configuration.
        say: Shows a line to the user.
        shorten: True to recompute gold even if retention has removed changes of silver.
    """
    lake = Lake(settings)
    if not lake.exists(spark, MESSAGES):
        raise LakeError(
            f"recover ledger: {settings.lake_location} has no {MESSAGES}, from which the ledger is computed",
            fix="Restore the table from a backup. For a new lake, run `sessionlake run all`",
        )
    require_readable_logs(spark, lake, [MESSAGES, LEDGER, *REPLAYED])
    readable = partial(refuse_unreadable_rows, spark, lake, [LEDGER])
    if find_interrupted_silver_rebuild(settings) is not None and find_first_loss_error(readable) is None:
        # The rebuild may be from an interrupted run of this command.
        report_rebuild(rebuild_silver_tables(spark, settings), settings, say)
    loss = find_first_loss_error(
        readable, *(partial(_refuse_older_ledger, spark, lake, layer) for layer in _REBUILDABLE)
    )
    say(f"found: {loss or 'a readable ledger that ends with the last batches'}")
    if loss:
        _remove_all_ledger_entries(spark, lake)
    lake.create_or_update_tables(spark, [LEDGER])
    unread = find_first_loss_error(lambda: refuse_unreadable_rows(spark, lake, REPLAYED))
    lacks = lacks_ledger_entries(spark, lake, BRONZE) or bronze.has_messages_missing_in_ledger(spark, lake)
    if lacks or find_first_loss_error(lambda: require_intact_checkpoint(settings.checkpoint_path(BRONZE), BRONZE)):
        _recover_bronze(spark, settings, say)
    if lacks_ledger_entries(spark, lake, SILVER):
        report_rebuild(rebuild_silver_tables(spark, settings, compares=unread is None), settings, say)
    if lacks_ledger_entries(spark, lake, GOLD):
        gold.empty_gold(spark, settings, shorten=shorten)
        say(GOLD_EMPTIED)
    for processor in settings.processors:
        if lacks_ledger_entries(spark, lake, processor.layer):
            say(f"{processor.layer}: it is unknown what its batches have read, so start it again under another name")


def _refuse_older_ledger(spark: SparkSession, lake: Lake, layer: str) -> None:
    """Raises DataLossError if the ledger has batches of the layer, but ends before the layer's checkpoint does.

    A ledger without any batch of the layer is not an error here: it has lost the layer, and recovery repairs that.
    """
    first = handover.read_first_batch_number_or_none(lake.settings, layer)
    if first is not None and not lacks_ledger_entries(spark, lake, layer):
        refuse_outdated_ledger(lake.reader(spark), lake.settings, layer, first)


def _remove_all_ledger_entries(spark: SparkSession, lake: Lake) -> None:
    """Removes all entries of the ledger, so that every layer is then repaired.

    Raises:
        LakeError: Bronze is incomplete, so what silver has read could not be found out again.
    """
    if has_layer_started(spark, lake, SILVER):
        try:
            require_complete_bronze(lake.reader(spark))
        except LakeError as error:
            raise LakeError(
                error.what,
                why=f"Without these tables, {LEDGER} cannot be computed again",
                fix=f"Restore {LEDGER} from a backup",
            ) from None
    drop_ledger_sums_of_layers(spark, lake, (SILVER, SILVER_TABLES, GOLD))
    if lake.exists(spark, LEDGER):
        none = lake.read(spark, LEDGER).limit(0)
        txn = Txn("recover", lake.latest_version(spark, LEDGER))
        lake.overwrite_table(spark, LEDGER, none, txn, "{}")
