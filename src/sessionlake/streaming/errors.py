"""Turns any error that stops a stream or command into one error for the operator: what happened and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from json import JSONDecodeError

from sessionlake import errors
from sessionlake.errors import (
    BrokerError,
    KafkaAccessError,
    LakeError,
    MachineSetupError,
    OffsetHoleError,
    SessionlakeError,
    UsageError,
)
from sessionlake.local.gateway import describe_jvm_failure
from sessionlake.spark.failures import (
    RESULT_TOO_BIG,
    KnownSparkFailure,
    PythonException,
    SparkFailure,
    parse_spark_failure,
    summarize_spark_message,
)
from sessionlake.streaming.checkpoint import build_checkpoint_recovery_hint, require_readable_checkpoint

SCHEMA_CHANGED = (
    "DELTA_SCHEMA_CHANGED",
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS",
    "DELTA_SCHEMA_CHANGED_WITH_VERSION",
)
_LONGEST = 400
_HEAP_FULL = "java.lang.OutOfMemoryError"
_READERS = ("_internal", "deltalake", "pyarrow")
"""Modules whose exceptions are about files of tables; those of delta-rs itself are in the first."""
_CANCELLED = re.compile(
    r"^Job \S+ cancelled |part of cancelled job group|cancelled as part of cancellation of all jobs"
)
_KAFKA = "org.apache.kafka.common.errors"
_REFUSALS = ("SaslAuthentication", "SslAuthentication", "TopicAuthorization", "GroupAuthorization", "Authorization")
_ABSENCES = ("Timeout", "Disconnect", "Network", "BrokerNotAvailable", "LeaderNotAvailable", "NotLeaderOrFollower")
_CAUSES = (
    KnownSparkFailure(
        OffsetHoleError,
        "messages that were not read yet are gone from Kafka: a topic was deleted, recreated, or cut by its "
        "retention. Put the messages back into the topic. Or narrow kafka.topic_pattern so that it no longer "
        "matches the topic: the layer then continues without it",
        conditions=("KAFKA_DATA_LOSS",),
        types=(
            f"{_KAFKA}.UnknownTopicOrPartitionException",
            f"{_KAFKA}.OffsetOutOfRangeException",
            "org.apache.kafka.clients.consumer.OffsetOutOfRangeException",
            "org.apache.spark.sql.kafka010.KafkaIllegalStateException",
        ),
        message_starts=("Some data may have been lost because they are not available in Kafka any more",),
    ),
    KnownSparkFailure(
        KafkaAccessError,
        "Kafka does not let this client in, or this client does not trust Kafka's certificate. Correct "
        "kafka.security or kafka.options, and run `sessionlake doctor` to try them",
        types=tuple(f"{_KAFKA}.{what}Exception" for what in _REFUSALS),
    ),
    KnownSparkFailure(
        BrokerError,
        "Kafka does not answer at kafka.bootstrap_servers. Start Kafka (the embedded broker with `sessionlake "
        "broker up`), or correct kafka.bootstrap_servers",
        types=tuple(f"{_KAFKA}.{what}Exception" for what in _ABSENCES),
        message_starts=(
            "Failed to create new KafkaAdminClient",
            "No resolvable bootstrap urls",
            "Cannot fetch record for offset ",  # raised by a task that waited for the record until the timeout
        ),
    ),
    KnownSparkFailure(
        LakeError,
        "the source table was dropped and created again since the last run. The layer's checkpoint is of the "
        "former table. Restore that table from a backup, or the checkpoint that belongs to the new one. `sessionlake "
        "doctor` names those that do not fit",
        conditions=("DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",),
    ),
    KnownSparkFailure(
        LakeError,
        "columns of the source table were changed while the layer ran. Run the layer again: it resumes with the "
        "new columns",
        conditions=SCHEMA_CHANGED,
    ),
    KnownSparkFailure(
        LakeError,
        "a table or some of its files are gone: removed by hand, or by VACUUM before they were read. "
        "Run `sessionlake doctor`, which says what is missing and what to do. `sessionlake recover` rebuilds silver, "
        "gold and the ledger; restore other tables from a backup",
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
_CHECKPOINT = KnownSparkFailure(
    LakeError,
    "its checkpoint cannot be read",
    # The other CANNOT_LOAD_STATE_STORE errors are about memory and threads; with them the checkpoint is intact.
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
    message_starts=("Failed to read log file ", "Log file was malformed: "),
)
# These can stop any work, not only a stream. For a full disk, Spark passes on the operating system's text.
_DISK_FULL = KnownSparkFailure(
    MachineSetupError,
    "a disk is full, or a quota is used up. Free some space, or set another home with SESSIONLAKE_HOME; Spark's "
    "temporary files are in SPARK_LOCAL_DIRS, or else in /tmp",
    message_starts=("No space left on device", "File too large", "Disk quota exceeded"),
)
_NOTHING_LOST = "The next run repeats everything that was not committed"
_NO_MEMORY = KnownSparkFailure(
    MachineSetupError,
    "Spark has used up the memory of its Java process. Give it more with driver_memory (SESSIONLAKE_DRIVER_MEMORY=4g; "
    "the default is 2g) or a larger cluster. Or make batches smaller with bronze.max_offsets_per_trigger, "
    "silver.max_bytes_per_trigger or gold.max_bytes_per_trigger; for a query, ask for fewer rows at once",
    types=(_HEAP_FULL, "org.apache.spark.memory.SparkOutOfMemoryError"),
)
_DAMAGED_FIX = (
    "Run `sessionlake doctor`, which says what is missing. Restore the file from a backup, or run `sessionlake "
    "recover`, which rebuilds silver, gold and the ledger"
)
_DAMAGED = KnownSparkFailure(
    LakeError,
    f"a file of a table, or of its log, is damaged, so the table cannot be read. {_DAMAGED_FIX}",
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
# This condition covers any error while a state is loaded. With one of these causes, a state file is truncated or gone.
_ANY_LOADING = KnownSparkFailure(LakeError, "", conditions=("CANNOT_LOAD_STATE_STORE.UNCATEGORIZED",))
_NO_FILE = KnownSparkFailure(
    LakeError,
    "",
    types=(
        "java.io.EOFException",
        "java.io.FileNotFoundException",
        "java.nio.file.NoSuchFileException",
        "org.apache.hadoop.fs.ChecksumException",
    ),
)


def convert_to_layer_error(error: BaseException, layer: str, checkpoint: str) -> SessionlakeError:
    """Returns the error to show to the operator for an exception that stopped a layer.

    A `SessionlakeError` that was raised in a Spark worker is returned as an error of the same class.

    Args:
        error: The exception that stopped the layer.
        layer: The layer's name, which the error text starts with.
        checkpoint: The folder of the layer's checkpoint, which is checked for damage.
    """
    known = _explain_dead_jvm(error) or error
    if isinstance(known, SessionlakeError):
        return known
    failure = parse_spark_failure(error)
    if failure.python_exception is not None:
        return _explain_python_error(failure.python_exception, layer)
    for cause in (*_CAUSES, _DISK_FULL, _NO_MEMORY):
        if cause.matches_failure(failure):
            return cause.error_class(f"{layer}: {cause.remedy}\n  Spark says: {failure}")
    if _CHECKPOINT.matches_failure(failure) or (
        _ANY_LOADING.matches_failure(failure) and _NO_FILE.matches_failure(failure)
    ):
        return LakeError(
            f"{layer}: its checkpoint {checkpoint} cannot be read",
            why="No table was changed",
            fix=f"{build_checkpoint_recovery_hint(layer)}\n  Spark says: {failure}",
        )
    try:
        require_readable_checkpoint(
            checkpoint, layer
        )  # Spark's error about damaged JSON names neither a file nor a condition
    except LakeError as damaged:
        return LakeError(f"{damaged}\n  Spark says: {failure}")
    return SessionlakeError(f"{layer} stopped: {failure}")


@contextmanager
def raise_explained_errors() -> Iterator[None]:
    """Raises a `SessionlakeError` that an operator understands in place of certain exceptions of the block.

    These are exceptions of Spark, of the JVM, of the operating system, and about files of tables. The block must end
    before Spark is stopped, because the JVM's errors can only be read from the JVM.

    Raises:
        SessionlakeError: What happened and what to do. Other exceptions pass unchanged.
    """
    try:
        yield
    except Exception as error:
        explanation = convert_to_operator_error(error)
        if explanation is None or explanation is error:
            raise
        raise explanation from error


def convert_to_operator_error(error: Exception) -> SessionlakeError | None:
    """Returns the error to show to the operator for an exception of Spark, the JVM, a file or the operating system.

    Returns None for any other exception. A `SessionlakeError` is returned unchanged.
    """
    if isinstance(error, SessionlakeError):
        return error
    if (dead := _explain_dead_jvm(error)) is not None:
        return dead
    if _is_spark_error(error):
        return _explain_spark_error(error)
    if isinstance(error, OSError) and error.errno is not None:
        return _explain_system_error(error)
    # Table logs are JSON, and some are read in Python.
    if isinstance(error, OSError | JSONDecodeError) or type(error).__module__.partition(".")[0] in _READERS:
        return _explain_reader_error(error)
    return None


def _explain_dead_jvm(error: BaseException) -> MachineSetupError | None:
    """Returns an error that says why Spark's JVM has ended; None if `error` has another reason."""
    death = describe_jvm_failure() if _is_gateway_error(error) else None
    if death is None:
        return None
    if _HEAP_FULL in death:
        return MachineSetupError(
            f"{_NO_MEMORY.remedy}. The next run repeats everything that was not committed ({death})"
        )
    return MachineSetupError(
        f"Spark's Java process has ended ({death}). The next run repeats everything that was not committed",
        fix="If the system has killed it for lack of memory, stop other programs or lower "
        "driver_memory, then run the command again",
    )


