"""What is gone is noticed by doctor, and before a job writes on over it; what follows from the rest is recovered."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from itertools import islice
from operator import eq
from pathlib import Path
from typing import Any

import pytest

from sessionlake.commands import doctor
from sessionlake.commands.doctor import Level
from sessionlake.commands.recover import Lost, recover
from sessionlake.config import Settings
from sessionlake.errors import LakeError
from sessionlake.lake.ledger import RECOVERED
from sessionlake.lake.names import CHANGES, LEDGER, MESSAGES, ROWS
from sessionlake.lake.progress import ends
from sessionlake.pipeline import Layer, run_once
from sessionlake.silver.rebuild.verify import verify
from spark.test_silver_law import Pipeline, streams
from support.lakes import assert_silver_is_the_truth, folder_of, rows_of

FIRST, SECOND = islice(streams(seeds=1), 2)
Damage = Callable[[Pipeline], None]


@pytest.fixture(scope="module")
def whole(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with some messages in silver."""
    home = tmp_path_factory.mktemp("whole") / "home"
    pipeline = Pipeline(spark, {"home": home})
    pipeline.arrive(FIRST)
    pipeline.stream()
    pipeline.merge()
    assert faults(pipeline.settings) == set()
    return home


@pytest.fixture
def run(spark: Any, location: dict[str, Any], whole: Path) -> Pipeline:
    """A copy of it, to be damaged."""
    shutil.copytree(whole, location["home"])
    return Pipeline(spark, location)


def faults(settings: Settings) -> set[str]:
    """What doctor finds wrong with the tables and checkpoints."""
    return {finding.what for finding in doctor._books(settings) if finding.level is Level.FAIL}


def recovered(run: Pipeline, lost: Lost) -> str:
    """Recovers, and returns what was said."""
    said: list[str] = []
    recover(run.spark, run.settings, lost, said.append)
    return "\n".join(said)


def assert_goes_on_exactly(run: Pipeline) -> None:
    """More messages come, and all tables and states are what they would be by themselves."""
    assert faults(run.settings) == set()
    run.arrive(SECOND)
    run.stream()
    run.merge()
    assert_silver_is_the_truth(run.spark, run.settings, [*FIRST, *SECOND], ledger=False)
    assert verify(run.spark, run.settings).exact


def test_a_ledger_that_is_gone_is_not_begun_anew_but_made_anew_from_the_tables(spark: Any, run: Pipeline) -> None:
    before = ends(run.lake.reader(spark), "silver")
    shutil.rmtree(folder_of(run.lake, LEDGER))
    assert faults(run.settings) == {"ledger"}
    with pytest.raises(
        LakeError, match=r"ops\.ledger is gone, though silver has committed.*sessionlake recover ledger"
    ):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())
    assert not folder_of(run.lake, LEDGER).exists()
    run.lake.ensure(spark, [LEDGER])  # by another layer, say
    with pytest.raises(LakeError, match=r"ops\.ledger has no batch of silver, though"):
        run_once(spark, run.settings, Layer.SILVER, threading.Event())

    said = recovered(run, Lost.LEDGER)
    assert f"did not know of {len(FIRST)} messages" in said
    assert "every row is what it was before" in said
    reader = run.lake.reader(spark)
    assert ends(reader, "bronze") == ends(reader, "silver") == before
    [bronze] = rows_of(spark, run.lake, LEDGER, ("layer", eq, "bronze"))
    assert (bronze["source"], bronze["messages"]) == (RECOVERED, len(FIRST))
    assert recovered(run, Lost.LEDGER) == "found: a ledger that can be read"
    assert_goes_on_exactly(run)


def torn(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:7])
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)


def checkpoint(run: Pipeline, *below: str) -> Path:
    return Path(run.settings.checkpoint("silver"), *below)


def lose_states(run: Pipeline) -> None:
    shutil.rmtree(checkpoint(run, "state"))


def lose_everything_but_bronze(run: Pipeline) -> None:
    """The checkpoint, files of a table, and all of another."""
    shutil.rmtree(checkpoint(run))
    for file in folder_of(run.lake, CHANGES).glob("*.parquet"):
        file.unlink()
    shutil.rmtree(folder_of(run.lake, ROWS))


@pytest.mark.parametrize(
    ("damage", "doctor_says", "said"),
    [
        (lose_states, "states", "lacks the state of batch 0"),
        (lose_everything_but_bronze, "files", "nothing was compared, since the live tables could not be read"),
    ],
)
def test_what_is_lost_of_silver_is_made_once_more_from_bronze(
    run: Pipeline, damage: Damage, doctor_says: str, said: str
) -> None:
    damage(run)
    assert doctor_says in faults(run.settings)
    assert said in recovered(run, Lost.SILVER)
    assert "nothing that is lost; nothing was changed" in recovered(run, Lost.SILVER)
    assert_goes_on_exactly(run)


@pytest.mark.parametrize("table", [MESSAGES, CHANGES])
def test_a_file_that_is_gone_is_named(run: Pipeline, table: str) -> None:
    gone = next(folder_of(run.lake, table).glob("*.parquet"))
    gone.unlink()
    [finding] = [found for found in doctor._books(run.settings) if found.what == "files"]
    assert finding.level is Level.FAIL
    assert gone.name in finding.detail
    assert ("sessionlake recover silver" in finding.detail) == (table == CHANGES)
