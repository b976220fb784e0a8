from __future__ import annotations

import hashlib
import multiprocessing
import re
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from sessionlake.errors import MachineSetupError
from sessionlake.local import jars
from sessionlake.local.jars import MANIFEST, MavenJarSet, fetch_jars_of_set, get_cache_folder

_PINNED = {"one-1.0.jar": hashlib.sha256(b"12345").hexdigest(), "two-2.0.jar": hashlib.sha256(b"123").hexdigest()}
_SET = MavenJarSet("tiny", ("org.example:one:1.0",), pinned=_PINNED)
# Stands in for Java running Ivy: what it is asked to retrieve arrives as two small files.
_IVY = """
echo run >> "$COUNT"
while [ $# -gt 0 ]; do [ "$1" = -retrieve ] && out=$(dirname "$2"); shift; done
sleep ${SLOW:-0}
printf 12345 > "$out/one-1.0.jar"; printf 123 > "$out/two-2.0.jar"
"""


@pytest.fixture
def ivy(tmp_path, monkeypatch):
    """Sets the script that stands in for Java, and counts its runs."""
    home, count = tmp_path / "java", tmp_path / "count"
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("COUNT", str(count))
    monkeypatch.setenv("SESSIONLAKE_CACHE", str(tmp_path / "cache"))
    (home / "bin").mkdir(parents=True)
    (home / "release").write_text('JAVA_VERSION="17.0.1"\n', encoding="ascii")

    def script(text: str = _IVY) -> None:
        (home / "bin" / "java").write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
        (home / "bin" / "java").chmod(0o755)

    script()
    script.runs = lambda: len(count.read_text().split()) if count.exists() else 0
    return script


def _folder() -> Path:
    return get_cache_folder() / "jars" / _SET.folder


def test_jars_are_fetched_once_and_come_in_a_stable_order(ivy):
    assert [jar.name for jar in fetch_jars_of_set(_SET)] == ["one-1.0.jar", "two-2.0.jar"]
    assert fetch_jars_of_set(_SET) == fetch_jars_of_set(_SET)
    assert ivy.runs() == 1


@pytest.mark.usefixtures("ivy")
def test_with_the_jars_cached_no_java_is_needed(tmp_path, monkeypatch):
    found = fetch_jars_of_set(_SET)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "none"))
    assert fetch_jars_of_set(_SET) == found


@pytest.mark.parametrize("damage", ["no manifest", "a jar gone", "a jar cut short", "no folder"])
def test_a_folder_that_is_not_whole_is_fetched_again(ivy, damage):
    found = fetch_jars_of_set(_SET)
    if damage == "no manifest":
        (_folder() / MANIFEST).unlink()
    elif damage == "a jar gone":
        found[0].unlink()
    elif damage == "a jar cut short":
        found[0].write_bytes(b"1")
    else:
        _folder().rename(_folder().with_suffix(".partial"))
    assert [jar.stat().st_size for jar in fetch_jars_of_set(_SET)] == [5, 3]
    assert ivy.runs() == 2


@pytest.mark.usefixtures("ivy")
def test_a_jar_that_was_replaced_in_the_cache_is_not_loaded():
    one, _ = fetch_jars_of_set(_SET)
    one.write_bytes(b"54321")
    hashes = f"has SHA-256 {hashlib.sha256(b'54321').hexdigest()} and must have {_PINNED[one.name]}"
    removal = re.escape(f"rm -r {_folder()}*")
    with pytest.raises(MachineSetupError, match=rf"one-1.0.jar {hashes}.*{removal}"):
        fetch_jars_of_set(_SET)


