"""Operations that replace tables or states, killed for real: the next run names the command that finishes them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from sessionlake.cli.doctor import _check_table_row_counts
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, LEDGER, MESSAGES, RETAINED
from sessionlake.delta.storage.faults import VARIABLE
from sessionlake.ledger.retained import read_removal_records_without_limits
from sessionlake.settings.model import Settings
from sessionlake.streaming.generations import CheckpointGenerations
from spark.test_forgetting import GONE, run, stream
from support.lakes import rows_of
from support.retention import Aging, aging_settings

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(900)]

CONFIG = {
    "capture": {"columns": {"price": "double"}, "integrity": "strict", "on_violation": "record"},
    "silver": {"shards": 2},
    "gold": {"shards": 2},
    "processors": [{"name": "top", "class": "sessionlake.examples.top_of_book:TopOfBook"}],
}
REFUSED = re.compile(r"`sessionlake ([^`]+)`")


class Death(NamedTuple):
    """Where an operation is killed.

    Attributes:
        undoes: whether the operation is cancelled instead of finished.
    """

    words: str
    place: str
    undoes: bool = False


DEATHS = [
    Death(f"forget --session {GONE}", "before:forget:bronze"),
    Death(f"forget --session {GONE}", "after:forget:bronze"),
    Death(f"forget --session {GONE}", "after:silver.swapped"),
    Death(f"forget --session {GONE}", "before:forget:bronze", undoes=True),
    Death("rebuild silver", "before:publish:silver.session_changes"),
    Death("rebuild silver", "after:publish:silver.session_rows"),
    Death("rebuild silver", "before:publish:swap"),
    Death("rebuild silver", "before:publish:silver.session_changes", undoes=True),
    Death("recover silver", "after:publish:silver.session_rows"),
    Death("rebuild processor:top", "after:publish:silver.top"),
    Death("reshard 3", "after:silver.prepared"),
    Death("reshard 3", "after:silver.resharded"),
]
CANCEL = {"forget": "forget --cancel", "rebuild": "rebuild silver --cancel"}


class Home:
    """A home that commands run over, each in a process of its own."""

    def __init__(self, folder: Path, shards: int) -> None:
        self.folder = folder
        config = {**CONFIG, "silver": {"shards": shards}, "gold": {"shards": shards}}
        (folder / "sessionlake.yml").write_text(yaml.safe_dump(config))

    def run(self, words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "sessionlake", *shlex.split(words)],
            env={**os.environ, "SESSIONLAKE_HOME": str(self.folder), **more},
            capture_output=True,
            text=True,
            check=False,
        )

    def require(self, words: str) -> None:
        done = self.run(words)
        assert done.returncode == 0, (words, done.stderr)


@pytest.fixture(scope="module")
def filled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with one batch in every layer."""
    home = tmp_path_factory.mktemp("filled") / "home"
    settings = Settings.model_validate({"home": home, **CONFIG})
    run(spark, settings, *stream(1))
    return home


@pytest.mark.parametrize("death", DEATHS, ids=lambda death: f"{death.words}, {death.place}, {death.undoes}")
def test_the_command_that_a_run_names_ends_an_operation_that_was_killed(
    spark: Any, filled: Path, tmp_path: Path, death: Death
) -> None:
    folder = shutil.copytree(filled, tmp_path / "home")
    home = Home(folder, 3 if death.words.startswith("reshard") else 2)
    if death.words.startswith("recover"):
        shutil.rmtree(folder / "checkpoints" / "silver")
    killed = home.run(death.words, **{VARIABLE: death.place})
    assert killed.returncode == -signal.SIGKILL, killed.stderr

    run_again = f"run {'processor top' if 'processor' in death.words else 'silver'} --once"
    refused = home.run(run_again)
    assert (refused.returncode, "Traceback" in refused.stderr) == (1, False), refused.stderr
    named = REFUSED.findall(refused.stderr)
    assert named, refused.stderr
    if death.undoes:
        cancel = CANCEL[death.words.split()[0]]
        assert f"sessionlake {death.words.split()[0]}" in refused.stderr
        home.require(cancel)
    else:
        home.require(named[0])

    home.require(run_again)
    home.require("verify silver")
    settings = Settings.model_validate({"home": folder, **CONFIG})
    gone = GONE not in {row["session_id"] for row in rows_of(spark, Lake(settings), CHANGES)}
    assert gone == (death.words.startswith("forget") and not death.undoes)


@pytest.mark.parametrize("place", ["after:bronze.held", "after:bronze.retired", f"before:{LEDGER}", f"after:{LEDGER}"])
def test_a_recovery_of_bronze_that_was_killed_is_ended_by_the_same_command(
    spark: Any, filled: Path, tmp_path: Path, place: str
) -> None:
    home = Home(shutil.copytree(filled, tmp_path / "home"), 2)
    killed = home.run("recover bronze", **{VARIABLE: place})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    home.require("recover bronze")
    home.require("run silver --once")
    home.require("verify silver")
    lake = Lake(Settings.model_validate({"home": home.folder, **CONFIG}))
    booked = [row["messages"] for row in rows_of(spark, lake, LEDGER) if row["layer"] == "bronze"]
    assert booked == [len(rows_of(spark, lake, MESSAGES))]
    generations = CheckpointGenerations(lake.settings.checkpoint_path("bronze"), "bronze")
    assert generations.current_generation.last_planned_batch is None


@pytest.fixture(scope="module")
def aged(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose rows of the first batches are old."""
    home = tmp_path_factory.mktemp("aged") / "home"
    aging = Aging(spark, {"home": home})
    for _ in range(3):
        aging.take_in()
    return home


@pytest.mark.parametrize("table", [MESSAGES, CHANGES])
@pytest.mark.parametrize("place", ["before:{retained}", "before:remove:{table}", "after:remove:{table}"])
def test_rows_that_a_killed_retention_was_removing_are_removed_and_counted_once_by_the_next(
    spark: Any, aged: Path, tmp_path: Path, place: str, table: str
) -> None:
    home = shutil.copytree(aged, tmp_path / "home")
    settings = aging_settings({"home": home})

    def cut(**more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "support.cut_retention", str(home), table]
        return subprocess.run(command, env={**os.environ, **more}, capture_output=True, text=True, check=False)

    before = len(rows_of(spark, Lake(settings), table))
    killed = cut(**{VARIABLE: place.format(retained=RETAINED, table=table)})
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    again = cut()
    assert again.returncode == 0, again.stderr

    left = len(rows_of(spark, Lake(settings), table))
    noted = read_removal_records_without_limits(Lake(settings).reader(spark))[table]
    assert (noted.pending, noted.removed) == (0, before - left)
    assert 0 < left < before
    assert _check_table_row_counts(spark, Lake(settings)).startswith("hold what the ledger says")
