"""What a query that has ended leaves: nothing in memory as soon as nobody asks for it, no thread, no open store."""

from __future__ import annotations

import gc
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.utils import ForeachBatchFunction

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import SILVER
from sessionlake.ledger.entries import LedgerEntry
from sessionlake.settings.model import CaptureSettings, Settings
from sessionlake.settings.section import OnViolation
from sessionlake.silver import job
from sessionlake.streaming import stores
from sessionlake.streaming.query import LayerQuery
from support.lakes import write_bronze
from support.sessions import UPKEEP_SECONDS
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker
from support.waiting import eventually

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


@pytest.fixture
def settings(location: dict[str, Any]) -> Settings:
    capture = CaptureSettings(columns=COLUMNS, max_message_bytes=MAX_BYTES, on_violation=OnViolation.ISOLATE)
    return Settings(**location, capture=capture)


def open_stores(spark: Any, query: Any, checkpoint: Path) -> int:
    """How many stores of a query of Spark's are open in this JVM."""
    state = spark._jvm.org.apache.spark.sql.execution.streaming.state
    run = spark._jvm.java.util.UUID.fromString(query.runId)
    place = query._jsq.streamingQuery().resolvedCheckpointRoot()
    parts = [folder.relative_to(checkpoint).parts for folder in checkpoint.glob("state/*/[0-9]*")]
    stores = [state.StateStoreId(f"{place}/state", int(one), int(other), "default") for _, one, other in parts]
    return sum(state.StateStore.isLoaded(state.StateStoreProviderId(store, run)) for store in stores)


def files_of(folder: Path) -> set[Path]:
    return {file.relative_to(folder) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.soak
def test_a_query_that_has_ended_writes_nothing_into_what_takes_its_checkpoints_place(
    spark: Any, settings: Settings
) -> None:
    """Its stores have a snapshot to write: with each batch there is one, and they are kept up soon."""
    Lake(settings).create_or_update_tables(spark, ["bronze.messages"])
    write_bronze(spark, Lake(settings), StreamMaker(random.Random(1), LIGHT).make(20))
    deltas, before = "spark.sql.streaming.stateStore.minDeltasForSnapshot", Path(settings.checkpoint_path(SILVER))
    running = []

    def tell(*_: object) -> None:
        running.extend(open_stores(spark, query, before) for query in spark.streams.active if query.name == SILVER)

    spark.conf.set(deltas, "1")
    try:
        query = job.start(spark, settings, once=True, on_batch=tell)
        assert query.wait()
    finally:
        spark.conf.unset(deltas)
    assert running[-1] > 0
    assert open_stores(spark, query.query, before) == 0

    time.sleep(UPKEEP_SECONDS)  # an upkeep that was under way has ended
    files, aside = files_of(before), stores.build_archived_path(before, "other")
    stores.archive_checkpoint_folders(spark, Lake(settings), [before], "other")
    time.sleep(2.5 * UPKEEP_SECONDS)
    assert not before.exists()
    assert files_of(aside) == files


@pytest.mark.soak
def test_queries_that_have_ended_are_kept_by_nobody(spark: Any, settings: Settings) -> None:
    Lake(settings).create_or_update_tables(spark, ["bronze.messages"])
    messages = StreamMaker(random.Random(1), LIGHT).make(20)
    before, others = kept(spark), threads()
    for arrived in (messages[:5], messages[5:10], messages[10:], []):
        if arrived:
            write_bronze(spark, Lake(settings), arrived)
        runner = Runner(spark, settings)
        assert runner.query.wait()
        assert runner.batches == bool(arrived)
        del runner
    eventually(lambda: kept(spark) <= before, SECONDS, failure=lambda: (before, kept(spark)))
    eventually(lambda: len(threads() - others) <= LASTING, SECONDS, failure=lambda: threads() - others)
