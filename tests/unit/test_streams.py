"""A batch that is made once more begins where the last committed one ended."""

from __future__ import annotations

from pathlib import Path

from sessionlake.streaming.query import discard_abandoned_states


def test_states_of_batches_that_were_not_committed_are_discarded(tmp_path: Path) -> None:
    committed = ["commits/0", "commits/1", "commits/.1.crc", "offsets/2", "state/0/_metadata/metadata"]
    kept = [
        "1.changelog",
        ".2.changelog.crc",
        "2.changelog",
        "2.zip",
        "2_ab-1.delta",
        "_metadata/schema",
        "SSTs/12.sst",
    ]
    lost = ["3.changelog", ".3.changelog.crc", "10.zip", "3_ab-1.delta", ".3.changelog.ab-1.TID5.tmp", "..3.x.tmp.crc"]
    for name in [*committed, *(f"state/0/1/{name}" for name in [*kept, *lost])]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    discard_abandoned_states(tmp_path)
    left = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert left == {*committed, *(f"state/0/1/{name}" for name in kept)}


def test_what_the_batch_begins_with_that_was_planned_last_is_kept_though_the_note_of_its_commit_is_lost(
    tmp_path: Path,
) -> None:
    for name in ("offsets/0", "offsets/1", "state/0/1/1.changelog", "state/0/1/2.changelog"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    discard_abandoned_states(tmp_path)
    assert [file.name for file in (tmp_path / "state/0/1").iterdir()] == ["1.changelog"]


def test_before_the_first_commit_there_is_no_state(tmp_path: Path) -> None:
    discard_abandoned_states(tmp_path)
    (tmp_path / "state/0/0").mkdir(parents=True)
    (tmp_path / "state/0/0/1.changelog").touch()
    discard_abandoned_states(tmp_path)
    assert not list((tmp_path / "state/0/0").iterdir())
