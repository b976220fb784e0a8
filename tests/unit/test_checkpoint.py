"""A damaged checkpoint is named by its file; whatever Spark can go on from is left alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sessionlake.errors import LakeError
from sessionlake.streaming.checkpoint import (
    choose_restart_options,
    read_last_committed_batch,
    require_readable_checkpoint,
)

WHOLE = {
    "metadata": '{"id":"a"}',
    "offsets/9": 'v1\n{"batchWatermarkMs":0}\n{"t":{"0":3}}',
    "offsets/10": 'v1\n{"batchWatermarkMs":0}\n-',
    "offsets/.10.crc": "\x00",
    "commits/9": 'v1\n{"nextBatchWatermarkMs":0}',
}


def checkpoint(folder: Path, **changed: str) -> str:
    for name, text in (WHOLE | changed).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return str(folder)


def test_a_checkpoint_that_is_not_there_yet_is_fine(tmp_path):
    require_readable_checkpoint(str(tmp_path / "new"), "bronze")


def test_a_whole_checkpoint_is_fine(tmp_path):
    require_readable_checkpoint(checkpoint(tmp_path), "bronze")


def test_damage_before_the_last_two_batches_no_longer_matters(tmp_path):
    require_readable_checkpoint(checkpoint(tmp_path, **{"offsets/8": "lost"}), "bronze")


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("metadata", "", "is empty"),
        ("metadata", '{"id":', "is not complete JSON"),
        ("offsets/10", "", "does not start with a version"),
        ("offsets/10", "v1\n", "is empty"),
        ("offsets/10", 'v1\n{"batchWatermarkMs":0}\n{"t":', "is not complete JSON"),
        ("commits/9", "v1\n{n", "is not complete JSON"),
    ],
)
def test_a_damaged_file_is_named_with_the_remedy(tmp_path, name, text, why):
    with pytest.raises(LakeError, match=f"{name} {why}") as raised:
        require_readable_checkpoint(checkpoint(tmp_path, **{name: text}), "silver")
    assert str(tmp_path) in str(raised.value)
    assert "sessionlake recover silver" in str(raised.value)


def test_bytes_that_are_no_text_are_damage(tmp_path):
    path = checkpoint(tmp_path)
    (tmp_path / "commits/9").write_bytes(b"v1\n\xff\xfe")
    with pytest.raises(LakeError, match="commits/9 cannot be read"):
        require_readable_checkpoint(path, "gold")


def test_the_last_committed_batch_is_the_highest_number_in_the_log_of_commits(tmp_path):
    assert read_last_committed_batch(tmp_path / "new") is None
    commits = {"commits/9": "v1\n{}", "commits/10": "v1\n{}", "commits/.11.crc": "", "commits/.12.abc.tmp": ""}
    assert read_last_committed_batch(checkpoint(tmp_path, **commits)) == 10


@pytest.mark.parametrize(
    ("planned", "committed", "ends", "expected"),
    [
        ([0], [0], {"index": -1}, {"startingVersion": 4}),  # all before version 5 is read
        ([0], [0], {"index": 2}, {"startingVersion": 5}),
        ([0], [0], {"index": 2, "isStartingVersion": True}, {}),  # it reads a snapshot still
        ([0], [], {"index": -1}, {}),  # it is to be made once more
        ([0, 1], [0], {"index": -1}, {}),
        ([0, 1], [0, 1], {"index": -1}, {}),
        ([], [], {}, {}),
    ],
)
def test_a_stream_is_reported_where_its_first_batch_ends_only_once_that_is_committed(
    tmp_path, planned, committed, ends, expected
):
    place = json.dumps({"reservoirId": "a", "reservoirVersion": 5, "isStartingVersion": False} | ends)
    logs = {f"offsets/{batch}": f"v1\n{{}}\n{place}" for batch in planned}
    logs |= {f"commits/{batch}": "v1\n{}" for batch in committed}
    for name, text in logs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert choose_restart_options(tmp_path) == expected
