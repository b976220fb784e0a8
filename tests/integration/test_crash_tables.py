"""Killed for real between any two commits from silver's cuts to its tables: as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sessionlake.config import Settings
from support.crashes import SECONDS, assert_equal_to_the_truth_when_killed_at

# In the order of a run's commits. After one commit is before the next: nothing is written in between.
PLACES = [
    "after:silver.session_cuts",
    "after:silver.quarantine",
    "after:ops.ledger#2",  # silver's; the first is bronze's
    "after:silver.stream_times",
    "after:silver.session_rows",
    "after:silver.sessions",
    "after:silver.session_snapshots",
    "after:ops.ledger#3",  # the merge's
]


@pytest.mark.timeout((len(PLACES) + 1) * SECONDS)
def test_killed_between_any_two_commits_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    assert_equal_to_the_truth_when_killed_at(PLACES, spark, broker_settings, tmp_path)
