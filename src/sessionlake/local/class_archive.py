"""A class archive for Spark's JVM: Java's class data sharing (JEP 350), which saves a third of a short command's CPU.

The archive holds the classes that Spark loads, and the next JVM maps it into memory. It is stored next to the cached
jars. Its file name has the archive's size, and a fingerprint of the Java and the jars that it was made with. An archive
with another size than in its name is not used.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.local.jars import fetch_spark_jars, find_pyspark_jars_folder, get_cache_folder
from sessionlake.local.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MAX_ARCHIVES = 3
"""How many archives are kept, newest first. Each takes 100 to 200 MB, and each virtual environment has its own."""
_NO_CDS_LOG = "-Xlog:cds*=off"  # Java logs thousands of lines about classes that it leaves out


def build_class_archive_flags(*, recording: bool = False) -> Sequence[str]:
    """Returns the JVM options that make Java use the class archive; empty if there is none.

    Args:
        recording: True to return, if there is no archive, the options that let `write_class_archive` create one later.
            Recording doubles the CPU time of the JVM's start.
    """
    file = find_class_archive()
    if file is not None:
        return f"-XX:SharedArchiveFile={file}", _NO_CDS_LOG
    return ("-XX:+RecordDynamicDumpInfo", _NO_CDS_LOG) if recording else ()


def find_class_archive() -> Path | None:
    """Returns the file of the class archive for the current Java and jars; None if there is no complete one."""
    with suppress(OSError):  # another process may be removing it
        files = _get_class_archive_folder().glob(
            f"classes-{hash_paths_sizes_and_times(_list_jars_on_class_path())}-*.jsa"
        )
        # A truncated archive crashes Java, so its size must match the one in its name.
        return next((file for file in files if file.stem.endswith(f"-{file.stat().st_size}")), None)
    return None


def write_class_archive(spark: SparkSession) -> None:
    """Writes the classes that the session's JVM has loaded into a class archive, unless one exists.

    The JVM must have been started with `build_class_archive_flags(recording=True)`. If it cannot write the archive,
    nothing changes.
    """
    if find_class_archive() is not None:
        return
    from py4j.protocol import Py4JError

    partial = _get_class_archive_folder() / f"classes.{os.getpid()}"
    try:
        with suppress(Py4JError, OSError):
            _write_class_archive_file(spark, partial)
            name = f"classes-{hash_paths_sizes_and_times(_list_jars_on_class_path())}-{partial.stat().st_size}.jsa"
            partial.replace(_get_class_archive_folder() / name)
            for old in sorted(
                _get_class_archive_folder().glob("classes-*.jsa"), key=lambda file: -file.stat().st_mtime
            )[_MAX_ARCHIVES:]:
                old.unlink(missing_ok=True)
    finally:
        partial.unlink(missing_ok=True)


def hash_paths_sizes_and_times(files: Iterable[Path]) -> str:
    """Returns a hash of the files' paths, sizes and modification times, in the order of the files."""
    described = "\n".join(f"{file} {(stat := file.stat()).st_size} {stat.st_mtime_ns}" for file in files)
    return hashlib.sha256(described.encode()).hexdigest()[:12]


def _get_class_archive_folder() -> Path:
    return get_cache_folder() / "jars"


def _list_jars_on_class_path() -> list[Path]:
    return [require_java().resolve(), *sorted(find_pyspark_jars_folder().glob("*.jar")), *fetch_spark_jars()]


def _write_class_archive_file(spark: SparkSession, file: Path) -> None:
    """Makes the JVM write its class archive to a file, as `jcmd <pid> VM.cds dynamic_dump <file>` would.

    The JVM's own diagnostic commands are called, so that no JDK with `jcmd` is needed.
    """
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - pyspark has no public way to its JVM
    jvm, java = gateway.jvm, gateway.jvm.java.lang

    def create_java_array(kind: object, *items: object) -> object:
        items_array = gateway.new_array(kind, len(items))
        for index, item in enumerate(items):
            items_array[index] = item
        return items_array

    # By reflection, because py4j looks up methods in the object's own class, which is in a package it cannot access.
    names = ("javax.management.ObjectName", "java.lang.String", "[Ljava.lang.Object;", "[Ljava.lang.String;")
    parameters = create_java_array(java.Class, *map(java.Class.forName, names))
    invoke = java.Class.forName("javax.management.MBeanServer").getMethod("invoke", parameters)
    server = java.management.ManagementFactory.getPlatformMBeanServer()
    diagnostics = jvm.javax.management.ObjectName("com.sun.management:type=DiagnosticCommand")
    words = create_java_array(java.Object, create_java_array(java.String, "dynamic_dump", str(file)))
    invoke.invoke(
        server,
        create_java_array(
            java.Object, diagnostics, "vmCds", words, create_java_array(java.String, "[Ljava.lang.String;")
        ),
    )
