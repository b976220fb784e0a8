"""Which file of loaded classes a JVM is given: that of its Java and its jars, and whole; else none."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from sessionlake.local import classes


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What classes are loaded from, beside a cache with a file that fits."""
    monkeypatch.setenv("SESSIONLAKE_CACHE", str(tmp_path))
    found = [tmp_path / name for name in ("a.jar", "b.jar")]
    for jar in found:
        jar.write_text("jar")
    monkeypatch.setattr(classes, "_loaded_from", lambda: found)
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / f"classes-{classes.fingerprint(found)}-5.jsa").write_text("whole")
    return found


def test_a_whole_file_is_taken(jars: list[Path]) -> None:
    assert jars
    assert classes.flags()[0] == f"-XX:SharedArchiveFile={classes.kept()}"


def test_one_that_was_cut_short_is_not(jars: list[Path]) -> None:
    assert jars
    file = classes.kept()
    assert file is not None
    file.write_text("who")
    assert classes.flags() == ()
    assert classes.flags(recording=True)[0] == "-XX:+RecordDynamicDumpInfo"


def test_nor_one_of_other_jars(jars: list[Path]) -> None:
    jars[1].write_text("newer jar")
    assert classes.kept() is None
    jars.pop()
    assert classes.kept() is None


@pytest.mark.parametrize("error", [OSError("the disk is full"), KeyboardInterrupt()])
def test_a_failure_leaves_no_part_of_a_file(
    jars: list[Path], monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fails(_: object, file: Path) -> None:
        file.write_text("par")
        raise error

    monkeypatch.setattr(classes, "_dump", fails)
    jars[1].write_text("newer jar")
    before = sorted((jars[0].parent / "jars").iterdir())
    with suppress(KeyboardInterrupt):
        classes.keep(None)
    assert sorted((jars[0].parent / "jars").iterdir()) == before
