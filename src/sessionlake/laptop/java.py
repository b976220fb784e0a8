"""The Java that runs Spark and the embedded broker: found, and recent enough, or one line saying what to install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from sessionlake.errors import MachineError

MINIMUM = 17  # Spark 4 and Kafka 4 brokers are compiled for it
_REMEDY = (
    f"install a JDK or JRE {MINIMUM} or later (Debian and Ubuntu: apt install openjdk-{MINIMUM}-jre-headless; "
    f"macOS: brew install openjdk@{MINIMUM}), or point JAVA_HOME at one"
)
_VERSION = re.compile(r'(?:version |JAVA_VERSION=)"(?:1\.)?(?P<major>\d+)')


def require_java() -> Path:
    """Finds the `java` that Spark's own launcher would use: that of `JAVA_HOME`, else the first on `PATH`.

    Raises:
        MachineError: there is none, it does not start, or it is older than Java 17.
    """
    return _checked(os.environ.get("JAVA_HOME") or None, os.environ.get("PATH", ""))


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