@pytest.mark.parametrize("changed", [{"two-2.0.jar": "0" * 64}, {"two-2.0.jar": None}])
def test_a_jar_that_is_delivered_otherwise_never_comes_into_the_cache(ivy, changed):
    wanted = {name: digest for name, digest in (_PINNED | changed).items() if digest}
    other = replace(_SET, pinned=wanted)
    with pytest.raises(MachineSetupError, match=r"two-2.0.jar has SHA-256 \w{64} and (must have 0{64}|is not among)"):
        fetch_jars_of_set(other)
    assert not _folder().exists()
    assert len(fetch_jars_of_set(_SET)) == 2
    assert ivy.runs() == 2


def test_every_jar_is_pinned_once():
    listed = jars.read_pinned_hashes()
    assert len(listed) == len((Path(jars.__file__).with_name("jars.sha256")).read_text().splitlines())
    assert all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in listed.values())
    assert {"delta-spark_4.0_2.13-4.4.0.jar", "kafka_2.13-4.1.0.jar"} <= listed.keys()


def test_a_cache_whose_path_ivy_would_take_for_a_pattern_or_xml_is_used(ivy, tmp_path, monkeypatch):
    monkeypatch.setenv("SESSIONLAKE_CACHE", str(tmp_path / 'a b#c%20d+ü&<"(x)[y]'))
    assert [jar.read_bytes() for jar in fetch_jars_of_set(_SET)] == [b"12345", b"123"]
    assert ivy.runs() == 1


def test_another_version_is_another_folder():
    newer = MavenJarSet("tiny", ("org.example:one:1.1",))
    assert newer.folder != _SET.folder
    assert MavenJarSet("tiny", _SET.modules, provided=("two",)).folder != _SET.folder


def test_what_is_provided_is_excluded_from_the_resolution():
    assert '<exclude module="two"/>' in MavenJarSet("tiny", _SET.modules, provided=("two",)).ivy_descriptor


def test_two_processes_at_once_fetch_once(ivy, monkeypatch):
    monkeypatch.setenv("SLOW", "0.5")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(fetch_jars_of_set, [_SET, _SET])
    assert first == second
    assert ivy.runs() == 1


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("\tHttpClientHandler: some.host: Name or service not known url=https://some.host/x.pom", "some.host: Name or"),
        ("java.net.ConnectException: refused", "ConnectException: refused"),
        ("\t:: org.example#one;1.0: not found", "org.example#one;1.0: not found"),
        ("", "no reason given"),
    ],
)
def test_a_failed_fetch_is_one_line_with_cause_and_remedy(ivy, output, cause):
    ivy(f"printf '{output}\n'; exit 1")
    with pytest.raises(
        MachineSetupError, match=rf"\({cause}.*\)\. Check the network and run the command again"
    ) as caught:
        fetch_jars_of_set(_SET)
    assert "\n" not in str(caught.value)


def test_after_a_failed_fetch_the_next_one_starts_afresh(ivy):
    ivy('while [ $# -gt 0 ]; do [ "$1" = -retrieve ] && printf 1 > "$(dirname "$2")/half.jar"; shift; done; exit 1')
    with pytest.raises(MachineSetupError):
        fetch_jars_of_set(_SET)
    ivy()
    assert [jar.name for jar in fetch_jars_of_set(_SET)] == ["one-1.0.jar", "two-2.0.jar"]


@pytest.mark.usefixtures("ivy")
def test_a_cache_that_is_a_file_names_the_folder_and_the_variable(tmp_path):
    (tmp_path / "cache").write_text("")
    with pytest.raises(
        MachineSetupError, match=r"/cache, which keeps downloaded jars, cannot be written .* SESSIONLAKE_CACHE"
    ):
        fetch_jars_of_set(_SET)


def test_the_pinned_delta_is_the_installed_python_package_s():
    (delta,) = (module for module in jars._SPARK if "delta-spark" in module)
    assert delta.split(":")[2] == version("delta-spark")


def test_the_pinned_connector_is_of_the_installed_spark_s_line():
    (connector,) = (module for module in jars._SPARK if "sql-kafka" in module)
    assert re.match(r"\d+\.\d+", connector.split(":")[2])[0] == re.match(r"\d+\.\d+", version("pyspark"))[0]
