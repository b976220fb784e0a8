"""The commands of two words, such as `sessionlake session show`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sessionlake.cli.context import INT32_MAX, INT64_MAX, Config, Form, load_config, say, with_reader, with_spark
from sessionlake.cli.feed import feed_app
from sessionlake.cli.options import (
    AfterOffset,
    AfterSeq,
    AtTime,
    BySession,
    Cancel,
    FromBronzeVersion,
    OfPartition,
    OfTopic,
    Session,
    ShortenGold,
    StartOver,
    refuse_combined_options,
)
from sessionlake.cli.reference import reference_app
from sessionlake.cli.remote import remote_app
from sessionlake.cli.show import OutputFormat, write_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sessionlake.local.broker import BrokerStatus

bronze_app = typer.Typer(no_args_is_help=True, help="Skip messages that bronze cannot read.")
broker_app = typer.Typer(no_args_is_help=True, help="Start and stop the embedded Kafka broker of this home.")
_OF_PROCESSOR = "processor:"


class _RebuildGroup(TyperGroup):
    """The commands of `rebuild`, with one for each name `gold.TABLE` and `processor:NAME` in the configuration."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command with a name; None if there is none."""
        one = typer.Typer(add_completion=False)
        if cmd_name.startswith("gold."):
            one.command(cmd_name, help=f"Rebuild {cmd_name} from silver, in one commit.")(_make_gold_command(cmd_name))
        elif cmd_name.startswith(_OF_PROCESSOR):
            name = cmd_name.removeprefix(_OF_PROCESSOR)
            one.command(cmd_name, help=f"Rebuild the table of the processor {name}, in one commit.")(
                _make_processor_command(name)
            )
        else:
            return super().get_command(ctx, cmd_name)
        return get_command(one)


rebuild_app = typer.Typer(
    no_args_is_help=True,
    cls=_RebuildGroup,
    help="Rebuild silver, gold, gold.TABLE or processor:NAME.\n\n"
    "The last two are commands, too: each table of gold and each configured processor has one.",
)
verify_app = typer.Typer(no_args_is_help=True, help="Compare a layer with its source, and show what differs.")
state_app = typer.Typer(no_args_is_help=True, help="Show what silver's state store holds.")
rules_app = typer.Typer(no_args_is_help=True, help="Check, test, apply and list alert rules.")
session_app = typer.Typer(no_args_is_help=True, help="Show the table of one session, now or in the past.")
GROUPS = {
    "bronze": bronze_app,
    "broker": broker_app,
    "feed": feed_app,
    "rules": rules_app,
    "reference": reference_app,
    "session": session_app,
    "state": state_app,
    "rebuild": rebuild_app,
    "verify": verify_app,
    "remote": remote_app,
}


@bronze_app.callback()
def _declare_bronze_as_group() -> None:
    """Makes `bronze` a group of commands, although it has only one."""


@bronze_app.command("skip")
def bronze_skip(
    topic: Annotated[str, typer.Argument(help="The message's topic.")],
    partition: Annotated[int, typer.Argument(help="The message's partition.", min=0, max=INT32_MAX)],
    offset: Annotated[int, typer.Argument(help="The message's offset in bronze.messages.", min=0, max=INT64_MAX)],
    why: Annotated[str, typer.Option("--why", help="The reason, which is stored in ops.absent_offsets.")],
    to: Annotated[
        int | None,
        typer.Option("--to", help="Skip all messages up to this offset, inclusive.", min=0, max=INT64_MAX),
    ] = None,
    config: Config = None,
) -> None:
    """Skip a message that Spark cannot read, permanently.

    Bronze then continues with the message after it.
    """
    settings = load_config(config)
    from sessionlake.cli.resolve import current_user
    from sessionlake.errors import UsageError
    from sessionlake.kafka.clients import require_reachable_broker
    from sessionlake.ledger.retained import CLAIM
    from sessionlake.operations.maintenance import CLAIM as MAINTENANCE
    from sessionlake.operations.pipeline import Layer, claim_layers
    from sessionlake.operations.recover.skip import SkipDecision
    from sessionlake.operations.recover.skip import skip_offsets as skip_messages

    last = offset if to is None else to
    if last < offset:
        raise UsageError(f"--to {last} is below the first offset to skip, {offset}", fix="Give --to a higher offset")
    require_reachable_broker(settings)

    def skip_and_report(spark: SparkSession) -> None:
        with claim_layers(spark, settings, Layer.BRONZE, "skips a message of bronze", CLAIM, MAINTENANCE):
            messages = skip_messages(
                spark, settings, SkipDecision(topic, partition, offset, last, current_user(spark), why)
            )
        what = f"offset {offset}" if last == offset else f"offsets {offset} to {last}"
        say(
            f"topic {topic}, partition {partition}: {what} skipped, and recorded in ops.absent_offsets; {messages} "
            "messages before that were committed. `sessionlake run bronze` continues after the skipped offsets"
        )

    with_spark(settings, skip_and_report)


