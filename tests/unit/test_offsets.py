"""A Kafka batch's ranges are read from the checkpoint's own log."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sessionlake.bronze.offsets import read_planned_ranges, wait_for_planned_batch_files
from sessionlake.errors import LakeError


def log(checkpoint: Path, name: str, offsets: dict[str, Any], *, metadata: bool = True) -> None:
    """Writes an offsets file as Spark does: a version, the batch's metadata, the source's offsets."""
    file = checkpoint / name
    file.parent.mkdir(parents=True, exist_ok=True)
    middle = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n' if metadata else ""
    file.write_text(f"v1\n{middle}{json.dumps(offsets)}")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A query that began at offsets 5 and 0 of one topic."""
    first = tmp_path / "sources" / "0" / "0"
    first.parent.mkdir(parents=True)
    first.write_bytes(b"\0v1\n" + json.dumps({"a": {"0": 5, "1": 0}}).encode())
    log(tmp_path, "offsets/0", {"a": {"0": 9, "1": 0}})
    return tmp_path


def test_the_first_batch_starts_at_the_initial_offsets(checkpoint: Path) -> None:
    assert read_planned_ranges(str(checkpoint), 0) == {("a", 0): (5, 9)}


def test_a_partition_without_new_messages_is_left_out(checkpoint: Path) -> None:
    assert ("a", 1) not in read_planned_ranges(str(checkpoint), 0)


def test_a_later_batch_starts_where_the_one_before_ended(checkpoint: Path) -> None:
    log(checkpoint, "offsets/1", {"a": {"0": 10, "1": 3}})
    assert read_planned_ranges(str(checkpoint), 1) == {("a", 0): (9, 10), ("a", 1): (0, 3)}


def test_a_topic_that_appears_later_starts_at_its_beginning(checkpoint: Path) -> None:
    log(checkpoint, "offsets/1", {"a": {"0": 9, "1": 0}, "b": {"0": 2}})
    assert read_planned_ranges(str(checkpoint), 1) == {("b", 0): (0, 2)}


def test_a_batch_that_the_checkpoint_lacks_is_an_error_that_names_the_file(checkpoint: Path) -> None:
    with pytest.raises(LakeError, match=r"offsets/7.*sessionlake recover bronze"):
        read_planned_ranges(str(checkpoint), 7)


def test_what_a_volume_s_mount_shows_late_is_waited_for(checkpoint: Path) -> None:
    plan = checkpoint / "offsets" / "1"
    writing = threading.Timer(0.3, log, (checkpoint, "offsets/1", {"a": {"0": 10, "1": 0}}))
    writing.start()
    assert not plan.exists()
    wait_for_planned_batch_files(checkpoint, 1)
    assert plan.is_file()
    writing.join()
    assert read_planned_ranges(checkpoint, 1) == {("a", 0): (9, 10)}


def test_what_is_never_seen_is_waited_for_no_longer_than_reported(checkpoint: Path) -> None:
    wait_for_planned_batch_files(checkpoint, 7, seconds=0.05)
    with pytest.raises(LakeError, match="offsets/7"):
        read_planned_ranges(checkpoint, 7)


@pytest.mark.parametrize(
    "content", ["", "v1", "v1\n", "v1\n{}\n{", "v1\n{}\n-", 'v1\n{"batchWatermarkMs":0}', '{"a":{"0":9}}']
)
def test_a_torn_file_is_an_error_that_names_it(checkpoint: Path, content: str) -> None:
    (checkpoint / "offsets" / "0").write_text(content)
    with pytest.raises(LakeError, match="offsets/0"):
        read_planned_ranges(str(checkpoint), 0)


@pytest.mark.parametrize("version", ["v2", "v11", "1"])
def test_a_file_of_another_version_is_refused_by_its_version(checkpoint: Path, version: str) -> None:
    (checkpoint / "offsets" / "0").write_text(f'{version}\n{{}}\n{{"a":{{"0":9,"1":0}}}}')
    with pytest.raises(LakeError, match=rf"offsets/0 has the format '{version}'.*writes 'v1'"):
        read_planned_ranges(checkpoint, 0)
