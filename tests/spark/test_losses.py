"""What is gone is noticed by doctor, and before a job writes on over it; what follows from bronze is made anew."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from sessionlake.commands import doctor
from sessionlake.commands.doctor import Level
from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.names import CHANGES, LEDGER, MESSAGES
from sessionlake.pipeline import Layer, run_once
from sessionlake.silver.rebuild.rebuild import rebuild
from spark.test_silver_law import Pipeline, streams
from support.lakes import assert_silver_is_the_truth, folder_of


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with some messages in silver."""
    home = tmp_path_factory.mktemp("whole") / "home"
    pipeline = Pipeline(spark, {"home": home})
    pipeline.arrive(MESSAGES_OF_ALL)
    pipeline.stream()
    pipeline.merge()
    assert faults(pipeline.settings) == set()
    return home


@pytest.fixture
def run(spark: Any, location: dict[str, Any], whole: Path) -> Pipeline:
    """A copy of it, to be damaged."""
    shutil.copytree(whole, location["home"])
    return Pipeline(spark, location)


MESSAGES_OF_ALL = next(streams(seeds=1))


def faults(settings: Settings) -> set[str]:
    """What doctor finds wrong with the tables and checkpoints."""
    return {finding.what for finding in doctor._books(settings) if finding.level is Level.FAIL}


def test_a_ledger_that_is_gone_is_not_begun_anew(spark: Any, run: Pipeline) -> None:
    away = shutil.move(folder_of(run.lake, LEDGER), run.settings.home / "away")
    assert faults(run.settings) == {"ledger"}
    with pytest.raises(LakeError, match=r"ops\.ledger is gone, though silver has committed batches"):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())
    assert not folder_of(run.lake, LEDGER).exists()
    shutil.move(away, folder_of(run.lake, LEDGER))
    assert run_once(spark, run.settings, Layer.SILVER, threading.Event())


def test_states_that_are_gone_are_noticed_and_rebuilt(spark: Any, run: Pipeline) -> None:
    states = Path(run.settings.checkpoint("silver")) / "state"
    stores = sorted((states / "0").glob("[0-9]*"))
    for gone in (stores[-1], states):  # of one shard, and of all
        shutil.rmtree(gone)
        assert faults(run.settings) == {"states"}
    rebuild(spark, run.settings)
    assert faults(run.settings) == set()
    assert_silver_is_the_truth(spark, run.settings, MESSAGES_OF_ALL, ledger=False)


@pytest.mark.parametrize("table", [MESSAGES, CHANGES])
def test_a_file_that_is_gone_is_named(run: Pipeline, table: str) -> None:
    gone = next(folder_of(run.lake, table).glob("*.parquet"))
    gone.unlink()
    [finding] = [found for found in doctor._books(run.settings) if found.what == "files"]
    assert finding.level is Level.FAIL
    assert gone.name in finding.detail
