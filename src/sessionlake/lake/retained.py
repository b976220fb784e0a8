"""What retention has removed, in `ops.retained`: a fact of the tables' rows that no other table shows.

It is written before rows are removed, so that whoever reads it knows of all that may be gone, and again behind that. A
table has a row of its own (without a topic), and one for each place or session up to whose `limit` rows are gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import eq
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.capture import milliseconds
from sessionlake.errors import LakeError
from sessionlake.lake.commit import replace_claimed
from sessionlake.lake.expired import Expired
from sessionlake.lake.names import (
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
from sessionlake.lake.reading import Condition, TableReader, among, is_null
from sessionlake.lake.tables import Lake
from sessionlake.protocol.arrow import SESSION
from sessionlake.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT = 1
_EPOCH = datetime.fromtimestamp(0, UTC)
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


REMOVED_TOGETHER = {SNAPSHOTS: (SNAPSHOT_INDEX, CUTS, SNAPSHOTS)}
"""Tables that have their limits together, noted of the first. Who looks for a whole table looks in the index first."""
_PLACE = ("topic", "partition")


def expired(table: str, limits: pa.Table, batch: int = -1) -> Expired:
    """The rows of a table up to its limits.

    Args:
        batch: of silver, of which and of those before it they are, where that is known.
    """
    most = {"_batch": batch} if batch >= 0 and table not in {MESSAGES, SNAPSHOTS} else {}
    if table in {MESSAGES, QUARANTINE, EVENTS}:
        return Expired(_PLACE, "offset", limits, most)
    if table == CHANGES:
        return Expired(SESSION, "_position", limits, most)
    if table == PROGRESS:
        return Expired((*SESSION, "first_offset"), "_batch", limits, most, spares="beneath")
    return Expired(SESSION, "position", limits, most)


@dataclass(frozen=True)
class Retained:
    """Up to where a table's rows are gone.

    Attributes:
        before: the moment that all that is gone was committed before.
        batch: none is gone of a later batch of silver; -1 of a table that names none.
        removed: how many rows.
        pending: how many more are being removed.
        limits: see `LIMITS`; of bronze with the highest Kafka timestamp up to there, of `session_changes` by session.
    """

    table: str
    before: datetime
    batch: int
    removed: int
    pending: int
    limits: pa.Table

    @property
    def gone(self) -> int:
        """How many rows are gone at most."""
        return self.removed + self.pending

    @property
    def since(self) -> str:
        """From when on nothing is gone, for people."""
        return f"retention has removed rows of {self.table} that were committed before {self.before:%Y-%m-%d %H:%M:%SZ}"


def retained(reader: TableReader, tables: Collection[str] | None = None) -> dict[str, Retained]:
    """What is gone, by table.

    Args:
        tables: these alone: of some, there is a limit for every session that ever was.

    Raises:
        LakeError: it was written by a later version.
    """
    if tables is not None and not tables:
        return {}
    return _retained(reader, [] if tables is None else [("table", among, list(tables))])


def heads(reader: TableReader) -> dict[str, Retained]:
    """As `retained`, without the limits, which are many."""
    return _retained(reader, [("topic", is_null, None)])


def _retained(reader: TableReader, conditions: Sequence[Condition]) -> dict[str, Retained]:
    if not reader.exists(RETAINED):
        return {}
    rows = reader.table(RETAINED, *conditions).cast(_SCHEMA)
    if any(found != FORMAT for found in pc.unique(rows["format"]).to_pylist()):
        raise LakeError(f"{RETAINED} is of another format than {FORMAT}: a later version of sessionlake has written it")
    own = rows.filter(pc.is_null(rows["topic"])).select(["table", *(name for name, _ in _HEAD)])
    return {
        head["table"]: Retained(**head, limits=_of(rows, head["table"]).select(LIMITS.names))
        for head in own.to_pylist()
    }


def cut_of(reader: TableReader, table: str) -> Retained | None:
    """What is gone of a table, without the limits."""
    return by_table(heads(reader)).get(table)


def by_table(known: Mapping[str, Retained]) -> dict[str, Retained]:
    """What is gone, by every table that rows are removed from: some lose theirs with another's."""
    return {part: found for table, found in known.items() for part in REMOVED_TOGETHER.get(table, (table,))}


def _of(rows: pa.Table, table: str) -> pa.Table:
    return rows.filter((pc.field("table") == table) & pc.field("topic").is_valid())


def store(spark: SparkSession, lake: Lake, known: Mapping[str, Retained]) -> None:
    """Replaces what is noted. `CLAIM` must be held."""
    parts = []
    for name, found in sorted(known.items()):
        head = {"table": name, "format": FORMAT} | {column: getattr(found, column) for column, _ in _HEAD}
        parts.append(pa.Table.from_pylist([head], _SCHEMA))
        limits = found.limits
        own = {column: limits[column] for column in LIMITS.names}
        own["table"] = pa.array([name] * limits.num_rows, pa.string())
        own |= {column: pa.nulls(limits.num_rows, kind) for column, kind in _HEAD}
        own["format"] = pa.array([FORMAT] * limits.num_rows, pa.int32())
        parts.append(pa.table({column: own[column] for column in _SCHEMA.names}).cast(_SCHEMA))
    replace_claimed(spark, lake, RETAINED, pa.concat_tables(parts) if parts else _SCHEMA.empty_table())


def forget(spark: SparkSession, lake: Lake, tables: Iterable[str]) -> None:
    """Takes note that tables are whole again: all of their rows were written anew. `CLAIM` must be held."""
    known = retained(lake.reader(spark))
    left = {name: found for name, found in known.items() if name not in set(tables)}
    if left.keys() != known.keys():
        store(spark, lake, left)


@dataclass(frozen=True)
class Beginning:
    """Where a topic-partition begins in bronze.

    Attributes:
        last: the last offset that is gone.
        highest: the highest Kafka timestamp up to it.
    """

    last: int
    highest: datetime

    @property
    def highest_ms(self) -> int:
        """The highest Kafka timestamp up to the last offset that is gone, in ms."""
        return milliseconds(self.highest - _EPOCH)


def beginnings(reader: TableReader) -> dict[TopicPartition, Beginning]:
    """Where bronze begins, of the topic-partitions of which messages are gone."""
    found = retained(reader, [MESSAGES]).get(MESSAGES)
    rows = [] if found is None else found.limits.to_pylist()
    return {(r["topic"], r["partition"]): Beginning(r["limit"], r["highest_timestamp"]) for r in rows}


def begins(place: TopicPartition, at: Beginning) -> str:
    """Where a topic-partition begins, in words for people."""
    return f"topic {place[0]}, partition {place[1]}: {MESSAGES} begins at offset {at.last + 1}, by maintain.retention"


def floor_of(reader: TableReader, topic: str, session_id: str) -> int | None:
    """The last position of a session's changes that are gone; None if none is."""
    own = ("table", eq, CHANGES), ("topic", eq, topic), ("session_id", eq, session_id)
    return next((row["limit"] for row in reader.rows(RETAINED, *own, columns=["limit"])), None)
