"""The jars that Spark and the embedded broker need beside pyspark's own: resolved once, cached, offline afterwards.

pyspark ships Ivy, so no build tool is asked for. A set of jars lives in `<cache>/jars/<set>-<fingerprint>/`;
its manifest, put there last, says that the set is whole, so an interrupted resolution is simply repeated. What each
jar must be is listed in `jars.sha256`, in the form of `sha256sum`: another one is not loaded.
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

from sessionlake.errors import MachineError
from sessionlake.local.java import java_environment, require_java

CACHE_VARIABLE = "SESSIONLAKE_CACHE"
MANIFEST = "MANIFEST"
_SECONDS = 900  # a slow line needs minutes for 60 MB; a dead one is noticed by Ivy's own timeouts
_JAR_VERSION = re.compile(r"-\d[^/]*\.jar$")


@dataclass(frozen=True)
class JarSet:
    """Maven modules resolved together, with everything they depend on.

    Attributes:
        modules: `group:artifact:version` coordinates.
        provided: artifact names that the class path has already, left out with what they alone need.
        pinned: the SHA-256 of each jar, by file name.
    """

    name: str
    modules: tuple[str, ...]
    provided: tuple[str, ...] = ()
    pinned: Mapping[str, str] = field(default_factory=dict)

    @property
    def descriptor(self) -> str:
        """The Ivy module file that asks for the set."""
        wanted = [module.split(":") for module in self.modules]
        lines = [f'<dependency org="{g}" name="{a}" rev="{v}" conf="default->default"/>' for g, a, v in wanted]
        lines += [f'<exclude module="{artifact}"/>' for artifact in self.provided]
        return _IVY_MODULE.format(name=self.name, dependencies="\n".join(lines))

    @property
    def folder(self) -> str:
        """Folder name: another version of anything is another folder."""
        return f"{self.name}-{hashlib.sha256(self.descriptor.encode()).hexdigest()[:12]}"


# The connector is 4.0.0 under Spark 4.0.2: not every mirror has the later ones' token provider; they are compatible.
_SPARK = ("io.delta:delta-spark_4.0_2.13:4.4.0", "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0")
# Kafka's module leaves the choice of a logger to its distribution.
_BROKER = ("org.apache.kafka:kafka_2.13:4.1.0", "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3")


def spark_jars() -> list[Path]:
    """Jars of Delta and the Kafka source that pyspark lacks, in a stable order.

    Raises:
        MachineError: they are not cached and cannot be fetched, or there is no Java to fetch them with.
    """
    own = sorted({_JAR_VERSION.sub("", jar.name) for jar in pyspark_jars().glob("*.jar")})
    return resolve(JarSet("spark", _SPARK, tuple(own), pinned()))


def broker_jars() -> list[Path]:
    """Jars of a whole Kafka broker, in a stable order.

    Raises:
        MachineError: as `spark_jars`.
    """
    return resolve(JarSet("broker", _BROKER, pinned=pinned()))


def pinned() -> dict[str, str]:
    """The SHA-256 that each jar must have, by file name."""
    lines = Path(__file__).with_name("jars.sha256").read_text(encoding="ascii").splitlines()
    return {name: digest for digest, name in (line.split() for line in lines)}


def cache_folder() -> Path:
    """Where things fetched once are kept: `SESSIONLAKE_CACHE`, else `~/.cache/sessionlake`."""
    return Path(os.environ.get(CACHE_VARIABLE) or "~/.cache/sessionlake").expanduser().absolute()


def pyspark_jars() -> Path:
    """Folder of the jars that came with pyspark itself.

    Raises:
        MachineError: pyspark is not installed.
    """
    spec = find_spec("pyspark")  # importing it takes longer than all else here
    if spec is None or spec.origin is None:
        raise MachineError("pyspark is not installed: pip install 'sessionlake[local]'")
    return Path(spec.origin).parent / "jars"


def resolve(jars: JarSet) -> list[Path]:
    """The set's jars from the cache, fetched first if the cache has not all of them.

    Two processes may ask at once: one fetches, the other waits for it.

    Raises:
        MachineError: as `spark_jars`; or a jar is not the one that is pinned.
    """
    folder = cache_folder() / "jars" / jars.folder
    found = _whole(folder)
    if found is not None:
        _require_pinned(jars, found, folder)
        return found
    with _locked(folder):
        found = _whole(folder)
        if found is None:
            _fetch(jars, folder)
            found = _whole(folder)
    if found is None:
        raise MachineError(f"{folder} changed while it was filled: remove it and run again")
    _require_pinned(jars, found, folder)
    return found


def _require_pinned(jars: JarSet, found: Iterable[Path], folder: Path) -> None:
    """Returns if each jar is the one that is pinned.

    Raises:
        MachineError: naming one that is not, both hashes, and what to remove.
    """
    for jar in found:
        known, told = jars.pinned.get(jar.name), jar.stat()
        digest = _digest(jar, told.st_size, told.st_mtime_ns)
        if digest != known:
            wanted = f"must have {known}" if known else "is not among the jars that this version of sessionlake knows"
            raise MachineError(
                f"{jar} has SHA-256 {digest} and {wanted}: it is damaged or was replaced, so it is not loaded. Remove "
                f"the set with `rm -r {shlex.quote(str(folder))}*` and run again, which fetches it once more; if that "
                "gives the same, the server or proxy that it comes from delivers another file"
            )


@cache
def _digest(jar: Path, size: int, modified: int) -> str:
    """The SHA-256 of a file of this size and time; read once a process."""
    del size, modified
    with jar.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _whole(folder: Path) -> list[Path] | None:
    """The jars of the manifest, or None unless each is there with its size."""
    try:
        lines = (folder / MANIFEST).read_text(encoding="utf-8").splitlines()
        listed = [(folder / name, int(size)) for size, name in (line.split(" ", 1) for line in lines)]
        return [jar for jar, _ in listed] if all(jar.stat().st_size == size for jar, size in listed) else None
    except (OSError, ValueError):
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = (folder.parent / f"{folder.name}.lock").open("w")
    except OSError as error:
        raise MachineError(
            f"cache {cache_folder()} cannot be written ({error.strerror}): make it writable, "
            f"or name another folder with {CACHE_VARIABLE}"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(jars: JarSet, folder: Path) -> None:
    java, partial = require_java(), folder.with_suffix(".partial")
    sys.stderr.write(f"sessionlake: fetching the jars of {', '.join(jars.modules)} (once, into {folder.parent}) …\n")
    for leftover in (partial, folder):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        partial.mkdir()
        _run_ivy(java, jars, partial, _downloads(folder))
        names = sorted(jar.name for jar in partial.glob("*.jar"))
        _require_pinned(jars, [partial / name for name in names], folder)
        manifest = "".join(f"{(partial / name).stat().st_size} {name}\n" for name in names)
        (partial / MANIFEST).write_text(manifest, encoding="utf-8")
        partial.rename(folder)
        shutil.rmtree(_downloads(folder), ignore_errors=True)
    except OSError as error:
        raise MachineError(f"cache {folder.parent}: {error.strerror or error}; free or correct it, run again") from None


def _downloads(folder: Path) -> Path:
    """Ivy's own cache, one a set, since Ivy does not lock it; after an interruption it spares what was fetched."""
    return folder.with_suffix(".ivy")


