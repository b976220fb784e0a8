"""What retention has removed, in `ops.retained`: a fact of the tables' rows that no other table shows.

It is written before rows are removed, so that whoever reads it knows of all that may be gone, and again behind that. A
table has a row of its own (without a `limit`), and one for each place or session up to whose `limit` rows are gone. Of
sessions there are as many as ever were: their rows are changed where they are, and nobody reads all of them at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from operator import eq, ge
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.commit import delete_claimed, merge_claimed
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
from sessionlake.delta.storage.expired import Expired
from sessionlake.delta.storage.reading import Condition, TableReader, is_in, is_null
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import LakeError
from sessionlake.protocol.arrow import SESSION, milliseconds_of
from sessionlake.protocol.kafka_time import NOT_COUNTED
from sessionlake.protocol.types import TopicPartition
from sessionlake.spark.frames import as_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FORMAT = 2
CLAIM = RETENTION_CLAIM
"""What whoever removes rows claims, and whoever must not have rows removed meanwhile."""
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
"""The columns of limits: of places, or of sessions."""
_HEAD = [("batch", pa.int64()), ("before", _TIME), ("removed", pa.int64()), ("pending", pa.int64())]
_SCHEMA = pa.schema([("table", pa.string()), *LIMITS, *_HEAD, ("format", pa.int32())])
_OF_HEADS = pa.schema([("table", pa.string()), ("limit", pa.int64()), *_HEAD, ("format", pa.int32())])
_KEYS = {"table": "", "topic": "", "partition": -1, "session_id": ""}
"""What tells rows apart, and what is there in the place of one that a row has not."""
_UPSERT = Upsert(tuple(_KEYS), tuple(name for name in _SCHEMA.names if name not in _KEYS), pruned_by=("table",))

TABLES_REMOVED_TOGETHER = {SNAPSHOTS: (SNAPSHOT_INDEX, CUTS, SNAPSHOTS)}
"""Tables that have their limits together, noted of the first. Who looks for a whole table looks in the index first."""
_PLACE = ("topic", "partition")


def expired_rows(table: str, limits: pa.Table | None = None, batch: int = -1) -> Expired:
    """The rows of a table up to its limits.

    Args:
        limits: None where they are no rows at hand, and only `Expired.condition` is asked for.
        batch: of silver, of which and of those before it they are, where that is known.
    """
    limits = LIMITS.empty_table() if limits is None else limits
    most = {"_batch": batch} if batch >= 0 and table not in {MESSAGES, SNAPSHOTS} else {}
    if table in {MESSAGES, QUARANTINE, EVENTS}:
        return Expired(_PLACE, "offset", limits, most)
    if table == CHANGES:
        return Expired(SESSION, "_position", limits, most)
    if table == PROGRESS:
        return Expired((*SESSION, "first_offset"), "_batch", limits, most, spared_by="beneath")
    return Expired(SESSION, "position", limits, most)


@dataclass(frozen=True)
class Retained:
    """Up to where a table's rows are gone.

    Attributes:
        before: the moment that all that is gone was committed before.
        batch: none is gone of a later batch of silver; -1 of a table that names none.
        removed: how many rows.
        pending: how many more are being removed.
        limits: see `LIMITS`; of bronze with the highest Kafka timestamp up to there. Of whoever has asked for the head
            alone: none.
    """

    table: str
    before: datetime
    batch: int = -1
    removed: int = 0
    pending: int = 0
    limits: pa.Table = field(default_factory=LIMITS.empty_table)

    @property
    def gone(self) -> int:
        """How many rows are gone at most."""
        return self.removed + self.pending

    @property
    def summary(self) -> str:
        """From when on nothing is gone, for people."""
        return f"retention has removed rows of {self.table} that were committed before {self.before:%Y-%m-%d %H:%M:%SZ}"


def read_retained(reader: TableReader, tables: Collection[str] | None = None) -> dict[str, Retained]:
    """What is gone, by table.

    Args:
        tables: these alone: of some, there is a limit for every session that ever was.

    Raises:
        LakeError: another version of sessionlake has written it.
    """
    if tables is not None and not tables:
        return {}
    return _retained(reader, [] if tables is None else [("table", is_in, list(tables))], _SCHEMA)


def read_heads(reader: TableReader) -> dict[str, Retained]:
    """As `read_retained`, without the limits, which are many."""
    return _retained(reader, [("limit", is_null, None)], _OF_HEADS)


def _retained(reader: TableReader, conditions: Sequence[Condition], schema: pa.Schema) -> dict[str, Retained]:
    if not reader.exists(RETAINED):
        return {}
    rows = reader.table(RETAINED, *conditions, columns=schema.names).cast(schema)
    others = {*pc.unique(rows["format"]).to_pylist()} - {FORMAT}
    if others:
        raise LakeError(
            f"{RETAINED} has format {min(others)}, and this version of sessionlake reads format {FORMAT}: use the "
            "version that has written it"
        )
    own = rows.filter(pc.is_null(rows["limit"])).select(["table", *(name for name, _ in _HEAD)])
    found = {head["table"]: Retained(**head) for head in own.to_pylist()}
    if schema is _OF_HEADS:
        return found
    return {table: replace(one, limits=_limits(rows, table)) for table, one in found.items()}


def _limits(rows: pa.Table, table: str) -> pa.Table:
    return rows.filter((pc.field("table") == table) & pc.field("limit").is_valid()).select(LIMITS.names)


def limits_moved_last(reader: TableReader, found: Retained) -> pa.Table:
    """The limits of a table that were changed when its head was written last; columns as `LIMITS`."""
    rows = reader.table(RETAINED, ("table", eq, found.table), ("limit", ge, 0), ("batch", eq, found.batch))
    return _limits(rows.cast(_SCHEMA), found.table)


def limits_frame(spark: SparkSession, lake: Lake, table: str) -> DataFrame:
    """The limits of a table's sessions or places, of which there may be many: the columns of `LIMITS`, and others."""
    from pyspark.sql import functions as F

    if not lake.exists(spark, RETAINED):
        return as_frame(spark, LIMITS.empty_table())
    return lake.read(spark, RETAINED).where((F.col("table") == table) & F.col("limit").isNotNull())


