"""A process for long tests: runs all layers and maintenance like `sessionlake run all`, controlled by commands.

    python -m support.year_worker CONFIG

It prints the number of messages of each batch of bronze as a JSON line, and an answer after each command:

- `drain` processes all input.
- `measure` does the same and prints the memory in use.
- `night MOMENT` stops the layers, advances the clock so that rows from before the moment and unused files can be
  removed, runs maintenance, and starts the layers again.
- `end` ends the process.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
import time
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from queue import Empty, Queue
from typing import Any

from sessionlake.delta.schemas.names import BRONZE
from sessionlake.delta.storage.upkeep import HistoryToKeep
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.operations import maintenance
from sessionlake.operations.pipeline import Layer, Pipeline, claim_layers
from sessionlake.settings.model import Settings, load_settings
from sessionlake.spark.session import get_or_start_spark_session, stop_spark

LOOK_SECONDS = 0.1
CLEANED_SECONDS = 2


class _Later(datetime):
    """The clock that maintenance reads."""

    present: datetime

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return cls.present.astimezone(tz)


def main(file: Path) -> None:
    """Runs until the command `end`, or until it is killed."""
    settings = load_settings(file)
    spark = get_or_start_spark_session(settings, app="year", long_running=True)
    commands: Queue[str] = Queue()
    threading.Thread(target=lambda: [commands.put(line) for line in sys.stdin], daemon=True).start()
    word = ""
    while word != "end":
        with claim_layers(spark, settings, Layer.ALL), Pipeline(spark, settings, on_commit=_say_messages) as pipeline:
            word = _watched(spark, pipeline, commands)
        if word.startswith("night"):
            _pass_time(spark, settings, datetime.fromisoformat(word.split()[1]))
        _say({"heap": 0})
    stop_spark()


def _watched(spark: Any, pipeline: Pipeline, commands: Queue[str]) -> str:
    """Runs the layers until a command stops them, drains all input, and returns the command."""
    while True:
        pipeline.raise_error_of_failed_layer()
        assert not pipeline.failed, pipeline.failed
        try:
            word = commands.get(timeout=LOOK_SECONDS).strip()
        except Empty:
            continue
        pipeline.wait_until_all_available_processed()
        if word not in {"drain", "measure"}:
            return word
        _say(_memory(spark) if word == "measure" else {"heap": 0})


def _pass_time(spark: Any, settings: Settings, moment: datetime) -> None:
    """Runs maintenance as if `maintain.retention` had passed since the moment, and `maintain.keep` since now."""
    span = settings.maintain.retention.ledger
    assert span is not None
    _Later.present = moment + span
    module: Any = maintenance
    module.datetime, module.HistoryToKeep = _Later, lambda _, since, __: HistoryToKeep(timedelta(0), since)
    try:
        for done in maintenance.TableMaintainer(spark, settings).maintain_tables_once():
            sys.stderr.write(f"{done}\n")
    finally:
        module.datetime, module.HistoryToKeep = datetime, HistoryToKeep


def _memory(spark: Any) -> dict[str, int]:
    """Returns the bytes of Java's heap after a garbage collection, and of its classes and compiled code."""
    gc.collect()  # objects that Python refers to stay in Java
    java = spark._jvm.java.lang
    for _ in range(3):  # Spark's cleaner releases unused objects after a while
        time.sleep(CLEANED_SECONDS)
        java.System.gc()  # last, since idle streams allocate tens of megabytes per second
    beans = java.management.ManagementFactory.getMemoryMXBean()
    return {
        "heap": int(beans.getHeapMemoryUsage().getUsed()),
        "non-heap": int(beans.getNonHeapMemoryUsage().getUsed()),
    }


def _say_messages(entry: LedgerEntry) -> None:
    if entry.layer == BRONZE:
        _say({"messages": entry.messages})


def _say(what: dict[str, int]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
