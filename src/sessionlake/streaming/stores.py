"""The state stores of queries that have ended, which for a while still write into their checkpoint's folder.

Whoever runs a query's tasks keeps its stores open when it has ended, until a store of another query is opened there, or
Spark's upkeep of stores, once a minute, finds that they are used no more: but first it writes the snapshot that is due.
A checkpoint that has taken the folder's place meanwhile would have one of another's state. So stores are closed with
their query where that can be done; where their processes may be out of reach, a checkpoint is put aside only when an
upkeep has passed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.spark.session import on_databricks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from sessionlake.delta.lake import Lake

_UPKEEP = "spark.sql.streaming.stateStore.maintenanceInterval"
_ONE_PROCESS = "local["
_PASSED = 1.25
"""In so many times its interval one upkeep has begun and ended."""
_STORE = "default"
"""What Spark calls the only store of an operator and partition."""


def close_stores(spark: SparkSession, query: StreamingQuery, checkpoint: Path) -> None:
    """Closes the stores of a query that has ended, if they are in this process's JVM."""
    from py4j.protocol import Py4JError

    if not _in_one_process(spark):
        return
    jvm: Any = spark._jvm  # noqa: SLF001 (the way to the JVM that Spark and Delta take themselves)
    state = jvm.org.apache.spark.sql.execution.streaming.state
    with suppress(Py4JError, OSError):  # it has ended, too, or is a platform's
        place = query._jsq.streamingQuery().resolvedCheckpointRoot()  # noqa: SLF001 (as Spark names its stores)
        run = jvm.java.util.UUID.fromString(query.runId)
        for operator, partition in _numbers(checkpoint / "state"):
            store = state.StateStoreId(f"{place}/state", operator, partition, _STORE)
            state.StateStore.unload(state.StateStoreProviderId(store, run))


def put_aside(spark: SparkSession, lake: Lake, folders: Iterable[Path], rebuild: str) -> None:
    """Gives a checkpoint, and what belongs to it, other names: those that are there. Its query must have ended.

    Args:
        rebuild: names who puts them aside.

    Raises:
        ClaimedError: a claim that this process holds is another's by now.
    """
    there = [folder for folder in folders if folder.exists()]
    if there and (on_databricks() or not _in_one_process(spark)):
        jvm: Any = spark._jvm  # noqa: SLF001 (the way to the JVM that Spark and Delta take themselves)
        upkeep = jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(spark.conf.get(_UPKEEP))
        time.sleep(_PASSED * upkeep / 1000)
    lake.storage.require_claims()
    for folder in there:
        folder.rename(aside_of(folder, rebuild))


def aside_of(folder: Path, rebuild: str) -> Path:
    """Where a folder is once it is put aside."""
    return folder.with_name(f"{folder.name}.before-{rebuild}")


def _in_one_process(spark: SparkSession) -> bool:
    return spark.sparkContext.master.startswith(_ONE_PROCESS)


def _numbers(stores: Path) -> list[tuple[int, int]]:
    """Of all operators and partitions that have a folder."""
    found = (folder.relative_to(stores).parts for folder in stores.glob("*/*"))
    return [(int(one), int(other)) for one, other in found if one.isdecimal() and other.isdecimal()]
