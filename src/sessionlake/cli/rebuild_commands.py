"""The commands `sessionlake rebuild`: one for silver, and one for each table of gold and each processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from sessionlake.cli.context import Config, Form, call_with_spark, load_config, print_to_stderr
from sessionlake.cli.options import Cancel, FromBronzeVersion, ShortenGold, StartOver, refuse_combined_options
from sessionlake.cli.show import OutputFormat

_OF_PROCESSOR = "processor:"


class _RebuildCommandGroup(TyperGroup):
    """The commands of `rebuild`, with one for each name `gold.TABLE` and `processor:NAME` in the configuration."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns the command with a name; None if there is none."""
        one = typer.Typer(add_completion=False)
        if cmd_name.startswith("gold."):
            one.command(cmd_name, help=f"Rebuild {cmd_name} from silver, in one commit.")(
                _create_rebuild_gold_command(cmd_name)
            )
        elif cmd_name.startswith(_OF_PROCESSOR):
            name = cmd_name.removeprefix(_OF_PROCESSOR)
            one.command(cmd_name, help=f"Rebuild the table of the processor {name}, in one commit.")(
                _create_rebuild_processor_command(name)
            )
        else:
            return super().get_command(ctx, cmd_name)
        return get_command(one)


rebuild_app = typer.Typer(
    no_args_is_help=True,
    cls=_RebuildCommandGroup,
    help="Rebuild silver, gold, gold.TABLE or processor:NAME.\n\n"
    "The last two are commands, too: each table of gold and each configured processor has one.",
)


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
        call_with_spark(settings, lambda spark: rebuild.cancel_silver_rebuild(spark, settings, print_to_stderr))
        return
    if start_over:
        call_with_spark(
            settings,
            lambda spark: rebuild.rebuild_silver(spark, settings, None, wanted, print_to_stderr, start_over=True),
        )
        return
    call_with_spark(
        settings, lambda spark: rebuild.rebuild_silver(spark, settings, from_bronze_version, wanted, print_to_stderr)
    )


def _create_rebuild_gold_command(table: str | None) -> Callable[..., None]:
    def rebuild_gold(shorten_gold: ShortenGold = False, config: Config = None) -> None:
        settings = load_config(config)
        from sessionlake.cli import gold

        call_with_spark(
            settings,
            lambda spark: gold.rebuild_gold_tables(spark, settings, table, print_to_stderr, shorten=shorten_gold),
        )

    return rebuild_gold


rebuild_app.command("gold", help="Rebuild all tables of gold from silver. Use `rebuild gold.NAME` for one of them.")(
    _create_rebuild_gold_command(None)
)


def _create_rebuild_processor_command(name: str) -> Callable[..., None]:
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
            call_with_spark(
                settings, lambda spark: processors.cancel_processor_rebuild(spark, settings, name, print_to_stderr)
            )
            return
        if diff:
            call_with_spark(
                settings, lambda spark: processors.show_rebuild_difference(spark, settings, name, form, print_to_stderr)
            )
            return
        rebuild = processors.rebuild_processor
        call_with_spark(
            settings, lambda spark: rebuild(spark, settings, name, form, print_to_stderr, start_over=start_over)
        )

    return rebuild_processor_table
