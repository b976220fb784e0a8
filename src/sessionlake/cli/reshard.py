"""`sessionlake reshard`: the states of layers come into another number of shards, without a rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, say, settings_of, with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.settings.model import Settings


def reshard(
    shards: Annotated[int, typer.Argument(min=1, max=65_536, help="What silver.shards, gold.shards or both say now.")],
    wait: Annotated[int, typer.Option("--wait", min=0, metavar="SECONDS", help="For layers to stand aside.")] = 600,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="End an interrupted resharding; layers not yet moved stay as they are."),
    ] = False,
    config: Config = None,
) -> None:
    """Move the states of silver, processors and gold into the number of shards that the configuration says now."""
    settings = settings_of(config)
    from sessionlake.delta.lake import storage_of

    storage_of(settings).require_writable()
    if cancel:
        with_spark(settings, lambda spark: cancel_all(spark, settings, wait))
        return
    with_spark(settings, lambda spark: reshard_all(spark, settings, shards, wait))


def reshard_all(spark: SparkSession, settings: Settings, shards: int, wait: float) -> None:
    """Reshards while all layers stand aside, and says what was done."""
    from sessionlake.cli.aside import all_claimed
    from sessionlake.operations.resharding import reshard as work
    from sessionlake.streaming.pause_requests import request_pause

    with request_pause(settings, "states come into other shards"), all_claimed(spark, settings, wait, "reshards"):
        changed = work.reshard(spark, settings, shards, say)
    if not changed:
        say(f"nothing is to be done: whatever has states has {shards} shards, or is configured otherwise")
    else:
        say("a job that ran meanwhile under another configuration ends: start it again, with this one")


def cancel_all(spark: SparkSession, settings: Settings, wait: float) -> None:
    """Ends an interrupted resharding while all layers stand aside, and says which layers were moved."""
    from sessionlake.cli.aside import all_claimed
    from sessionlake.operations.resharding import reshard as work

    with all_claimed(spark, settings, wait, "reshards"):
        moved = work.cancel(spark, settings)
    say(
        f"the resharding is ended; moved are: {', '.join(moved) or 'no layers'}. A layer whose shards are not those of "
        "the configuration says so when it starts, with the command that moves its states"
    )
