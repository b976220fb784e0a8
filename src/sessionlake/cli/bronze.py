"""What an operator decides about messages that bronze cannot read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sessionlake.cli.context import INT32_MAX, INT64_MAX, Config, say, settings_of, with_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

bronze_app = typer.Typer(no_args_is_help=True, help="Messages that bronze cannot read.")


@bronze_app.callback()
def _group() -> None:
    """A group, though it has one command."""


@bronze_app.command("skip")
def skip(
    topic: Annotated[str, typer.Argument(help="The topic.")],
    partition: Annotated[int, typer.Argument(help="The partition.", min=0, max=INT32_MAX)],
    offset: Annotated[int, typer.Argument(help="The message's offset in bronze.", min=0, max=INT64_MAX)],
    why: Annotated[str, typer.Option("--why", help="The reason, for ops.absent_offsets.")],
    to: Annotated[
        int | None, typer.Option("--to", help="Skip all messages up to this offset.", min=0, max=INT64_MAX)
    ] = None,
    config: Config = None,
) -> None:
    """Leave out a message that Spark cannot deliver, for good, so that bronze reads on behind it."""
    settings = settings_of(config)
    from sessionlake.cli.resolve import user
    from sessionlake.errors import UsageError
    from sessionlake.kafka.clients import require_broker
    from sessionlake.ledger.retained import CLAIM
    from sessionlake.operations.maintenance import CLAIM as MAINTENANCE
    from sessionlake.operations.pipeline import Layer, claimed
    from sessionlake.operations.recover.skip import Skipped
    from sessionlake.operations.recover.skip import skip as skip_messages

    last = offset if to is None else to
    if last < offset:
        raise UsageError(f"--to {last} is before offset {offset}")
    require_broker(settings)

    def work(spark: SparkSession) -> None:
        with claimed(spark, settings, Layer.BRONZE, "skips a message of bronze", CLAIM, MAINTENANCE):
            messages = skip_messages(spark, settings, Skipped(topic, partition, offset, last, user(spark), why))
        what = f"offset {offset}" if last == offset else f"offsets {offset} to {last}"
        say(
            f"topic {topic}, partition {partition}: {what} left out, as ops.absent_offsets says; {messages} messages "
            "before that were read. `sessionlake run bronze` goes on behind it"
        )

    with_spark(settings, work)
