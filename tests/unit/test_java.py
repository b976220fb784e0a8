from __future__ import annotations

import os
from pathlib import Path

import pytest

from sessionlake.errors import MachineSetupError
from sessionlake.local.java import require_java


def _runtime(home: Path, script: str, release: str | None = None) -> Path:
    """A folder laid out as a Java runtime, whose java is a shell script."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    java.chmod(0o755)
    if release is not None:
        (home / "release").write_text(release, encoding="ascii")
    return java


def _says(version: str) -> str:
    return f"echo 'openjdk version \"{version}\" 2025-01-01' >&2"


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.2", "25-ea"])
def test_java_17_and_later_serve(tmp_path, monkeypatch, version):
    java = _runtime(tmp_path, _says(version))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == java


@pytest.mark.parametrize(("version", "major"), [("16.0.2", 16), ("11.0.20", 11), ("1.8.0_392", 8)])
def test_java_16_and_earlier_are_refused_in_one_line_with_the_remedy(tmp_path, monkeypatch, version, major):
    _runtime(tmp_path, _says(version))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MachineSetupError, match=f"is Java {major}, but Java 17 or later is needed. Install") as caught:
        require_java()
    assert "\n" not in str(caught.value)


def test_the_release_file_spares_starting_the_jvm(tmp_path, monkeypatch):
    java = _runtime(tmp_path, "touch $0.started", release='IMPLEMENTOR="x"\nJAVA_VERSION="17.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert require_java() == java
    assert not java.with_suffix(".started").exists()


def test_java_home_goes_before_path(tmp_path, monkeypatch):
    chosen = _runtime(tmp_path / "home", _says("21"))
    other = _runtime(tmp_path / "path", _says("17"))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    assert require_java() == chosen


def test_without_java_home_the_first_java_on_path_serves(tmp_path, monkeypatch):
    java = _runtime(tmp_path, _says("17"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{java.parent}{os.pathsep}{os.environ['PATH']}")
    assert require_java() == java


def test_no_java_anywhere_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MachineSetupError, match=r"no Java found: .* PATH has no java\. Install a JDK"):
        require_java()


def test_a_java_home_without_java_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MachineSetupError, match=f"JAVA_HOME is {tmp_path}, but"):
        require_java()


def test_a_java_that_does_not_start_is_no_java(tmp_path, monkeypatch):
    _runtime(tmp_path, "echo no runtime present >&2; exit 1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MachineSetupError, match="does not print a Java version"):
        require_java()
