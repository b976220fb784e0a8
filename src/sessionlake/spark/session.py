"""Builds and stops the SparkSession: a local one on a laptop, the platform's own on Databricks."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from sessionlake.local import class_archive
from sessionlake.local.allocator import limit_malloc_arenas
from sessionlake.local.gateway import JvmOptions, describe_jvm_failure, prepare_jvm_start, stop_jvm
from sessionlake.local.home import create_home_folder
from sessionlake.local.jars import fetch_spark_jars, find_pyspark_jars_folder
from sessionlake.local.java import build_logging_flags, require_java
from sessionlake.local.paths import get_temporary_folder_of_process
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABRICKS_VARIABLE = "DATABRICKS_RUNTIME_VERSION"
_CORES = os.cpu_count() or 2
_STREAMING = "org.apache.spark.sql.execution.streaming"
_ROCKSDB = f"{_STREAMING}.state.RocksDBStateStoreProvider"


def is_on_databricks() -> bool:
    """Returns True if this process runs on Databricks, which provides Java, Spark and their jars."""
    return DATABRICKS_VARIABLE in os.environ


def get_or_start_spark_session(
    settings: Settings, *, app: str = "sessionlake", long_running: bool = False, records_classes: bool = False
) -> SparkSession:
    """Returns the Spark session of this process, and creates it on the first call.

    Args:
        settings: The pipeline's settings.
        app: The name of the log files in the home, without suffix.
        long_running: True if the process will run for many minutes, so that the JVM's optimising compiler is
            worthwhile.
        records_classes: True if the JVM is to record its classes, so that `class_archive.write_class_archive` can store
            them.

    Raises:
        MachineSetupError: Java is missing or too old, the jars cannot be downloaded, or the home cannot be written.
    """
    if is_on_databricks():
        return _get_databricks_session(settings)
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    return (
        active
        if active is not None
        else _start_local_session(settings, app, long_running=long_running, records_classes=records_classes)
    )


def create_separate_session(spark: SparkSession) -> SparkSession:
    """Returns a new session in the same JVM, with its own settings and temporary views.

    Spark starts it with the cluster's settings only. So the settings that results depend on, such as the time zone, are
    set again.
    """
    session = spark.newSession()
    for key, value in _ALWAYS.items():
        session.conf.set(key, value)
    return session


def stop_spark() -> None:
    """Stops the local session and waits until its JVM has ended. Does nothing on Databricks or without a session."""
    if is_on_databricks() or "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context  # noqa: SLF001 - getOrCreate would start one
    if context is not None and context._jvm is not None:  # noqa: SLF001 - pyspark has no public way to ask
        try:
            # A thread that did not create the session has no active one.
            (SparkSession.getActiveSession() or context).stop()
        except Exception:
            if describe_jvm_failure() is None:  # if the JVM has ended, there is nothing to stop
                raise
    # Without this, the next session would look for the JVM that has ended. pyspark has no public way to reset it.
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001 - no public way, as said
    if gateway is not None:
        with suppress(ConnectionError, EOFError):  # the JVM may have ended
            gateway.shutdown()
    stop_jvm(gateway and gateway.proc)
    _restore_interrupt_handler()


def _restore_interrupt_handler() -> None:
    """Restores Python's handler of Ctrl-C. pyspark leaves its own handler, which fails without a JVM."""
    is_pyspark = getattr(signal.getsignal(signal.SIGINT), "__module__", "") == "pyspark.core.context"
    if is_pyspark and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def build_databricks_conf(settings: Settings) -> dict[str, str]:
    """Returns, by key, the Spark settings that a session on Databricks must have before any query starts."""
    # Each shuffle partition has a state store, and a query's first checkpoint fixes their number for good. With Spark's
    # default of 200, most would stay empty and each would still cost a commit in every batch.
    shards = max(settings.silver.shards, settings.gold.shards)
    return _ALWAYS | {"spark.sql.shuffle.partitions": str(shards)}


def _get_databricks_session(settings: Settings) -> SparkSession:
    """Returns the platform's session with the few settings that it needs. The cluster sets resources and logging."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    for key, value in build_databricks_conf(settings).items():
        spark.conf.set(key, value)
    for key, value in _CHEAPER.items():
        with suppress(PySparkException):  # serverless compute accepts only a few settings
            spark.conf.set(key, value)
    return spark


def _start_local_session(settings: Settings, app: str, *, long_running: bool, records_classes: bool) -> SparkSession:
    """Starts a Spark session on this machine, with a new JVM unless this process still has one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # Spark starts its workers with this interpreter. Otherwise it takes the first python3 on PATH, which may lack our
    # packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _silence_python_logging()
    if long_running:
        limit_malloc_arenas(_CORES)
    builder = SparkSession.builder.master(f"local[{2 * _CORES}]").appName(app)
    conf = _ALWAYS | _LAPTOP | {"spark.sql.warehouse.dir": str(settings.warehouse)}
    jvm: AbstractContextManager[None] = nullcontext()
    conf["spark.local.dir"] = str(get_temporary_folder_of_process())
    # If a session was stopped earlier in this process, its JVM still runs and serves the next one too.
    if SparkContext._gateway is None:  # noqa: SLF001 (pyspark has no public way to ask)
        compiler = _LASTING if long_running else _BRIEF
        jvm_conf, jvm = _prepare_jvm_of_session(
            settings, app, [*compiler, *class_archive.build_class_archive_flags(recording=records_classes)]
        )
        conf |= jvm_conf
    for key, value in conf.items():
        builder = builder.config(key, value)
    with jvm:
        session = builder.getOrCreate()
    _cache_class_lookups(session)
    return session


