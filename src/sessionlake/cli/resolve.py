"""`sessionlake resolve`: records an operator's decision about a message at which silver has stopped."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from sessionlake.cli.options import DecisionOptions
from sessionlake.delta.lake import create_storage
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import UsageError
from sessionlake.integrity.rules import Decision
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import RecordedDecision, record_decision, withdraw_decision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def choose_decision(options: DecisionOptions) -> Decision | None:
    """Returns the decision that the options choose; None withdraws an earlier one.

    Raises:
        UsageError: No decision is chosen, or several.
    """
    given = [
        decision
        for decision, wanted in (
            (Decision.ACCEPT_GAP, options.accept_gap),
            (Decision.ISOLATE, options.isolate),
            (Decision.SKIP, options.skip_message is not None),
            (None, options.withdraw),
        )
        if wanted
    ]
    if len(given) != 1:
        raise UsageError(
            "resolve: the command needs exactly one decision about the message",
            fix="Give one of --accept-gap (continue after a gap), --isolate (stop the session until its next "
            "snapshot), --skip-message OFFSET (leave the message out) and --withdraw (take back a decision)",
        )
    return given[0]


def record_or_withdraw_decision(
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
    """Records the current user's decision, or withdraws the earlier one if `decision` is None.

    Raises:
        ClaimedError: Silver is running. It could pass the message without the decision, while a rebuild would apply it.
    """
    with create_storage(settings).hold_claim(spark, SILVER, "resolves a violation of silver"):
        who = current_user(spark)
        if decision is None:
            return withdraw_decision(
                settings, spark, session, offset=offset, topic=topic, partition=partition, who=who, why=why
            )
        return record_decision(
            settings, spark, session, decision, offset=offset, topic=topic, partition=partition, who=who, why=why
        )


def current_user(spark: SparkSession | None) -> str:
    """Returns the name of the user who runs the command."""
    if spark is not None:
        return str(spark.sql("SELECT current_user()").first()[0])
    return getpass.getuser()
