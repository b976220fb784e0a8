"""The one place that builds the SparkSession: a local one on a laptop, the active one on Databricks."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING

from sessionlake.local import classes
from sessionlake.local.allocator import limit_arenas
from sessionlake.local.gateway import Jvm, death_of_jvm, end_jvm, starting
from sessionlake.local.home import require_home
from sessionlake.local.jars import pyspark_jars, spark_jars
from sessionlake.local.java import logging_flags, require_java
from sessionlake.local.paths import process_folder
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DATABRICKS_VARIABLE = "DATABRICKS_RUNTIME_VERSION"
_CORES = os.cpu_count() or 2
_STREAMING = "org.apache.spark.sql.execution.streaming"
_ROCKSDB = f"{_STREAMING}.state.RocksDBStateStoreProvider"


def on_platform() -> bool:
    """Whether this is Databricks, which brings Java, Spark and their jars."""
    return DATABRICKS_VARIABLE in os.environ


def spark_session(
    settings: Settings, *, app: str = "sessionlake", lasting: bool = False, recording: bool = False
) -> SparkSession:
    """The session that everything runs in; called again, it returns the same one.

    Args:
        app: names the log files in the home.
        lasting: whether it will work for many minutes, so that optimising what it runs pays.
        recording: whether `local.classes.keep` will be asked for what its JVM has loaded.

    Raises:
        MachineError: no usable Java, jars not cached and not to be had, or a home that cannot be written.
    """
    if on_platform():
        return _on_databricks(settings)
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    return active if active is not None else _local(settings, app, lasting=lasting, recording=recording)


def own_session(spark: SparkSession) -> SparkSession:
    """A further session, for what is set in a session or seen by all of it: as `spark_session` gave the first.

    Spark begins one with the cluster's settings, and with none of those that were set since.
    """
    own = spark.newSession()
    for key, value in _ANYWHERE.items():
        own.conf.set(key, value)
    return own


def stop_spark() -> None:
    """Stops the local session and waits until its JVM is gone; without one, or on Databricks, does nothing."""
    if on_platform() or "pyspark" not in sys.modules:
        return
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context  # noqa: SLF001 - getOrCreate would start one
    if context is not None and context._jvm is not None:  # noqa: SLF001 - pyspark has no public way to ask
        try:
            # A thread that has begun no session has none that is active.
            (SparkSession.getActiveSession() or context).stop()
        except Exception:
            if death_of_jvm() is None:  # else there is nothing left to stop
                raise
    # Else the next session would look for the JVM that is gone; pyspark has no public way to say so.
    gateway, SparkContext._gateway, SparkContext._jvm = SparkContext._gateway, None, None  # noqa: SLF001 - no public way, as said
    if gateway is not None:
        with suppress(ConnectionError, EOFError):  # its JVM may be gone
            gateway.shutdown()
    end_jvm(gateway and gateway.proc)
    _take_back_interrupts()


def _take_back_interrupts() -> None:
    """Gives Ctrl-C its own meaning again: pyspark's handler stays behind, and fails without the JVM that it asks."""
    theirs = getattr(signal.getsignal(signal.SIGINT), "__module__", "") == "pyspark.core.context"
    if theirs and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.default_int_handler)


def platform_conf(settings: Settings) -> dict[str, str]:
    """What must be set in the platform's session, before any query starts from it; see `_CHEAPER` for the rest."""
    # A shuffle partition is a state store, and a query's first checkpoint settles for good how many it has: of Spark's
    # 200, most would stay empty, and each would cost a commit in every batch.
    shards = max(settings.silver.shards, settings.gold.shards)
    return _ANYWHERE | {"spark.sql.shuffle.partitions": str(shards)}


