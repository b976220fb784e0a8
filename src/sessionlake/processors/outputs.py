"""The results that a processor emits for one shard and batch: output rows, failed calls, and a report with counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec
import pyarrow as pa

from sessionlake.errors import ProcessorError
from sessionlake.processors.output import RecordOrigin, create_timestamps
from sessionlake.silver.fold.schemas import TIMESTAMP_TYPE, ShardReport

_LONGEST = 1000


class ProcessorOutput(StrEnum):
    """Kinds of payload that a processor's fold emits: output rows, failed calls, and one report per shard."""

    RECORDS = "records"
    ERRORS = "errors"
    REPORT = "report"


class FailureAction(StrEnum):
    """What sessionlake did after a call of the processor had failed."""

    STOPPED = "stopped"
    """The job stops."""
    ISOLATED = "isolated"
    """The processor was stopped for the session until its current life is over."""
    RECORDED = "recorded"
    """The failed call had no effect, and the session continues."""
    SKIPPED = "skipped"
    """The message was not processed, because the processor had been stopped for the session."""


class ProcessorFailure(msgspec.Struct):
    """A row of `silver.processor_errors`: one failed call of a processor, and what was done about it.

    Attributes:
        topic: Topic of the session.
        session_id: Id of the session.
        partition: Partition of the session's last message.
        offset: Kafka offset of the session's last message before the failure.
        position: Position of that message.
        ordinal: Number of the failure among the records and failures after that message, from 0.
        time: Stream time, in ms.
        event: What the processor was called for: `message`, `timer` or `expiry`.
        action: What was done about the failure.
        error: The error's text.
    """

    topic: str
    session_id: str
    partition: int
    offset: int
    position: int
    ordinal: int
    time: int
    event: str
    action: FailureAction
    error: str

    @classmethod
    def create_failure_row(
        cls, origin: RecordOrigin, event: str, action: FailureAction, error: str
    ) -> ProcessorFailure:
        """Returns the failure of one call of a processor.

        Args:
            origin: The session, and the failure's place among the session's records.
            event: What the processor was called for: `message`, `timer` or `expiry`.
            action: What was done about the failure.
            error: The error's text. A long text is cut.
        """
        return cls(
            origin.topic,
            origin.session_id,
            origin.partition,
            origin.offset,
            origin.position,
            origin.ordinal,
            origin.time,
            event,
            action,
            error[:_LONGEST],
        )

    def sort_key(self) -> tuple[str, int, int]:
        """Returns topic, partition and offset. In this order the first failure is the same for any number of shards."""
        return self.topic, self.partition, self.offset


def raise_first_failure(processor: str, reports: Iterable[ProcessorReport]) -> None:
    """Raises an error if the shards' reports have a failure at which the job must stop. Call it before the commit.

    Raises:
        ProcessorError: Describes the first failure.
    """
    found = [failure for report in reports for failure in report.failures]
    if not found:
        return
    first = min(found, key=ProcessorFailure.sort_key)
    what = {
        "message": "",
        "timer": f" (a timer, at {first.time})",
        "expiry": f" (the session's expiry, at {first.time})",
    }
    raise ProcessorError(
        f"processor {processor} failed: session {first.session_id!r}, topic {first.topic}, "
        f"partition {first.partition}, offset {first.offset}{what[first.event]}: {first.error}",
        why="Nothing of the batch was committed",
        fix=f"Correct the class and run it again, or set `on_error` of processors.{processor} to isolate or record",
    )


class ProcessorReport(ShardReport):
    """What one shard did in a batch: how many messages it judged, and how many rows the processor's calls produced.

    Attributes:
        failures: The failure at which the job must stop, as a list of one. Empty if there is none.
    """

    failures: list[ProcessorFailure] = msgspec.field(default_factory=list)


ERRORS_SCHEMA = pa.schema(
    [
        ("processor", pa.string()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("session_id", pa.string()),
        ("_offset", pa.int64()),
        ("_position", pa.int64()),
        ("ordinal", pa.int32()),
        ("_time", TIMESTAMP_TYPE),
        ("event", pa.string()),
        ("action", pa.string()),
        ("error", pa.string()),
    ]
)


def create_error_rows(processor: str, failures: Sequence[ProcessorFailure]) -> pa.Table:
    """Returns failed calls as an Arrow table with the columns of `silver.processor_errors`, without `_batch`."""
    names = ("topic", "partition", "session_id", "offset", "position", "ordinal", "time", "event", "action", "error")
    columns = {name: [getattr(failure, name) for failure in failures] for name in names}
    arrays = [
        pa.array([processor] * len(failures), pa.string()),
        *(pa.array(columns[name], field.type) for name, field in zip(names[:6], list(ERRORS_SCHEMA)[1:7], strict=True)),
        create_timestamps(columns["time"]),
        *(pa.array([str(value) for value in columns[name]], pa.string()) for name in names[7:]),
    ]
    return pa.Table.from_arrays(arrays, schema=ERRORS_SCHEMA)


_decoder = msgspec.msgpack.Decoder(ProcessorReport)


def decode_processor_report(payload: bytes) -> ProcessorReport:
    """Decodes a report that `encode_processor_report` encoded."""
    return _decoder.decode(payload)


def encode_processor_report(report: ProcessorReport) -> bytes:
    """Encodes a report as MessagePack."""
    return msgspec.msgpack.encode(report)
