"""What stops a stream, told to the operator: what it means, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from sessionlake import errors
from sessionlake.errors import (
    AccessError,
    BrokerError,
    LakeError,
    MachineError,
    OffsetHoleError,
    SessionlakeError,
    UsageError,
)
from sessionlake.local.gateway import jvm_failure
from sessionlake.spark.failures import RESULT_TOO_BIG, KnownFailure, Raised, SparkFailure, one_line, parse_failure
from sessionlake.streaming.checkpoint import require_readable, way_on

SCHEMA_CHANGED = (
    "DELTA_SCHEMA_CHANGED",
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS",
    "DELTA_SCHEMA_CHANGED_WITH_VERSION",
)
_LONGEST = 400
_HEAP_FULL = "java.lang.OutOfMemoryError"
_READERS = ("_internal", "deltalake", "pyarrow")
"""Modules whose exceptions tell of tables' files; delta-rs' own are of the first."""
_CANCELLED = re.compile(
    r"^Job \S+ cancelled |part of cancelled job group|cancelled as part of cancellation of all jobs"
)
_KAFKA = "org.apache.kafka.common.errors"
_REFUSALS = ("SaslAuthentication", "SslAuthentication", "TopicAuthorization", "GroupAuthorization", "Authorization")
_ABSENCES = ("Timeout", "Disconnect", "Network", "BrokerNotAvailable", "LeaderNotAvailable", "NotLeaderOrFollower")
_CAUSES = (
    KnownFailure(
        OffsetHoleError,
        "messages that were not read yet are gone from Kafka: a topic was deleted, made anew, or cut by its retention. "
        "Restore the topic, or narrow kafka.topic_pattern so that it no longer matches",
        conditions=("KAFKA_DATA_LOSS",),
        types=(
            f"{_KAFKA}.UnknownTopicOrPartitionException",
            f"{_KAFKA}.OffsetOutOfRangeException",
            "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
            "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
        ),
        beginnings=("Some data may have been lost because they are not available in Kafka any more",),
    ),
    KnownFailure(
        AccessError,
        "Kafka does not let this client in, or cannot show who it is: correct kafka.security, or kafka.options; "
        "`sessionlake doctor` tries them",
        types=tuple(f"{_KAFKA}.{what}Exception" for what in _REFUSALS),
    ),
    KnownFailure(
        BrokerError,
        "Kafka does not answer at kafka.bootstrap_servers: start it (sessionlake broker up) or correct the address",
        types=tuple(f"{_KAFKA}.{what}Exception" for what in _ABSENCES),
        beginnings=(
            "Failed to create new KafkaAdminClient",
            "No resolvable bootstrap urls",
            "Cannot fetch record for offset ",  # a task that waited for it in vain
        ),
    ),
    KnownFailure(
        LakeError,
        "the table that it reads was made anew since the last run, and its checkpoint belongs to the former one. Put "
        "the former table back, or the checkpoint that goes with this one; `sessionlake doctor` compares them",
        conditions=("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
    ),
    KnownFailure(
        LakeError,
        "columns of the table that it reads have changed while it ran. Run it again: it goes on with them",
        conditions=SCHEMA_CHANGED,
    ),
    KnownFailure(
        LakeError,
        "a table is gone, or files of it are: removed by hand, or by VACUUM before they were read. "
        "`sessionlake doctor` says what is missing, and what mends it: `sessionlake recover` makes silver, gold and "
        "the ledger anew, and what is gone of others is to be put back from a backup",
        conditions=(
            "DELTA_SCHEMA_NOT_SET",
            "DELTA_TABLE_NOT_FOUND",
            "DELTA_MISSING_DELTA_TABLE",
            "DELTA_PATH_DOES_NOT_EXIST",
            "DELTA_FILE_NOT_FOUND",
            "DELTA_FILE_NOT_FOUND_DETAILED",
            "DELTA_LOG_FILE_NOT_FOUND",
            "DELTA_LOG_FILE_NOT_FOUND_FOR_STREAMING_SOURCE",
            "DELTA_MISSING_FILES_UNEXPECTED_VERSION",
            "DELTA_VERSIONS_NOT_CONTIGUOUS",
            "FAILED_READ_FILE.FILE_NOT_EXIST",
            "FAILED_READ_FILE.DBR_FILE_NOT_EXIST",
        ),
    ),
)
_CHECKPOINT = KnownFailure(
    LakeError,
    "its checkpoint cannot be read",
    # Of CANNOT_LOAD_STATE_STORE, others speak of memory and threads: the checkpoint is whole.
    conditions=(
        *(
            f"CANNOT_LOAD_STATE_STORE.{name}"
            for name in (
                "CANNOT_FIND_BASE_SNAPSHOT_CHECKPOINT",
                "CANNOT_READ_CHECKPOINT",
                "CANNOT_READ_DELTA_FILE_KEY_SIZE",
                "CANNOT_READ_DELTA_FILE_NOT_EXISTS",
                "CANNOT_READ_MISSING_SNAPSHOT_FILE",
                "CANNOT_READ_SNAPSHOT_FILE_KEY_SIZE",
                "CANNOT_READ_SNAPSHOT_FILE_VALUE_SIZE",
                "CANNOT_READ_STREAMING_STATE_FILE",
                "SNAPSHOT_PARTITION_ID_NOT_FOUND",
                "UNEXPECTED_FILE_SIZE",
            )
        ),
        "BATCH_METADATA_NOT_FOUND",
        "MALFORMED_LOG_FILE",
        "STATE_STORE_KEY_ROW_FORMAT_VALIDATION_FAILURE",
        "STATE_STORE_VALUE_ROW_FORMAT_VALIDATION_FAILURE",
    ),
    beginnings=("Failed to read log file ", "Log file was malformed: "),
)
# What ends work of any kind. Spark passes on the system's own words for a disk that is full.
_DISK_FULL = KnownFailure(
    MachineError,
    "a disk is full, or a quota used up: free some space, or name another home by SESSIONLAKE_HOME; Spark's temporary "
    "files are in SPARK_LOCAL_DIRS, else /tmp",
    beginnings=("No space left on device", "File too large", "Disk quota exceeded"),
)
_NO_MEMORY = KnownFailure(
    MachineError,
    "Spark's heap is full. Give it more: driver_memory (SESSIONLAKE_DRIVER_MEMORY=4g; 2g by default), or a larger "
    "cluster. Or let a batch have less: bronze.max_offsets_per_trigger, silver.max_bytes_per_trigger, "
    "gold.max_bytes_per_trigger; of a query, ask for less at once",
    types=(_HEAP_FULL, "org.apache.spark.memory.SparkOutOfMemoryError"),
)
_DAMAGED = KnownFailure(
    LakeError,
    "a file of a table, or its log, is damaged. `sessionlake doctor` says what is missing; put the file back from a "
    "backup, or `sessionlake recover` makes silver, gold and the ledger anew",
    conditions=(
        "FAILED_READ_FILE",
        "CANNOT_READ_FILE_FOOTER",
        "DELTA_CHECKPOINT_NON_EXIST_TABLE",
        "DELTA_TRUNCATED_LOG",
    ),
    types=(
        "com.fasterxml.jackson.core.JsonParseException",
        "com.fasterxml.jackson.core.io.JsonEOFException",
        "com.fasterxml.jackson.databind.exc.MismatchedInputException",
        "java.io.FileNotFoundException",
        "org.apache.hadoop.fs.ChecksumException",
        "java.nio.file.NoSuchFileException",
        "org.apache.parquet.io.ParquetDecodingException",
        "shaded.parquet.org.apache.thrift.protocol.TProtocolException",
        "shaded.parquet.org.apache.thrift.transport.TTransportException",
    ),
)
_ALWAYS = (*_CAUSES, RESULT_TOO_BIG, _DISK_FULL, _NO_MEMORY, _DAMAGED)
# This one is whatever came up while a state was loaded; these causes of it are a file's that is cut short or gone.
_ANY_LOADING = KnownFailure(LakeError, "", conditions=("CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",))
_NO_FILE = KnownFailure(
    LakeError,
    "",
    types=(
        "java.io.EOFException",
        "java.io.FileNotFoundException",
        "java.nio.file.NoSuchFileException",
        "org.apache.hadoop.fs.ChecksumException",
    ),
)


def explain(error: BaseException, layer: str, checkpoint: str) -> SessionlakeError:
    """One error for the operator out of whatever stopped a layer.

    What this package raised in a worker comes back as it was raised there.
    """
    known = _of_death(error) or error
    if isinstance(known, SessionlakeError):
        return known
    failure = parse_failure(error)
    if failure.raised is not None:
        return _of_python(failure.raised, layer)
    for cause in (*_CAUSES, _DISK_FULL, _NO_MEMORY):
        if cause.fits(failure):
            return cause.error(f"{layer}: {cause.remedy}\n  Spark says: {failure}")
    if _CHECKPOINT.fits(failure) or (_ANY_LOADING.fits(failure) and _NO_FILE.fits(failure)):
        told = f"{layer}: {_CHECKPOINT.remedy} ({checkpoint}). No table was changed. {way_on(layer)}"
        return LakeError(f"{told}\n  Spark says: {failure}")
    try:
        require_readable(checkpoint, layer)  # of damaged JSON, Spark says neither whose it is nor a class
    except LakeError as damaged:
        return LakeError(f"{damaged}\n  Spark says: {failure}")
    return SessionlakeError(f"{layer} stopped: {failure}")


@contextmanager
def read_at_once() -> Iterator[None]:
    """Raises, for whatever Spark, its JVM, a table's file or the system raises inside, one error for the operator.

    It ends before Spark is stopped: what the JVM raised can be read only from the JVM.

    Raises:
        SessionlakeError: what stopped the work. Other errors of Python pass as they are.
    """
    try:
        yield
    except Exception as error:
        told = readable(error)
        if told is None or told is error:
            raise
        raise told from error


def readable(error: Exception) -> SessionlakeError | None:
    """One error for the operator out of what stopped a command: Spark, its JVM, a table's file or the system.

    Returns:
        None for an error of Python that has nothing to do with these.
    """
    if isinstance(error, SessionlakeError):
        return error
    if (dead := _of_death(error)) is not None:
        return dead
    if _is_of_spark(error):
        return _of_spark(error)
    if isinstance(error, OSError) and error.errno is not None:
        return _of_system(error)
    # The log of a table is JSON, which is read here as well.
    if isinstance(error, OSError | JSONDecodeError) or type(error).__module__.partition(".")[0] in _READERS:
        return _of_reader(error)
    return None


def _of_death(error: BaseException) -> MachineError | None:
    """Of a JVM that has ended, if that is why Python could not reach it."""
    death = jvm_failure() if _is_of_gateway(error) else None
    if death is None:
        return None
    if _HEAP_FULL in death:
        return MachineError(f"{_NO_MEMORY.remedy}. What was not committed is repeated by the next run ({death})")
    return MachineError(
        f"Spark's JVM has ended ({death}). What was not committed is repeated by the next run. If the system has "
        "killed it, memory is short: stop other programs, then run the command again"
    )


def _of_system(error: OSError) -> MachineError | None:
    if isinstance(error, BrokenPipeError):  # whoever read the answer has had enough
        return None
    place = f"{error.filename}: " if error.filename else ""
    return MachineError(f"{place}{error.strerror}: correct this, then run the command again")


def _of_reader(error: Exception) -> LakeError:
    """Of delta-rs and Arrow, which say in a text alone what they found."""
    said = str(error).strip().partition("\n")[0][:_LONGEST]  # behind it is where in delta-rs
    if type(error).__name__ == "CommitFailedError":
        return LakeError(
            f"a table was changed by another process meanwhile: run the command again\n  Delta says: {said}"
        )
    return LakeError(f"{_DAMAGED.remedy}\n  Its reader says: {said}")


def _is_of_gateway(error: BaseException) -> bool:
    """Whether it is what Python is left with when the JVM is gone."""
    return isinstance(error, ConnectionError | EOFError) or type(error).__module__.startswith("py4j.")


def _is_of_spark(error: Exception) -> bool:
    return any(kind.__module__.startswith(("py4j.", "pyspark.errors")) for kind in type(error).__mro__)


def _of_spark(error: Exception) -> SessionlakeError:
    failure = _uninterrupted(parse_failure(error))
    if failure.raised is not None:
        return _of_python(failure.raised, "Spark")
    return _known(failure) or SessionlakeError(f"Spark failed: {failure}")


def _uninterrupted(failure: SparkFailure) -> SparkFailure:
    """The failure, unless it is Ctrl-C's: pyspark cancels all jobs then, and who waits for one may learn only of that.

    Raises:
        KeyboardInterrupt: a job was cancelled.
    """
    if any(said.condition == "SPARK_JOB_CANCELLED" or _CANCELLED.search(said.text) for said in failure.chain):
        raise KeyboardInterrupt
    return failure


def _known(failure: SparkFailure) -> SessionlakeError | None:
    for cause in _ALWAYS:
        if cause.fits(failure):
            return cause.error(f"{cause.remedy}\n  Spark says: {failure}")
    return None


def refused(doing: str, error: Exception) -> SessionlakeError:
    """One error out of what Spark raised for SQL that the operator wrote.

    Args:
        doing: what an error about the SQL itself begins with.

    Returns:
        A `UsageError` if the SQL is wrong, or its values; else what stopped Spark.
    """
    from pyspark.errors import PySparkException

    if _is_of_gateway(error) and jvm_failure() is not None:
        return readable(error) or SessionlakeError(str(error))
    known = _known(_uninterrupted(parse_failure(error)))
    if known is not None:
        return known
    said = one_line(str(error)) if isinstance(error, PySparkException) else str(parse_failure(error))
    return UsageError(f"{doing}: {said}")


def _of_python(raised: Raised, layer: str) -> SessionlakeError:
    module, _, name = raised.type.rpartition(".")
    own = getattr(errors, name, None) if module == errors.__name__ else None
    if isinstance(own, type) and issubclass(own, SessionlakeError):
        return own(raised.text if raised.text.startswith(f"{layer}:") else f"{layer}: {raised.text}")
    if raised.places:
        return SessionlakeError(f"{', '.join([layer, *raised.places])}: {raised}")
    return SessionlakeError(f"{layer} stopped: {raised}")
