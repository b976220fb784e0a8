"""Silver built once more from bronze: compared with the live tables, or put in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sessionlake.cli.processors import to_be_rebuilt
from sessionlake.gold.declared.references import enriched_of
from sessionlake.ledger.retained import CLAIM
from sessionlake.operations.pipeline import Layer, claimed
from sessionlake.operations.rebuild.compare_states import VerifiedStates
from sessionlake.operations.rebuild.replay import Selection
from sessionlake.operations.rebuild.silver import EVERYTHING, Rebuilt, cancel, rebuild
from sessionlake.operations.rebuild.verify import verify
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Say = Callable[[str], None]


def verify_silver(spark: SparkSession, settings: Settings, say: Say) -> bool:
    """Says whether silver is what bronze makes of it; so it returns."""
    with claimed(spark, settings, Layer.SILVER, "verifies silver", CLAIM):
        found = verify(spark, settings)
    if found.first is None:
        say(f"exact: {found.sessions} sessions, every row of every silver table")
    else:
        what = f"{found.different} of {found.sessions} sessions differ from a rebuild"
        say(f"{what}; the first difference:\n  {found.first}")
    for since in found.cut:
        say(f"{since}: it is compared from there on")
    if found.states is not None:
        say(_of_states(found.states))
    return found.exact


def _of_states(states: VerifiedStates) -> str:
    if states.skipped is not None:
        return f"the states that silver goes on from are not compared: {states.skipped}"
    if states.first is None:
        return (
            f"exact, too: the states that silver goes on from, with the {states.sessions} sessions that they remember"
        )
    return (
        f"the states that silver goes on from differ; the first difference:\n  {states.first}\n"
        "what comes next may be judged wrong: `sessionlake rebuild silver` puts it right"
    )


def cancel_silver(spark: SparkSession, settings: Settings, say: Say) -> None:
    """Gives up a rebuild that was interrupted before it replaced a table."""
    with claimed(spark, settings, Layer.ALL, "gives up a rebuild of silver", CLAIM):
        cancel(spark, settings)
    say("the interrupted rebuild is given up: silver is as it was before, and all layers can start")


def rebuild_silver(
    spark: SparkSession,
    settings: Settings,
    version: int | None,
    selection: Selection,
    say: Say,
    *,
    start_over: bool = False,
) -> None:
    """Puts a silver built from bronze in the place of the live one.

    Args:
        start_over: builds everything again, instead of finishing a rebuild that was interrupted.

    Raises:
        ConfigError: gold could not be computed of it, since a table of gold names a column that is not declared.
    """
    enriched_of(settings)
    with claimed(spark, settings, Layer.ALL, "rebuilds silver", CLAIM):
        found = rebuild(spark, settings, version=version, selection=selection, start_over=start_over)
    say_rebuilt(found, settings, say, selection)


def say_rebuilt(found: Rebuilt, settings: Settings, say: Say, selection: Selection = EVERYTHING) -> None:
    """Says what came of a rebuild, and what is to be made of it next."""
    _say_what_came(found, say, selection)
    for own in settings.processors:
        if own.key and own.source.startswith("silver."):
            say(to_be_rebuilt(own))


def _say_what_came(found: Rebuilt, say: Say, selection: Selection) -> None:
    if found.finished:
        say(f"the interrupted rebuild of bronze.messages@v{found.version} is published; run it again for another")
        return
    say(f"silver is rebuilt from bronze.messages@v{found.version}: {found.messages} messages, batch {found.batch}")
    if not selection.everything:
        say(f"replaced are {selection} alone")
    if found.verified is None:
        why = "the live tables do not count" if found.columns is None else f"columns were other ({found.columns})"
        say(f"nothing was compared, since {why}; gold is emptied, and computed anew when it runs next")
    elif found.verified.first is None:
        say("every row is what it was before")
        if found.empties_gold:
            say("gold had not read all of them: it is emptied, and computed anew when it runs next")
    else:
        what = f"{found.verified.different} of {found.verified.sessions} sessions were other before"
        say(f"{what}; the first difference:\n  {found.verified.first}")
        say("gold is emptied, and computed anew when it runs next")
