"""The subscription's pattern, and a checkpoint brought to where the query must go on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sessionlake.bronze.offsets import planned_ranges
from sessionlake.bronze.subscription import QueryOffsets, pattern

A, B = ("a", 0), ("b", 0)


@pytest.mark.parametrize(
    ("name", "matches"),
    [("capture.a", False), ("capture.ab", True), ("captureXa", False), ("capture.b", True), ("b-c", False)],
)
def test_a_topic_left_out_is_left_out_alone_and_by_its_whole_name(name, matches):
    found = re.fullmatch(pattern(r"capture..+|b-c", ["capture.a", "captureXa", "b-c"]), name)
    assert bool(found) is matches


def test_a_dot_in_a_name_left_out_is_a_dot():
    assert re.fullmatch(pattern(".+", ["a.b"]), "axb")


def test_without_topics_to_leave_out_the_pattern_matches_whole_names():
    assert [bool(re.fullmatch(pattern("a|b", []), name)) for name in ("a", "b", "ab")] == [True, True, False]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batch 0 is done, batch 1 is planned."""
    for log in ("sources/0", "offsets", "commits"):
        (tmp_path / log).mkdir(parents=True)
    (tmp_path / "sources/0/0").write_bytes(b"\0v1\n" + json.dumps({"a": {"0": 5}}).encode())
    (tmp_path / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n{"a":{"0":9}}')
    (tmp_path / "offsets/.0.crc").write_bytes(b"of what was there")
    (tmp_path / "offsets/1").write_text('v1\n{"batchWatermarkMs":0}\n{"a":{"0":12},"b":{"0":3}}')
    (tmp_path / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return tmp_path


def test_a_checkpoint_tells_what_is_done_and_what_is_planned(folder):
    offsets = QueryOffsets(str(folder))
    assert (offsets.begun, offsets.newest, offsets.pending) == (True, 1, 1)
    assert (offsets.start(), offsets.end()) == ({A: 9}, {A: 12, B: 3})


def test_a_folder_that_is_not_there_has_not_begun(tmp_path):
    offsets = QueryOffsets(str(tmp_path / "none"))
    assert (offsets.begun, offsets.newest, offsets.pending) == (False, None, None)


def test_a_planned_batch_that_is_given_up_is_planned_again_from_the_new_offsets(folder):
    offsets = QueryOffsets(str(folder))
    offsets.conclude(done=False)
    offsets.go_on_from({A: 2, B: 0})
    assert (offsets.pending, offsets.start()) == (None, {A: 2, B: 0})
    assert not (folder / "offsets/.0.crc").exists()
    (folder / "offsets/1").write_text('v1\n{"batchWatermarkMs":0}\n{"a":{"0":4},"b":{"0":1}}')
    assert planned_ranges(str(folder), 1) == {A: (2, 4), B: (0, 1)}


def test_a_planned_batch_that_is_in_the_tables_is_done_and_its_number_is_not_used_again(folder):
    offsets = QueryOffsets(str(folder))
    offsets.conclude(done=True)
    assert (offsets.pending, offsets.newest, offsets.start()) == (None, 1, {A: 12, B: 3})


def test_a_partition_that_left_does_not_come_back_with_its_initial_offset(folder):
    offsets = QueryOffsets(str(folder))
    offsets.conclude(done=False)
    offsets.go_on_from({B: 0})
    (folder / "offsets/1").write_text('v1\n{"batchWatermarkMs":0}\n{"a":{"0":7},"b":{"0":0}}')
    assert planned_ranges(str(folder), 1) == {A: (0, 7)}


def test_before_the_first_batch_the_initial_offsets_are_changed(folder):
    for file in ("offsets/0", "offsets/1", "commits/0"):
        (folder / file).unlink()
    offsets = QueryOffsets(str(folder))
    offsets.go_on_from({A: 6})
    assert offsets.start() == {A: 6}
    assert (folder / "sources/0/0").read_bytes() == b'\0v1\n{"a":{"0":6}}'
