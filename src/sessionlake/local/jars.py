"""Downloads and caches the jars that Spark and the embedded broker need in addition to pyspark's own jars.

The download uses the Ivy that pyspark ships, so no build tool is needed. After it, no network is needed. A set of jars
is stored in `<cache>/jars/<set>-<fingerprint>/`. Its manifest is written last and marks the set as complete, so that an
interrupted download is repeated. `jars.sha256` lists the expected hash of each jar; a jar with another hash is not
loaded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.sax.saxutils import escape

from sessionlake.errors import MachineSetupError
from sessionlake.local.java import build_java_environment, require_java

CACHE_VARIABLE = "SESSIONLAKE_CACHE"
MANIFEST = "MANIFEST"
_SECONDS = 900  # a slow connection needs minutes for 60 MB; Ivy's own timeouts detect a dead one
_JAR_VERSION = re.compile(r"-\d[^/]*\.jar$")


@dataclass(frozen=True)
class MavenJarSet:
    """Maven modules that are downloaded together with their dependencies.

    Attributes:
        name: Name of the set, used in its folder's name.
        modules: `group:artifact:version` coordinates.
        provided: Names of artifacts that the class path already has. They and their dependencies are left out.
        pinned: Expected SHA-256 of each jar, by file name.
    """

    name: str
    modules: tuple[str, ...]
    provided: tuple[str, ...] = ()
    pinned: Mapping[str, str] = field(default_factory=dict)

    @property
    def ivy_descriptor(self) -> str:
        """The text of the Ivy file that requests the modules of the set."""
        wanted = [module.split(":") for module in self.modules]
        lines = [f'<dependency org="{g}" name="{a}" rev="{v}" conf="default->default"/>' for g, a, v in wanted]
        lines += [f'<exclude module="{artifact}"/>' for artifact in self.provided]
        return _IVY_MODULE.format(name=self.name, dependencies="\n".join(lines))

    @property
    def folder(self) -> str:
        """Name of the set's folder in the cache. It has a hash of all modules, so other sets have other folders."""
        return f"{self.name}-{hashlib.sha256(self.ivy_descriptor.encode()).hexdigest()[:12]}"


