"""Explains gaps in a batch's offsets by Kafka transactions, and stops bronze before the commit if it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import OffsetHoleError
from sessionlake.kafka.transactions import find_intervals_used_by_transactions
from sessionlake.ledger.absent import (
    AbsentOffsetReason,
    OffsetInterval,
    find_missing_offset_intervals,
    record_absent_offsets,
)
from sessionlake.ledger.offset_log import GAP_FIX
from sessionlake.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def record_transaction_gaps(
    spark: SparkSession,
    lake: Lake,
    planned: Mapping[TopicPartition, OffsetInterval],
    read_offsets: pa.Table,
    offset_shifts: Mapping[str, int],
    txn: Txn,
) -> None:
    """Finds the offsets of a batch that have no message. Records those that Kafka used for transactions.

    Args:
        spark: The session to write with.
        lake: The lake with the table `ops.absent_offsets`.
        planned: Offsets `(first, end)` of the batch by topic-partition, numbered as in `bronze.messages`.
        read_offsets: The columns `topic, partition, offset` of the messages that were read.
        offset_shifts: Bronze's offset minus Kafka's, by topic. Topics with a shift of 0 may be absent.
        txn: The batch's transaction.

    Raises:
        OffsetHoleError: An offset has no message, and no transaction explains it.
        BrokerError: Kafka does not answer.
    """
    gaps = _find_offset_gaps(planned, read_offsets)
    if not gaps:
        return
    asked = {
        (topic, partition): [
            (first - offset_shifts.get(topic, 0), end - offset_shifts.get(topic, 0)) for first, end in runs
        ]
        for (topic, partition), runs in gaps.items()
    }
    proven = find_intervals_used_by_transactions(spark, lake.settings, asked)
    for place, runs in asked.items():
        lost = next((run for run in runs if run not in proven[place]), None)
        if lost is not None:
            topic, partition = place
            raise OffsetHoleError(
                f"{BRONZE}: topic {topic}, partition {partition}: Kafka no longer has offsets {lost[0]} "
                f"to {lost[1] - 1}, and they are not markers of transactions",
                why="These messages were removed from Kafka before bronze read them. Nothing of this batch "
                "was committed",
                fix=GAP_FIX,
            )
    record_absent_offsets(spark, lake, gaps, txn, reason=AbsentOffsetReason.TRANSACTION)


def _find_offset_gaps(
    planned: Mapping[TopicPartition, OffsetInterval], read_offsets: pa.Table
) -> dict[TopicPartition, list[OffsetInterval]]:
    """Returns the intervals of planned offsets that have no message, each as `(first, end)`, by topic-partition.

    Args:
        planned: Offsets `(first, end)` of a batch by topic-partition.
        read_offsets: The columns `topic, partition, offset` of the messages that were read.
    """
    gaps = {}
    for (topic, partition), (first, end) in planned.items():
        messages = read_offsets.filter((pc.field("topic") == topic) & (pc.field("partition") == partition))
        runs = find_missing_offset_intervals(np.sort(messages["offset"].to_numpy()), first, end)
        if runs:
            gaps[topic, partition] = runs
    return gaps
