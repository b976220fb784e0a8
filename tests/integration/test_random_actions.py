"""What a keeper's years bring, in any order: messages, kills, maintenance, rebuilds, topics that go and come.

The second kind of keeper uses everything there is besides.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest

from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.settings.model import KafkaSettings, Settings
from spark.test_maintenance import eager  # noqa: F401 - a fixture of tests here
from support.keeper import Keeper, KeeperOfAll

ACTIONS = int(os.environ.get("ACTIONS", "10000"))
"""How many are taken of each seed: `make soak ACTIONS=1000`."""
LIFE = 500
"""After so many, another lake is begun, with other settings: what is compared would else cost more and more.

Each life has a seed of its own and is a test of its own, so that one that fails is run again by itself.
"""
LIVES = range(-(-ACTIONS // LIFE))


@pytest.fixture
def broker_of_its_own(tmp_path: Path, free_port: int) -> Iterator[Settings]:
    """One that may be stopped."""
    own = Settings(home=tmp_path / "broker", kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}"))
    try:
        start_broker(own)
        yield own
    finally:
        stop_broker(own)


@pytest.fixture
def in_haste(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance finds something to do each time; a processor's class is in the working folder."""
    monkeypatch.setattr(
        "sessionlake.operations.maintenance.HistoryToKeep", lambda _, since, __: HistoryToKeep(timedelta(0), since)
    )
    monkeypatch.chdir(tmp_path)


@pytest.mark.soak
@pytest.mark.timeout(2 * 60 * 60)
@pytest.mark.usefixtures("eager", "in_haste")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("seed", range(3))
def test_any_actions_in_any_order_leave_what_was_sent(
    spark: Any, broker_of_its_own: Settings, tmp_path: Path, seed: int, life: int
) -> None:
    rnd = random.Random(f"{seed}.{life}")
    live(Keeper(spark, tmp_path / "sessionlake.yml", broker_of_its_own, rnd), life)


@pytest.mark.soak
@pytest.mark.timeout(2 * 60 * 60)
@pytest.mark.usefixtures("eager", "in_haste")
@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("seed", range(3))
def test_any_actions_with_all_that_there_is_leave_what_was_sent(
    spark: Any, broker_of_its_own: Settings, tmp_path: Path, seed: int, life: int
) -> None:
    rnd = random.Random(f"{seed}.{life}")
    live(KeeperOfAll(spark, tmp_path / "sessionlake.yml", broker_of_its_own, rnd), life)


def live(keeper: Keeper, life: int) -> None:
    """Takes the actions of one life."""
    try:
        keeper.live(min(LIFE, ACTIONS - life * LIFE))
    except BaseException as error:
        taken = keeper.actions_taken
        error.add_note(f"life {life}, after {len(taken)} actions; the last: {taken[-12:]}")
        raise
    finally:
        keeper.standby.end()
        rmtree(keeper.file.parent / "home", ignore_errors=True)
