"""What a message's Kafka timestamp says about time.

Three kinds of Kafka timestamp are told apart, by stored facts alone:

- A time: it moves stream time, and is the message's own time.
- None (`NO_KAFKA_TIME`): the producer set none. The message's own time is stream time so far.
- One in the future: more than the allowed skew after the message was read into bronze. It says nothing about time.

Stream time of a topic-partition is `NO_KAFKA_TIME` until a message, or a silence, says a time. The first time that is
said counts for everything before it: no session expires because time becomes known.
"""

from __future__ import annotations

import numpy as np

from sessionlake.protocol.message import INT64_MAX, INT64_MIN
from sessionlake.protocol.reasons import Reason
from sessionlake.protocol.types import Bools, Int64s

NO_KAFKA_TIME = -1
"""Kafka's timestamp (ms) of a message whose producer set none, and stream time while no time is known."""
NOT_COUNTED = INT64_MIN
"""In a stream of times (ms): a message that says nothing about time."""


def kafka_time_reason(kafka_ts: int, ingested_at: int | None, max_skew: int) -> Reason | None:
    """FUTURE_KAFKA_TS if a message's Kafka timestamp is too far ahead of the time at which bronze read it. All in ms.

    Args:
        ingested_at: None: not known, so any timestamp is believed.
    """
    too_far = ingested_at is not None and kafka_ts > ingested_at + max_skew
    return Reason.FUTURE_KAFKA_TS if too_far else None


def in_future(kafka_ts: Int64s, ingested_at: Int64s, max_skew: int) -> Bools:
    """True where `kafka_time_reason` finds one; `ingested_at` is `INT64_MAX` where it is not known."""
    found: Bools = kafka_ts > _add(ingested_at, max_skew)
    return found


def latest_event_time(kafka_ts: int, max_skew: int) -> int:
    """The highest event time (ms) that is believed of a message; without a Kafka timestamp, any is."""
    return INT64_MAX if kafka_ts == NO_KAFKA_TIME else min(kafka_ts + max_skew, INT64_MAX)


def latest_event_times(kafka_ts: Int64s, max_skew: int) -> Int64s:
    """`latest_event_time` of many messages."""
    return np.where(kafka_ts == NO_KAFKA_TIME, INT64_MAX, _add(kafka_ts, max_skew))


def counted_times(kafka_ts: Int64s, future: Bools) -> Int64s:
    """The time (ms) that each message says, `NOT_COUNTED` where it says none."""
    unsaid = future | (kafka_ts == NO_KAFKA_TIME)
    return np.where(unsaid, NOT_COUNTED, kafka_ts) if unsaid.any() else kafka_ts


def message_time(kafka_ts: int, stream_time: int) -> int:
    """A message's own time, ms: what Kafka says, or else stream time when it came."""
    return stream_time if kafka_ts == NO_KAFKA_TIME else kafka_ts


def message_times(kafka_ts: Int64s, stream_time: Int64s) -> Int64s:
    """`message_time` of many messages."""
    missing = kafka_ts == NO_KAFKA_TIME
    return np.where(missing, stream_time, kafka_ts) if missing.any() else kafka_ts


def _add(times: Int64s, skew: int) -> Int64s:
    """The sum, or the highest int64 where that is beyond it."""
    return np.minimum(times, INT64_MAX - skew) + skew
