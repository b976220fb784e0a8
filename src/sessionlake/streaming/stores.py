"""Closes the state stores of ended queries, and archives checkpoints so that these stores cannot write into new ones.

The process that runs a query's tasks keeps its state stores open after the query has ended. They are closed when a
store of another query is opened there. Spark's store maintenance, which runs once a minute, also closes unused stores.
Before it closes a store, it writes a snapshot that is due. If a new checkpoint had taken over the folder by then, it
would get a snapshot of another query's state. So stores are closed with their query where this process can do that.
Elsewhere, a checkpoint is archived only after one run of the maintenance.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sessionlake.spark.session import is_on_databricks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from sessionlake.delta.lake import Lake

_UPKEEP = "spark.sql.streaming.stateStore.maintenanceInterval"
_ONE_PROCESS = "local["
_WAITED_INTERVALS = 1.25
"""After this many intervals, one maintenance run has started and ended."""
_STORE = "default"
"""Spark's name for the only store of an operator and partition."""


def close_state_stores(spark: SparkSession, query: StreamingQuery, checkpoint: Path) -> None:
    """Closes the state stores of an ended query. Does nothing if they are not in this process's JVM.

    Args:
        spark: The session that ran the query.
        query: The ended query.
        checkpoint: The folder of the query's checkpoint.
    """
    from py4j.protocol import Py4JError

    if not _is_spark_in_one_process(spark):
        return
    jvm: Any = spark._jvm  # noqa: SLF001 (the way to the JVM that Spark and Delta take themselves)
    state = jvm.org.apache.spark.sql.execution.streaming.state
    with suppress(Py4JError, OSError):  # the JVM has ended too, or its platform lacks these classes
        place = query._jsq.streamingQuery().resolvedCheckpointRoot()  # noqa: SLF001 (as Spark names its stores)
        run = jvm.java.util.UUID.fromString(query.runId)
        for operator, partition in _list_state_store_numbers(checkpoint / "state"):
            store = state.StateStoreId(f"{place}/state", operator, partition, _STORE)
            state.StateStore.unload(state.StateStoreProviderId(store, run))


def archive_checkpoint_folders(spark: SparkSession, lake: Lake, folders: Iterable[Path], operation: str) -> None:
    """Renames those folders of a checkpoint that exist, so that another checkpoint can take their place.

    The query must have ended. If its state stores may still be open, this waits for one run of Spark's store
    maintenance, which closes them.

    Args:
        spark: The session that ran the query.
        lake: The lake.
        folders: The checkpoint and the folders that belong to it.
        operation: The name of the operation, which becomes a part of the new folder names.

    Raises:
        ClaimedByOtherProcessError: Another process has taken over a claim of this process.
    """
    existing = [folder for folder in folders if folder.exists()]
    if existing and (is_on_databricks() or not _is_spark_in_one_process(spark)):
        jvm: Any = spark._jvm  # noqa: SLF001 (the way to the JVM that Spark and Delta take themselves)
        upkeep = jvm.org.apache.spark.network.util.JavaUtils.timeStringAsMs(spark.conf.get(_UPKEEP))
        time.sleep(_WAITED_INTERVALS * upkeep / 1000)
    lake.storage.require_claims_still_held()
    for folder in existing:
        folder.rename(build_archived_path(folder, operation))


def build_archived_path(folder: Path, operation: str) -> Path:
    """Returns the new path of a folder that an operation archives: `<folder>.before-<operation>`."""
    return folder.with_name(f"{folder.name}.before-{operation}")


def _is_spark_in_one_process(spark: SparkSession) -> bool:
    return spark.sparkContext.master.startswith(_ONE_PROCESS)


def _list_state_store_numbers(stores: Path) -> list[tuple[int, int]]:
    """Returns a pair of operator number and partition number for every state store that has a folder."""
    found = (folder.relative_to(stores).parts for folder in stores.glob("*/*"))
    return [(int(one), int(other)) for one, other in found if one.isdecimal() and other.isdecimal()]
