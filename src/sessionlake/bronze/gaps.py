"""Gaps in the offsets of a batch: Kafka's own transactions explain some, all others stop bronze before it commits."""

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
from sessionlake.kafka.transactions import without_message
from sessionlake.ledger.absent import Reason, Run, missing_runs, record_absent
from sessionlake.protocol.types import TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def explain_gaps(
    spark: SparkSession,
    lake: Lake,
    planned: Mapping[TopicPartition, Run],
    read: pa.Table,
    shifts: Mapping[str, int],
    txn: Txn,
) -> None:
    """Records the offsets of a batch that hold no message because of Kafka transactions.

    Args:
        planned: offsets `[first, end)` of the batch, as in `bronze.messages`.
        read: `topic, partition, offset` of the messages that were read.
        shifts: offset in bronze less that in Kafka, of topics where it is not 0.

    Raises:
        OffsetHoleError: an offset has no message, and transactions are not why.
        BrokerError: Kafka does not answer.
    """
    gaps = _gaps(planned, read)
    if not gaps:
        return
    asked = {
        (topic, partition): [(first - shifts.get(topic, 0), end - shifts.get(topic, 0)) for first, end in runs]
        for (topic, partition), runs in gaps.items()
    }
    proven = without_message(spark, lake.settings, asked)
    for place, runs in asked.items():
        lost = next((run for run in runs if run not in proven[place]), None)
        if lost is not None:
            raise OffsetHoleError(_lost(place, lost))
    record_absent(spark, lake, gaps, txn, reason=Reason.TRANSACTION)


def _gaps(planned: Mapping[TopicPartition, Run], read: pa.Table) -> dict[TopicPartition, list[Run]]:
    found = {}
    for (topic, partition), (first, end) in planned.items():
        own = read.filter((pc.field("topic") == topic) & (pc.field("partition") == partition))
        runs = missing_runs(np.sort(own["offset"].to_numpy()), first, end)
        if runs:
            found[topic, partition] = runs
    return found


def _lost(place: TopicPartition, run: Run) -> str:
    topic, partition = place
    return (
        f"{BRONZE}: topic {topic}, partition {partition}: Kafka's offsets {run[0]} to {run[1] - 1} are missing, and no "
        "transaction is the reason: the messages were removed before they were read. Nothing of this batch was "
        "committed. If the topic is compacted, set kafka.allow_offset_gaps: true"
    )
