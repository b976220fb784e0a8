"""An operator's word on the place at which a session broke its class."""

from __future__ import annotations

import getpass
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import UsageError
from sessionlake.integrity.rules import Decision
from sessionlake.laptop.home import claim
from sessionlake.silver.decisions import Decided, decide

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def chosen(*, accept_gap: bool, isolate: bool, skip: int | None) -> Decision:
    """The one decision that was asked for.

    Raises:
        UsageError: none was, or several.
    """
    given = [
        decision
        for decision, wanted in (
            (Decision.ACCEPT_GAP, accept_gap),
            (Decision.ISOLATE, isolate),
            (Decision.SKIP, skip is not None),
        )
        if wanted
    ]
    if len(given) != 1:
        raise UsageError("resolve: choose one of --accept-gap, --isolate and --skip-message OFFSET")
    return given[0]


def resolve(
    spark: SparkSession | None,
    settings: Settings,
    session: str,
    decision: Decision,
    *,
    offset: int | None,
    topic: str | None,
    why: str | None,
) -> Decided:
    """Records the decision as the present user's.

    Raises:
        MachineError: silver is running: it would pass the place without it, and a rebuild would not.
    """
    with claim(settings, "silver", "runs silver"):
        return decide(settings, spark, session, decision, offset=offset, topic=topic, who=_user(spark), why=why)


def _user(spark: SparkSession | None) -> str:
    if spark is not None:
        return str(spark.sql("SELECT current_user()").first()[0])
    return getpass.getuser()
