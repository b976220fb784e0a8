"""`sessionlake resolve`: records an operator's decision about a message at which silver has stopped."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from sessionlake.cli.options import DecisionOptions
from sessionlake.delta.lake import create_storage
from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import UsageError
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.settings.model import Settings
from sessionlake.silver.decisions import RecordedDecision, record_decision, withdraw_decision

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def parse_chosen_decision(options: DecisionOptions) -> OperatorDecision | None:
    """Returns the decision that the options choose; None if they withdraw an earlier decision.

    Raises:
        UsageError: No decision is chosen, or several.
    """
    given = [
        decision
        for decision, wanted in (
            (OperatorDecision.ACCEPT_GAP, options.accept_gap),
            (OperatorDecision.ISOLATE, options.isolate),
            (OperatorDecision.SKIP, options.skip_message is not None),
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
    decision: OperatorDecision | None,
    *,
    offset: int | None,
    topic: str | None,
    partition: int | None = None,
    why: str | None,
) -> RecordedDecision:
    """Records the current user's decision about a message; if `decision` is None, withdraws the earlier one.

    Args:
        spark: The Spark session; None if tables can be read without Spark.
        settings: The configuration.
        session: The session's id.
        decision: The decision.
        offset: The message's offset; None means the message at which silver stopped.
        topic: The session's topic; None if only one topic has this session id.
        partition: The session's partition; None if only one partition has this session id.
        why: The reason, in the user's words.

    Raises:
        ClaimedByOtherProcessError: Silver is running. It could pass the message without the decision, while a rebuild
            would apply it.
    """
    with create_storage(settings).hold_exclusive_claim(spark, SILVER, "resolves a violation of silver"):
        who = get_name_of_current_user(spark)
        if decision is None:
            return withdraw_decision(
                settings, spark, session, offset=offset, topic=topic, partition=partition, who=who, why=why
            )
        return record_decision(
            settings, spark, session, decision, offset=offset, topic=topic, partition=partition, who=who, why=why
        )


def get_name_of_current_user(spark: SparkSession | None) -> str:
    """Returns the name of the user who runs the command: Spark's current user, or without Spark the system's."""
    if spark is not None:
        return str(spark.sql("SELECT current_user()").first()[0])
    return getpass.getuser()
