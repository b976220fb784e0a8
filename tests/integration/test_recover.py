"""Bronze over a real broker, with what it has lost made good: every message once, and the books balance."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from integration.test_topics import World, power_cut
from sessionlake.cli import doctor
from sessionlake.cli.options import RecoverableLayer
from sessionlake.cli.recover import recover_layer
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import LEDGER, MESSAGES, TOPICS
from sessionlake.errors import DataLossError, LakeError, SessionlakeError
from sessionlake.operations.pipeline import Layer
from sessionlake.settings.model import Settings, TopicChangePolicy
from support.lakes import find_table_folder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def world(spark: Any, broker_settings: Settings, tmp_path: Path) -> World:
    return World(spark, broker_settings, tmp_path.name)


def recovered(world: World, lost: RecoverableLayer = RecoverableLayer.BRONZE) -> str:
    said: list[str] = []
    recover_layer(world.spark, world.settings, lost, said.append)
    return "\n".join(said)


def checkpoint(world: World, *below: str) -> Path:
    return Path(world.settings.checkpoint_path(Layer.BRONZE), *below)


@pytest.mark.soak
def test_a_checkpoint_that_is_gone_or_damaged_is_begun_again_behind_what_is_in_the_table(world, monkeypatch):
    world.send("a", 0, 3)
    world.send("b", 0, 2)
    world.run(world.settings)
    world.send("a", 3, 2)
    world.dies("Ledger.write_entry", world.settings, monkeypatch)  # in the table, and not in the ledger
    shutil.rmtree(checkpoint(world))
    with pytest.raises(LakeError, match=r"checkpoint .* is new.*sessionlake recover bronze"):
        world.run(world.settings)
    with monkeypatch.context() as dying:
        dying.setattr("sessionlake.operations.recover.bronze._add_missing_messages_to_ledger", power_cut)
        with pytest.raises(SessionlakeError, match="power cut"):
            recovered(world)
    with pytest.raises(LakeError, match=r"was interrupted.*\. Run `sessionlake recover bronze`, which finishes it"):
        world.run(world.settings)
    assert "2 messages in bronze.messages were missing in ops.ledger" in recovered(world)
    world.send("a", 5, 2)
    world.run(world.settings)
    world.assert_one_query_read_everything_once(a=7, b=2)

    folder = world.generations.current_generation.folder
    for file in (folder / "offsets" / "0", checkpoint(world, "generations", f"{folder.name}.json")):
        file.write_text("v1\n{torn")
        with pytest.raises(LakeError, match="sessionlake recover bronze"):
            world.run(world.settings)
    assert "cannot be read" in recovered(world)
    assert "no fault in the checkpoint" in recovered(world)
    world.send("b", 2, 1)
    world.run(world.settings)
    world.assert_one_query_read_everything_once(a=7, b=3)


def test_messages_or_topics_that_are_gone_are_not_begun_again(world):
    world.send("a", 0, 3)
    world.run(world.settings)
    world.send("a", 3, 1)
    lake = Lake(world.settings)
    for table, check in ((MESSAGES, "tables"), (TOPICS, "topics")):
        folder = find_table_folder(lake, table)
        away = shutil.move(folder, world.settings.home / "away")
        gone = rf"{table} is gone.*\. Restore it from a backup"
        with pytest.raises(DataLossError, match=gone):
            world.run(world.settings)
        assert not folder.exists()
        [told] = [
            found for found in doctor._run_table_checks(world.settings) if found.level is doctor.CheckSeverity.FAIL
        ]
        assert told.check == check
        assert re.search(gone, told.detail)
        if table == MESSAGES:
            with pytest.raises(DataLossError, match=gone):
                recovered(world)
        else:
            shutil.rmtree(checkpoint(world))
            recovered(world)
            lake.create_or_update_tables(world.spark, [TOPICS])
            with pytest.raises(DataLossError, match=rf"{TOPICS} has no row of {world.name('a')}, though bronze"):
                world.run(world.settings)
            shutil.rmtree(folder)
        shutil.move(away, folder)
    world.run(world.settings)
    world.assert_one_query_read_everything_once(a=4)


def test_an_older_copy_of_topics_is_noticed_before_one_made_again_is_read_again(world):
    lake, table = Lake(world.settings), find_table_folder(Lake(world.settings), TOPICS)
    world.create("a")
    world.send("a", 0, 3)
    world.run(world.settings)
    before = shutil.copytree(table, world.settings.home / "before")
    world.delete("a")
    world.create("a")
    world.send("a", 0, 4)
    world.run(world.under(TopicChangePolicy.RESTART))
    newest = lake.last_commit(world.spark, TOPICS).version
    kept = shutil.move(table, world.settings.home / "newest")
    shutil.move(before, table)
    older = (
        rf"{TOPICS} has lost its latest changes: it ends with version \d+, and {LEDGER} has a batch that left it at \d+"
    )
    with pytest.raises(DataLossError, match=older):
        world.run(world.under(TopicChangePolicy.RESTART))
    shutil.rmtree(table)
    shutil.move(kept, table)
    assert lake.last_commit(world.spark, TOPICS).version == newest
    world.send("a", 4, 1)
    world.run(world.settings)
    world.assert_one_query_read_everything_once(a=8)


@pytest.mark.soak
def test_a_ledger_that_is_gone_knows_again_where_a_topic_made_again_goes_on(world):
    world.create("a")
    world.send("a", 0, 3)
    world.run(world.settings)
    world.delete("a")
    world.create("a")
    world.send("a", 0, 4)
    world.run(world.under(TopicChangePolicy.RESTART))
    next(find_table_folder(Lake(world.settings), LEDGER).glob("*.parquet")).unlink()
    with pytest.raises(LakeError, match=r"ledger needs files that are gone.*sessionlake recover ledger"):
        world.run(world.settings)
    assert "7 messages in bronze.messages were missing in ops.ledger" in recovered(world, RecoverableLayer.LEDGER)
    world.send("a", 4, 1)
    world.run(world.settings)
    world.assert_one_query_read_everything_once(a=8)
