"""The demo's last scene: a point comes late, and corrects averages that were published already."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import eq, itemgetter
from typing import TYPE_CHECKING

from sessionlake.config import Settings
from sessionlake.errors import BrokerError
from sessionlake.lake.names import AVERAGES, RESTATEMENTS, SESSIONS
from sessionlake.lake.reading import TableReader
from sessionlake.lake.tables import Lake
from sessionlake.protocol.types import Row

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many of a series' newest points come before the late one's place in time.
_BACK = 4
_SESSIONS = 5
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class LatePoint:
    """A message that was sent with an event time behind what its session has said already."""

    topic: str
    partition: int
    offset: int
    late_ms: int

    def corrected(self, spark: SparkSession, settings: Settings) -> tuple[list[str], list[list[object]]]:
        """The averages of its session that it changed: columns, and rows in event time."""
        found = Lake(settings).reader(spark).rows(RESTATEMENTS, ("topic", eq, self.topic), ("table", eq, AVERAGES))
        own = [row for row in found if any(self._is(cause) for cause in row["because"])]
        columns = ["row_id", "metric", "at", "before", "after", "points", "revision", "pane"]
        rows = sorted((row | _readable(row) for row in own), key=itemgetter("ts"))
        return columns, [[row[name] for name in columns] for row in rows]

    def _is(self, cause: Row) -> bool:
        return (cause["partition"], cause["offset"]) == (self.partition, self.offset)


def send_late_point(spark: SparkSession, settings: Settings) -> LatePoint | None:
    """Sends an update of a session that is open, in its place in the stream, but late by its event time.

    Returns:
        None if no open session has enough points.

    Raises:
        BrokerError: Kafka does not take it.
    """
    reader = Lake(settings).reader(spark)
    opened = [row for row in reader.rows(SESSIONS, ("status", eq, "open")) if not row["gaps"]]
    for session in sorted(opened, key=itemgetter("messages"), reverse=True)[:_SESSIONS]:
        line = _longest(reader, session)
        if len(line) > _BACK:
            point = line[-_BACK]
            changed = {"id": point["row_id"], point["metric"]: round(3 * point["average"], 3)}
            message = {"type": "update", "seq": session["next_seq"], "ts": point["ts"] - 1, "rows": [changed]}
            offset = _sent(settings, session, json.dumps(message).encode())
            return LatePoint(session["topic"], session["partition"], offset, line[-1]["ts"] - point["ts"] + 1)
    return None


def _longest(reader: TableReader, session: Row) -> list[Row]:
    """The points of the session's longest series of doubles, in event time."""
    own = [(name, eq, session[name]) for name in ("topic", "session_id")]
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in reader.rows(AVERAGES, *own):
        if not float(row["value"]).is_integer():
            lines.setdefault((row["row_id"], row["metric"]), []).append(row)
    longest = max(lines.values(), key=len, default=[])
    return sorted(longest, key=itemgetter("ts", "position", "ordinal"))


def _sent(settings: Settings, session: Row, value: bytes) -> int:
    """Its offset."""
    from confluent_kafka import KafkaException, Producer

    from sessionlake.runtime.kafka import client_config

    offsets: list[int] = []
    producer = Producer(client_config(settings))
    try:
        producer.produce(
            session["topic"],
            value,
            session["session_id"].encode(),
            session["partition"],
            on_delivery=lambda error, message: None if error else offsets.append(message.offset()),
        )
        producer.flush(_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerError(f"Kafka did not take the late point: {error.args[0]}") from None
    if not offsets:
        raise BrokerError("Kafka did not take the late point")
    return offsets[0]


def _readable(row: Row) -> Row:
    at = datetime.fromtimestamp(row["ts"] / 1000, UTC).strftime("%H:%M:%S.%f")[:-3]
    return {"at": at, "before": round(row["average_before"], 3), "after": round(row["average"], 3)}
