"""Killed for real between any two commits from silver's cuts to its tables: as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionlake.config import Settings
from sessionlake.lake.names import SILVER, SILVER_TABLES
from support.crashes import SECONDS, Death, assert_equal_to_the_truth_when_killed_at

# In the order of a run's commits. After one commit is before the next: nothing is written in between.
DEATHS = [
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


@pytest.mark.timeout((len(DEATHS) + 1) * SECONDS)
def test_killed_between_any_two_commits_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    assert_equal_to_the_truth_when_killed_at(DEATHS, spark, broker_settings, tmp_path)
