"""One process that takes what Kafka holds through bronze, silver and gold each time it is told to go.

    echo go | python tests/perf/stages.py HOME BOOTSTRAP_SERVERS [verify]

Prints a JSON line a stage and `done`; CPU seconds are this process's and its children's. The stage `fsync` is
the part of all others in which a thread waits for the disk.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START = time.perf_counter()

import psutil

from sessionlake.bronze.job import start as start_bronze
from sessionlake.gold.job import start as start_gold
from sessionlake.operations.rebuild.verify import verify
from sessionlake.settings.model import CaptureSettings, KafkaSettings, OnViolation, Settings
from sessionlake.silver.job import start as start_silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.session import spark_session


def main(home: Path, servers: str, *more: str) -> None:
    capture = CaptureSettings(on_violation=OnViolation.ISOLATE)
    settings = Settings(home=home, kafka=KafkaSettings(bootstrap_servers=servers), capture=capture)
    sys.stdin.readline()
    begun = 0.0, START
    disk = Disk()
    spark = spark_session(settings, lasting=True)
    report("start", 0.0, START)
    merger = TableMerger(spark, settings)
    while True:
        stage("bronze", lambda: start_bronze(spark, settings, once=True).wait())
        stage("silver", lambda: start_silver(spark, settings, once=True, on_batch=merger.announce).wait())
        stage("tables", merger.catch_up)
        stage("gold", lambda: start_gold(spark, settings, once=True).wait())
        report("all", *begun)
        disk.report()
        if more:
            stage("verify", lambda: require_exact(spark, settings))
        sys.stdout.write("done\n")
        sys.stdout.flush()
        if not sys.stdin.readline():
            return
        begun = cpu_seconds(), time.perf_counter()


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
    found = verify(spark, settings)
    if not found.exact:
        sys.exit(str(found.first))


def stage(name: str, work: Callable[[], object]) -> None:
    cpu, wall = cpu_seconds(), time.perf_counter()
    work()
    report(name, cpu, wall)


def report(name: str, cpu: float, wall: float) -> None:
    show(name, cpu_seconds() - cpu, time.perf_counter() - wall)


def show(name: str, cpu: float, wall: float) -> None:
    figures = {"stage": name, "cpu": cpu, "wall": wall}
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
