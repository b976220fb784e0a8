"""Creates the class archive that makes the JVMs of the tests start faster.

Usage: python -m support.class_archive, once per Java and set of jars. `make test` runs it while it checks style and
types. Tests work without it but are slower.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from sessionlake.local import class_archive
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake.settings.section import OnViolation

JAVA_OPTIONS = "JDK_JAVA_OPTIONS"
BRIEF = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -Dderby.stream.error.file=/dev/null"
"""Tests are short, so a fast compiler is better than an optimising one. This halves the cost of a JVM."""


def make(home: Path) -> None:
    """Runs typical queries in a JVM and writes the classes that it has loaded to the archive."""
    from sessionlake.delta.lake import Lake
    from sessionlake.gold import job as gold
    from sessionlake.silver import job as silver
    from sessionlake.silver.merge.merger import TableMerger
    from sessionlake.spark.session import stop_spark
    from support.lakes import write_bronze
    from support.sessions import without_generated_code
    from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker

    capture = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES, on_violation=OnViolation.ISOLATE)
    settings = Settings(home=home, capture=capture)
    spark = without_generated_code(settings, "sessionlake", recording=True)
    Lake(settings).create_or_update_tables(spark, ["bronze.messages"])
    write_bronze(spark, Lake(settings), StreamMaker(random.Random(1), LIGHT).make(60))
    silver.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()
    gold.start(spark, settings, once=True).wait()
    class_archive.write_class_archive(spark)
    stop_spark()


if __name__ == "__main__" and class_archive.find_class_archive() is None:
    sys.stderr.write("Storing the classes that Spark loads, for the tests (once) ...\n")
    with tempfile.TemporaryDirectory() as place:
        make(Path(place))