@session_app.command("show")
def session_show(
    session: Session,
    topic: OfTopic = None,
    partition: OfPartition = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Show the rows of a session's table now."""
    settings = load_config(config)
    from sessionlake.cli.session import show_session

    with_reader(settings, lambda reader: show_session(reader, settings, session, topic, form, partition))


@session_app.command("as-of")
def session_as_of(
    session: Session,
    ts: AtTime = None,
    seq: AfterSeq = None,
    offset: AfterOffset = None,
    topic: OfTopic = None,
    partition: OfPartition = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Show the rows of a session's table at a past moment.

    Give the moment as exactly one of --ts, --seq and --offset.
    """
    settings = load_config(config)
    from sessionlake.cli.session import parse_moment, show_session_as_of

    moment = parse_moment(ts, seq, offset)
    with_reader(settings, lambda reader: show_session_as_of(reader, settings, session, topic, moment, form, partition))


@state_app.command("show")
def state_show(
    session: BySession,
    topic: OfTopic = None,
    partition: OfPartition = None,
    form: Form = OutputFormat.TABLE,
    config: Config = None,
) -> None:
    """Show the state that silver keeps of one session.

    For example the next seq, missing seqs, and messages held back.
    """
    settings = load_config(config)
    from sessionlake.cli.state import show_session_state

    with_spark(settings, lambda spark: show_session_state(spark, settings, session, topic, form, partition))


@state_app.command("stats")
def state_stats(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """Show the sessions, held-back messages and bytes in each shard."""
    settings = load_config(config)
    from sessionlake.cli.state import show_state_stats

    with_spark(settings, lambda spark: show_state_stats(spark, settings, form))


@rebuild_app.command("silver")
def rebuild_silver(
    from_bronze_version: FromBronzeVersion = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Rebuild only the sessions of this topic.")] = None,
    sessions: Annotated[
        list[str] | None, typer.Option("--sessions", help="Rebuild only this session. Can be repeated.")
    ] = None,
    cancel: Cancel = False,
    start_over: StartOver = False,
    config: Config = None,
) -> None:
    """Rebuild silver from bronze, and replace its tables.

    The new tables are built beside the live ones, which stay readable until they are replaced.
    """
    settings = load_config(config)
    from sessionlake.cli import rebuild
    from sessionlake.operations.rebuild.replay import SessionSelection

    wanted = SessionSelection(topic, tuple(sessions or ()))
    refuse_combined_options(
        cancel=cancel, start_over=start_over, others=from_bronze_version is not None or not wanted.includes_all_sessions
    )
    if cancel:
        with_spark(settings, lambda spark: rebuild.cancel_silver_rebuild(spark, settings, say))
        return
    if start_over:
        with_spark(settings, lambda spark: rebuild.rebuild_silver(spark, settings, None, wanted, say, start_over=True))
        return
    with_spark(settings, lambda spark: rebuild.rebuild_silver(spark, settings, from_bronze_version, wanted, say))


def _make_gold_command(table: str | None) -> Callable[..., None]:
    def rebuild_gold(shorten_gold: ShortenGold = False, config: Config = None) -> None:
        settings = load_config(config)
        from sessionlake.cli import gold

        with_spark(settings, lambda spark: gold.rebuild_gold_tables(spark, settings, table, say, shorten=shorten_gold))

    return rebuild_gold


rebuild_app.command("gold", help="Rebuild all tables of gold from silver. Use `rebuild gold.NAME` for one of them.")(
    _make_gold_command(None)
)


def _make_processor_command(name: str) -> Callable[..., None]:
    def rebuild_processor_table(
        diff: Annotated[
            bool, typer.Option("--diff", help="Only show which rows the present code would change. Nothing is written.")
        ] = False,
        cancel: Cancel = False,
        start_over: StartOver = False,
        form: Form = OutputFormat.TABLE,
        config: Config = None,
    ) -> None:
        settings = load_config(config)
        from sessionlake.cli import processors

        refuse_combined_options(cancel=cancel, start_over=start_over, others=diff)
        if cancel:
            with_spark(settings, lambda spark: processors.cancel_processor_rebuild(spark, settings, name, say))
            return
        if diff:
            with_spark(settings, lambda spark: processors.show_rebuild_difference(spark, settings, name, form, say))
            return
        rebuild = processors.rebuild_processor
        with_spark(settings, lambda spark: rebuild(spark, settings, name, form, say, start_over=start_over))

    return rebuild_processor_table


@verify_app.command("bronze")
def verify_bronze(config: Config = None) -> None:
    """Compare bronze with the messages Kafka still holds.

    Exits with 1 and shows the first difference if they differ.
    """
    settings = load_config(config)
    from sessionlake.cli import verify_bronze as command

    command.check_before_spark(settings)
    if not with_spark(settings, lambda spark: command.verify_bronze(spark, settings, say)):
        raise typer.Exit(1)


@verify_app.command("silver")
def verify_silver(config: Config = None) -> None:
    """Compare silver with a rebuild from bronze.

    Exits with 1 and shows the first difference if they differ. Nothing is replaced.
    """
    settings = load_config(config)
    from sessionlake.cli import rebuild

    if not with_spark(settings, lambda spark: rebuild.verify_silver(spark, settings, say)):
        raise typer.Exit(1)


@verify_app.command("gold")
def verify_gold(config: Config = None) -> None:
    """Compare gold with a recomputation in SQL over silver.

    Exits with 1 and shows the first difference if they differ.
    """
    settings = load_config(config)
    from sessionlake.cli import gold

    if not with_spark(settings, lambda spark: gold.verify_gold_tables(spark, settings, say)):
        raise typer.Exit(1)


File = Annotated[Path, typer.Argument(help="A YAML file of rules.")]


@rules_app.command("check")
def rules_check(file: File, config: Config = None) -> None:
    """Check the rules in a file.

    Exits with 2, and shows line and reason, if a rule cannot be used.
    """
    settings = load_config(config)
    from sessionlake.cli import rules

    write_text(f"{len(rules.load_rules(settings, file))} rules are fine")


@rules_app.command("apply")
def rules_apply(
    file: File,
    only: Annotated[bool, typer.Option("--only", help="Also disable all rules that are not in the file.")] = False,
    config: Config = None,
) -> None:
    """Write the rules in a file into gold.rules.

    A running gold applies them within seconds, also if no message arrives.
    """
    settings = load_config(config)
    from sessionlake.cli import rules

    written = rules.load_rules(settings, file)
    with_spark(settings, lambda spark: rules.apply_rules(spark, settings, written, say, only=only))


@rules_app.command("test")
def rules_test(file: File, form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """Test the rules in a file on past data, without writing.

    Shows which alerts they would add and remove.
    """
    settings = load_config(config)
    from sessionlake.cli import rules

    written = rules.load_rules(settings, file)
    with_reader(settings, lambda reader: rules.try_rules(reader, settings, written, form, say))


@rules_app.command("list")
def rules_list(form: Form = OutputFormat.TABLE, config: Config = None) -> None:
    """List the rules, and whether gold evaluates each."""
    settings = load_config(config)
    from sessionlake.cli import rules

    with_reader(settings, lambda reader: rules.show_alert_rules(reader, settings, form))


@broker_app.command("up")
def broker_up(config: Config = None) -> None:
    """Start the embedded Kafka broker, and wait until it answers."""
    from sessionlake.local import broker

    _show_broker(broker.start_broker(load_config(config)))


@broker_app.command("down")
def broker_down(config: Config = None) -> None:
    """Stop the embedded Kafka broker. Its data stays."""
    from sessionlake.local import broker

    say("the broker has stopped" if broker.stop_broker(load_config(config)) else "no broker of this home was running")


@broker_app.command("status")
def read_broker_status(config: Config = None) -> None:
    """Show whether the broker runs. Exits with 1 if not."""
    from sessionlake.local import broker

    status = broker.read_broker_status(load_config(config))
    _show_broker(status)
    if status.state != "running":
        raise typer.Exit(1)


def _show_broker(status: BrokerStatus) -> None:
    meaning = {
        "stopped": "not running; `sessionlake broker up` starts it",
        "foreign": "another process uses the port",
        "outside": "an outside broker is configured, so there is nothing to start here",
    }
    pid = f" (process {status.pid})" if status.pid else ""
    write_text(f"{status.bootstrap_servers}: {meaning.get(status.state, status.state)}{pid}")
