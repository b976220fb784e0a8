"""A job with silver, its tables and gold on a cluster of three worker processes, which a test can kill.

Usage: python -m support.cluster_worker CONFIG. It prints a line for each committed batch of silver. If the
configuration has another number of shards than the states, it reshards first.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from sessionlake.delta.home import FolderStorage
from sessionlake.gold import job as gold
from sessionlake.local.jars import fetch_spark_jars, find_pyspark_jars_folder
from sessionlake.operations.resharding.reshard import reshard_layers
from sessionlake.settings.model import load_settings
from sessionlake.silver import job as silver
from sessionlake.silver.merge.merger import TableMerger
from sessionlake.spark.session import _LAPTOP, build_databricks_conf, stop_spark
from sessionlake.streaming import handover
from support.lakes import limit
from support.sessions import without_generated_code

_EXECUTOR = "CoarseGrainedExecutorBackend"


def executors(job: int) -> list[psutil.Process]:
    """Returns the worker processes of the job with this process id."""
    try:
        children = psutil.Process(job).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [child for child in children if _is_executor(child)]


def _is_executor(process: psutil.Process) -> bool:
    try:
        return any(_EXECUTOR in word for word in process.cmdline()) and "java" in process.name()
    except psutil.Error:
        return False


def _say(batch: int) -> None:
    sys.stdout.write(f"{batch}\n")
    sys.stdout.flush()


def main(file: Path, home: Path) -> None:
    """Processes all messages that have arrived, with Python work only on the cluster.

    Args:
        file: The configuration file.
        home: Folder for the logs of Spark's workers.
    """
    settings = load_settings(file)
    (home / "jars").symlink_to(find_pyspark_jars_folder())
    os.environ |= {"SPARK_HOME": str(home), "SPARK_SCALA_VERSION": "2.13"}
    _LAPTOP["spark.master"] = "local-cluster[3,1,2048]"
    _LAPTOP["spark.executor.memory"] = "2048m"
    _LAPTOP["spark.executor.extraClassPath"] = f"{fetch_spark_jars()[0].parent}/*"
    spark = without_generated_code(settings, "cluster")
    for key, value in build_databricks_conf(settings).items():
        spark.conf.set(key, value)
    limit(pytest.MonkeyPatch(), **dict.fromkeys(vars(FolderStorage.limits), 0))
    if handover.read_shard_count(settings) not in {None, settings.silver.shards}:
        reshard_layers(spark, settings, settings.silver.shards)
    silver.start(spark, settings, once=True, on_batch=lambda entry, _: _say(entry.txn.version)).wait()
    TableMerger(spark, settings).merge_all_pending_batches()
    gold.start(spark, settings, once=True).wait()
    stop_spark()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        main(Path(sys.argv[1]), Path(folder))
