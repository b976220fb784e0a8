"""Killed for real between any two commits from Kafka to silver's tables in a catalog: as if it had never been."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from integration.test_crash import DEATHS
from sessionlake.settings.model import Settings
from support.crashes import SECONDS, assert_equal_to_the_truth_when_killed_at


@pytest.mark.broker
@pytest.mark.soak
@pytest.mark.timeout((len(DEATHS) + 1) * SECONDS)
def test_killed_between_any_two_commits_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    deaths = [death._replace(own_jvm=False) for death in DEATHS]  # the catalog is in the JVM, and would die with it
    assert_equal_to_the_truth_when_killed_at(deaths, spark, broker_settings, tmp_path)
    assert not (tmp_path / "home" / "warehouse" / "bronze").exists()