def _run_ivy(java: Path, jars: JarSet, partial: Path, ivy: Path) -> None:
    settings, module, log = partial / "ivysettings.xml", partial / "ivy.xml", partial.with_suffix(".log")
    settings.write_text(_IVY_SETTINGS.format(cache=escape(str(ivy), {'"': "&quot;"})), encoding="utf-8")
    module.write_text(jars.descriptor, encoding="utf-8")
    command = [str(java), "-Xmx256m", f"-Divy.default.ivy.user.dir={ivy}", "-cp", f"{pyspark_jars()}/*"]
    command += ["org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(module), "-confs", "default"]
    # Where to, relatively: in a path, brackets would be part of the pattern.
    command += ["-retrieve", "[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"]
    try:
        with log.open("wb") as out:
            ended = subprocess.run(
                command, stdout=out, stderr=out, cwd=partial, env=java_environment(), timeout=_SECONDS, check=False
            )
            done = ended.returncode == 0
    except subprocess.TimeoutExpired:
        done = False
    if not done:
        raise MachineError(
            f"the jars of {', '.join(jars.modules)} could not be fetched from Maven Central ({_cause(log)}): check the "
            "network and run again (behind a proxy set JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=… -Dhttps.proxyPort=…), or "
            f"copy {partial.parent} from a machine that has it; Ivy's whole output is in {log}"
        )


def _cause(log: Path) -> str:
    """The most telling line of Ivy's output: a network error if there is one, else what was not found."""
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

# Ivy's own default chain would ask ~/.m2 first, where a pom without its jar makes it give up.
_IVY_SETTINGS = """<ivysettings>
<settings defaultResolver="central"/>
<timeout-constraints>
<timeout-constraint name="patience" connectionTimeout="20000" readTimeout="60000"/>
</timeout-constraints>
<caches defaultCacheDir="{cache}"/>
<resolvers><ibiblio name="central" m2compatible="true" timeoutConstraint="patience"/></resolvers>
</ivysettings>
"""
