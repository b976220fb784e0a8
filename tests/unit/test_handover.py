"""How many shards silver's states are of, wherever they are, and where a layer goes on reading."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sessionlake.delta.schemas.names import SILVER
from sessionlake.errors import LakeError
from sessionlake.settings.model import Settings, SilverSettings
from sessionlake.streaming import handover
from sessionlake.streaming.handover import FoldResumedFromHandover, Handover
from sessionlake.streaming.manifest import record_shard_count

NOTED = {"reservoirId": "a", "index": -1, "isStartingVersion": False}


def of(home: Path, shards: int) -> Settings:
    return Settings(home=home, silver=SilverSettings(shards=shards))


def begun(settings: Settings) -> None:
    """What a start leaves: the note, then Spark's checkpoint."""
    record_shard_count(settings)
    metadata = Path(settings.checkpoint_path(SILVER)) / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text('{"id":"a"}')


def handed_over(settings: Settings, rebuild: str = "r") -> None:
    shards = settings.silver.shards
    handover.prepare_handover(settings, Handover(7, 3, shards, rebuild), [(0, b"state")])
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"))
    handover.activate_handover(spark, settings, rebuild)


def assert_of(home: Path, shards: int) -> None:
    assert handover.read_shard_count(of(home, 1)) == shards
    handover.refuse_changed_shard_count(of(home, shards))
    other = shards + 1
    with pytest.raises(
        LakeError,
        match=rf"silver.shards is {other}, but silver's stored states are in {shards} shards\. .*Set silver.shards",
    ):
        handover.refuse_changed_shard_count(of(home, other))


def test_before_the_first_batch_any_number_will_do(tmp_path: Path) -> None:
    record_shard_count(of(tmp_path, 3))  # a start that came no further
    assert handover.read_shard_count(of(tmp_path, 3)) is None
    handover.refuse_changed_shard_count(of(tmp_path, 4))


def test_those_of_the_checkpoint(tmp_path: Path) -> None:
    begun(of(tmp_path, 3))
    assert_of(tmp_path, 3)


def test_those_of_a_handover_that_no_stream_has_begun_from(tmp_path: Path) -> None:
    begun(of(tmp_path, 3))
    handed_over(of(tmp_path, 5))
    assert_of(tmp_path, 5)


def test_those_of_the_checkpoint_that_began_from_a_handover(tmp_path: Path) -> None:
    handed_over(of(tmp_path, 5))
    begun(of(tmp_path, 5))
    assert_of(tmp_path, 5)


def test_those_of_the_latest_handover(tmp_path: Path) -> None:
    handed_over(of(tmp_path, 5), "first")
    handed_over(of(tmp_path, 2), "second")
    assert_of(tmp_path, 2)


def test_a_shard_that_the_first_batch_leaves_as_it_is_has_the_state_that_was_handed_over(tmp_path: Path) -> None:
    handed_over(of(tmp_path, 1))
    unchanged = FoldResumedFromHandover(
        lambda *_: (None, []), str(handover.find_active_handover_folder(of(tmp_path, 1)))
    )
    assert unchanged(0, None, []) == (b"state", [])
    assert unchanged(0, b"later", []) == (None, [])


def planned(settings: Settings, batch: int, **place: Any) -> None:
    """What Spark notes of a batch before it begins."""
    offsets = Path(settings.checkpoint_path(SILVER)) / "offsets"
    offsets.mkdir(parents=True, exist_ok=True)
    (offsets / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(NOTED | place)}")


def test_a_layer_goes_on_behind_what_its_batch_in_the_ledger_has_read_though_another_was_begun(tmp_path: Path) -> None:
    settings = of(tmp_path, 1)
    planned(settings, 0, reservoirVersion=5)
    planned(settings, 1, reservoirVersion=8, index=2)  # inside of a version
    assert [handover.read_next_version_after_batch(settings, SILVER, batch) for batch in (0, 1)] == [5, 8]
    with pytest.raises(LakeError, match="does not say what silver has read"):
        handover.read_next_version_after_batch(settings, SILVER, 2)


def test_a_layer_goes_on_behind_a_handover_until_a_batch_has(tmp_path: Path) -> None:
    settings = of(tmp_path, 1)
    handed_over(settings)
    assert handover.read_next_version_after_batch(settings, SILVER, 2) == 8
    planned(settings, 0, reservoirVersion=11)
    assert [handover.read_next_version_after_batch(settings, SILVER, batch) for batch in (2, 3)] == [8, 11]


def test_within_what_a_table_held_first_no_version_tells_what_was_read(tmp_path: Path) -> None:
    settings = of(tmp_path, 1)
    planned(settings, 0, reservoirVersion=5, index=2, isStartingVersion=True)
    with pytest.raises(
        LakeError, match=r"only a part of the rows that its source table had .* Run `sessionlake run silver --once`"
    ):
        handover.read_next_version_after_batch(settings, SILVER, 0)