def _on_databricks(settings: Settings) -> SparkSession:
    """The platform's session: it sizes, secures and logs for itself; little is set."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    for key, value in platform_conf(settings).items():
        spark.conf.set(key, value)
    for key, value in _CHEAPER.items():
        with suppress(PySparkException):  # serverless compute takes a few settings only
            spark.conf.set(key, value)
    return spark


def _local(settings: Settings, app: str, *, lasting: bool, recording: bool) -> SparkSession:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # Spark's workers start whatever this names: without it the first python3 on PATH, which lacks our packages.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    _silence_python()
    if lasting:
        limit_arenas(_CORES)
    builder = SparkSession.builder.master(f"local[{2 * _CORES}]").appName(app)
    conf = _ANYWHERE | _LAPTOP | {"spark.sql.warehouse.dir": str(settings.warehouse)}
    jvm: AbstractContextManager[None] = nullcontext()
    # A session stopped earlier in this process has left its JVM, which serves the next one too.
    conf["spark.local.dir"] = str(process_folder())
    if SparkContext._gateway is None:  # noqa: SLF001 (pyspark has no public way to ask)
        own, jvm = _jvm(settings, app, [*(_LASTING if lasting else _BRIEF), *classes.flags(recording=recording)])
        conf |= own
    for key, value in conf.items():
        builder = builder.config(key, value)
    with jvm:
        session = builder.getOrCreate()
    _look_up_once(session)
    return session


def _look_up_once(spark: SparkSession) -> None:
    """Has the gateway keep what pyspark asks it for with every column: it looks through all jars each time."""
    jvm = spark.sparkContext._jvm  # noqa: SLF001 (pyspark has no public way to its JVM)
    for name in _WITH_EVERY_COLUMN:
        setattr(jvm, name, getattr(jvm, name))


def _jvm(settings: Settings, app: str, more: Sequence[str]) -> tuple[Mapping[str, str], AbstractContextManager[None]]:
    java, jars = require_java(), spark_jars()
    logs = require_home(settings, "warehouse", "logs") / "logs"
    flags = [*_JVM, f"-Djava.io.tmpdir={process_folder()}", *more, *logging_flags(logs / f"{app}.log")]
    return starting(Jvm(java, settings.driver_memory, flags, pyspark_jars(), jars[0].parent, logs / f"{app}.out"))


def _silence_python() -> None:
    """Stops pyspark and py4j from printing what failed, or was interrupted; the exception they raise says it all."""
    from pyspark.logger import PySparkLogger

    logging.getLogger().addFilter(_is_not_of_py4j)
    logging.getLogger("py4j").propagate = False

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).disabled = True


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    """False for what py4j logs, with a traceback, of a lost JVM or Ctrl-C, before it raises the same."""
    return record.msg not in {"Exception while sending command.", "KeyboardInterrupt while sending command."}


# Classes by the names that pyspark calls them: short ones are looked for in each package that it has imported.
_WITH_EVERY_COLUMN = ("functions", "org.apache.spark.sql.functions", "PythonUtils", "PythonSQLUtils")
_JVM = (
    "-XX:+UseParallelGC",
    "-XX:+ExitOnOutOfMemoryError",  # else what failed for it would be told as something else, or hang
    "-XX:ReservedCodeCacheSize=512m",
    "-Duser.timezone=UTC",
    "-Djava.awt.headless=true",
)

# The first minutes of Spark are compilation. Where there are no more, the optimising compiler never pays; else it waits
# four times longer than by default, but for loops over data, which it counts apart.
_BRIEF = ("-XX:TieredStopAtLevel=1",)
_LASTING = (
    "-XX:Tier4InvocationThreshold=20000",
    "-XX:Tier4MinInvocationThreshold=4000",
    "-XX:Tier4CompileThreshold=60000",
)

# What is set wherever the session comes from: what results depend on, and how much of a checkpoint is kept.
_ANYWHERE = {
    "spark.sql.session.timeZone": "UTC",
    "spark.databricks.delta.schema.autoMerge.enabled": "false",
    # A batch writes every shard's state: of a million sessions, a hundred such versions would be gigabytes.
    "spark.sql.streaming.minBatchesToRetain": "10",
}

# What makes Delta's small jobs cheaper on a platform, where it lets a session set them; nothing depends on them.
_CHEAPER = {
    "spark.databricks.delta.snapshotPartitions": "2",  # else 50 tasks to read a log, for each table and version
    "spark.databricks.delta.allFilesInCrc.enabled": "false",  # a job with most commits, for what nobody reads
    "spark.sql.maxPlanStringLength": "4096",  # a MERGE's plan takes seconds to write out
}

# What suits one process on one machine. Spark's and Delta's defaults are a cluster's: many small tasks.
_LAPTOP = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.catalogImplementation": "in-memory",
    # What has millions of bytes in few rows must not be held in memory by counts of rows: Parquet would look at its
    # buffers after a hundred rows, and Arrow take ten thousand. A row group's size counts compressed bytes, of which
    # snappy makes 21 at most, and a reader takes up to 4,096 rows of a group into an array that grows by doubling:
    # here a quarter of a gigabyte at worst.
    "spark.hadoop.parquet.block.size": str(4 * 1024 * 1024),
    "spark.hadoop.parquet.block.size.row.check.min": "1",
    "spark.hadoop.parquet.page.size.row.check.min": "1",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 * 1024 * 1024),
    # Kafka's messages that were decompressed and not asked for stay in memory, of each topic-partition: not for long.
    "spark.kafka.consumer.fetchedData.cache.timeout": "5s",
    "spark.kafka.consumer.fetchedData.cache.evictorThreadRunInterval": "2s",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # the default has no statistics
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(min(_CORES, 8)),
    "spark.python.daemon.module": "sessionlake.local.daemon",
    # Shortened tracebacks are not to be had of a stateful stream, and workers with and without them are not shared.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.default.parallelism": str(_CORES),
    # Twice as many tasks at once as there are cores, fairly shared: many wait for Kafka, a disk or a Python worker, and
    # the layers' small jobs must not queue behind each other.
    "spark.scheduler.mode": "FAIR",
    # What a reader that rests goes on with stays, by maintenance, though it is older than other files stay.
    "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.allFilesInCrc.enabled": "false",  # a job with most commits, for what nobody reads
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": str(_CORES),  # VACUUM lists folders in so many tasks
    # Re-planning after each stage costs more than it saves on batches of seconds.
    "spark.sql.adaptive.enabled": "false",
    # Nobody sees the plans' texts, and those of a MERGE take seconds to write.
    "spark.sql.maxPlanStringLength": "0",
    "spark.sql.ui.explainMode": "simple",
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": _ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The three layers together have more generated classes than the default of 100, and evicting one recompiles it; but
    # each batch has some, of 50 kB, that no other has: with a version of a table in them, or with offsets.
    "spark.sql.codegen.cache.maxEntries": "400",
    # The default manager starts a process (readlink) for each look at a file. This one does not write over a file that
    # is there: see `streaming.query.discard_abandoned_states`.
    "spark.sql.streaming.checkpointFileManagerClass": f"{_STREAMING}.FileSystemBasedCheckpointFileManager",
    "spark.sql.streaming.numRecentProgressUpdates": "1",  # 25 kB each; nobody looks at more
    # Nobody looks at what the pages of a UI would show; by default that grows to a hundred megabytes.
    "spark.ui.retainedJobs": "100",
    "spark.ui.retainedStages": "100",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "50",
}
