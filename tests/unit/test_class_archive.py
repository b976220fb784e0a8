"""Which file of loaded classes a JVM is given: that of its Java and its jars, and whole; else none."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from sessionlake.local import class_archive


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What classes are loaded from, beside a cache with a file that fits."""
    monkeypatch.setenv("SESSIONLAKE_CACHE", str(tmp_path))
    found = [tmp_path / name for name in ("a.jar", "b.jar")]
    for jar in found:
        jar.write_text("jar")
    monkeypatch.setattr(class_archive, "_list_jars_on_class_path", lambda: found)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"classes-{class_archive.hash_paths_sizes_and_times(found)}-5.jsa").write_text("whole")
    return found


def test_a_whole_file_is_taken(jars: list[Path]) -> None:
    assert jars
    assert class_archive.build_class_archive_flags()[0] == f"-XX:SharedArchiveFile={class_archive.find_class_archive()}"


def test_one_that_was_cut_short_is_not(jars: list[Path]) -> None:
    assert jars
    file = class_archive.find_class_archive()
    assert file is not None
    file.write_text("who")
    assert class_archive.build_class_archive_flags() == ()
    assert class_archive.build_class_archive_flags(recording=True)[0] == "-XX:+RecordDynamicDumpInfo"


def test_nor_one_of_other_jars(jars: list[Path]) -> None:
    jars[1].write_text("newer jar")
    assert class_archive.find_class_archive() is None
    jars.pop()
    assert class_archive.find_class_archive() is None


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_a_failure_leaves_no_part_of_a_file(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(_: object, file: Path) -> None:
        file.write_text("par")
        raise error

    monkeypatch.setattr(class_archive, "_write_class_archive_file", fails)
    jars[1].write_text("newer jar")
    before = sorted((jars[0].parent / "jars").iterdir())
    with suppress(KeyboardInterrupt):
        class_archive.write_class_archive(None)
    assert sorted((jars[0].parent / "jars").iterdir()) == before
