"""Generations of a checkpoint: what each state of the files means, whenever the process that left it was killed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from sessionlake.bronze.offsets import read_planned_ranges
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import DataLossError, LakeError
from sessionlake.streaming.generations import CheckpointGenerations, require_intact_checkpoint

A, B = ("a", 0), ("b", 0)
ID = "4a7c"


def spark(folder: Path, initial: dict[str, int], *ends: dict[str, int], done: int = 0, query: str = ID) -> None:
    """Leaves what Spark leaves of a query: planned batches by their ends, and how many of them are done."""
    for log in ("sources/0", "offsets", "commits"):
        (folder / log).mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    (folder / "sources/0/0").write_bytes(b"\0v1\n" + _offsets(initial).encode())
    for batch, end in enumerate(ends):
        (folder / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{_offsets(end)}')
    for batch in range(done):
        (folder / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def _offsets(ends: dict[str, int]) -> str:
    return json.dumps({topic: {"0": end} for topic, end in ends.items()})


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Of a home as it was before there were generations: batches 0 to 2 are planned, the last is not done."""
    folder = tmp_path / "bronze"
    spark(folder, {"a": 5}, {"a": 6}, {"a": 8}, {"a": 9, "b": 2}, done=2)
    return folder


@pytest.fixture
def generations(checkpoint: Path) -> CheckpointGenerations:
    return CheckpointGenerations(str(checkpoint), "bronze")


def test_a_checkpoint_without_generations_goes_on_as_the_first_one(generations, checkpoint):
    present = generations.current_generation
    assert (present.number, present.folder, present.first_batch, present.app_id) == (0, checkpoint, 0, ID)
    assert (present.last_planned_batch, present.next_batch) == (2, 3)
    assert present.build_batch_txn(ID, 2) == Txn(ID, 2)
    assert read_planned_ranges(present.folder, present.to_spark_batch_id(2)) == {A: (8, 9), B: (0, 2)}


def test_a_checkpoint_that_is_new_has_no_id_until_spark_gives_it_one(tmp_path):
    present = CheckpointGenerations(str(tmp_path / "new"), "bronze").current_generation
    assert (present.number, present.app_id, present.last_planned_batch, present.next_batch) == (0, None, None, 0)
    assert present.build_batch_txn("of-spark", 0) == Txn("of-spark", 0)


def test_another_generation_goes_on_with_id_and_numbers_and_touches_no_file_that_was_there(generations, checkpoint):
    before = files(checkpoint)
    begun = generations.create_next_generation(generations.current_generation.next_batch, ID)
    assert {name: content for name, content in files(checkpoint).items() if name in before} == before
    spark(begun.folder, {"a": 9, "b": 1}, {"a": 11, "b": 1}, query="another")
    present = generations.current_generation
    assert (present.number, present.last_planned_batch, present.next_batch) == (1, 3, 4)
    assert present.build_batch_txn("another", 0) == Txn(ID, 3)
    assert read_planned_ranges(present.folder, present.to_spark_batch_id(3)) == {A: (9, 11)}


def test_a_generation_that_is_noted_is_the_present_one_though_spark_has_not_begun_it(generations):
    generations.create_next_generation(3, ID)
    present = generations.current_generation
    assert (present.number, present.last_planned_batch, present.next_batch) == (1, None, 3)
    assert not present.folder.exists()


def test_a_note_that_is_not_whole_is_none(generations, checkpoint):
    generations.create_next_generation(3, ID)
    (checkpoint / "generations" / "2.partial").write_bytes(b'{"first_')
    assert generations.current_generation.number == 1


def test_a_number_that_was_planned_is_not_given_to_other_messages_though_it_was_given_up(generations):
    spark(generations.create_next_generation(3, ID).folder, {"a": 9}, {"a": 10})
    following = generations.create_next_generation(generations.current_generation.next_batch, ID)
    assert (following.number, following.first_batch) == (2, 4)


def test_two_changes_before_any_batch_leave_the_number_to_the_next_batch(generations):
    spark(generations.create_next_generation(3, ID).folder, {"a": 9})
    assert generations.create_next_generation(generations.current_generation.next_batch, ID).first_batch == 3


