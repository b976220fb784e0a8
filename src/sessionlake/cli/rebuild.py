"""`verify silver` and `rebuild silver`: compares silver with a rebuild from bronze, or replaces it by one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sessionlake.cli.options import Say
from sessionlake.cli.processors import rebuild_advice
from sessionlake.gold.declared.references import enriched_of
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.pipeline import Layer, claimed
from sessionlake.operations.rebuild.compare_states import StatesComparison
from sessionlake.operations.rebuild.replay import Selection
from sessionlake.operations.rebuild.silver import EVERYTHING, RebuildResult, cancel, rebuild
from sessionlake.operations.rebuild.verify import verify
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

GOLD_EMPTIED = "gold is emptied, and computed again at its next run"


def verify_silver(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Compares silver with a rebuild from bronze, and says the result. Returns True if they are equal."""
    with claimed(spark, settings, Layer.SILVER, "verifies silver", CLAIM):
        found = verify(spark, settings)
    if found.first_difference is None:
        say(f"exact: {found.sessions} sessions, every row of every silver table")
    else:
        what = f"{found.different} of {found.sessions} sessions differ from a rebuild"
        say(f"{what}; the first difference:\n  {found.first_difference}")
    for removed in found.not_compared:
        say(f"{removed}: only later rows are compared")
    if found.states is not None:
        say(_describe_states(found.states))
    return found.exact


def _describe_states(states: StatesComparison) -> str:
    if states.skipped is not None:
        return f"the states from which silver resumes are not compared: {states.skipped}"
    if states.first_difference is None:
        return f"also exact: the states from which silver resumes, with {states.sessions} sessions"
    return (
        f"the states from which silver resumes differ; the first difference:\n  {states.first_difference}\n"
        "silver may judge the next messages wrong: run `sessionlake rebuild silver` to correct it"
    )


def cancel_silver(spark: SparkSession, settings: Settings, say: Say) -> None:
    """Cancels an interrupted rebuild that has not replaced a table yet."""
    with claimed(spark, settings, Layer.ALL, "cancels a rebuild of silver", CLAIM):
        cancel(spark, settings)
    say("the interrupted rebuild is cancelled: silver is unchanged, and all layers can start")


def rebuild_silver(
    spark: SparkSession,
    settings: Settings,
    version: int | None,
    selection: Selection,
    say: Say,
    *,
    start_over: bool = False,
) -> None:
    """Replaces silver by one that is built again from bronze.

    Args:
        version: The version of `bronze.messages` to build from; None means the latest.
        start_over: Build everything again instead of finishing an interrupted rebuild.

    Raises:
        ConfigError: Gold could not be computed from the result, because a table of gold uses a column that is not
            declared.
    """
    enriched_of(settings)
    with claimed(spark, settings, Layer.ALL, "rebuilds silver", CLAIM):
        found = rebuild(spark, settings, version=version, selection=selection, start_over=start_over)
    report_rebuild(found, settings, say, selection)


def report_rebuild(found: RebuildResult, settings: Settings, say: Say, selection: Selection = EVERYTHING) -> None:
    """Says what a rebuild has changed, and which tables should be rebuilt next."""
    _report_result(found, say, selection)
    for own in settings.processors:
        if own.key and own.source.startswith("silver."):
            say(rebuild_advice(own))


def _report_result(found: RebuildResult, say: Say, selection: Selection) -> None:
    if found.finished:
        say(
            f"the interrupted rebuild from bronze.messages@v{found.version} is finished; run the command again for a "
            "new one"
        )
        return
    say(f"silver is rebuilt from bronze.messages@v{found.version}: {found.messages} messages, batch {found.batch}")
    if not selection.everything:
        say(f"only {selection} were replaced")
    if found.verified is None:
        why = (
            "the former tables are not used" if found.columns is None else f"the columns have changed ({found.columns})"
        )
        say(f"nothing was compared, because {why}; {GOLD_EMPTIED}")
    elif found.verified.first_difference is None:
        say("every row is equal to the former one")
        if found.empties_gold:
            say(f"gold had not read all of them: {GOLD_EMPTIED}")
    else:
        what = f"{found.verified.different} of {found.verified.sessions} sessions differ from the former tables"
        say(f"{what}; the first difference:\n  {found.verified.first_difference}")
        say(GOLD_EMPTIED)
