"""The classes that Spark loads, kept ready for the JVMs that tests start: loading them anew is much of a start.

Usage: python -m support.class_archive, once for a Java and its jars; `make test` does it while it checks style and
types. Without it tests are slower, and the same.
"""

from __future__ import annotations

import hashlib
import os
import random
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from sessionlake.config import CaptureSettings, OnViolation, Settings
from sessionlake.laptop import gateway
from sessionlake.laptop.jars import pyspark_jars, spark_jars
from sessionlake.laptop.java import require_java

JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
BRIEF = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -Dderby.stream.error.file=/dev/null"
"""Tests are short: compiling quickly beats compiling well, and halves what a JVM costs them."""
_FOLDER = Path(sys.prefix)  # most of the jars are there, too
_DUMP_SECONDS = 300.0


def java_options() -> str:
    """What the JVMs of tests are given, with the archive if there is one."""
    if any(_FOLDER.glob("classes-*.jsa")) and (file := archive()).exists():
        return f"{BRIEF} -XX:SharedArchiveFile={file}"
    return BRIEF


def archive() -> Path:
    """Where it is kept; a JVM takes it only from the same Java, with the same jars at the same places."""
    files = [require_java().resolve(), *sorted(pyspark_jars().glob("*.jar")), *spark_jars()]
    return _FOLDER / f"classes-{_fingerprint(files)}.jsa"


def make(file: Path) -> None:
    """Has a JVM do what the layers do, and write down what it has loaded."""
    partial = file.with_suffix(f".{os.getpid()}")
    os.environ[JAVA_OPTIONS] = f"{BRIEF} -XX:ArchiveClassesAtExit={partial}"
    gateway.STOP_SECONDS = _DUMP_SECONDS
    with tempfile.TemporaryDirectory() as home:
        _run_layers(Path(home))
    for old in _FOLDER.glob("classes-*.jsa"):
        old.unlink()
    partial.replace(file)


def _fingerprint(files: Iterable[Path]) -> str:
    told = "\n".join(f"{file} {(stat := file.stat()).st_size} {stat.st_mtime_ns}" for file in files)
    return hashlib.sha256(told.encode()).hexdigest()[:12]


def _run_layers(home: Path) -> None:
    from sessionlake.gold import job as gold
    from sessionlake.lake.tables import Lake
    from sessionlake.runtime.spark import spark_session, stop_spark
    from sessionlake.silver import job as silver
    from sessionlake.silver.merge.merger import TableMerger
    from support.lakes import write_bronze
    from support.sessions import without_generated_code
    from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker

    capture = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES, on_violation=OnViolation.ISOLATE)
    settings = Settings(home=home, capture=capture)
    spark = without_generated_code(spark_session(settings))
    Lake(settings).ensure(spark, ["bronze.messages"])
    write_bronze(spark, Lake(settings), StreamMaker(random.Random(1), LIGHT).make(60))
    silver.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).catch_up()
    gold.start(spark, settings, once=True).wait()
    stop_spark()


if __name__ == "__main__" and not archive().exists():
    sys.stderr.write("Keeping the classes that Spark loads ready for the tests (once) ...\n")
    make(archive())
