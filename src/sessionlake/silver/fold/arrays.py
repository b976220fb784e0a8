"""Turns a shard's messages, which are Arrow tables, into the arrays that judging works on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.integrity.clock import ShardClock
from sessionlake.integrity.outcome import JudgingOutcome
from sessionlake.integrity.segment_times import StreamTimesBeforeSegments
from sessionlake.integrity.shard_batch import MessageArrays, ShardBatch
from sessionlake.protocol.arrow import (
    SESSION,
    build_session_key_of_each_row,
    join_session_keys,
    number_distinct_combinations,
)
from sessionlake.protocol.message import ANY_SEQ, NO_SEQ
from sessionlake.protocol.types import Int64s


def sort_messages_by_session(messages: pa.Table) -> tuple[pa.Table, Int64s, pa.Array]:
    """Sorts messages by session and offset.

    Returns the sorted messages, the session number of each, and the session keys.
    """
    owner, names = number_distinct_combinations(*(messages[name] for name in SESSION))
    order = np.lexsort((messages["offset"].to_numpy(), owner))
    if (np.diff(order) != 1).any():
        messages, owner = messages.take(pa.array(order)).combine_chunks(), owner[order]
    return messages, owner, join_session_keys(*names)


def find_held_session_numbers(held_messages: pa.Table, keys: pa.Array) -> Int64s:
    """Returns, for each held message, the index of its session in these session keys; -1 if it is not in them."""
    found: Int64s = (
        pc.fill_null(pc.index_in(build_session_key_of_each_row(held_messages), value_set=keys), -1)
        .to_numpy()
        .astype(np.int64)
    )
    return found


def clear_unknown_times(batch: ShardBatch, first_timed_offsets: Int64s, outcome: JudgingOutcome) -> None:
    """Replaces times in the outcome by `NO_KAFKA_TIME` where the topic-partition had no stream time yet.

    Args:
        batch: The judged batch.
        first_timed_offsets: For each topic-partition in the clock, the first offset at which it had a stream time.
        outcome: The result of judging, updated in place.
    """
    of_session = first_timed_offsets[batch.cursors["lane"]]
    held = np.repeat(of_session, np.diff(batch.held_bounds))
    outcome.clear_unknown_stream_times(np.append(held, first_timed_offsets[batch.new_messages.lane]), of_session)


def compute_arrival_times(
    messages: pa.Table, clock_indices: Int64s, stretch_times: StreamTimesBeforeSegments, clock: ShardClock
) -> Int64s:
    """Returns the stream time (ms) at which each message arrived.

    Args:
        messages: Messages of the batch, in any order.
        clock_indices: The index of each message's topic-partition in the clock.
        stretch_times: Stream times of the batch.
        clock: The clock of the shard.
    """
    offsets, maxima = messages["offset"].to_numpy(), messages["clock"].to_numpy()
    times = stretch_times.compute_stream_time_of_each_message(clock_indices, offsets, maxima)
    return clock.replace_unknown_stream_times(clock_indices, times)


def build_message_arrays(
    messages: pa.Table,
    session_numbers: Int64s,
    clock_indices: Int64s,
    stretch_times: StreamTimesBeforeSegments,
    clock: ShardClock,
) -> MessageArrays:
    """Converts an Arrow table of messages to the arrays that judging works on.

    Args:
        messages: Well-formed messages, sorted by session and offset.
        session_numbers: The number of each message's session.
        clock_indices: The index of each message's topic-partition in the clock.
        stretch_times: Stream times of the batch.
        clock: The clock of the shard.
    """

    def convert_message_column_to_numpy(name: str) -> Any:
        return messages[name].to_numpy()

    starts = np.flatnonzero(np.diff(session_numbers, prepend=-1))
    return MessageArrays(
        starts=starts,
        type=convert_message_column_to_numpy("type"),
        seq=pc.fill_null(messages["seq"], NO_SEQ).to_numpy(),
        ts=convert_message_column_to_numpy("ts"),
        offset=convert_message_column_to_numpy("offset"),
        kafka_ts=convert_message_column_to_numpy("kafka_ts"),
        partition=convert_message_column_to_numpy("partition"),
        lane=clock_indices.astype(np.int32),
        now=compute_arrival_times(messages, clock_indices, stretch_times, clock),
        size=convert_message_column_to_numpy("size"),
        changes=pc.fill_null(pc.list_value_length(messages["changes"]), 0).to_numpy().astype(np.int64),
        after=pc.fill_null(messages["after"], ANY_SEQ).to_numpy(),
        link=convert_message_column_to_numpy("link"),
    )
