"""The classes that Spark loads, kept in a file that its next JVM maps into memory: a third of a short command's CPU.

That is Java's class data sharing (JEP 350). The file lies beside the cached jars and is of one Java and of jars at one
place, as its name tells; one that is not there, or of another size than it was made with, is done without.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.local.jars import cache_folder, pyspark_jars, spark_jars
from sessionlake.local.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_KEPT = 3
"""Files that stay, the youngest: each takes 100 to 200 MB, and each virtual environment has one."""
_SILENT = "-Xlog:cds*=off"  # thousands of lines on what is left out


def flags(*, recording: bool = False) -> Sequence[str]:
    """A JVM's options to take the file; where there is none, to record what it takes: twice the CPU of a start."""
    file = kept()
    if file is not None:
        return f"-XX:SharedArchiveFile={file}", _SILENT
    return ("-XX:+RecordDynamicDumpInfo", _SILENT) if recording else ()


def kept() -> Path | None:
    """The file, if there is a whole one."""
    with suppress(OSError):  # another process may be removing it
        files = _folder().glob(f"classes-{fingerprint(_loaded_from())}-*.jsa")
        # Of a file that was cut short, Java dies.
        return next((file for file in files if file.stem.endswith(f"-{file.stat().st_size}")), None)
    return None


def keep(spark: SparkSession) -> None:
    """Has the session's JVM, which was started `recording`, write down what it has loaded, unless there is a file.

    A JVM that cannot, for whatever reason, leaves all as it is.
    """
    if kept() is not None:
        return
    from py4j.protocol import Py4JError

    partial = _folder() / f"classes.{os.getpid()}"
    try:
        with suppress(Py4JError, OSError):
            _dump(spark, partial)
            name = f"classes-{fingerprint(_loaded_from())}-{partial.stat().st_size}.jsa"
            partial.replace(_folder() / name)
            for old in sorted(_folder().glob("classes-*.jsa"), key=lambda file: -file.stat().st_mtime)[_KEPT:]:
                old.unlink(missing_ok=True)
    finally:
        partial.unlink(missing_ok=True)


def fingerprint(files: Iterable[Path]) -> str:
    """Changes with the files, their places and their order."""
    told = "\n".join(f"{file} {(stat := file.stat()).st_size} {stat.st_mtime_ns}" for file in files)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _folder() -> Path:
    return cache_folder() / "jars"


def _loaded_from() -> list[Path]:
    return [require_java().resolve(), *sorted(pyspark_jars().glob("*.jar")), *spark_jars()]


def _dump(spark: SparkSession, file: Path) -> None:
    """As `jcmd <pid> VM.cds dynamic_dump <file>` does, which a Java without its development tools lacks."""
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public way to its JVM
    jvm, java = gateway.jvm, gateway.jvm.java.lang

    def array(kind: object, *items: object) -> object:
        made = gateway.new_array(kind, len(items))
        for place, item in enumerate(items):
            made[place] = item
        return made

    # By reflection: py4j looks for methods in an object's class, which here no one may look into.
    names = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")
    taken = array(java.Class, *map(java.Class.forName, names))
    invoke = java.Class.forName("javax.management.MBeanServer").getMethod("invoke", taken)
    server = java.management.ManagementFactory.getPlatformMBeanServer()
    diagnostics = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    words = array(java.Object, array(java.String, "dynamic_dump", str(file)))
    invoke.invoke(server, array(java.Object, diagnostics, "vmCds", words, array(java.String, "[Ljava.lang.String;")))
