"""Runs a statement with the engine that the user wants, or with Spark if Sail does not run it as Spark does."""

from __future__ import annotations

from collections.abc import Callable

from sessionlake.cli.engines.interface import EngineName, EngineRefusalError, QueryResult, SqlEngine, SqlStatement
from sessionlake.cli.engines.sail import SailEngine, is_sail_installed
from sessionlake.delta.lake import create_storage
from sessionlake.errors import UsageError
from sessionlake.settings.model import Settings

RunWithSpark = Callable[[SqlStatement], QueryResult]


def run_statement_on_chosen_engine(
    settings: Settings,
    statement: Callable[[], SqlStatement],
    engine: EngineName,
    run_with_spark: RunWithSpark,
    say: Callable[[str], None],
    start_sail: Callable[[Settings], SailEngine] = SailEngine,
) -> QueryResult:
    """Runs a statement with the engine that the user wants, and returns the result. Spark runs what Sail cannot.

    If Spark runs a statement for which Sail was tried, `say` gets the reason.

    Args:
        settings: The configuration.
        statement: Returns the statement. It is called after Sail's process was started, to use the time of its start.
        engine: The engine that the user wants.
        run_with_spark: Runs a statement with a new Spark session.
        say: Shows a line to the user.
        start_sail: Starts Sail.

    Raises:
        UsageError: The user wants Sail, and Sail does not run the statement. Or the statement is not accepted.
        LakeError: A table does not exist, or the statement fails.
    """
    if engine is EngineName.SPARK or create_storage(settings).needs_spark:
        if engine is EngineName.SAIL:
            raise UsageError(
                "query: the engine Sail does not read tables in a catalog",
                fix="Leave out --engine: Spark then runs the statement",
            )
        return run_with_spark(statement())
    if not is_sail_installed():
        return _fall_back_to_spark(statement(), engine, run_with_spark, say, "the package pysail is not installed")
    with start_sail(settings) as sail:
        asked = statement()
        refusal = _run_or_explain_refusal(sail, asked)
    return (
        refusal
        if isinstance(refusal, QueryResult)
        else _fall_back_to_spark(asked, engine, run_with_spark, say, refusal)
    )


def _run_or_explain_refusal(engine: SqlEngine, statement: SqlStatement) -> QueryResult | str:
    """Returns the engine's result, or the reason for which the engine does not run the statement."""
    try:
        return engine.run(statement)
    except EngineRefusalError as refusal:
        return str(refusal)


def _fall_back_to_spark(
    statement: SqlStatement, engine: EngineName, run_with_spark: RunWithSpark, say: Callable[[str], None], why: str
) -> QueryResult:
    if engine is EngineName.SAIL:
        raise UsageError(
            f"query: the engine Sail does not run this statement, because {why}",
            why="Its answer could differ from Spark's",
            fix="Leave out --engine, or use --engine spark",
        )
    say(f"query: Spark runs this statement, which takes longer: {why}")
    return run_with_spark(statement)
