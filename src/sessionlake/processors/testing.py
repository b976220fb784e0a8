"""Runs a processor in a unit test: with real decoding, judging and timers, but without Spark and Kafka.

    found = run(Logins(), [Sent("s", {"type": "snapshot", "seq": 0, "ts": 0, "rows": []})])
    assert found.records == []

All messages are processed twice: in one batch, and one message per batch with the state stored in between. In
production, batches may be cut anywhere. If the two results differ, the processor depends on something that is not in
its state.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from sessionlake.delta.schemas.tables import COUNTS
from sessionlake.integrity.stream_times import StreamTimesAtBatchEnds
from sessionlake.processors.api import KeyedProcessor, Processor
from sessionlake.processors.by_class import process_rows_of_key
from sessionlake.processors.load import ProcessorClassReference, require_declarations
from sessionlake.processors.output import HEAD, OutputColumns
from sessionlake.processors.outputs import (
    ProcessorOutput,
    ProcessorReport,
    decode_processor_report,
    raise_first_failure,
)
from sessionlake.processors.session import create_loaded_processor
from sessionlake.processors.shard import create_message_processor
from sessionlake.processors.shard_state import ProcessorShardState
from sessionlake.protocol.arrow import SESSION, split_session_key
from sessionlake.protocol.chunk import decode_ipc
from sessionlake.protocol.types import Payloads
from sessionlake.settings.model import CaptureSettings, ProcessorSettings
from sessionlake.silver.fold.pack import RAW_ARROW_SCHEMA, ShardMessagePacker
from sessionlake.silver.fold.process import split_shard_state
from sessionlake.silver.fold.shard import SilverFold
from sessionlake.silver.job import build_stop_error, sum_partition_counts
from sessionlake.silver.stream_times import list_stream_times_after_batch
from sessionlake.streaming.payloads import build_feed_decoder, build_message_decode_rules

__all__ = ["Result", "Sent", "run", "run_keyed"]

_HEAD_NAMES = frozenset(name for name, _ in HEAD)


TOPIC = "capture.test"


@dataclass(frozen=True)
class Sent:
    """One Kafka message for a test. Its offset is its index among the messages of its topic-partition.

    Attributes:
        session_id: The session id, which is the message's Kafka key.
        body: The message as a JSON object, or its raw bytes.
        time: Kafka timestamp, in ms.
    """

    session_id: str
    body: dict[str, Any] | bytes
    time: int = 0
    topic: str = TOPIC
    partition: int = 0


@dataclass
class Result:
    """What a processor yielded for some messages.

    Attributes:
        rows: Rows of the output table by session and order, without `_batch`. Timestamps are in ms.
        errors: Rows of `silver.processor_errors`, in the same form.
        states: The states of sessions whose life is not over, by topic, partition and session id.
        counts: Numbers of messages, under the names that the ledger uses.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)
    states: dict[tuple[str, int, str], Any] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(COUNTS, 0))

    @property
    def records(self) -> list[dict[str, Any]]:
        """The output rows, with only the columns that the class declares in `output`."""
        return [{name: value for name, value in row.items() if name not in _HEAD_NAMES} for row in self.rows]

    def state(self, session_id: str, topic: str = TOPIC, partition: int = 0) -> Any:
        """Returns a session's state. None if it has none, or its life is over."""
        return self.states.get((topic, partition, session_id))


def run(
    processor: Processor[Any],
    messages: Iterable[Sent],
    *,
    columns: dict[str, str] | None = None,
    capture: CaptureSettings | None = None,
    **settings: Any,
) -> Result:
    """Passes messages to a processor twice: all in one batch, and one message per batch.

    Returns the result if both are equal.

    Args:
        processor: The processor to test.
        messages: The messages, in the order of arrival.
        columns: The declared columns of messages, types by name. Ignored if `capture` is given.
        capture: The capture settings.
        settings: Keys of the processor's configuration, such as `on_error`.

    Raises:
        ProcessorError: The processor failed under `fail`.
        IntegrityViolationError: The messages break their integrity class under `fail`.
        AssertionError: The two results differ.
    """
    sent = list(messages)
    rules = capture or CaptureSettings(**({"columns": columns} if columns else {}))
    single_batch = fold(processor, [sent], rules, **settings)
    one_by_one = fold(processor, [[message] for message in sent], rules, **settings)
    if single_batch != one_by_one:
        raise AssertionError(
            f"{type(processor).__name__} depends on how messages are cut into batches. Does it store something outside "
            f"its state?\nIn one batch:       {single_batch}\nMessage by message: {one_by_one}"
        )
    return single_batch


