"""All layers and maintenance in one process, as `sessionlake run all` has them, told what to do: a process to kill.

    python -m support.year_worker CONFIG

It says in a JSON line how many messages each batch of bronze had. `drain` has it take in all that is there;
`measure` says what it holds in memory then; `night MOMENT` stops the layers, has as much time pass as makes rows from
before that moment too old and files that nobody reads removable, and starts the layers again; `end` ends it. Each is
answered when it is done.
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
from sessionlake.operations.pipeline import Layer, Pipeline, claimed
from sessionlake.settings.model import Settings, load_settings
from sessionlake.spark.session import spark_session, stop_spark

LOOK_SECONDS = 0.1
CLEANED_SECONDS = 2


class _Later(datetime):
    """What maintenance takes for the present."""

    present: datetime

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:
        return cls.present.astimezone(tz)


def main(file: Path) -> None:
    """Runs until it is told to end, or killed."""
    settings = load_settings(file)
    spark = spark_session(settings, app="year", lasting=True)
    told: Queue[str] = Queue()
    threading.Thread(target=lambda: [told.put(line) for line in sys.stdin], daemon=True).start()
    word = ""
    while word != "end":
        with claimed(spark, settings, Layer.ALL), Pipeline(spark, settings, on_commit=_say_messages) as pipeline:
            word = _watched(spark, pipeline, told)
        if word.startswith("night"):
            _pass_time(spark, settings, datetime.fromisoformat(word.split()[1]))
        _say({"heap": 0})
    stop_spark()


def _watched(spark: Any, pipeline: Pipeline, told: Queue[str]) -> str:
    """Lets the layers run until they are to be stopped; says why. All that Kafka has is in the tables then."""
    while True:
        pipeline.check()
        assert not pipeline.failed, pipeline.failed
        try:
            word = told.get(timeout=LOOK_SECONDS).strip()
        except Empty:
            continue
        pipeline.drain()
        if word not in {"drain", "measure"}:
            return word
        _say(_memory(spark) if word == "measure" else {"heap": 0})


def _pass_time(spark: Any, settings: Settings, moment: datetime) -> None:
    """Maintains as when `maintain.retention`, one for all, has passed since then, and `maintain.keep` since now."""
    span = settings.maintain.retention.ledger
    assert span is not None
    _Later.present = moment + span
    module: Any = maintenance
    module.datetime, module.Kept = _Later, lambda _, since, __: HistoryToKeep(timedelta(0), since)
    try:
        for done in maintenance.Maintenance(spark, settings).once():
            sys.stderr.write(f"{done}\n")
    finally:
        module.datetime, module.Kept = datetime, HistoryToKeep


def _memory(spark: Any) -> dict[str, int]:
    """Bytes of Java's heap behind a collection, and of what Java has besides: classes, compiled code."""
    gc.collect()  # what Python still names is kept in Java
    java = spark._jvm.java.lang
    for _ in range(3):  # what is found to be unused, Spark's own cleaner lets go of, in a while
        time.sleep(CLEANED_SECONDS)
        java.System.gc()  # last of all, for streams that find nothing leave tens of megabytes a second
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
