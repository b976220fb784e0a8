"""What the source is asked for, and whether a checkpoint goes on where it must. Spark's files are only read."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from sessionlake.bronze.subscription import CheckpointOffsets, build_topic_pattern, encode_starting_offsets

A, B, C = ("a", 0), ("b", 0), ("c", 0)


@pytest.mark.parametrize(
    ("name", "matches"),
    [("capture.a", False), ("capture.ab", True), ("captureXa", False), ("capture.b", True), ("b-c", False)],
)
def test_a_topic_left_out_is_left_out_alone_and_by_its_whole_name(name, matches):
    found = re.fullmatch(build_topic_pattern(r"capture..+|b-c", ["capture.a", "captureXa", "b-c"]), name)
    assert bool(found) is matches


def test_a_dot_in_a_name_left_out_is_a_dot():
    assert re.fullmatch(build_topic_pattern(".+", ["a.b"]), "axb")


def test_without_topics_to_leave_out_the_pattern_matches_whole_names():
    assert [bool(re.fullmatch(build_topic_pattern("a|b", []), name)) for name in ("a", "b", "ab")] == [
        True,
        True,
        False,
    ]


def test_starting_offsets_name_every_topic_partition_as_spark_wants_them():
    found = encode_starting_offsets({("b", 10): 7, ("b", 9): 0, ("a", 0): 5})
    assert found == '{"a":{"0":5},"b":{"9":0,"10":7}}'


def test_a_subscription_to_nothing_has_no_starting_offsets():
    assert encode_starting_offsets({}) == "{}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Batch 0 is done, batch 1 is planned."""
    for log in ("sources/0", "offsets", "commits"):
        (tmp_path / log).mkdir(parents=True)
    (tmp_path / "sources/0/0").write_bytes(b"\0v1\n" + json.dumps({"a": {"0": 5}}).encode())
    (tmp_path / "offsets/0").write_text('v1\n{"batchWatermarkMs":0}\n{"a":{"0":9}}')
    (tmp_path / "offsets/.0.crc").write_bytes(b"a checksum")
    (tmp_path / "offsets/1").write_text('v1\n{"batchWatermarkMs":0}\n{"a":{"0":12},"b":{"0":3}}')
    (tmp_path / "commits/0").write_text('v1\n{"nextBatchWatermarkMs":0}')
    return tmp_path


def test_a_checkpoint_tells_what_is_done_and_what_is_planned(folder):
    offsets = CheckpointOffsets(folder)
    assert (offsets.has_started, offsets.pending_batch) == (True, 1)
    assert (offsets.read_next_batch_start(), offsets.read_pending_batch_end()) == ({A: 9}, {A: 12, B: 3})


def test_a_folder_that_is_not_there_has_not_begun(tmp_path):
    offsets = CheckpointOffsets(tmp_path / "none")
    assert (offsets.has_started, offsets.pending_batch) == (False, None)


def test_before_the_first_batch_a_query_stands_at_its_initial_offsets(folder):
    for file in ("offsets/0", "offsets/1", "commits/0"):
        (folder / file).unlink()
    assert (
        CheckpointOffsets(folder).pending_batch,
        CheckpointOffsets(folder).read_next_batch_start(),
    ) == (None, {A: 5})


def test_a_batch_whose_commit_was_lost_is_pending(folder):
    (folder / "offsets/1").unlink()
    (folder / "commits/0").unlink()
    assert (
        CheckpointOffsets(folder).pending_batch,
        CheckpointOffsets(folder).read_next_batch_start(),
    ) == (0, {A: 5})


@pytest.mark.parametrize(
    ("positions", "settled", "goes_on"),
    [
        ({A: 9, B: 0}, False, True),  # Spark reads from its beginning what it does not know
        ({A: 9}, False, False),  # the planned batch has a topic that left
        ({A: 9, B: 0, C: 0}, False, False),  # it lacks one that there is by now
        ({A: 12, B: 3}, True, False),  # it is in the tables, and Kafka may hold it no longer
        ({A: 12, B: 3, C: 0}, True, False),
        ({A: 9, B: 3}, False, False),
        ({A: 8}, False, False),
        ({A: 10}, False, False),
        ({}, False, False),
        ({B: 0}, False, False),
        ({A: 12}, True, False),
        ({A: 9, B: 0}, True, False),
    ],
)
def test_a_query_goes_on_if_it_reads_on_at_just_the_positions_called_for(folder, positions, settled, goes_on):
    assert CheckpointOffsets(folder).would_resume_at(positions, far(positions), is_last_batch_stored=settled) is goes_on


def far(positions):
    """Ends beyond whatever was planned."""
    return dict.fromkeys(positions, 100)


@pytest.mark.parametrize(
    ("ends", "goes_on"),
    [({A: 12, B: 3}, True), ({A: 13, B: 4}, True), ({A: 11, B: 3}, False), ({A: 12, B: 2}, False)],
)
def test_a_planned_batch_is_repeated_only_if_kafka_holds_its_end(folder, ends, goes_on):
    assert CheckpointOffsets(folder).would_resume_at({A: 9, B: 0}, ends, is_last_batch_stored=False) is goes_on


@pytest.mark.parametrize(("positions", "ended"), [({A: 12, B: 3}, True), ({A: 12}, False), ({A: 12, B: 4}, False)])
def test_a_planned_batch_that_ends_where_reading_is_to_go_on_tells_that_no_topic_changed(folder, positions, ended):
    assert CheckpointOffsets(folder).ends_pending_batch_at(positions) is ended
    (folder / "commits/1").touch()
    assert CheckpointOffsets(folder).ends_pending_batch_at(positions) is False


@pytest.mark.parametrize(
    ("positions", "goes_on"),
    [({A: 9}, True), ({A: 9, B: 0}, True), ({A: 9, B: 1}, False), ({A: 8}, False), ({B: 0}, False), ({}, False)],
)
def test_without_a_planned_batch_new_topics_that_begin_at_their_beginning_are_no_change(folder, positions, goes_on):
    (folder / "offsets/1").unlink()
    assert CheckpointOffsets(folder).would_resume_at(positions, far(positions), is_last_batch_stored=True) is goes_on