def _cache_class_lookups(spark: SparkSession) -> None:
    """Caches the JVM classes that pyspark looks up for every column. Each look-up would search all jars."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 (pyspark has no public way to its JVM)
    for name in _WITH_EVERY_COLUMN:
        setattr(jvm, name, getattr(jvm, name))


def _prepare_jvm_of_session(
    settings: Settings, app: str, extra_flags: Sequence[str]
) -> tuple[Mapping[str, str], AbstractContextManager[None]]:
    """Prepares the start of Spark's JVM.

    Returns:
        Spark settings for the session, and the context in which the session must be created.
    """
    java, jars = require_java(), fetch_spark_jars()
    logs = create_home_folder(settings, "warehouse", "logs") / "logs"
    flags = [
        *_JVM,
        f"-Djava.io.tmpdir={get_temporary_folder_of_process()}",
        *extra_flags,
        *build_logging_flags(logs / f"{app}.log"),
    ]
    return prepare_jvm_start(
        JvmOptions(java, settings.driver_memory, flags, find_pyspark_jars_folder(), jars[0].parent, logs / f"{app}.out")
    )


def _silence_python_logging() -> None:
    """Stops pyspark and py4j from logging failures and interrupts, because the exceptions have the same text."""
    from pyspark.logger import PySparkLogger

    logging.getLogger().addFilter(_is_needed_log_record)
    logging.getLogger("py4j").propagate = False

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _is_needed_log_record(record: logging.LogRecord) -> bool:
    """Returns False for py4j's log records about a lost JVM or Ctrl-C, because py4j raises the same as an exception."""
    return record.msg not in {"Exception while sending command.", "KeyboardInterrupt while sending command."}


# Names that pyspark uses for classes. It searches short names in each imported package.
_WITH_EVERY_COLUMN = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
_JVM = (
    "-XX:+UseParallelGC",
    "-XX:+ExitOnOutOfMemoryError",  # otherwise the failure shows up as another error, or the JVM hangs
    "-XX:ReservedCodeCacheSize=512m",
    "-Duser.timezone=UTC",
    "-Djava.awt.headless=true",
)

# Spark spends its first minutes on compilation. In a process that ends sooner, the optimising compiler never pays off.
# In a lasting one it waits four times longer than by default, except for loops over data, which it counts separately.
_BRIEF = ("-XX:TieredStopAtLevel=1",)
_LASTING = (
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=4000",
    "-XX:Tier4CompileThreshold=60000",
)

# Settings of every session, local or on Databricks: those that results depend on, and how many checkpoints are kept.
_ALWAYS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # A batch writes every shard's state. With a million sessions, Spark's default of 100 versions would be gigabytes.
    "spark.sql.streaming.minBatchesToRetain": "10",
}

# Settings that make Delta's small jobs cheaper on Databricks, where a session may set them. No result depends on them.
_CHEAPER = {
    "spark.databricks.delta.snapshotPartitions": "2",  # by default 50 tasks read the log of each table and version
    "spark.databricks.delta.allFilesInCrc.enabled": "false",  # costs a job in most commits; nothing reads the result
    "spark.sql.maxPlanStringLength": "4096",  # the text of a MERGE's plan takes seconds to write
}

# Settings for one process on one machine. The defaults of Spark and Delta suit clusters: many small tasks.
_LAPTOP = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    # A few rows can have millions of bytes, so memory must be limited by bytes and not by rows. By default Parquet
    # checks its buffers after a hundred rows, and Arrow batches have ten thousand. A row group's size counts compressed
    # bytes, and snappy compresses 21 times at most. A reader puts up to 4,096 rows of a group into an array that grows
    # by doubling. With this block size that is a quarter of a gigabyte at most.
    "spark.hadoop.parquet.block.size": str(4 * 1024 * 1024),
    "spark.hadoop.parquet.block.size.row.check.min": "1",
    "spark.hadoop.parquet.page.size.row.check.min": "1",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
    # Each topic-partition keeps decompressed messages that were not requested in memory. These limits free them soon.
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "2s",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no statistics
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(min(_CORES, 8)),
    "spark.python.daemon.module": "sessionlake.local.daemon",
    # Stateful streams cannot have shortened tracebacks, and workers with and without them are not shared.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.default.parallelism": str(_CORES),
    # Twice as many tasks as cores run at once, since many wait for Kafka, a disk or a Python worker. Fair scheduling
    # keeps the layers' small jobs from queueing behind each other.
    "spark.scheduler.mode": "FAIR",
    # Maintenance itself keeps the files that a paused reader still needs, even beyond the retention of other files.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",  # costs a job in most commits; nothing reads the result
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(_CORES),  # the tasks in which VACUUM lists folders
    # Re-planning after each stage costs more than it saves on batches of seconds.
    "spark.sql.adaptive.enabled": "false",
    # Nothing shows the texts of plans, and those of a MERGE take seconds to write.
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.ui.explainMode": "simple",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The three layers together have more generated classes than the default of 100, and an evicted one is compiled
    # again. A larger limit wastes memory: each batch adds classes of 50 kB, with offsets or a table's version in them,
    # that no other batch uses.
    "spark.sql.codegen.cache.maxEntries": "400",
    # The default manager starts a process (readlink) for each access to a file. This one does not overwrite an existing
    # file, which is why `streaming.query.discard_abandoned_states` deletes leftover state files.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.numRecentProgressUpdates": "1",  # 25 kB each, and only the last one is used
    # Spark's UI is off. With its default limits, the data for its pages grows to a hundred megabytes.
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
}
