"""`verify silver` and `rebuild silver`: compare silver with a rebuild from bronze, or replace it by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.cli.processors import describe_needed_rebuild
from sessionlake.gold.declared.references import list_declared_enriched_tables
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.pipeline import Layer, claim_layers
from sessionlake.operations.rebuild.compare_states import StatesComparison
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.operations.rebuild.silver import EVERYTHING, SilverRebuildResult, cancel_rebuild, rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLD_EMPTIED = "gold is emptied, and computed again at its next run"


def verify_silver(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Compares silver with a rebuild from bronze, and tells the user the result. Returns True if they are equal."""
    with claim_layers(spark, settings, Layer.SILVER, "verifies silver", CLAIM):
        comparison = verify_silver_tables(spark, settings)
    if comparison.first_difference is None:
        say(f"exact: {comparison.sessions} sessions, every row of every silver table")
    else:
        what = f"{comparison.different} of {comparison.sessions} sessions differ from a rebuild"
        say(f"{what}; the first difference:\n  {comparison.first_difference}")
    for removed in comparison.not_compared:
        say(f"{removed}: only later rows are compared")
    if comparison.states is not None:
        say(_describe_states_comparison(comparison.states))
    return comparison.is_exact


def _describe_states_comparison(states: StatesComparison) -> str:
    if states.skipped is not None:
        return f"the states from which silver resumes are not compared: {states.skipped}"
    if states.first_difference is None:
        return f"also exact: the states from which silver resumes, with {states.sessions} sessions"
    return (
        f"the states from which silver resumes differ; the first difference:\n  {states.first_difference}\n"
        "silver may judge the next messages wrong: run `sessionlake rebuild silver` to correct it"
    )


def cancel_silver_rebuild(spark: SparkSession, settings: Settings, say: Say) -> None:
    """Cancels an interrupted rebuild of silver. Only possible before the rebuild has replaced a table."""
    with claim_layers(spark, settings, Layer.ALL, "cancels a rebuild of silver", CLAIM):
        cancel_rebuild(spark, settings)
    say("the interrupted rebuild is cancelled: silver is unchanged, and all layers can start")


def rebuild_silver(
    spark: SparkSession,
    settings: Settings,
    version: int | None,
    selection: SessionSelection,
    say: Say,
    *,
    start_over: bool = False,
) -> None:
    """Rebuilds silver, or some of its sessions, from bronze, and replaces the former tables.

    Args:
        spark: The Spark session.
        settings: The configuration.
        version: The version of `bronze.messages` to build from; None means the latest.
        selection: The sessions to rebuild.
        say: Shows a line to the user.
        start_over: True to build everything again instead of finishing an interrupted rebuild.

    Raises:
        ConfigError: Gold could not be computed from the result, because a table of gold uses a column that is not
            declared.
    """
    list_declared_enriched_tables(settings)
    with claim_layers(spark, settings, Layer.ALL, "rebuilds silver", CLAIM):
        result = rebuild_silver_tables(spark, settings, version=version, selection=selection, start_over=start_over)
    report_rebuild(result, settings, say, selection)


def report_rebuild(
    result: SilverRebuildResult, settings: Settings, say: Say, selection: SessionSelection = EVERYTHING
) -> None:
    """Tells the user what a rebuild of silver has changed, and which tables should be rebuilt next."""
    _report_rebuild_result(result, say, selection)
    for processor in settings.processors:
        if processor.key and processor.source.startswith("silver."):
            say(describe_needed_rebuild(processor))


def _report_rebuild_result(result: SilverRebuildResult, say: Say, selection: SessionSelection) -> None:
    if result.finished_interrupted:
        say(
            f"the interrupted rebuild from bronze.messages@v{result.version} is finished; run the command again for a "
            "new one"
        )
        return
    say(f"silver is rebuilt from bronze.messages@v{result.version}: {result.messages} messages, batch {result.batch}")
    if not selection.includes_all_sessions:
        say(f"only {selection} were replaced")
    if result.comparison is None:
        why = (
            "the former tables are not used"
            if result.columns is None
            else f"the columns have changed ({result.columns})"
        )
        say(f"nothing was compared, because {why}; {GOLD_EMPTIED}")
    elif result.comparison.first_difference is None:
        say("every row is equal to the former one")
        if result.empties_gold:
            say(f"gold had not read all of them: {GOLD_EMPTIED}")
    else:
        what = f"{result.comparison.different} of {result.comparison.sessions} sessions differ from the former tables"
        say(f"{what}; the first difference:\n  {result.comparison.first_difference}")
        say(GOLD_EMPTIED)
