"""`sessionlake recover`: what is lost of a layer, or of the ledger, is made again from what is left."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from sessionlake.cli.options import Lost, Say
from sessionlake.cli.rebuild import say_rebuilt
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, GOLD, LEDGER, MESSAGES, SILVER, SILVER_TABLES
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import LakeError, UsageError
from sessionlake.ledger.positions import drop_carried
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.maintenance import CLAIM as MAINTENANCE
from sessionlake.operations.pipeline import Layer, claimed
from sessionlake.operations.rebuild.replay import REPLAYED, require_whole_bronze
from sessionlake.operations.rebuild.silver import interrupted, rebuild
from sessionlake.operations.recover import bronze, gold, silver
from sessionlake.settings.model import Settings
from sessionlake.streaming import handover
from sessionlake.streaming.generations import require_intact_checkpoint
from sessionlake.streaming.journal import require_uninterrupted
from sessionlake.streaming.losses import (
    first_loss,
    has_started,
    lacks_batches,
    refuse_old_ledger,
    refuse_unreadable,
    require_logs,
)
from sessionlake.streaming.operation import REBUILD_SILVER, RECOVER_BRONZE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_Work = Callable[["SparkSession", Settings, Say], None]
_ANEW = (SILVER, GOLD)
"""Layers of which everything can be made once more."""


def recover(spark: SparkSession, settings: Settings, lost: Lost, say: Say, *, shorten: bool = False) -> None:
    """Recovers what is lost, and says what was found and done.

    Args:
        shorten: whether gold may be computed anew though retention has removed changes that it was made of.

    Raises:
        LakeError: there is nothing of the layer yet, or what it is made of is lost itself.
        UsageError: gold is not what is recovered.
    """
    # Gold is emptied where silver has changed, and layers that follow must not read what is half done.
    layers = {Lost.BRONZE: Layer.BRONZE, Lost.GOLD: Layer.GOLD}.get(lost, Layer.ALL)
    work: dict[Lost, _Work] = {
        Lost.BRONZE: _bronze,
        Lost.SILVER: _silver,
        Lost.GOLD: partial(_gold, shorten=shorten),
        Lost.LEDGER: partial(_ledger, shorten=shorten),
    }
    if shorten and lost not in {Lost.GOLD, Lost.LEDGER}:
        raise UsageError(f"--shorten-gold goes with gold and ledger: recover {lost} empties no gold for good")
    # What tells bronze's last batch are the table's commits: of nobody else.
    also = {Layer.ALL: [CLAIM], Layer.BRONZE: [CLAIM, MAINTENANCE]}.get(layers, [])
    if lost is not Lost.SILVER:  # `rebuild` checks it
        of = {Lost.BRONZE: BRONZE, Lost.GOLD: GOLD}.get(lost, SILVER)
        require_uninterrupted(
            settings, of, except_for=[RECOVER_BRONZE, REBUILD_SILVER] if lost is not Lost.GOLD else []
        )
    with claimed(spark, settings, layers, f"recovers {lost}", *also):
        work[lost](spark, settings, say)


def _bronze(spark: SparkSession, settings: Settings, say: Say) -> None:
    done = bronze.recover(spark, settings)
    say(f"found: {done.found or 'nothing that is wrong with the checkpoint; it is begun anew all the same'}")
    if done.booked:
        say(f"{LEDGER} did not know of {done.booked} messages in {MESSAGES}: it has an entry of them, as recovered")
    say(
        f"bronze goes on behind what its table holds, with batch {done.batch} in generation {done.generation} of its "
        "checkpoint: `sessionlake run bronze`"
    )


def _silver(spark: SparkSession, settings: Settings, say: Say) -> None:
    done = silver.recover(spark, settings)
    for loss in done.found:
        say(f"found: {loss}")
    if done.rebuilt is None:
        say(
            "found: nothing that is lost; nothing was changed. `sessionlake verify silver` compares it with bronze, "
            "`sessionlake rebuild silver` makes it once more all the same"
        )
        return
    say_rebuilt(done.rebuilt, settings, say)


def _gold(spark: SparkSession, settings: Settings, say: Say, *, shorten: bool) -> None:
    found = gold.recover(spark, settings, shorten=shorten)
    for loss in found:
        say(f"found: {loss}")
    told = "gold is emptied, and computed anew when it runs next" if found else None
    say(told or "found: nothing that is lost; nothing was changed")


def _ledger(spark: SparkSession, settings: Settings, say: Say, *, shorten: bool) -> None:
    """Layer by layer, those that the ledger has no batch of: so it can be run again wherever it has ended.

    Of entries that retention has removed, what bronze's come to stays: nothing else tells where its table began.
    """
    lake = Lake(settings)
    if not lake.exists(spark, MESSAGES):
        raise LakeError(f"there is nothing in {settings.place} that a ledger could be made of")
    require_logs(spark, lake, [MESSAGES, LEDGER, *REPLAYED])
    readable = partial(refuse_unreadable, spark, lake, [LEDGER])
    if interrupted(settings) is not None and first_loss(readable) is None:
        say_rebuilt(rebuild(spark, settings), settings, say)  # what has died in this command, perhaps
    loss = first_loss(readable, *(partial(_refuse_old, spark, lake, layer) for layer in _ANEW))
    say(f"found: {loss or 'a ledger that can be read, and ends with the last batches'}")
    if loss:
        _empty_ledger(spark, lake)
    lake.ensure(spark, [LEDGER])
    unread = first_loss(lambda: refuse_unreadable(spark, lake, REPLAYED))
    lacks = lacks_batches(spark, lake, BRONZE) or bronze.has_unbooked(spark, lake)
    if lacks or first_loss(lambda: require_intact_checkpoint(settings.checkpoint(BRONZE), BRONZE)):
        _bronze(spark, settings, say)
    if lacks_batches(spark, lake, SILVER):
        say_rebuilt(rebuild(spark, settings, compares=unread is None), settings, say)
    if lacks_batches(spark, lake, GOLD):
        gold.empty(spark, settings, shorten=shorten)
        say("gold is emptied, and computed anew when it runs next")
    for own in settings.processors:
        if lacks_batches(spark, lake, own.layer):
            say(f"{own.layer}: nothing says what its batches took in: start the processor over under another name")


def _refuse_old(spark: SparkSession, lake: Lake, layer: str) -> None:
    """Of a layer that it has no batch of, a ledger is not older than the layer's checkpoint: it lacks the layer."""
    first = handover.first_batch_or_none(lake.settings, layer)
    if first is not None and not lacks_batches(spark, lake, layer):
        refuse_old_ledger(lake.reader(spark), lake.settings, layer, first)


def _empty_ledger(spark: SparkSession, lake: Lake) -> None:
    """Removes what is left of it, so that layers lack their batches.

    Raises:
        LakeError: what silver has taken in could not be told anew.
    """
    if has_started(spark, lake, SILVER):
        try:
            require_whole_bronze(lake.reader(spark))
        except LakeError as error:
            raise LakeError(f"{error}, and so {LEDGER} cannot be made anew: put it back from a backup") from None
    drop_carried(spark, lake, (SILVER, SILVER_TABLES, GOLD))
    if lake.exists(spark, LEDGER):
        none = lake.read(spark, LEDGER).limit(0)
        txn = Txn("recover", lake.latest_version(spark, LEDGER))
        lake.overwrite(spark, LEDGER, none, txn, "{}")
