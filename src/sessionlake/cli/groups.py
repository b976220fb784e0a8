"""Commands of two words, as in `sessionlake session show`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sessionlake.cli.context import INT32_MAX, INT64_MAX, Config, Form, say, settings_of, with_reader, with_spark
from sessionlake.cli.options import (
    BySession,
    Cancel,
    OfPartition,
    OfTopic,
    Session,
    ShortenGold,
    StartOver,
    refuse_together,
)
from sessionlake.cli.reference import reference_app
from sessionlake.cli.remote import remote_app
from sessionlake.cli.show import OutputFormat, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.local.broker import BrokerStatus

bronze_app = typer.Typer(no_args_is_help=True, help="Messages that bronze cannot read.")
broker_app = typer.Typer(no_args_is_help=True, help="The embedded Kafka broker of this home.")


_OF_PROCESSOR = "processor:"


class _Rebuilds(TyperGroup):
    """The layers, each product of gold, each processor: which there are is for the configuration to say."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """See click's `Group`."""
        one = typer.Typer(add_completion=False)
        if cmd_name.startswith("gold."):
            one.command(cmd_name, help=f"Make {cmd_name} anew from silver, in one commit.")(_rebuild_gold(cmd_name))
        elif cmd_name.startswith(_OF_PROCESSOR):
            name = cmd_name.removeprefix(_OF_PROCESSOR)
            one.command(cmd_name, help=f"Make the table of the processor {name} anew, in one commit.")(
                _rebuild_processor(name)
            )
        else:
            return super().get_command(ctx, cmd_name)
        return get_command(one)


rebuild_app = typer.Typer(
    no_args_is_help=True, cls=_Rebuilds, help="Build a layer, gold.TABLE, or processor:NAME anew."
)
verify_app = typer.Typer(no_args_is_help=True, help="Compare a layer with what it was made of.")
state_app = typer.Typer(no_args_is_help=True, help="What silver's state store remembers.")
rules_app = typer.Typer(no_args_is_help=True, help="Rules over gold's figures, and over events in silver.")
session_app = typer.Typer(no_args_is_help=True, help="One capture session.")
GROUPS = {
    "bronze": bronze_app,
    "broker": broker_app,
    "rules": rules_app,
    "reference": reference_app,
    "session": session_app,
    "state": state_app,
    "rebuild": rebuild_app,
    "verify": verify_app,
    "remote": remote_app,
}


@bronze_app.callback()
def _bronze() -> None:
    """A group, though it has one command."""


