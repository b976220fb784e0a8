"""What stops a stream, told to the operator: what it means, and what to do."""

from __future__ import annotations

from sessionlake import errors
from sessionlake.errors import AccessError, BrokerError, LakeError, MachineError, OffsetHoleError, SessionlakeError
from sessionlake.laptop.gateway import out_of_memory
from sessionlake.runtime.failures import KnownFailure, Raised, SparkFailure, failure_of
from sessionlake.streaming.checkpoint import require_readable, way_on

SCHEMA_CHANGED = (
    "DELTA_SCHEMA_CHANGED",
    "DELTA_SCHEMA_CHANGED_WITH_STARTING_OPTIONS",
    "DELTA_SCHEMA_CHANGED_WITH_VERSION",
)
_KAFKA = "org.apache.kafka.common.errors"
_REFUSALS = ("SaslAuthentication", "SslAuthentication", "TopicAuthorization", "GroupAuthorization", "Authorization")
_ABSENCES = ("Timeout", "Disconnect", "Network", "BrokerNotAvailable", "LeaderNotAvailable", "NotLeaderOrFollower")
_CAUSES = (
    KnownFailure(
        MachineError,
        "the memory of a JVM that runs Spark is full. Give it more (driver_memory, or a larger cluster), or let a "
        "batch have less: bronze.max_offsets_per_trigger, silver.max_bytes_per_trigger, gold.max_bytes_per_trigger",
        types=("java.lang.OutOfMemoryError", "org.apache.spark.memory.SparkOutOfMemoryError"),
    ),
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
    full = out_of_memory()  # whatever failed then, this is why
    if full is not None:
        return MachineError(f"{layer}: {full}")
    if isinstance(error, SessionlakeError):
        return error
    failure = failure_of(error)
    known = _known(failure, layer)
    if known is not None:
        return known
    if _CHECKPOINT.fits(failure) or (_ANY_LOADING.fits(failure) and _NO_FILE.fits(failure)):
        told = f"{layer}: {_CHECKPOINT.remedy} ({checkpoint}). No table was changed. {way_on(layer)}"
        return LakeError(f"{told}\n  Spark says: {failure}")
    try:
        require_readable(checkpoint, layer)  # of damaged JSON, Spark says neither whose it is nor a class
    except LakeError as damaged:
        return LakeError(f"{damaged}\n  Spark says: {failure}")
    return SessionlakeError(f"{layer} stopped: {failure}")


def _known(failure: SparkFailure, layer: str) -> SessionlakeError | None:
    if failure.raised is not None:
        return _of_python(failure.raised, layer)
    cause = next((cause for cause in _CAUSES if cause.fits(failure)), None)
    return None if cause is None else cause.error(f"{layer}: {cause.remedy}\n  Spark says: {failure}")


def _of_python(raised: Raised, layer: str) -> SessionlakeError:
    module, _, name = raised.type.rpartition(".")
    own = getattr(errors, name, None) if module == errors.__name__ else None
    if isinstance(own, type) and issubclass(own, SessionlakeError):
        return own(raised.text if raised.text.startswith(f"{layer}:") else f"{layer}: {raised.text}")
    if raised.places:
        return SessionlakeError(f"{', '.join([layer, *raised.places])}: {raised}")
    return SessionlakeError(f"{layer} stopped: {raised}")
