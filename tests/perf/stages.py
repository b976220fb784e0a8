"""One process that takes what Kafka holds through bronze, silver and gold each time it is told to go.

    echo go | python tests/perf/stages.py HOME BOOTSTRAP_SERVERS [verify] [catalog | coinbase | debezium]

Prints a JSON line a stage and `done`; CPU seconds are this process's and its children's. The stage `fsync` is
the part of all others in which a thread waits for the disk. With `catalog`, the tables are in a catalog, Hive's, of a
session that has only what a platform gives and what sessionlake sets there. With the name of a form, its feed reads the
messages: see `forms.py`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

START = time.perf_counter()

import psutil

from sessionlake.bronze.job import start_kafka_job as start_bronze
from sessionlake.gold.job import start as start_gold
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings
from sessionlake.settings.section import OnViolation
from sessionlake.silver.job import start as start_silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark import session
from sessionlake.spark.session import get_or_start_spark_session

sys.path.insert(0, str(Path(__file__).parents[1]))
from perf.forms import TRANSLATE, find_feed_of_topic
from support.sessions import hive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a session's settings on a laptop, those that a platform's has, too, or that the machine needs.
GIVEN = {
    *("spark.sql.extensions", "spark.sql.catalog.spark_catalog", "spark.python.daemon.module"),
    *("spark.driver.host", "spark.driver.bindAddress", "spark.ui.enabled", "spark.ui.showConsoleProgress"),
}


def main(home: Path, servers: str, *more: str) -> None:
    feeds = tuple(find_feed_of_topic(form) for form in TRANSLATE if form in more)
    capture = CaptureSettings(on_violation=OnViolation.ISOLATE, feeds=feeds)
    kafka = KafkaSettings(bootstrap_servers=servers)
    settings = Settings(home=home, kafka=kafka, capture=capture)
    sys.stdin.readline()
    begun, disk = Spent(0.0, START, 0), Disk()
    if "catalog" in more:
        spark, settings = in_a_catalog(settings)
    else:
        spark = get_or_start_spark_session(settings, long_running=True)
    report("start", begun, spark)
    merger = TableMerger(spark, settings)
    while True:
        for name, work in {
            "bronze": lambda: start_bronze(spark, settings, once=True).wait(),
            "silver": lambda: start_silver(spark, settings, once=True, on_batch=merger.add_pending_batch).wait(),
            "tables": merger.merge_all_pending_batches,
            "gold": lambda: start_gold(spark, settings, once=True).wait(),
        }.items():
            stage(name, work, spark)
        report("all", begun, spark)
        disk.report()
        if "verify" in more:
            stage("verify", lambda: require_exact(spark, settings), spark)
        sys.stdout.write("done\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return
        begun = Spent.now(spark)


def in_a_catalog(settings: Settings) -> tuple[SparkSession, Settings]:
    """A session and settings as on a platform, but for the machine."""
    given = {name: value for name, value in session._LAPTOP.items() if name in GIVEN}
    with patch.dict(session._LAPTOP, given | hive(str(settings.home / "metastore")), clear=True):
        spark = get_or_start_spark_session(settings, long_running=True)
    os.environ[session.DATABRICKS_VARIABLE] = "17.3"
    schemas = {name: f"bench_{name}" for name in type(settings.schemas).model_fields}
    for name in schemas.values():
        spark.sql(f"CREATE SCHEMA spark_catalog.{name}")
    return get_or_start_spark_session(settings), Settings(
        home=settings.home, kafka=settings.kafka, capture=settings.capture, catalog="spark_catalog", schemas=schemas
    )


class Disk:
    """Measures every `os.fsync` of this process."""

    def __init__(self) -> None:
        self._fsync = os.fsync
        self.cpu = self.wall = 0.0
        os.fsync = self._measured

    def _measured(self, descriptor: int) -> None:
        cpu, wall = time.thread_time(), time.perf_counter()
        self._fsync(descriptor)
        self.cpu += time.thread_time() - cpu
        self.wall += time.perf_counter() - wall

    def report(self) -> None:
        """Prints what was measured since the last report."""
        show("fsync", self.cpu, self.wall)
        self.cpu = self.wall = 0.0


def require_exact(spark: Any, settings: Settings) -> None:
    found = verify_silver_tables(spark, settings)
    if not found.is_exact:
        sys.exit(str(found.first_difference))


class Spent(NamedTuple):
    """What the process had spent at a moment: CPU seconds, wall-clock seconds, Spark jobs."""

    cpu: float
    wall: float
    jobs: int

    @classmethod
    def now(cls, spark: SparkSession) -> Spent:
        return cls(cpu_seconds(), time.perf_counter(), spark.sparkContext._jsc.sc().dagScheduler().nextJobId())


def stage(name: str, work: Callable[[], object], spark: SparkSession) -> None:
    begun = Spent.now(spark)
    work()
    report(name, begun, spark)


def report(name: str, begun: Spent, spark: SparkSession) -> None:
    now = Spent.now(spark)
    show(name, now.cpu - begun.cpu, now.wall - begun.wall, now.jobs - begun.jobs)


def show(name: str, cpu: float, wall: float, jobs: int = 0) -> None:
    figures = {"stage": name, "cpu": cpu, "wall": wall, "jobs": jobs}
    sys.stdout.write(json.dumps(figures) + "\n")
    sys.stdout.flush()


def cpu_seconds() -> float:
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