def _explain_system_error(error: OSError) -> MachineSetupError | None:
    if isinstance(error, BrokenPipeError):  # the program that reads our output has closed the pipe
        return None
    place = f"{error.filename}: " if error.filename else ""
    if _is_disk_full(f"{error.strerror}"):
        return MachineSetupError(f"{place}{error.strerror}", why=_DISK_FULL.remedy, fix=_NOTHING_LOST)
    return MachineSetupError(
        f"{place}{error.strerror}", fix="Correct the cause on this machine, then run the command again"
    )


def _is_disk_full(text: str) -> bool:
    return any(start in text for start in _DISK_FULL.message_starts)


def _explain_reader_error(error: Exception) -> SessionlakeError:
    """Returns the error to show to the operator for an exception of delta-rs or Arrow.

    Both describe most errors only as text, so the text decides.
    """
    text = str(error).strip().partition("\n")[0][:_LONGEST]  # the rest is delta-rs' own backtrace
    if type(error).__name__ == "CommitFailedError":
        return LakeError(
            f"another process changed a table while this one was writing to it ({text})",
            why="Nothing of this write was committed",
            fix="Run the command again",
        )
    if _is_disk_full(str(error)):
        return MachineSetupError(f"{_DISK_FULL.remedy}. {_NOTHING_LOST}\n  Delta says: {text}")
    return LakeError(
        f"a table cannot be read: a data file or its log is damaged or missing ({text})",
        fix=_DAMAGED_FIX,
    )