# The connector is 4.0.0 although Spark is 4.0.2. They are compatible, and not every mirror has the token provider that
# later connectors need.
_SPARK = ("io.delta:delta-spark_4.0_2.13:4.4.0", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")
# Kafka's module does not depend on a logger; the second coordinate adds one.
_BROKER = ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")


def fetch_spark_jars() -> list[Path]:
    """Returns the jars of Delta and of Spark's Kafka source in a stable order, and downloads them if necessary.

    Raises:
        MachineSetupError: The jars cannot be downloaded, there is no Java to download them with, or a jar has a wrong
            hash.
    """
    provided = sorted({_JAR_VERSION.sub("", jar.name) for jar in find_pyspark_jars_folder().glob("*.jar")})
    return fetch_jars_of_set(MavenJarSet("spark", _SPARK, tuple(provided), read_pinned_hashes()))


def fetch_broker_jars() -> list[Path]:
    """Returns the jars of a Kafka broker in a stable order. They are downloaded if they are not cached.

    Raises:
        MachineSetupError: The jars cannot be downloaded, there is no Java to download them with, or a jar has a wrong
            hash.
    """
    return fetch_jars_of_set(MavenJarSet("broker", _BROKER, pinned=read_pinned_hashes()))


def read_pinned_hashes() -> dict[str, str]:
    """Returns the expected SHA-256 of each jar that sessionlake uses, by file name."""
    lines = Path(__file__).with_name("jars.sha256").read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def get_cache_folder() -> Path:
    """Returns the folder for downloads: the one in `SESSIONLAKE_CACHE`, otherwise `~/.cache/sessionlake`."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/sessionlake").expanduser().absolute()


def find_pyspark_jars_folder() -> Path:
    """Returns the folder of the jars that are part of pyspark.

    Raises:
        MachineSetupError: pyspark is not installed.
    """
    spec = find_spec("pyspark")  # importing pyspark would take much longer
    if spec is None or spec.origin is None:
        raise MachineSetupError(
            "the package pyspark, which runs Spark on this machine, is not installed",
            fix="Run `pip install 'sessionlake[local]'`",
        )
    return Path(spec.origin).parent / "jars"


def fetch_jars_of_set(jars: MavenJarSet) -> list[Path]:
    """Returns the jars of a set. They are downloaded first if the cache lacks some.

    If two processes need the same set at the same time, one process downloads it and the second one waits.

    Raises:
        MachineSetupError: The jars cannot be downloaded, there is no Java to download them with, or a jar has a wrong
            hash.
    """
    folder = get_cache_folder() / "jars" / jars.folder
    cached = _read_cached_jars(folder)
    if cached is not None:
        _require_pinned_hashes(jars, cached, folder)
        return cached
    with _lock_jar_cache_folder(folder):
        cached = _read_cached_jars(folder)
        if cached is None:
            _download_jars(jars, folder)
            cached = _read_cached_jars(folder)
    if cached is None:
        raise MachineSetupError(
            f"another process changed the folder {folder} while jars were downloaded into it",
            fix="Delete this folder and run the command again: it downloads the jars again",
        )
    _require_pinned_hashes(jars, cached, folder)
    return cached


def _require_pinned_hashes(jars: MavenJarSet, files: Iterable[Path], folder: Path) -> None:
    """Checks that each jar has its pinned hash.

    Raises:
        MachineSetupError: A jar has another hash. The text has both hashes and the folder to remove.
    """
    for jar in files:
        expected, stat = jars.pinned.get(jar.name), jar.stat()
        digest = _hash_jar_file(jar, stat.st_size, stat.st_mtime_ns)
        if digest != expected:
            expectation = (
                f"must have {expected}" if expected else "is not among the jars that this version of sessionlake knows"
            )
            raise MachineSetupError(
                f"the downloaded file {jar} has SHA-256 {digest} and {expectation}",
                why="So it is damaged or was replaced, and is not loaded",
                fix=f"Remove the downloaded jars with `rm -r {shlex.quote(str(folder))}*` and run the command again, "
                "which downloads them again. If the error stays, the server or a proxy delivers another file",
            )


@cache
def _hash_jar_file(jar: Path, size: int, modified: int) -> str:
    """Returns the SHA-256 of a file. Size and modification time make the cache forget a changed file."""
    del size, modified
    with jar.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _read_cached_jars(folder: Path) -> list[Path] | None:
    """Returns the jars in the folder's manifest; None without a manifest, or if a jar is missing or changed."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
        listed = [(folder / name, int(size)) for size, name in (line.split(" ", 1) for line in lines)]
        return [jar for jar, _ in listed] if all(jar.stat().st_size == size for jar, size in listed) else None
    except (OSError, ValueError):
        return None


@contextmanager
def _lock_jar_cache_folder(folder: Path) -> Iterator[None]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f"{folder.name}.lock").open("w")
    except OSError as error:
        raise MachineSetupError(
            f"the folder {get_cache_folder()}, which keeps downloaded jars, cannot be written ({error.strerror})",
            fix=f"Make the folder writable, or name another one with {CACHE_VARIABLE}",
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download_jars(jars: MavenJarSet, folder: Path) -> None:
    java, partial = require_java(), folder.with_suffix(".partial")
    sys.stderr.write(f"sessionlake: fetching the jars of {', '.join(jars.modules)} (once, into {folder.parent}) …\n")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        partial.mkdir()
        _download_with_ivy(java, jars, partial, _get_ivy_cache_folder(folder))
        names = sorted(jar.name for jar in partial.glob("*.jar"))
        _require_pinned_hashes(jars, [partial / name for name in names], folder)
        manifest = "".join(f"{(partial / name).stat().st_size} {name}\n" for name in names)
        (partial / MANIFEST).write_text(manifest, encoding="utf-8")
        partial.rename(folder)
        shutil.rmtree(_get_ivy_cache_folder(folder), ignore_errors=True)
    except OSError as error:
        raise MachineSetupError(
            f"the folder {folder.parent}, which keeps downloaded jars, cannot be written: {error.strerror or error}",
            fix="Free space on the disk or correct the folder's rights, and run the command again",
        ) from None


def _get_ivy_cache_folder(folder: Path) -> Path:
    """Returns the folder of Ivy's own cache for a set of jars. Each set has its own, because Ivy does not lock it.

    After an interrupted download, jars that are already in the folder are not downloaded again.

    Args:
        folder: The folder of the set.
    """
    return folder.with_suffix(".ivy")


def _download_with_ivy(java: Path, jars: MavenJarSet, partial: Path, ivy: Path) -> None:
    settings, module, log = partial / "ivysettings.xml", partial / "ivy.xml", partial.with_suffix(".log")
    settings.write_text(_IVY_SETTINGS.format(cache=escape(str(ivy), {'"': "&quot;"})), encoding="utf-8")
    module.write_text(jars.ivy_descriptor, encoding="utf-8")
    command = [str(java), "-Xmx256m", f"-Divy.default.ivy.user.dir={ivy}", "-cp", f"{find_pyspark_jars_folder()}/*"]
    command += ["org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(module), "-confs", "default"]
    # A relative target: brackets in an absolute path would be read as part of the pattern.
    command += ["-retrieve", "[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"]
    try:
        with log.open("wb") as out:
            ended = subprocess.run(
                command,
                stdout=out,
                stderr=out,
                cwd=partial,
                env=build_java_environment(),
                timeout=_SECONDS,
                check=False,
            )
            done = ended.returncode == 0
    except subprocess.TimeoutExpired:
        done = False
    if not done:
        raise MachineSetupError(
            f"Spark needs the jars of {', '.join(jars.modules)}, which could not be downloaded from "
            f"Maven Central ({_find_cause_of_failed_download(log)})",
            fix="Check the network and run the command again (behind a proxy, set "
            "JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT), or copy "
            f"{partial.parent} from a machine that has it. The download's full output is in {log}",
        )


def _find_cause_of_failed_download(log: Path) -> str:
    """Returns from Ivy's output why a download failed: a network error, or else the module that was not found."""
    text = log.read_text(encoding="utf-8", errors="replace")
    for pattern in (
        r"HttpClientHandler: (.+?)(?: url=|$)",
        r"(\w+Exception: .+)",
        r":: (\S+: not found)",
        r"(Error: .+)",
    ):
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found[1].strip()[:200]
    return "no reason given"


_IVY_MODULE = """<ivy-module version="2.0">
<info organisation="sessionlake" module="{name}"/>
<configurations><conf name="default"/></configurations>
<dependencies>
{dependencies}
</dependencies>
</ivy-module>
"""

# Ivy's default resolvers include ~/.m2, where a pom without its jar makes the whole resolution fail.
_IVY_SETTINGS = """<ivysettings>
<settings defaultResolver="central"/>
<timeout-constraints>
<timeout-constraint name="patience" connectionTimeout="20000" readTimeout="60000"/>
</timeout-constraints>
<caches defaultCacheDir="{cache}"/>
<resolvers><ibiblio name="central" m2compatible="true" timeoutConstraint="patience"/></resolvers>
</ivysettings>
"""
