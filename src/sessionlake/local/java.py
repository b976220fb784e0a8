"""The Java that runs Spark and the embedded broker: found, and recent enough, or one line saying what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sessionlake.errors import MachineError
from sessionlake.local.paths import uri_of

MINIMUM = 17  # Spark 4 and Kafka 4 brokers are compiled for it
_REMEDY = (
    f"install a JDK or JRE {MINIMUM} or later (Debian and Ubuntu: apt install openjdk-{MINIMUM}-jre-headless; "
    f"macOS: brew install openjdk@{MINIMUM}), or point JAVA_HOME at one"
)
_LOGGING = Path(__file__).with_name("log4j2.properties")
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(?P<major>\d+)')


def require_java() -> Path:
    """Finds the `java` that Spark's own launcher would use: that of `JAVA_HOME`, else the first on `PATH`.

    Raises:
        MachineError: there is none, it does not start, or it is older than Java 17.
    """
    return _checked(os.environ.get("JAVA_HOME") or None, os.environ.get("PATH", ""))


def java_environment() -> Mapping[str, str]:
    """The environment to start Java in: with a UTF-8 locale, without which it cannot open `/home/müller`."""
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    return os.environ if "utf" in locale.lower() else os.environ | {"LC_ALL": "C.UTF-8"}


def logging_flags(log: Path) -> list[str]:
    """A JVM's options that have it write its messages to a file, and to numbered ones beside it when that is large."""
    numbered = str(log).replace("%", "%%")  # log4j's escape: it formats this name, and not the first
    return [
        f"-Dlog4j2.configurationFile={uri_of(_LOGGING)}",
        f"-Dsessionlake.log={log}",
        f"-Dsessionlake.log.numbered={numbered}",
    ]


@cache
def _checked(java_home: str | None, path: str) -> Path:
    java = _find(java_home, path)
    major = _major(java)
    if major < MINIMUM:
        raise MachineError(f"{java} is Java {major}, but Java {MINIMUM} or later is needed: {_REMEDY}")
    return java


def _find(java_home: str | None, path: str) -> Path:
    if java_home is not None:
        java = Path(java_home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise MachineError(f"JAVA_HOME is {java_home}, but {java} is no program: correct or unset it, or {_REMEDY}")
        return java
    found = shutil.which("java", path=path)
    if found is None:
        raise MachineError(f"no Java: JAVA_HOME is not set and PATH has no java; {_REMEDY}")
    return Path(found)


def _major(java: Path) -> int:
    # A runtime's own release file spares starting a JVM; not every vendor's layout has one.
    release = java.resolve().parent.parent / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    match = _VERSION.search(text) or _VERSION.search(_ask(java))
    if match is None:
        raise MachineError(f"{java} does not say its version, so it is no working Java: {_REMEDY}")
    return int(match["major"])


def _ask(java: Path) -> str:
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout
