"""Decides which Kafka timestamps count for stream time, and what a message's time is, from values in bronze alone.

There are three kinds of Kafka timestamps:

- An ordinary time: it moves stream time, and it is the message's time.
- Missing (`NO_KAFKA_TIME`): the producer set none. The message's time is stream time so far.
- In the future: more than the allowed skew after bronze read the message. It does not count.

Stream time of a topic-partition is `NO_KAFKA_TIME` until the first timestamp that counts, or the first silence. That
first time also applies to everything before it: no session expires because time becomes known.
"""

from __future__ import annotations

import numpy as np

from sessionlake.protocol.message import INT64_MAX, INT64_MIN
from sessionlake.protocol.reasons import Reason
from sessionlake.protocol.types import Bools, Int64s

NO_KAFKA_TIME = -1
"""Kafka's timestamp (ms) of a message whose producer set none; also stream time while no time is known."""
NOT_COUNTED = INT64_MIN
"""Stands for a Kafka timestamp (ms) that does not count, in arrays of times."""


def find_reason_to_refuse_kafka_time(kafka_ts: int, ingested_at: int | None, max_skew: int) -> Reason | None:
    """Returns a reason if a Kafka timestamp is too far ahead of the time at which bronze read the message; else None.

    Args:
        kafka_ts: The Kafka timestamp in ms.
        ingested_at: When bronze read the message, in ms; None if not known: then any timestamp is accepted.
        max_skew: How far it may be ahead, in ms.
    """
    too_far = ingested_at is not None and kafka_ts > ingested_at + max_skew
    return Reason.FUTURE_KAFKA_TS if too_far else None


def find_kafka_times_in_future(kafka_ts: Int64s, ingested_at: Int64s, max_skew: int) -> Bools:
    """Returns a boolean for each message: True if its Kafka timestamp is too far after bronze has read it.

    All arguments are in ms. If it is not known when bronze read a message, its `ingested_at` is `INT64_MAX`.
    """
    found: Bools = kafka_ts > _add_skew_without_overflow(ingested_at, max_skew)
    return found


def compute_latest_event_time(kafka_ts: int, max_skew: int) -> int:
    """Returns the highest event time (ms) that a message may have: its Kafka timestamp plus `max_skew`.

    Without a Kafka timestamp there is no limit.
    """
    return INT64_MAX if kafka_ts == NO_KAFKA_TIME else min(kafka_ts + max_skew, INT64_MAX)


def compute_latest_event_times(kafka_ts: Int64s, max_skew: int) -> Int64s:
    """Returns the highest event time (ms) of each message: its Kafka timestamp, if it has one, plus `max_skew`."""
    return np.where(kafka_ts == NO_KAFKA_TIME, INT64_MAX, _add_skew_without_overflow(kafka_ts, max_skew))


def replace_times_not_counted(kafka_ts: Int64s, is_future: Bools) -> Int64s:
    """Returns each Kafka timestamp (ms), with missing ones and those in the future replaced by `NOT_COUNTED`."""
    unsaid = is_future | (kafka_ts == NO_KAFKA_TIME)
    return np.where(unsaid, NOT_COUNTED, kafka_ts) if unsaid.any() else kafka_ts


def choose_kafka_or_stream_time(kafka_ts: int, stream_time: int) -> int:
    """Returns a message's time in ms: its Kafka timestamp, or stream time so far if it has none."""
    return stream_time if kafka_ts == NO_KAFKA_TIME else kafka_ts


def choose_kafka_or_stream_times(kafka_ts: Int64s, stream_time: Int64s) -> Int64s:
    """Returns each message's time in ms: its Kafka timestamp, or stream time so far if it has none."""
    missing = kafka_ts == NO_KAFKA_TIME
    return np.where(missing, stream_time, kafka_ts) if missing.any() else kafka_ts


def _add_skew_without_overflow(times: Int64s, skew: int) -> Int64s:
    """Returns each time plus the skew, in ms. A sum beyond int64 becomes the highest int64."""
    return np.minimum(times, INT64_MAX - skew) + skew
