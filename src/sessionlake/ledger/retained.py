"""What retention has removed from each table, in `ops.retained`. No other table shows it.

Retention writes `ops.retained` before it removes rows, so that readers know what may be missing, and again afterwards.
Each table with removed rows has two kinds of rows here:

- One summary row, called the head, whose `limit` is null. It says how many rows were removed, and before which time.
- One limit for each topic-partition or session: its rows up to this offset, position or batch are removed. There can be
  one for every session that ever existed. So limits are updated in place, and never all read into memory.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import eq, ge
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import delete_rows_as_claim_holder, merge_rows_as_claim_holder
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    CHANGES,
    CUTS,
    EVENTS,
    MESSAGES,
    PROGRESS,
    QUARANTINE,
    RETAINED,
    RETENTION_CLAIM,
    SNAPSHOT_INDEX,
    SNAPSHOTS,
)
from sessionlake.delta.storage.expired import ExpiredRowSelection
from sessionlake.delta.storage.reading import Condition, TableReader, is_in, is_null
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import SESSION, convert_timestamps_to_milliseconds
from sessionlake.protocol.kafka_time import NOT_COUNTED
from sessionlake.protocol.types import TopicPartition
from sessionlake.spark.frames import convert_to_spark_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 2
CLAIM = RETENTION_CLAIM
"""Name of the claim (exclusive lock) that a process holds while it removes rows or must prevent removals."""
_TIME = pa.timestamp("us", tz="UTC")
LIMITS = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("session_id", pa.string()),
        ("limit", pa.int64()),
        ("highest_timestamp", _TIME),
    ]
)
"""Arrow schema of limits: the topic-partition or session, and the last removed offset, position or batch."""
_HEAD = [("batch", pa.int64()), ("before", _TIME), ("removed", pa.int64()), ("pending", pa.int64())]
_SCHEMA = pa.schema([("table", pa.string()), *LIMITS, *_HEAD, ("format", pa.int32())])
_OF_HEADS = pa.schema([("table", pa.string()), ("limit", pa.int64()), *_HEAD, ("format", pa.int32())])
_KEYS = {"table": "", "topic": "", "partition": -1, "session_id": ""}
"""The key columns of `ops.retained`, and the value that stands for null in each, since MERGE cannot match nulls."""
_UPSERT = Upsert(tuple(_KEYS), tuple(name for name in _SCHEMA.names if name not in _KEYS), pruned_by=("table",))

TABLES_REMOVED_TOGETHER = {SNAPSHOTS: (SNAPSHOT_INDEX, CUTS, SNAPSHOTS)}
"""Tables that share their limits: the table under whose name the limits are stored, and all tables that they apply to.

