"""`sessionlake reshard`: moves the states of layers into another number of shards, without a rebuild."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import Config, call_with_spark, load_config, print_to_stderr

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.settings.model import Settings


def reshard(
    shards: Annotated[
        int,
        typer.Argument(
            min=1,
            max=65_536,
            help="The new number. Set silver.shards, gold.shards or both to it first: layers with this setting move.",
        ),
    ],
    wait: Annotated[
        int,
        typer.Option("--wait", min=0, metavar="SECONDS", help="How long to wait for running layers to pause."),
    ] = 600,
    cancel: Annotated[
        bool,
        typer.Option("--cancel", help="Cancel an interrupted resharding. Layers that were moved already stay moved."),
    ] = False,
    config: Config = None,
) -> None:
    """Change the number of shards without a rebuild.

    Moves the states of silver, processors and gold into the number of shards that the configuration now sets.
    """
    settings = load_config(config)

    from sessionlake.delta.lake import create_storage

    create_storage(settings).require_writable_storage()
    if cancel:
        call_with_spark(settings, lambda spark: cancel_resharding(spark, settings, wait))
        return
    call_with_spark(settings, lambda spark: reshard_all_layers(spark, settings, shards, wait))


def reshard_all_layers(spark: SparkSession, settings: Settings, shards: int, wait: float) -> None:
    """Moves states into another number of shards while all layers are paused, and tells the user which layers changed.

    `wait` says how many seconds to wait until running layers have paused.
    """
    from sessionlake.cli.claims import lock_all_layers_for_block
    from sessionlake.operations.resharding import reshard as work
    from sessionlake.streaming.pause_requests import request_pause

    with (
        request_pause(settings, "states are moved into other shards"),
        lock_all_layers_for_block(spark, settings, wait, "reshards"),
    ):
        changed = work.reshard_layers(spark, settings, shards, print_to_stderr)
    if not changed:
        print_to_stderr(
            f"nothing to do: every layer that has states has {shards} shards, or another number in the configuration"
        )
    else:
        print_to_stderr("jobs that run with the former configuration end: start them again with this one")


def cancel_resharding(spark: SparkSession, settings: Settings, wait: float) -> None:
    """Cancels an interrupted resharding while all layers are paused, and tells the user which layers stay moved.

    `wait` says how many seconds to wait until running layers have paused.
    """
    from sessionlake.cli.claims import lock_all_layers_for_block
    from sessionlake.operations.resharding import reshard as work

    with lock_all_layers_for_block(spark, settings, wait, "reshards"):
        moved = work.cancel_resharding(spark, settings)
    print_to_stderr(
        f"the resharding is cancelled; layers moved before: {', '.join(moved) or 'none'}. A layer whose number of "
        "shards differs from the configuration refuses to start, and names the command that moves its states"
    )