def run_keyed(
    processor: KeyedProcessor[Any], rows: Iterable[Mapping[str, Any]], key: Sequence[str], order: Sequence[str]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Passes rows to a processor with a key twice: in the given order, and reversed. Returns the records by key.

    Args:
        processor: The processor to test.
        rows: Rows of the source table.
        key: Columns that form the key, as in the configuration. Rows without a value in one of them are skipped.
        order: Columns that order the rows of a key.

    Raises:
        AssertionError: The two results differ, for example because two rows of a key are equal in all order columns.
    """
    kept_rows = [row for row in rows if all(row[name] is not None for name in key)]
    output = OutputColumns(processor.output)

    def compute_records_by_key(
        ordered_rows: Iterable[Mapping[str, Any]],
    ) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
        found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
        for row in sorted(ordered_rows, key=lambda row: tuple((row[name] is None, row[name]) for name in order)):
            found.setdefault(tuple(row[name] for name in key), []).append(row)
        results = {}
        for whose, of_key in found.items():
            calls = process_rows_of_key(processor, dict(zip(key, whose, strict=True)), of_key)
            records = [*chain.from_iterable(calls)]
            _ = [output.convert_record_to_struct(record) for record in records]
            results[whose] = [dict(record) for record in records]
        return results

    one, other = compute_records_by_key(kept_rows), compute_records_by_key(reversed(kept_rows))
    if one != other:
        raise AssertionError(f"{type(processor).__name__} depends on the order in which rows come: {one} or {other}")
    return one


def fold(
    processor: Processor[Any],
    batches: Iterable[Sequence[Sent]],
    capture: CaptureSettings,
    shards: int = 1,
    **settings: Any,
) -> Result:
    """Passes messages to a processor, in batches as given, and returns what it yielded.

    Args:
        processor: The processor to test.
        batches: The messages of each batch.
        capture: The capture settings.
        shards: Number of shards into which sessions are hashed.
        settings: Keys of the processor's configuration.

    Raises:
        ProcessorError: The processor failed under `fail`.
        IntegrityViolationError: The messages break their integrity class under `fail`.
    """
    return run_raw_batches(
        processor, ([raw] for raw in _create_raw_tables(batches, shards)), capture, shards, **settings
    )


def run_raw_batches(
    processor: Processor[Any],
    batches: Iterable[Iterable[pa.Table]],
    capture: CaptureSettings,
    shards: int,
    **settings: Any,
) -> Result:
    """Passes raw messages, in the form in which bronze stores them, to a processor, and returns what it yielded.

    Args:
        processor: The processor to test.
        batches: For each batch, Arrow tables of raw messages. Each table stands for what one Spark task reads.
        capture: The capture settings.
        shards: Number of shards into which sessions are hashed.
        settings: Keys of the processor's configuration.

    Raises:
        ProcessorError: The processor failed under `fail`.
        IntegrityViolationError: The messages break their integrity class under `fail`.
    """
    config = ProcessorSettings(name="test", target="test:test", **settings)
    ref = ProcessorClassReference(config.name, type(processor).__name__)
    require_declarations(ref, processor)
    each = create_message_processor(config, capture, shards, ref)
    each.loaded = create_loaded_processor(config.name, processor, each.limits)
    judged = SilverFold(capture.declared_columns, capture, processor=each)
    result, states, times = Result(), dict.fromkeys(range(shards)), StreamTimesAtBatchEnds()
    for tasks in batches:
        packer = ShardMessagePacker(
            build_message_decode_rules(capture), shards, build_feed_decoder(capture, shards), earlier_times=times
        )
        reports = _add_fold_results(
            result, config.name, list(_fold_batches(judged, [packer.pack_message_block(raw) for raw in tasks], states))
        )
        times = times.add_stream_times(list_stream_times_after_batch(sum_partition_counts([*reports]), reports))
    for rows in (result.rows, result.errors):
        rows.sort(key=lambda row: (*(row[name] for name in SESSION), row["_position"], row["ordinal"]))
    for state in states.values():
        for key, kept in ProcessorShardState.decode_processor_state(split_shard_state(state)[1]).sessions.items():
            name = split_session_key(key)
            if kept.state:
                result.states[name] = each.loaded.codec.decode_and_migrate_state(kept.state, kept.version, name[2])
    return result


def _fold_batches(
    silver_fold: SilverFold, packed: Iterable[pa.RecordBatch], states: dict[int, bytes | None]
) -> Iterator[tuple[str, bytes]]:
    chunks: dict[int, list[bytes]] = {}
    for task in packed:
        for shard, chunk in zip(*task.to_pydict().values(), strict=True):
            chunks.setdefault(shard, []).append(chunk)
    for shard, mine in chunks.items():
        after, emitted = silver_fold(shard, states[shard], mine)
        states[shard] = after or states[shard]
        yield from emitted


def _add_fold_results(result: Result, name: str, emitted: Payloads) -> list[ProcessorReport]:
    reports = [decode_processor_report(payload) for kind, payload in emitted if kind == ProcessorOutput.REPORT]
    if violation := build_stop_error([*reports]):
        raise violation
    raise_first_failure(name, reports)
    for part in (part for report in reports for part in report.partitions):
        for count in COUNTS:
            result.counts[count] += getattr(part, count)
    for rows, wanted in ((result.rows, ProcessorOutput.RECORDS), (result.errors, ProcessorOutput.ERRORS)):
        rows += [row for kind, payload in emitted if kind == wanted for row in _decode_payload_rows(payload)]
    return reports


def _decode_payload_rows(payload: bytes) -> list[dict[str, Any]]:
    """Returns the rows of an encoded Arrow table as dictionaries. Timestamps become milliseconds."""
    table = decode_ipc(payload)
    for place, column in enumerate(table.schema):
        if pa.types.is_timestamp(column.type):
            table = table.set_column(place, column.name, table[column.name].cast(pa.timestamp("ms")).cast(pa.int64()))
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _create_raw_tables(batches: Iterable[Sequence[Sent]], shards: int) -> Iterator[pa.Table]:
    """Yields, for each batch, an Arrow table of its messages with bronze's columns and each message's shard."""
    offsets: dict[tuple[str, int], int] = {}
    for batch in batches:
        rows = []
        for message in batch:
            place = message.topic, message.partition
            offset = offsets[place] = offsets.get(place, -1) + 1
            body = message.body
            value = body if isinstance(body, bytes) else json.dumps(body).encode()
            key = message.session_id.encode()
            shard = zlib.crc32(message.topic.encode() + key) % shards
            rows.append((shard, *place, offset, message.time * 1000, key, value, None))
        columns = zip(*rows, strict=True)
        arrays = [pa.array(c, f.type) for c, f in zip(columns, RAW_ARROW_SCHEMA, strict=True)]
        yield pa.table(arrays, schema=RAW_ARROW_SCHEMA)
