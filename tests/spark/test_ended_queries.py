"""What a query that has ended leaves: nothing in memory, as soon as nobody asks for it any more, and no thread."""

from __future__ import annotations

import gc
import random
import threading
import time
from typing import Any

from pyspark.sql.utils import ForeachBatchFunction

from sessionlake.config import CaptureSettings, OnViolation, Settings
from sessionlake.lake.ledger import LedgerEntry
from sessionlake.lake.tables import Lake
from sessionlake.silver import job
from sessionlake.streaming.query import LayerQuery
from support.lakes import write_bronze
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker

SECONDS = 30
LASTING = 2
"""So many threads Java has here for all time: it tells one what it has let go of."""


class Runner:
    """Knows its query, and is told by it of batches, as who runs the layers is."""

    def __init__(self, spark: Any, settings: Settings) -> None:
        self.batches = 0
        self.query: LayerQuery = job.start(spark, settings, once=True, on_batch=self._tell)

    def _tell(self, _entry: LedgerEntry, _rows: object) -> None:
        self.batches += 1


def kept(spark: Any) -> int:
    """How many functions of queries Java keeps in Python."""
    gc.collect()
    spark._jvm.java.lang.System.gc()
    pool = spark.sparkContext._gateway.gateway_property.pool
    return sum(isinstance(one, ForeachBatchFunction) for one in [*pool.dict.values()])


def threads() -> set[threading.Thread]:
    """Those that Java calls."""
    return {one for one in threading.enumerate() if one.name.endswith("(run)")}


def test_queries_that_have_ended_are_kept_by_nobody(spark: Any, settings: Settings) -> None:
    capture = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES, on_violation=OnViolation.ISOLATE)
    settings = settings.model_copy(update={"capture": capture})
    Lake(settings).ensure(spark, ["bronze.messages"])
    messages = StreamMaker(random.Random(1), LIGHT).make(20)
    before, others = kept(spark), threads()
    for arrived in (messages[:5], messages[5:10], messages[10:], []):
        if arrived:
            write_bronze(spark, Lake(settings), arrived)
        runner = Runner(spark, settings)
        assert runner.query.wait()
        assert runner.batches == bool(arrived)
        del runner
    end = time.monotonic() + SECONDS
    while (now := kept(spark)) > before:
        assert time.monotonic() < end, (before, now)
        time.sleep(0.1)
    while len(new := threads() - others) > LASTING:
        assert time.monotonic() < end, new
        time.sleep(0.1)
