"""Compares messages of Kafka and bronze by offset and by a hash of each field. Pure: it works on two Arrow tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.protocol.types import Row, TopicPartition

OFFSET_COLUMNS = ("topic", "partition", "offset")
"""The columns that identify a message."""
FIELDS = ("timestamp", "timestamp_type", "key", "value", "headers")
"""The columns of a message's content."""
_OF_BRONZE = "_bronze"
_COMPLETE = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("complete_from", pa.int64())])


@dataclass(frozen=True, order=True)
class MessageDifference:
    """A message that differs between Kafka and bronze.

    Attributes:
        topic: Topic of the message.
        partition: Partition of the message.
        offset: Offset in `bronze.messages`.
        how: A text for the operator that says how it differs, for example that bronze lacks it.
    """

    topic: str
    partition: int
    offset: int
    how: str

    def __str__(self) -> str:
        return f"topic {self.topic}, partition {self.partition}, offset {self.offset}: {self.how}"


@dataclass(frozen=True)
class MessageComparison:
    """The result of comparing messages of Kafka with those of bronze.

    Attributes:
        messages: Number of compared messages: those in Kafka, in bronze or in both.
        different: Number of compared messages that are missing, repeated or changed in bronze, or missing in Kafka.
        first_difference: The first of them, ordered by topic, partition and offset; None if all are equal.
        erased: Number of messages, not counted above, that are erased in bronze, or some of whose parts are, and so
            cannot be compared.
    """

    messages: int = 0
    different: int = 0
    first_difference: MessageDifference | None = None
    erased: int = 0

    def __add__(self, other: MessageComparison) -> MessageComparison:
        """Returns the sum of two results, as if all their messages had been compared at once."""
        first = min((found.first_difference for found in (self, other) if found.first_difference), default=None)
        different, erased = self.different + other.different, self.erased + other.erased
        return MessageComparison(self.messages + other.messages, different, first, erased)


def compare_messages(
    kafka: pa.Table, bronze: pa.Table, complete_from: Mapping[TopicPartition, int], erased: pa.Table | None = None
) -> MessageComparison:
    """Compares messages of Kafka with messages of bronze by their offsets and by hashes of their fields.

    Args:
        kafka: Kafka's messages: the columns `topic, partition, offset`, and for each field of a message a hash that is
            never null. Each offset occurs once.
        bronze: Bronze's messages with the same columns, in any order. An offset may occur several times.
        complete_from: By topic-partition, the offset from which Kafka still has every message. Messages before it that
            only bronze has are ignored.
        erased: `topic, partition, offset` of messages that are erased in bronze; None if there are none.
    """
    if erased is not None and erased.num_rows:
        kafka, bronze = (side.join(erased, list(OFFSET_COLUMNS), join_type="left anti") for side in (kafka, bronze))
        return compare_messages(kafka, bronze, complete_from) + MessageComparison(erased=erased.num_rows)
    sides = _join_kafka_and_bronze(kafka, bronze, complete_from)
    different = sides.filter(_mask_any_true(_mask_differences(sides)))
    first = different.sort_by([(name, "ascending") for name in OFFSET_COLUMNS]).slice(0, 1).to_pylist()
    return MessageComparison(sides.num_rows, different.num_rows, _describe_difference(first[0]) if first else None)


def _join_kafka_and_bronze(kafka: pa.Table, bronze: pa.Table, complete_from: Mapping[TopicPartition, int]) -> pa.Table:
    """Returns a row for each offset that Kafka or bronze has, with Kafka's and bronze's hash of each field.

    In the result, `in_kafka` is true, or null if Kafka lacks the offset. `copies` is the number of bronze's rows with
    this offset, or null if it has none.

    Args:
        kafka: Kafka's messages: `topic, partition, offset`, and a hash of each field.
        bronze: Bronze's messages with the same columns.
        complete_from: By topic-partition, the offset from which Kafka still has every message. Lower offsets that only
            bronze has are left out.
    """
    held = kafka.append_column("in_kafka", pa.array([True] * kafka.num_rows, pa.bool_()))
    copies = bronze.group_by(OFFSET_COLUMNS).aggregate([([], "count_all"), *((name, "min") for name in FIELDS)])
    copies = copies.rename_columns({"count_all": "copies"} | {f"{name}_min": f"{name}{_OF_BRONZE}" for name in FIELDS})
    sides = held.join(copies, list(OFFSET_COLUMNS), join_type="full outer")
    rows = [
        {"topic": topic, "partition": number, "complete_from": first}
        for (topic, number), first in complete_from.items()
    ]
    sides = sides.join(pa.Table.from_pylist(rows, _COMPLETE), ["topic", "partition"])
    return sides.filter(pc.field("in_kafka").is_valid() | (pc.field("offset") >= pc.field("complete_from")))


def _mask_differences(sides: pa.Table) -> list[pa.ChunkedArray]:
    """Returns a boolean column for each way in which a message can differ: true for rows that differ in this way.

    Args:
        sides: A row for each offset, as `_join_kafka_and_bronze` returns them.
    """
    fields = (pc.not_equal(sides[name], sides[f"{name}{_OF_BRONZE}"]) for name in FIELDS)
    presence = pc.is_null(sides["in_kafka"]), pc.is_null(sides["copies"]), pc.greater(sides["copies"], 1)
    return [pc.fill_null(column, fill_value=False) for column in (*presence, *fields)]


def _mask_any_true(columns: list[pa.ChunkedArray]) -> Any:
    return reduce(pc.or_, columns)


def _describe_difference(row: Row) -> MessageDifference:
    return MessageDifference(row["topic"], row["partition"], row["offset"], _describe_message_difference(row))


def _describe_message_difference(row: Row) -> str:
    if row["in_kafka"] is None:
        return "is in bronze and not in Kafka (if the topic is compacted, set `kafka.allow_offset_gaps: true`)"
    if row["copies"] is None:
        return "is in Kafka and not in bronze"
    if row["copies"] > 1:
        return f"is in bronze {row['copies']} times"
    different = [name for name in FIELDS if row[name] != row[f"{name}{_OF_BRONZE}"]]
    return f"differs from Kafka's in {', '.join(different)}"
