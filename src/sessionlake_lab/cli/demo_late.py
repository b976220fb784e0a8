"""The demo's two late points: one corrects published averages, and one makes a rule raise an alert."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import eq, itemgetter
from typing import TYPE_CHECKING

from sessionlake.cli import rules
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import AVERAGES, RESTATEMENTS, RULE_EVENTS, SESSIONS
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import BrokerError
from sessionlake.gold.changes import get_value_columns
from sessionlake.gold.rules.rules_file import parse_rules_file
from sessionlake.protocol.types import Row
from sessionlake.settings.model import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Shown = tuple[str, list[str], list[list[object]]]
"""Title, columns and rows of a table to print."""
# The late point's event time is just before that of the series' fourth newest point.
_BACK = 4
_SESSIONS = 5
_MINUTE = 60_000
# How many minutes before the session's first point the other late point is. That minute is over, so the rule is raised
# and cleared at once.
_EARLIER = 3
_TIMEOUT_S = 30.0
_TICK = 0.05
_RULE = "rules: [{{name: spike, topics: {topic}, when: max({metric}) over 1 min > {limit}}}]"


@dataclass(frozen=True)
class SentLatePoints:
    """Two messages whose event times are before those of earlier messages of their session.

    Attributes:
        series: Topic, session, row and metric of both points.
        corrects: Partition and offset of the message that corrects averages.
        late_ms: How late that message is, in ms.
        limit: Limit of the demo's rule. The second message exceeds it. Gold applies the rule with the same batch.
    """

    series: Row
    corrects: tuple[int, int]
    late_ms: int
    limit: float

    def make_correction_and_alert_tables(self, spark: SparkSession, settings: Settings) -> Iterator[Shown]:
        """Yields tables of the corrected averages and the rule's alerts."""
        reader = Lake(settings).reader(spark)
        title = f"One point was {self.late_ms / 1000:.1f} s late: the averages it corrected ({RESTATEMENTS})"
        columns = ["row_id", "metric", "at", "before", "after", "points", "revision", "pane"]
        yield (
            title,
            columns,
            _select_columns(columns, map(_add_displayed_correction_fields, self._read_caused_corrections(reader))),
        )
        columns = ["rule", "row_id", "event", "from", "until", "value", "late"]
        title = f"A rule added to running gold, max({self.series['metric']}) over 1 min > {self.limit} ({RULE_EVENTS})"
        yield title, columns, _select_columns(columns, map(_add_displayed_alert_fields, self._read_alerts(reader)))

    def _read_caused_corrections(self, reader: TableReader) -> list[Row]:
        found = reader.read_rows(RESTATEMENTS, ("topic", eq, self.series["topic"]), ("table", eq, AVERAGES))
        return sorted((row for row in found if self._is_caused_by_late_point(row)), key=itemgetter("ts"))

    def _is_caused_by_late_point(self, row: Row) -> bool:
        return any((cause["partition"], cause["offset"]) == self.corrects for cause in row["because"])

    def _read_alerts(self, reader: TableReader) -> list[Row]:
        own = [(name, eq, self.series[name]) for name in ("topic", "session_id", "partition", "row_id")]
        return sorted(reader.read_rows(RULE_EVENTS, *own), key=itemgetter("window_end"))


def send_late_points(spark: SparkSession, settings: Settings) -> SentLatePoints | None:
    """Sends two updates of an open session, with correct seqs but late event times.

    Args:
        spark: The Spark session.
        settings: The settings of the sensors: `kafka.topic_pattern` matches only their topics.

    Returns:
        What was sent; None if no open session has enough points.

    Raises:
        BrokerError: Kafka does not accept the messages.
    """
    reader = Lake(settings).reader(spark)
    opened = [
        row for row in reader.read_rows(SESSIONS, ("status", eq, "open")) if _is_intact_sensor_session(settings, row)
    ]
    for session in sorted(opened, key=itemgetter("messages"), reverse=True)[:_SESSIONS]:
        line = _read_longest_series(reader, session)
        if len(line) > _BACK:
            return _send_late_updates(spark, settings, session, line)
    return None


def _is_intact_sensor_session(settings: Settings, session: Row) -> bool:
    """Returns True if the session is a sensor's, and no message of it is missing."""
    return not session["gaps"] and re.fullmatch(settings.kafka.topic_pattern, session["topic"]) is not None


