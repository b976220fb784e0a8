"""The one place that builds the SparkSession: a local one on a laptop, the active one on Databricks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import MachineError
from sessionlake.runtime.home import require_home
from sessionlake.runtime.jars import spark_jars
from sessionlake.runtime.java import require_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABRICKS_VARIABLE = "DATABRICKS_RUNTIME_VERSION"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def spark_session(settings: Settings, *, app: str = "sessionlake") -> SparkSession:
    """The session that everything runs in; called again, it returns the same one.

    Raises:
        MachineError: no usable Java, jars not cached and not to be had, or a home that cannot be written.
    """
    if DATABRICKS_VARIABLE in os.environ:
        return _on_databricks()
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    return active if active is not None else _local(settings, app)


def _on_databricks() -> SparkSession:
    """The platform's session: it sizes, secures and logs for itself; only what results depend on is set."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    for key, value in _RESULTS.items():
        spark.conf.set(key, value)
    return spark


def _local(settings: Settings, app: str) -> SparkSession:
    from pyspark.sql import SparkSession

    require_java()
    jars = spark_jars()
    log = require_home(settings, "warehouse", "logs") / "logs" / f"{app}.log"
    # Spark's workers start whatever these name: without them the first python3 on PATH, which lacks our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[*]").appName(app)
    for key, value in (_RESULTS | _LAPTOP | _start(settings, jars, log)).items():
        builder = builder.config(key, value)
    try:
        return builder.getOrCreate()
    except Exception as error:
        raise MachineError(f"Spark did not start ({' '.join(str(error).split())[:300]}): see {log}") from error


def _start(settings: Settings, jars: list[Path], log: Path) -> dict[str, str]:
    java = [f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}", f'"-Dsessionlake.log={log}"', "-Duser.timezone=UTC"]
    return {
        # On the class path rather than as spark.jars, which are copied and served to executors at every start.
        "spark.driver.extraClassPath": os.pathsep.join(str(jar) for jar in jars),
        "spark.driver.extraJavaOptions": " ".join(java),
        "spark.sql.warehouse.dir": settings.warehouse.as_uri(),
    }


# What results depend on, wherever the session comes from.
_RESULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
}

# What suits one process on one machine. Spark's and Delta's defaults are a cluster's: many small tasks.
_LAPTOP = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(min(os.cpu_count() or 2, 8)),
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.numRecentProgressUpdates": "200",
}