def read_head(reader: TableReader, table: str) -> Retained | None:
    """What is gone of a table, without the limits."""
    return by_table(read_heads(reader)).get(table)


def by_table(known: Mapping[str, Retained]) -> dict[str, Retained]:
    """What is gone, by every table that rows are removed from: some lose theirs with another's."""
    return {part: found for table, found in known.items() for part in TABLES_REMOVED_TOGETHER.get(table, (table,))}


def record_retained(spark: SparkSession, lake: Lake, found: Retained) -> None:
    """Notes how much is gone of a table, and the limits that are moved; others of it stay. `CLAIM` must be held."""
    lake.ensure(spark, [RETAINED])
    head = {"table": found.table, "format": FORMAT} | {name: getattr(found, name) for name, _ in _HEAD}
    limits = found.limits
    own: dict[str, Any] = {name: limits[name] for name in LIMITS.names}
    for name, value in (("table", found.table), ("batch", found.batch), ("format", FORMAT)):
        own[name] = pa.array([value] * limits.num_rows, _SCHEMA.field(name).type)
    own |= {name: pa.nulls(limits.num_rows, kind) for name, kind in _HEAD if name != "batch"}
    moved = pa.table({name: own[name] for name in _SCHEMA.names}).cast(_SCHEMA)
    rows = pa.concat_tables([pa.Table.from_pylist([head], _SCHEMA), moved])
    merge_claimed(spark, lake, RETAINED, _keyed(rows), _UPSERT)


def _keyed(rows: pa.Table) -> pa.Table:
    """Rows with values in the place of keys that they have not."""
    for name, value in _KEYS.items():
        rows = rows.set_column(rows.schema.get_field_index(name), name, pc.fill_null(rows[name], value))
    return rows


def clear_retained(
    spark: SparkSession, lake: Lake, tables: Iterable[str], topics: Collection[str] | None = None
) -> None:
    """Takes note that tables are whole again: all of their rows were written anew. `CLAIM` must be held.

    Args:
        topics: only rows of these were; None for all.
    """
    from pyspark.sql import functions as F

    known = sorted(read_heads(lake.reader(spark)).keys() & {*tables})
    if known and topics is None:
        delete_claimed(spark, lake, RETAINED, F.col("table").isin(known))
    elif known and topics:
        delete_claimed(spark, lake, RETAINED, F.col("table").isin(known) & F.col("topic").isin([*topics]))


@dataclass(frozen=True)
class Beginning:
    """Where a topic-partition begins in bronze.

    Attributes:
        last: the last offset that is gone.
        highest_ms: stream time that messages had come to with it, ms; `NOT_COUNTED`: none of them said any.
    """

    last_removed: int
    highest_ms: int


def beginnings(reader: TableReader) -> dict[TopicPartition, Beginning]:
    """Where bronze begins, of the topic-partitions of which messages are gone."""
    found = read_retained(reader, [MESSAGES]).get(MESSAGES)
    if found is None:
        return {}
    highest = pc.fill_null(milliseconds_of(found.limits["highest_timestamp"]), NOT_COUNTED)
    columns = (found.limits[name].to_pylist() for name in ("topic", "partition", "limit"))
    rows = zip(*columns, highest.to_pylist(), strict=True)
    return {(topic, partition): Beginning(last, time) for topic, partition, last, time in rows}


def describe_beginning(place: TopicPartition, at: Beginning) -> str:
    """Where a topic-partition begins, in words for people."""
    first = at.last_removed + 1
    return f"topic {place[0]}, partition {place[1]}: {MESSAGES} begins at offset {first}, by maintain.retention"


def last_removed_position(reader: TableReader, topic: str, partition: int | None, session_id: str) -> int | None:
    """The last position of a session's changes that are gone; None if none is.

    Args:
        partition: None: the sessions of this id in all partitions.
    """
    own: list[Condition] = [("table", eq, CHANGES), ("topic", eq, topic), ("session_id", eq, session_id)]
    if partition is not None:
        own.append(("partition", eq, partition))
    return max((row["limit"] for row in reader.rows(RETAINED, *own, columns=["limit"])), default=None)
