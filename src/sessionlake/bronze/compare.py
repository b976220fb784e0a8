"""Messages of Kafka and of bronze compared, by offset and by a hash of each field. Pure: two Arrow tables in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.types import Row, TopicPartition

OFFSET = ("topic", "partition", "offset")
FIELDS = ("timestamp", "timestamp_type", "key", "value", "headers")
"""What a message is, beside where it is."""
_OF_BRONZE = "_bronze"
_COMPLETE = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("complete_from", pa.int64())])


@dataclass(frozen=True, order=True)
class Difference:
    """Where a message differs, and how."""

    topic: str
    partition: int
    offset: int
    how: str

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}: {self.how}"


@dataclass(frozen=True)
class Compared:
    """The outcome.

    Attributes:
        messages: how many there are on either side.
        different: how many of them differ in some way.
        first: the first difference, by topic, partition and offset; None if there is none.
        erased: how many more are erased in bronze: there is nothing to compare.
    """

    messages: int = 0
    different: int = 0
    first: Difference | None = None
    erased: int = 0

    def __add__(self, other: Compared) -> Compared:
        """The outcome for the messages of both."""
        first = min((found.first for found in (self, other) if found.first), default=None)
        different, erased = self.different + other.different, self.erased + other.erased
        return Compared(self.messages + other.messages, different, first, erased)


def compare(
    kafka: pa.Table, bronze: pa.Table, complete_from: Mapping[TopicPartition, int], erased: pa.Table | None = None
) -> Compared:
    """Compares the messages of some offsets.

    Args:
        kafka: the columns `OFFSET`, and of each of `FIELDS` a hash that is never null; each offset once.
        bronze: the same columns, in any order.
        complete_from: the offset from which on Kafka lacks nothing that it ever held; what bronze alone has before it
            is left out.
        erased: `OFFSET` of the messages that are erased in bronze.
    """
    if erased is not None and erased.num_rows:
        kafka, bronze = (side.join(erased, list(OFFSET), join_type="left anti") for side in (kafka, bronze))
        return compare(kafka, bronze, complete_from) + Compared(erased=erased.num_rows)
    sides = _joined(kafka, bronze, complete_from)
    different = sides.filter(_any(_differences(sides)))
    first = different.sort_by([(name, "ascending") for name in OFFSET]).slice(0, 1).to_pylist()
    return Compared(sides.num_rows, different.num_rows, _difference(first[0]) if first else None)


def _joined(kafka: pa.Table, bronze: pa.Table, complete_from: Mapping[TopicPartition, int]) -> pa.Table:
    """A row an offset: `in_kafka` (true or null), hashes of both sides, and how many `copies` bronze has (or null)."""
    held = kafka.append_column("in_kafka", pa.array([True] * kafka.num_rows, pa.bool_()))
    copies = bronze.group_by(OFFSET).aggregate([([], "count_all"), *((name, "min") for name in FIELDS)])
    copies = copies.rename_columns({"count_all": "copies"} | {f"{name}_min": f"{name}{_OF_BRONZE}" for name in FIELDS})
    sides = held.join(copies, list(OFFSET), join_type="full outer")
    rows = [
        {"topic": topic, "partition": number, "complete_from": first}
        for (topic, number), first in complete_from.items()
    ]
    sides = sides.join(pa.Table.from_pylist(rows, _COMPLETE), ["topic", "partition"])
    return sides.filter(pc.field("in_kafka").is_valid() | (pc.field("offset") >= pc.field("complete_from")))


def _differences(sides: pa.Table) -> list[pa.ChunkedArray]:
    """For each way to differ, which rows do."""
    fields = (pc.not_equal(sides[name], sides[f"{name}{_OF_BRONZE}"]) for name in FIELDS)
    whole = pc.is_null(sides["in_kafka"]), pc.is_null(sides["copies"]), pc.greater(sides["copies"], 1)
    return [pc.fill_null(found, fill_value=False) for found in (*whole, *fields)]


def _any(columns: list[pa.ChunkedArray]) -> Any:
    return reduce(pc.or_, columns)


def _difference(row: Row) -> Difference:
    return Difference(row["topic"], row["partition"], row["offset"], _how(row))


def _how(row: Row) -> str:
    if row["in_kafka"] is None:
        return "is in bronze and not in Kafka (if the topic is compacted, set kafka.allow_offset_gaps: true)"
    if row["copies"] is None:
        return "is in Kafka and not in bronze"
    if row["copies"] > 1:
        return f"is in bronze {row['copies']} times"
    other = [name for name in FIELDS if row[name] != row[f"{name}{_OF_BRONZE}"]]
    return f"differs from Kafka's in {', '.join(other)}"