def test_superseded_generations_stay_until_the_present_one_has_committed_a_batch(generations, checkpoint):
    for _ in range(3):
        begun = generations.create_next_generation(generations.current_generation.next_batch, ID)
        spark(begun.folder, {"a": 9}, {"a": 10})
    generations.remove_superseded_generations()
    assert {file.name for file in (checkpoint / "generations").iterdir()} == {
        *("1", "1.json", "2", "2.json", "3", "3.json")
    }
    kept = {name: content for name, content in files(checkpoint).items() if not name.startswith("generations")}
    spark(begun.folder, {"a": 9}, {"a": 10}, done=1)
    generations.remove_superseded_generations()
    assert {file.name for file in (checkpoint / "generations").iterdir()} == {"3", "3.json"}
    assert kept.items() <= files(checkpoint).items()  # the first one stays: it names all others
    assert generations.current_generation.last_planned_batch == 5


def test_the_first_generation_removes_nothing(generations, checkpoint):
    before = files(checkpoint)
    generations.remove_superseded_generations()
    assert files(checkpoint) == before


def test_a_removal_that_was_interrupted_is_finished_and_no_number_is_used_again(generations, checkpoint):
    for _ in range(2):
        spark(generations.create_next_generation(3, ID).folder, {"a": 9}, {"a": 10}, done=1)
    (checkpoint / "generations" / "1.json").unlink()  # its folder is still there
    assert generations.current_generation.number == 2
    generations.remove_superseded_generations()
    assert not (checkpoint / "generations" / "1").exists()
    shutil.rmtree(checkpoint / "generations" / "2")
    (checkpoint / "generations" / "7").mkdir()
    assert generations.create_next_generation(4, ID).number == 8


@pytest.mark.parametrize("content", ["", "{", '{"first_batch":"three"}'])
def test_a_damaged_note_is_named_with_what_to_do(generations, checkpoint, content):
    generations.create_next_generation(3, ID)
    (checkpoint / "generations" / "1.json").write_text(content)
    with pytest.raises(LakeError, match=r"bronze: .*generations/1.json cannot be read.*backup"):
        require_intact_checkpoint(str(checkpoint), "bronze")


@pytest.mark.parametrize("damage", [lambda file: file.unlink(), lambda file: file.write_text("{}")])
def test_a_later_generation_knows_the_first_ones_id_though_that_is_lost(generations, checkpoint, damage):
    generations.create_next_generation(3, ID)
    damage(checkpoint / "metadata")
    require_intact_checkpoint(str(checkpoint), "bronze")
    assert (generations.current_generation.app_id, generations.current_generation.first_batch) == (ID, 3)


def test_without_the_first_ones_id_no_other_is_begun(generations, checkpoint):
    (checkpoint / "metadata").unlink()
    with pytest.raises(DataLossError, match="metadata cannot be read"):
        generations.create_next_generation(3, None)


def test_what_can_be_read_of_a_damaged_checkpoint_says_how_far_it_was(generations, checkpoint):
    spark(generations.create_next_generation(3, ID).folder, {"a": 9}, {"a": 10}, {"a": 11}, query="another")
    assert generations.read_last_known_app_id_and_batch() == (ID, 4)
    (checkpoint / "metadata").write_text("{}")
    (checkpoint / "generations" / "2.json").write_text("{")
    assert generations.read_last_known_app_id_and_batch() == (ID, 4)
    (checkpoint / "generations" / "1.json").unlink()
    assert generations.read_last_known_app_id_and_batch() == (None, 2)
    shutil.rmtree(checkpoint)
    assert generations.read_last_known_app_id_and_batch() == (None, -1)


def test_of_a_whole_checkpoint_the_present_generation_is_looked_at(generations, checkpoint):
    require_intact_checkpoint(str(checkpoint), "bronze")
    begun = generations.create_next_generation(3, ID)
    require_intact_checkpoint(str(checkpoint), "bronze")
    spark(begun.folder, {"a": 9}, {"a": 10})
    (checkpoint / "offsets" / "2").write_text("v1\n{torn")  # nobody reads it any more
    require_intact_checkpoint(str(checkpoint), "bronze")
    (begun.folder / "offsets" / "0").write_text("v1\n{torn")
    with pytest.raises(LakeError, match=r"generations/1 is damaged: offsets/0"):
        require_intact_checkpoint(str(checkpoint), "bronze")


def test_a_checkpoint_that_is_new_is_whole(tmp_path):
    require_intact_checkpoint(str(tmp_path / "new"), "bronze")
