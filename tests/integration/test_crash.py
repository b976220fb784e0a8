"""Killed for real between any two commits from Kafka to silver's tables: as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionlake.delta.schemas.names import BRONZE, SILVER, SILVER_TABLES
from sessionlake.settings.model import Settings
from support.crashes import SECONDS, Death, assert_equal_to_the_truth_when_killed_at

# In the order of a run's commits. After one commit is before the next: nothing is written in between.
DEATHS = [
    Death(BRONZE, "before:bronze.messages"),
    Death(BRONZE, "after:bronze.messages"),
    Death(BRONZE, "after:ops.ledger"),  # Spark has not noted the batch as done
    Death(SILVER, "before:silver.session_changes"),
    Death(SILVER, "after:silver.session_changes", own_jvm=True),
    Death(SILVER, "after:silver.session_progress"),
    Death(SILVER, "after:silver.integrity_events"),
    Death(SILVER, "after:silver.session_cuts"),
    Death(SILVER, "after:silver.quarantine"),
    Death(SILVER, "after:ops.ledger"),
    Death(SILVER, "after:silver.stream_times"),
    Death(SILVER_TABLES, "after:silver.session_rows"),
    Death(SILVER_TABLES, "after:silver.sessions"),
    Death(SILVER_TABLES, "after:silver.session_snapshots"),
    Death(SILVER_TABLES, "after:silver.session_snapshot_index"),
    Death(SILVER_TABLES, "after:ops.ledger"),
]


# After the first commit of bronze, and in the middle of the merge into silver's tables. The JVM lives on.
SOME = [DEATHS[number]._replace(own_jvm=False) for number in (1, 12)]


@pytest.mark.timeout((len(SOME) + 1) * SECONDS)
def test_killed_between_some_commits_of_each_layer_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    assert_equal_to_the_truth_when_killed_at(SOME, spark, broker_settings, tmp_path)


@pytest.mark.soak
@pytest.mark.timeout((len(DEATHS) + 1) * SECONDS)
@pytest.mark.parametrize("own_jvm", [False, True], ids=["", "with their JVM"])
def test_killed_between_any_two_commits_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path, own_jvm: bool
) -> None:
    deaths = [death._replace(own_jvm=own_jvm or death.own_jvm) for death in DEATHS]
    assert_equal_to_the_truth_when_killed_at(deaths, spark, broker_settings, tmp_path)
