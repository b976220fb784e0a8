"""Finds the Java that runs Spark and the embedded broker, and checks its version."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from sessionlake.errors import MachineSetupError
from sessionlake.local.paths import convert_path_to_uri

MINIMUM = 17  # Spark 4 and Kafka 4 brokers are compiled for this version
_REMEDY = (
    f"Install a JDK or JRE {MINIMUM} or later (Debian and Ubuntu: apt install openjdk-{MINIMUM}-jre-headless; "
    f"macOS: brew install openjdk@{MINIMUM}), or point JAVA_HOME at one"
)
_LOGGING = Path(__file__).with_name("log4j2.properties")
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(?P<major>\d+)')


def require_java() -> Path:
    """Returns the path of the `java` program: the one in `JAVA_HOME`, otherwise the first on `PATH`.

    Raises:
        MachineSetupError: There is no Java, it does not start, or it is older than Java 17.
    """
    return _require_java_version(os.environ.get("JAVA_HOME") or None, os.environ.get("PATH", ""))


def build_java_environment() -> Mapping[str, str]:
    """Returns the environment variables for Java processes, with a UTF-8 locale.

    Without such a locale, Java cannot open paths like `/home/müller`.
    """
    locale = next(filter(None, map(os.environ.get, ("LC_ALL", "LC_CTYPE", "LANG"))), "")
    return os.environ if "utf" in locale.lower() else os.environ | {"LC_ALL": "C.UTF-8"}


def build_logging_flags(log: Path) -> list[str]:
    """Returns JVM options that make log4j write to a file, and rename full files to numbered ones next to it."""
    numbered = str(log).replace("%", "%%")  # log4j formats this name, so that `%` is escaped; the first it takes as is
    return [
        f"-Dlog4j2.configurationFile={convert_path_to_uri(_LOGGING)}",
        f"-Dsessionlake.log={log}",
        f"-Dsessionlake.log.numbered={numbered}",
    ]


@cache
def _require_java_version(java_home: str | None, path: str) -> Path:
    java = _find_java(java_home, path)
    major = _read_major_version(java)
    if major < MINIMUM:
        raise MachineSetupError(f"{java} is Java {major}, but Java {MINIMUM} or later is needed", fix=_REMEDY)
    return java


def _find_java(java_home: str | None, path: str) -> Path:
    if java_home is not None:
        java = Path(java_home) / "bin" / "java"
        if not os.access(java, os.X_OK):
            raise MachineSetupError(
                f"JAVA_HOME is {java_home}, but {java} is not an executable file",
                fix=f"Correct or unset JAVA_HOME. {_REMEDY}",
            )
        return java
    found = shutil.which("java", path=path)
    if found is None:
        raise MachineSetupError("no Java found: JAVA_HOME is not set and PATH has no java", fix=_REMEDY)
    return Path(found)


def _read_major_version(java: Path) -> int:
    # Reading the `release` file avoids starting a JVM, but not every vendor ships one.
    release = java.resolve().parent.parent / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    match = _VERSION.search(text) or _VERSION.search(_run_java_version(java))
    if match is None:
        raise MachineSetupError(f"{java} does not print a Java version, so it is not a working Java", fix=_REMEDY)
    return int(match["major"])


def _run_java_version(java: Path) -> str:
    try:
        answer = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stderr + answer.stdout
