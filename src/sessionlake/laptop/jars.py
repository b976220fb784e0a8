"""The jars that Spark and the embedded broker need beside pyspark's own: resolved once, cached, offline afterwards.

pyspark ships Ivy, so no build tool is asked for. A set of jars lives in `<cache>/jars/<set>-<fingerprint>/`;
its manifest, put there last, says that the set is whole, so an interrupted resolution is simply repeated.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from sessionlake.errors import MachineError
from sessionlake.laptop.java import require_java

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
    """

    name: str
    modules: tuple[str, ...]
    provided: tuple[str, ...] = ()

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
    return resolve(JarSet("spark", _SPARK, tuple(own)))


def broker_jars() -> list[Path]:
    """Jars of a whole Kafka broker, in a stable order.

    Raises:
        MachineError: as `spark_jars`.
    """
    return resolve(JarSet("broker", _BROKER))


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
        MachineError: as `spark_jars`.
    """
    folder = cache_folder() / "jars" / jars.folder
    found = _whole(folder)
    if found is not None:
        return found
    with _locked(folder):
        found = _whole(folder)
        if found is None:
            _fetch(jars, folder)
            found = _whole(folder)
    if found is None:
        raise MachineError(f"{folder} changed while it was filled: remove it and run again")
    return found


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
    settings.write_text(_IVY_SETTINGS.format(cache=ivy), encoding="utf-8")
    module.write_text(jars.descriptor, encoding="utf-8")
    command = [str(java), "-Xmx256m", f"-Divy.default.ivy.user.dir={ivy}", "-cp", f"{pyspark_jars()}/*"]
    command += ["org.apache.ivy.Main", "-settings", str(settings), "-ivy", str(module), "-confs", "default"]
    command += ["-retrieve", f"{partial}/[artifact]-[revision](-[classifier]).[ext]", "-types", "jar", "bundle"]
    try:
        with log.open("wb") as out:
            done = subprocess.run(command, stdout=out, stderr=out, timeout=_SECONDS, check=False).returncode == 0
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
