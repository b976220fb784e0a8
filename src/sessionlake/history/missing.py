"""Counts offsets without a message, and explains with the ledger's help why a layer does not have a message."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from operator import eq, ge, le

from sessionlake.delta.schemas.names import ABSENT
from sessionlake.delta.storage.reading import Condition, TableReader
from sessionlake.ledger.absent import AbsentOffsetFinder, AbsentOffsetReason, count_offsets_in_intervals
from sessionlake.ledger.progress import LayerReadOffsets, read_layer_offsets
from sessionlake.protocol.types import TopicPartition
from sessionlake.settings.model import Settings

_MAX_NAMED = 20


def missing_offsets(reader: TableReader) -> dict[LayerReadOffsets, int]:
    """Returns how many messages are missing in each range of offsets that a layer has read.

    There is one range for each layer and topic-partition. A number is negative if the layer has messages twice. Offsets
    at
    which Kafka has no message, such as transaction markers, do not count.
    """
    found = {span: span.last - span.first + 1 - span.messages for span in read_layer_offsets(reader)}
    wanted: dict[TopicPartition, tuple[int, int]] = {}
    for _, topic, partition, first, last, _ in (span for span, missing in found.items() if missing):
        low, high = wanted.get((topic, partition), (first, last + 1))
        wanted[topic, partition] = min(low, first), max(high, last + 1)
    known = AbsentOffsetFinder(reader).find_absent_offset_intervals(wanted)
    return {
        span: missing and missing - count_offsets_in_intervals(known[span[1:3]], span.first, span.last + 1)
        for span, missing in found.items()
    }


def explain_unread_message(
    spans: list[LayerReadOffsets], settings: Settings, topic: str, partition: int, offset: int
) -> str:
    """Returns a text that says why bronze does not have a message, and which offsets it has.

    Args:
        spans: The ranges of offsets that the layers have read, one for each layer and topic-partition.
        settings: The configuration.
        topic: The message's topic.
        partition: The message's partition.
        offset: The message's offset.
    """
    known = [span for span in spans if span.layer == "bronze"]
    of_topic = {span.partition: span for span in known if span.topic == topic}
    if not known:
        return "bronze holds no messages yet. Run `sessionlake run all --once` to read what Kafka holds"
    if not of_topic:
        outside = "" if re.fullmatch(settings.kafka.topic_pattern, topic) else ", and kafka.topic_pattern excludes it"
        topics = _join_names({span.topic: None for span in known})
        return f"topic {topic}: bronze holds no message of it{outside}; it knows {topics}"
    if partition not in of_topic:
        return (
            f"topic {topic}, partition {partition}: bronze holds no message of it; it holds "
            f"{_join_names(f'partition {n} (offsets {span.first} to {span.last})' for n, span in of_topic.items())}"
        )
    span = of_topic[partition]
    where = f"topic {topic}, partition {partition}: bronze holds offsets {span.first} to {span.last}"
    if offset > span.last:
        return f"{where}; {offset} has not been read yet"
    if offset < span.first:
        return f"{where}; Kafka had removed {offset} before bronze started, or it never existed"
    return f"{where}, but none at {offset}: Kafka had no message there, as in a compacted topic"


def explain_absent_message(reader: TableReader, topic: str, partition: int, offset: int) -> str | None:
    """Returns the recorded reason for which bronze has no message at an offset, as a text; None if none is recorded."""
    place: list[Condition] = [("topic", eq, topic), ("partition", eq, partition)]
    for row in reader.read_rows(ABSENT, *place, ("first", le, offset), ("last", ge, offset)):
        where = f"topic {topic}, partition {partition}: bronze has no message at offset {offset}"
        if row["reason"] == AbsentOffsetReason.SKIPPED:
            return f"{where}: {row['who']} skipped it ({row['why']}), because Spark cannot deliver it"
        return f"{where}: Kafka used it for a transaction, as a marker or for an aborted record"
    return None


def explain_unjudged_message(
    spans: list[LayerReadOffsets], batch: int, committed_at: datetime, topic: str, partition: int, offset: int
) -> str:
    """Returns a text that says that silver has not judged a message yet, and how far it is in the message's partition.

    Args:
        spans: The ranges of offsets that the layers have read, one for each layer and topic-partition.
        batch: The batch of bronze that committed the message.
        committed_at: When that batch was committed.
        topic: The message's topic.
        partition: The message's partition.
        offset: The message's offset.
    """
    place = (topic, partition)
    done = next((s for s in spans if s.layer == "silver" and (s.topic, s.partition) == place), None)
    reach = f"silver has judged offsets {done.first} to {done.last}" if done else "silver has judged none of it"
    return (
        f"topic {topic}, partition {partition}: {reach} so far; {offset} is in bronze (batch {batch}, committed "
        f"{committed_at:%Y-%m-%d %H:%M:%S} UTC) and waits for `sessionlake run silver`"
    )


def _join_names(names: Iterable[str]) -> str:
    found = list(names)
    more = f" and {len(found) - _MAX_NAMED} more" if len(found) > _MAX_NAMED else ""
    return f"{', '.join(found[:_MAX_NAMED])}{more}"
