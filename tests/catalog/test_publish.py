"""A table of a catalog, published to a real broker: whoever folds the topic has it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from integration.test_publish import (
    Scene,
    configured,
    test_whoever_folds_the_topic_has_the_table_through_a_kill_a_replay_and_a_restore,  # noqa: F401 - pytest runs what is imported again here
)
from sessionlake.delta.schemas.names import LEASES
from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.local.broker import BrokerStatus

pytestmark = [pytest.mark.broker, pytest.mark.soak, pytest.mark.timeout(600)]


class InCatalog(Scene):
    """Who is killed there still holds its lease for a while."""

    def publish_killed(self, table: str, topic: str, place: str) -> subprocess.CompletedProcess[str]:
        killed = super().publish_killed(table, topic, place)
        with pytest.raises(ClaimedByOtherProcessError, match=r"run the command again after"):
            self.publish(table, topic)
        self.lake.open_delta_table(self.spark, LEASES).update(set={"expires_at": "timestamp_micros(0)"})
        return killed


@pytest.fixture
def scene(spark: Any, broker: BrokerStatus, tmp_path: Path, location: dict[str, Any]) -> Scene:
    return InCatalog(spark, configured(tmp_path, broker, **location), seed=11)
