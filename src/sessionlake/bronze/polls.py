"""Limits how many bytes a Kafka consumer polls at a time, so that large messages fit into the JVM's heap."""

from __future__ import annotations

from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.errors import BrokerError
from sessionlake.kafka.clients import (
    POLLED_BYTES,
    POLLED_BYTES_AFTER_FAILURE,
    POLLED_BYTES_IN_ALL,
    POLLED_BYTES_OF_MANY,
)
from sessionlake.streaming.checkpoint import read_last_committed_batch, read_last_planned_batch
from sessionlake.streaming.generations import CheckpointGeneration

_FEW_MESSAGES = 20_000
"""With at most this many pending messages, small polls cost less than a tenth of a second."""


def choose_max_bytes_per_poll(generation: CheckpointGeneration, topic_register: TopicRegister) -> int:
    """Returns how many bytes a Kafka consumer may fetch in one poll (one request for messages).

    The limit is lower if the last batch was not finished, because it may not have fit into memory. Each topic-partition
    that is read at the same time keeps two polls in memory.

    Args:
        generation: Generation of the checkpoint that the query uses.
        topic_register: Says how many topic-partitions are read.
    """
    unfinished = read_last_planned_batch(generation.folder) != read_last_committed_batch(generation.folder)
    try:
        ends = topic_register.read_kafka_ends()
    except BrokerError:  # the query waits for Kafka
        return POLLED_BYTES_AFTER_FAILURE if unfinished else POLLED_BYTES
    if unfinished:
        return min(POLLED_BYTES_AFTER_FAILURE, POLLED_BYTES_IN_ALL // max(len(ends), 1))
    waiting = sum(ends.values()) - sum(topic_register.list_next_offsets().values())
    return POLLED_BYTES if waiting <= _FEW_MESSAGES else POLLED_BYTES_OF_MANY
