"""How much a consumer of bronze's stream takes at a time, so that large messages fit into the JVM's heap."""

from __future__ import annotations

from sessionlake.bronze.topic_book import TopicBook
from sessionlake.errors import BrokerError
from sessionlake.kafka.clients import (
    POLLED_BYTES,
    POLLED_BYTES_AFTER_FAILURE,
    POLLED_BYTES_IN_ALL,
    POLLED_BYTES_OF_MANY,
)
from sessionlake.streaming.checkpoint import last_committed, last_planned
from sessionlake.streaming.generations import Generation

_FEW_MESSAGES = 20_000
"""Up to so many that wait, small polls cost less than a tenth of a second."""


def polled_bytes(generation: Generation, book: TopicBook) -> int:
    """The bytes that one poll may have, of messages as large as `capture.max_message_bytes` allows.

    Fewer after a batch that was not finished, maybe because it did not fit into memory: each topic-partition that is
    read at once holds two polls.
    """
    unfinished = last_planned(generation.folder) != last_committed(generation.folder)
    try:
        ends = book.kafka_ends()
    except BrokerError:  # it is waited for elsewhere
        return POLLED_BYTES_AFTER_FAILURE if unfinished else POLLED_BYTES
    if unfinished:
        return min(POLLED_BYTES_AFTER_FAILURE, POLLED_BYTES_IN_ALL // max(len(ends), 1))
    waiting = sum(ends.values()) - sum(book.positions().values())
    return POLLED_BYTES if waiting <= _FEW_MESSAGES else POLLED_BYTES_OF_MANY