@bronze_app.command("skip")
def bronze_skip(
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


@session_app.command("show")
def session_show(
    session: Session,
    topic: OfTopic = None,
    partition: OfPartition = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """The rows of one session's table, now."""
    settings = settings_of(config)
    from sessionlake.cli.session import show_session

    with_reader(settings, lambda reader: show_session(reader, settings, session, topic, form, partition))


@session_app.command("as-of")
def session_as_of(
    session: Session,
    ts: Annotated[str | None, typer.Option("--ts", help="Stream time (Kafka's): ISO 8601, or milliseconds.")] = None,
    seq: Annotated[
        int | None, typer.Option("--seq", help="After the message with this seq.", min=0, max=INT64_MAX)
    ] = None,
    offset: Annotated[
        int | None, typer.Option("--offset", help="After the message at this Kafka offset.", min=0, max=INT64_MAX)
    ] = None,
    topic: OfTopic = None,
    partition: OfPartition = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """The rows of one session's table at any moment of its history."""
    settings = settings_of(config)
    from sessionlake.cli.session import moment_of, show_session_as_of

    moment = moment_of(ts, seq, offset)
    with_reader(settings, lambda reader: show_session_as_of(reader, settings, session, topic, moment, form, partition))


@state_app.command("show")
def state_show(
    session: BySession,
    topic: OfTopic = None,
    partition: OfPartition = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """One session: where its stream stands, which seqs are missing, what is held back."""
    settings = settings_of(config)
    from sessionlake.cli.state import show_session_state

    with_spark(settings, lambda spark: show_session_state(spark, settings, session, topic, form, partition))


@state_app.command("stats")
def state_stats(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """How many sessions and held-back messages each shard remembers, in how many bytes."""
    settings = settings_of(config)
    from sessionlake.cli.state import show_state_stats

    with_spark(settings, lambda spark: show_state_stats(spark, settings, form))


@rebuild_app.command("silver")
def rebuild_silver(
    from_bronze_version: Annotated[
        int | None, typer.Option("--from-bronze-version", min=0, help="The version to build from [the latest].")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only the sessions of this topic.")] = None,
    sessions: Annotated[
        list[str] | None, typer.Option("--sessions", help="Only this session; may be repeated.")
    ] = None,
    cancel: Cancel = False,
    start_over: StartOver = False,
    config: Config = None,
) -> None:
    """Build silver from bronze beside the live tables, then put it in their place."""
    settings = settings_of(config)
    from sessionlake.cli import rebuild
    from sessionlake.operations.rebuild.replay import Selection

    wanted = Selection(topic, tuple(sessions or ()))
    refuse_together(
        cancel=cancel, start_over=start_over, others=from_bronze_version is not None or not wanted.everything
    )
    if cancel:
        with_spark(settings, lambda spark: rebuild.cancel_silver(spark, settings, say))
        return
    if start_over:
        with_spark(settings, lambda spark: rebuild.rebuild_silver(spark, settings, None, wanted, say, start_over=True))
        return
    with_spark(settings, lambda spark: rebuild.rebuild_silver(spark, settings, from_bronze_version, wanted, say))


def _rebuild_gold(table: str | None) -> Callable[..., None]:
    def command(shorten_gold: ShortenGold = False, config: Config = None) -> None:
        settings = settings_of(config)
        from sessionlake.cli import gold

        with_spark(settings, lambda spark: gold.rebuild(spark, settings, table, say, shorten=shorten_gold))

    return command


rebuild_app.command("gold", help="Make every product of gold anew from silver; `gold.NAME` one of them.")(
    _rebuild_gold(None)
)


def _rebuild_processor(name: str) -> Callable[..., None]:
    def command(
        diff: Annotated[
            bool, typer.Option("--diff", help="Only show how the class, as it is now, would make other rows.")
        ] = False,
        cancel: Cancel = False,
        start_over: StartOver = False,
        form: Form = OutputFormat.TABLE,
        config: Config = None,
    ) -> None:
        settings = settings_of(config)
        from sessionlake.cli import processors

        refuse_together(cancel=cancel, start_over=start_over, others=diff)
        if cancel:
            with_spark(settings, lambda spark: processors.cancel(spark, settings, name, say))
            return
        if diff:
            with_spark(settings, lambda spark: processors.show_difference(spark, settings, name, form, say))
            return
        with_spark(settings, lambda spark: processors.rebuild(spark, settings, name, form, say, start_over=start_over))

    return command


@verify_app.command("bronze")
def verify_bronze(config: Config = None) -> None:
    """Prove that bronze holds what Kafka still does; exit code 1 and the first difference if not."""
    settings = settings_of(config)
    from sessionlake.cli import verify_bronze as command

    command.preflight(settings)
    if not with_spark(settings, lambda spark: command.verify_bronze(spark, settings, say)):
        raise typer.Exit(1)


@verify_app.command("silver")
def verify_silver(config: Config = None) -> None:
    """Prove that silver is what bronze makes of it; exit code 1 and the first difference if not."""
    settings = settings_of(config)
    from sessionlake.cli import rebuild

    if not with_spark(settings, lambda spark: rebuild.verify_silver(spark, settings, say)):
        raise typer.Exit(1)


@verify_app.command("gold")
def verify_gold(config: Config = None) -> None:
    """Prove that gold is what SQL over silver makes of it; exit code 1 and the first difference if not."""
    settings = settings_of(config)
    from sessionlake.cli import gold

    if not with_spark(settings, lambda spark: gold.verify(spark, settings, say)):
        raise typer.Exit(1)


File = Annotated[Path, typer.Argument(help="A YAML file of rules.")]


@rules_app.command("check")
def rules_check(file: File, config: Config = None) -> None:
    """Say whether the rules of a file can be used; exit code 2, and line and reason, if not."""
    settings = settings_of(config)
    from sessionlake.cli import rules

    write_text(f"{len(rules.check(settings, file))} rules are fine")


@rules_app.command("apply")
def rules_apply(
    file: File,
    only: Annotated[bool, typer.Option("--only", help="Disable all rules that the file does not have.")] = False,
    config: Config = None,
) -> None:
    """Put the rules of a file into gold.rules, where a running gold finds them with its next batch."""
    settings = settings_of(config)
    from sessionlake.cli import rules

    written = rules.check(settings, file)
    with_spark(settings, lambda spark: rules.apply(spark, settings, written, say, only=only))


@rules_app.command("test")
def rules_test(file: File, form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """Hold the rules of a file against history: which alerts would be gained and lost. Nothing is written."""
    settings = settings_of(config)
    from sessionlake.cli import rules

    written = rules.check(settings, file)
    with_reader(settings, lambda reader: rules.try_rules(reader, settings, written, form, say))


@rules_app.command("list")
def rules_list(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """The rules there are, and whether gold evaluates them."""
    settings = settings_of(config)
    from sessionlake.cli import rules

    with_reader(settings, lambda reader: rules.show_rules(reader, settings, form))


@broker_app.command("up")
def broker_up(config: Config = None) -> None:
    """Start it, unless it runs, and wait until it answers."""
    from sessionlake.local import broker

    _show_broker(broker.up(settings_of(config)))


@broker_app.command("down")
def broker_down(config: Config = None) -> None:
    """Stop it; its data stays."""
    from sessionlake.local import broker

    say("the broker has stopped" if broker.down(settings_of(config)) else "no broker of this home was running")


@broker_app.command("status")
def broker_status(config: Config = None) -> None:
    """Say how it stands; exit code 1 unless it runs."""
    from sessionlake.local import broker

    found = broker.status(settings_of(config))
    _show_broker(found)
    if found.state != "running":
        raise typer.Exit(1)


def _show_broker(found: BrokerStatus) -> None:
    meaning = {
        "stopped": "not running; `sessionlake broker up` starts it",
        "foreign": "another process holds the port",
        "outside": "an outside broker is configured: nothing to start here",
    }
    pid = f" (process {found.pid})" if found.pid else ""
    write_text(f"{found.bootstrap_servers}: {meaning.get(found.state, found.state)}{pid}")