The index comes first because readers read it first.
"""
_PLACE = ("topic", "partition")


def select_rows_removed_by_retention(
    table: str, limits: pa.Table | None = None, batch: int = -1
) -> ExpiredRowSelection:
    """Builds the conditions that select the rows of a table that retention has removed or is removing.

    Args:
        table: the table's two-level name.
        limits: the limit of each topic-partition or session, as a table with the schema `LIMITS`. None if only
            `ExpiredRows.build_merge_condition` is needed.
        batch: number of the last silver batch that wrote such rows; -1 if unknown.
    """
    limits = LIMITS.empty_table() if limits is None else limits
    most = {"_batch": batch} if batch >= 0 and table not in {MESSAGES, SNAPSHOTS} else {}
    if table in {MESSAGES, QUARANTINE, EVENTS}:
        return ExpiredRowSelection(_PLACE, "offset", limits, most)
    if table == CHANGES:
        return ExpiredRowSelection(SESSION, "_position", limits, most)
    if table == PROGRESS:
        return ExpiredRowSelection((*SESSION, "first_offset"), "_batch", limits, most, spared_by="beneath")
    return ExpiredRowSelection(SESSION, "position", limits, most)


@dataclass(frozen=True)
class RetentionRecord:
    """What retention has removed from one table.

    Attributes:
        table: the table's two-level name.
        before: every removed row was committed before this time.
        batch: highest number of a silver batch whose rows may have been removed; -1 if the table's rows name no batch.
        removed: number of rows whose removal is complete.
        pending: number of rows that are being removed now.
        limits: for each topic-partition or session, the last removed offset, position or batch, with the schema
            `LIMITS`. For bronze also the highest Kafka timestamp among the removed messages. Empty if limits were not
            read.
    """

    table: str
    before: datetime
    batch: int = -1
    removed: int = 0
    pending: int = 0
    limits: pa.Table = field(default_factory=LIMITS.empty_table)

    @property
    def max_missing_rows(self) -> int:
        """Number of rows that can be missing: those already removed and those that are being removed."""
        return self.removed + self.pending

    @property
    def removal_description(self) -> str:
        """A sentence for the operator that names the table and the time before which rows were removed."""
        return f"retention has removed rows of {self.table} that were committed before {self.before:%Y-%m-%d %H:%M:%SZ}"


def read_removal_records(reader: TableReader, tables: Collection[str] | None = None) -> dict[str, RetentionRecord]:
    """Returns what retention has removed, by table name, with the limits of all topic-partitions and sessions.

    Args:
        reader: reads `ops.retained`.
        tables: names of the tables to include; None for all. Prefer few: a table may have a limit for every session
            that ever existed.

    Raises:
        LakeError: `ops.retained` has a format that this version of sessionlake does not read.
    """
    if tables is not None and not tables:
        return {}
    return _read_removal_records(reader, [] if tables is None else [("table", is_in, list(tables))], _SCHEMA)


def read_removal_records_without_limits(reader: TableReader) -> dict[str, RetentionRecord]:
    """Returns what retention has removed, by table name; `limits` is empty in each result. Reads one row per table."""
    return _read_removal_records(reader, [("limit", is_null, None)], _OF_HEADS)


def _read_removal_records(
    reader: TableReader, conditions: Sequence[Condition], schema: pa.Schema
) -> dict[str, RetentionRecord]:
    if not reader.exists(RETAINED):
        return {}
    rows = reader.read_arrow_table(RETAINED, *conditions, columns=schema.names).cast(schema)
    others = {*pc.unique(rows["format"]).to_pylist()} - {FORMAT}
    if others:
        raise LakeError(
            f"{RETAINED} has rows of format {min(others)}, but this version of sessionlake reads format {FORMAT}",
            why="Another version of sessionlake wrote them",
            fix="Use that version: the one with which `sessionlake maintain` ran last",
        )
    own = rows.filter(pc.is_null(rows["limit"])).select(["table", *(name for name, _ in _HEAD)])
    found = {head["table"]: RetentionRecord(**head) for head in own.to_pylist()}
    if schema is _OF_HEADS:
        return found
    return {table: replace(one, limits=_select_removal_limits_of_table(rows, table)) for table, one in found.items()}


def _select_removal_limits_of_table(rows: pa.Table, table: str) -> pa.Table:
    return rows.filter((pc.field("table") == table) & pc.field("limit").is_valid()).select(LIMITS.names)


def read_limits_changed_by_last_removal(reader: TableReader, record: RetentionRecord) -> pa.Table:
    """Returns the limits of a table that its last removal of rows changed, with the schema `LIMITS`.

    Args:
        reader: reads `ops.retained`.
        record: what was removed from the table, as read now. It names the last removal.
    """
    rows = reader.read_arrow_table(RETAINED, ("table", eq, record.table), ("limit", ge, 0), ("batch", eq, record.batch))
    return _select_removal_limits_of_table(rows.cast(_SCHEMA), record.table)


def read_removal_limits_as_frame(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """Returns the last removed offset, position or batch of each topic-partition or session of a table.

    The result is a Spark frame with at least the columns of `LIMITS`, because it may not fit into memory.
    """
    from pyspark.sql import functions as F

    if not lake.exists(spark, RETAINED):
        return convert_to_spark_frame(spark, LIMITS.empty_table())
    return lake.read(spark, RETAINED).where((F.col("table") == table) & F.col("limit").isNotNull())


def read_removal_record_of_table(reader: TableReader, table: str) -> RetentionRecord | None:
    """Returns what retention has removed from a table; None if nothing was removed. `limits` is empty in the result."""
    return copy_record_to_tables_removed_together(read_removal_records_without_limits(reader)).get(table)


def copy_record_to_tables_removed_together(
    record: Mapping[str, RetentionRecord],
) -> dict[str, RetentionRecord]:
    """Returns what was removed for every affected table, by table name.

    Some tables lose their rows together and have one common record in `ops.retained`. Each of them gets this record.
    """
    return {part: found for table, found in record.items() for part in TABLES_REMOVED_TOGETHER.get(table, (table,))}


def store_removal_record(spark: SparkSession, lake: Lake, record: RetentionRecord) -> None:
    """Writes what was removed from a table to `ops.retained`. The caller must hold `CLAIM`.

    Args:
        spark: the session to write with.
        lake: the lake that has `ops.retained`.
        record: the record, with the changed limits only. Stored limits of other topic-partitions and sessions
            stay.
    """
    lake.create_or_update_tables(spark, [RETAINED])
    head = {"table": record.table, "format": FORMAT} | {name: getattr(record, name) for name, _ in _HEAD}
    limits = record.limits
    own: dict[str, Any] = {name: limits[name] for name in LIMITS.names}
    for name, value in (("table", record.table), ("batch", record.batch), ("format", FORMAT)):
        own[name] = pa.array([value] * limits.num_rows, _SCHEMA.field(name).type)
    own |= {name: pa.nulls(limits.num_rows, kind) for name, kind in _HEAD if name != "batch"}
    moved = pa.table({name: own[name] for name in _SCHEMA.names}).cast(_SCHEMA)
    rows = pa.concat_tables([pa.Table.from_pylist([head], _SCHEMA), moved])
    merge_rows_as_claim_holder(spark, lake, RETAINED, _fill_null_key_columns(rows), _UPSERT)


def _fill_null_key_columns(rows: pa.Table) -> pa.Table:
    """Replaces nulls in the key columns by fixed values, because MERGE cannot match nulls.

    The key columns are `table`, `topic`, `partition` and `session_id`.
    """
    for name, value in _KEYS.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, pc.fill_null(rows[name], value))
    return rows


def delete_removal_records(
    spark: SparkSession, lake: Lake, tables: Iterable[str], topics: Collection[str] | None = None
) -> None:
    """Deletes the rows of `ops.retained` about tables whose rows were all written again. The caller must hold `CLAIM`.

    Args:
        spark: the session to write with.
        lake: the lake that has `ops.retained`.
        tables: names of the tables that were written again.
        topics: the topics whose rows were written again; only their limits are deleted. None if all rows were.
    """
    from pyspark.sql import functions as F

    known = sorted(read_removal_records_without_limits(lake.reader(spark)).keys() & {*tables})
    if known and topics is None:
        delete_rows_as_claim_holder(spark, lake, RETAINED, F.col("table").isin(known))
    elif known and topics:
        delete_rows_as_claim_holder(spark, lake, RETAINED, F.col("table").isin(known) & F.col("topic").isin([*topics]))


@dataclass(frozen=True)
class BronzePartitionStart:
    """Where a topic-partition begins in `bronze.messages` after retention has removed its first messages.

    Attributes:
        last_removed: offset of the last removed message.
        highest_ms: highest Kafka timestamp of the removed messages, in milliseconds since 1970; `NOT_COUNTED` if none
            of them had one.
    """

    last_removed: int
    highest_ms: int


def read_partition_starts(reader: TableReader) -> dict[TopicPartition, BronzePartitionStart]:
    """Returns, by topic-partition, where bronze begins after retention has removed messages.

    Topic-partitions without removed messages are missing.
    """
    found = read_removal_records(reader, [MESSAGES]).get(MESSAGES)
    if found is None:
        return {}
    highest = pc.fill_null(convert_timestamps_to_milliseconds(found.limits["highest_timestamp"]), NOT_COUNTED)
    columns = (found.limits[name].to_pylist() for name in ("topic", "partition", "limit"))
    rows = zip(*columns, highest.to_pylist(), strict=True)
    return {(topic, partition): BronzePartitionStart(last, time) for topic, partition, last, time in rows}


def describe_partition_start(topic_partition: TopicPartition, start: BronzePartitionStart) -> str:
    """Returns a sentence for the operator that names the first offset of a topic-partition in bronze."""
    (topic, partition), first = topic_partition, start.last_removed + 1
    return f"topic {topic}, partition {partition}: {MESSAGES} begins at offset {first}, by maintain.retention"


def read_last_removed_position(reader: TableReader, topic: str, partition: int | None, session_id: str) -> int | None:
    """Returns the highest `_position` of a session's changes that retention has removed; None if none were removed.

    Args:
        reader: reads `ops.retained`.
        topic: topic of the session.
        partition: Kafka partition of the session; None to consider the sessions with this id in all partitions.
        session_id: the session's id.
    """
    own: list[Condition] = [("table", eq, CHANGES), ("topic", eq, topic), ("session_id", eq, session_id)]
    if partition is not None:
        own.append(("partition", eq, partition))
    return max((row["limit"] for row in reader.read_rows(RETAINED, *own, columns=["limit"])), default=None)
