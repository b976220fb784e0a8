"""An operator's word on the place at which a session broke its class."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from sessionlake.cli.options import DecisionOptions
from sessionlake.delta.lake import storage_of
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import UsageError
from sessionlake.integrity.rules import Decision
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import RecordedDecision, decide, withdraw

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def chosen(asked: DecisionOptions) -> Decision | None:
    """The one decision that was asked for; None withdraws one.

    Raises:
        UsageError: none was, or several.
    """
    given = [
        decision
        for decision, wanted in (
            (Decision.ACCEPT_GAP, asked.accept_gap),
            (Decision.ISOLATE, asked.isolate),
            (Decision.SKIP, asked.skip_message is not None),
            (None, asked.withdraw),
        )
        if wanted
    ]
    if len(given) != 1:
        raise UsageError("resolve: choose one of --accept-gap, --isolate, --skip-message OFFSET and --withdraw")
    return given[0]


def resolve(
    spark: SparkSession | None,
    settings: Settings,
    session: str,
    decision: Decision | None,
    *,
    offset: int | None,
    topic: str | None,
    partition: int | None = None,
    why: str | None,
) -> RecordedDecision:
    """Records the decision, or without one that the one before is withdrawn, as the present user's.

    Raises:
        ClaimedError: silver is running: it would pass the place without it, and a rebuild would not.
    """
    with storage_of(settings).claim(spark, SILVER, "resolves a violation of silver"):
        who = user(spark)
        if decision is None:
            return withdraw(settings, spark, session, offset=offset, topic=topic, partition=partition, who=who, why=why)
        return decide(
            settings, spark, session, decision, offset=offset, topic=topic, partition=partition, who=who, why=why
        )


def user(spark: SparkSession | None) -> str:
    """The name of whoever runs the command."""
    if spark is not None:
        return str(spark.sql("SELECT current_user()").first()[0])
    return getpass.getuser()