def _is_gateway_error(error: BaseException) -> bool:
    """Returns True if Python raises this error when it can no longer reach the JVM."""
    return isinstance(error, ConnectionError | EOFError) or type(error).__module__.startswith("py4j.")


def _is_spark_error(error: Exception) -> bool:
    return any(kind.__module__.startswith(("py4j.", "pyspark.errors")) for kind in type(error).__mro__)


def _explain_spark_error(error: Exception) -> SessionlakeError:
    failure = _raise_if_interrupted(parse_spark_failure(error))
    if failure.python_exception is not None:
        return _explain_python_error(failure.python_exception, "Spark")
    return _explain_known_failure(failure) or SessionlakeError(f"Spark failed: {failure}")


def _raise_if_interrupted(failure: SparkFailure) -> SparkFailure:
    """Returns the failure unchanged, unless Spark cancelled a job because of Ctrl-C.

    On Ctrl-C, pyspark cancels all jobs. The thread that waits for a job may then see only that the job was cancelled.

    Raises:
        KeyboardInterrupt: A job was cancelled.
    """
    if any(
        jvm_error.condition == "SPARK_JOB_CANCELLED" or _CANCELLED.search(jvm_error.text)
        for jvm_error in failure.jvm_exceptions
    ):
        raise KeyboardInterrupt
    return failure


def _explain_known_failure(failure: SparkFailure) -> SessionlakeError | None:
    for cause in _ALWAYS:
        if cause.matches_failure(failure):
            return cause.error_class(f"{cause.remedy}\n  Spark says: {failure}")
    return None


def explain_sql_error(action: str, error: Exception) -> SessionlakeError:
    """Returns the error to show to the operator if Spark fails to run SQL that the operator wrote.

    Args:
        action: The start of the error text if the SQL itself is wrong, such as what the command tried to do.
        error: The exception that Spark raised.

    Returns:
        A `UsageError` if the SQL or one of its values is wrong; otherwise the error for what stopped Spark.
    """
    from pyspark.errors import PySparkException

    if _is_gateway_error(error) and describe_jvm_failure() is not None:
        return convert_to_operator_error(error) or SessionlakeError(str(error))
    known = _explain_known_failure(_raise_if_interrupted(parse_spark_failure(error)))
    if known is not None:
        return known
    text = (
        summarize_spark_message(str(error)) if isinstance(error, PySparkException) else str(parse_spark_failure(error))
    )
    return UsageError(f"{action}: {text}")


def _explain_python_error(raised: PythonException, layer: str) -> SessionlakeError:
    module, _, name = raised.type.rpartition(".")
    own = getattr(errors, name, None) if module == errors.__name__ else None
    if isinstance(own, type) and issubclass(own, SessionlakeError):
        return own(raised.text if raised.text.startswith(f"{layer}:") else f"{layer}: {raised.text}")
    if _is_disk_full(raised.text):
        return MachineSetupError(f"{layer}: {_DISK_FULL.remedy}. {_NOTHING_LOST}\n  Python says: {raised}")
    if raised.places:
        return SessionlakeError(f"{', '.join([layer, *raised.places])}: {raised}")
    return SessionlakeError(f"{layer} stopped: {raised}")
