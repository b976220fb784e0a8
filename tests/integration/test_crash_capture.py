"""Killed for real between any two commits from Kafka to silver's changes, while its subscription changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionlake.config import Settings
from sessionlake.lake.names import BRONZE, SILVER
from support.crashes import SECONDS, Death, assert_equal_to_the_truth_when_killed_at

# In the order of a run's commits. After one commit is before the next: nothing is written in between.
DEATHS = [
    Death(BRONZE, "before:bronze.messages"),
    Death(BRONZE, "after:bronze.messages"),
    Death(BRONZE, "after:ops.ledger"),  # Spark has not noted the batch as done
    Death(SILVER, "before:silver.session_changes"),
    Death(SILVER, "after:silver.session_changes"),
    Death(SILVER, "after:silver.session_progress"),
    Death(SILVER, "after:silver.integrity_events"),
]


@pytest.mark.timeout((len(DEATHS) + 1) * SECONDS)
def test_killed_between_any_two_commits_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    assert_equal_to_the_truth_when_killed_at(DEATHS, spark, broker_settings, tmp_path, changing=True)