def _send_late_updates(spark: SparkSession, settings: Settings, session: Row, line: Sequence[Row]) -> SentLatePoints:
    """Adds a rule, and sends two late updates of the session.

    `line` has the points of its longest series, in order of event time.
    """
    point, highest = line[-_BACK], max(abs(row["value"]) for row in line)
    limit = _round_to_sensor_resolution(1.05 * highest)
    _add_demo_rule(spark, settings, _RULE.format(topic=session["topic"], metric=point["metric"], limit=limit))
    late_points = (
        (
            point["ts"] - 1,
            _round_to_sensor_resolution(1.02 * highest),
        ),  # below the rule's limit, but above every average
        (line[0]["ts"] - _EARLIER * _MINUTE, _round_to_sensor_resolution(1.1 * highest)),
    )
    updates = [
        {"type": "update", "seq": session["next_seq"] + place, "ts": ts}
        | {"rows": [{"id": point["row_id"], point["metric"]: value}]}
        for place, (ts, value) in enumerate(late_points)
    ]
    offset, *_ = _send_session_messages(settings, session, [json.dumps(update).encode() for update in updates])
    return SentLatePoints(point, (session["partition"], offset), line[-1]["ts"] - late_points[0][0], limit)


def _round_to_sensor_resolution(value: float) -> float:
    """Returns the value as a reading that each sensor of the demo can have, also an order book."""
    return round(round(value / _TICK) * _TICK, 2)


def _add_demo_rule(spark: SparkSession, settings: Settings, text: str) -> None:
    """Adds a rule, the text of a rules file, to running gold."""
    written, problems = parse_rules_file(text, get_value_columns(settings))
    if problems:
        raise RuntimeError(f"the demo's rule cannot be read: {problems[0]}")
    rules.write_alert_rules(spark, settings, written, lambda _: None, only=False)


def _read_longest_series(reader: TableReader, session: Row) -> list[Row]:
    """Returns the points of the session's longest series of doubles, in order of event time."""
    own = [(name, eq, session[name]) for name in ("topic", "session_id", "partition")]
    lines: dict[tuple[str, str], list[Row]] = {}
    for row in reader.read_rows(AVERAGES, *own):
        if not float(row["value"]).is_integer():
            lines.setdefault((row["row_id"], row["metric"]), []).append(row)
    longest = max(lines.values(), key=len, default=[])
    return sorted(longest, key=itemgetter("ts", "_life", "_seq", "position", "ordinal"))


def _send_session_messages(settings: Settings, session: Row, values: Sequence[bytes]) -> list[int]:
    """Sends messages of the session and returns their offsets."""
    from confluent_kafka import KafkaException, Producer

    from sessionlake.kafka.clients import build_librdkafka_client_config

    offsets: list[int] = []
    producer = Producer(build_librdkafka_client_config(settings) | {"enable.idempotence": "true"})
    try:
        for value in values:
            producer.produce(
                session["topic"],
                value,
                session["session_id"].encode(),
                session["partition"],
                on_delivery=lambda error, message: None if error else offsets.append(message.offset()),
            )
        producer.flush(_TIMEOUT_S)
    except KafkaException as error:
        raise BrokerError(
            f"Kafka did not accept the late points: {error.args[0]}", fix="Run `sessionlake demo` again"
        ) from None
    if len(offsets) < len(values):
        raise BrokerError("Kafka did not accept the late points in time", fix="Run `sessionlake demo` again")
    return offsets


def _select_columns(columns: Sequence[str], rows: Iterator[Row]) -> list[list[object]]:
    return [[row[name] for name in columns] for row in rows]


def _add_displayed_correction_fields(row: Row) -> Row:
    """Returns the row of a correction with further fields, as the demo shows it."""
    at = datetime.fromtimestamp(row["ts"] / 1000, UTC).strftime("%H:%M:%S.%f")[:-5]
    return row | {"at": at, "before": round(row["average_before"], 3), "after": round(row["average"], 3)}


def _add_displayed_alert_fields(row: Row) -> Row:
    """Returns the row of an alert with further fields, as the demo shows it."""
    values = [round(value, 3) for _, value in row["values"] or ()]
    times = {"from": f"{row['window_start']:%H:%M}", "until": f"{row['window_end']:%H:%M}"}
    return row | times | {"value": values[0] if values else None}
