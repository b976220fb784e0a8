"""The demo's two sources: sensors that send sessionlake's own form, and an exchange whose books a feed reads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from operator import eq
from typing import TYPE_CHECKING, Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import ROWS, SESSIONS
from sessionlake.protocol.columns import ID
from sessionlake.protocol.payload import PayloadFormat
from sessionlake.settings.capture import CaptureSettings
from sessionlake.settings.model import PayloadSchemaSettings, Settings
from sessionlake.settings.section import Integrity, OnViolation
from sessionlake_lab.simulate.books import BOOK_FEED, BOOK_TOPIC, OrderBook
from sessionlake_lab.simulate.sensors import SENSOR_COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PRODUCTS = ("XBT/USD", "ETH/USD")
BOOK_RATE = 5.0
"""Messages per second of each book."""
_SENSOR_TOPICS = r"capture\..+"
_POLICY = {"integrity": Integrity.STRICT.value, "on_violation": OnViolation.ISOLATE.value}


def build_sensor_settings(settings: Settings) -> Settings:
    """Returns settings with only the sensors: their columns, without feeds, and a pattern that matches their topics."""
    capture: dict[str, object] = {"integrity": Integrity.STRICT, "on_violation": OnViolation.ISOLATE, "by_topic": ()}
    capture |= {"format": PayloadFormat.JSON, "payload": PayloadSchemaSettings(), "feeds": ()}
    capture["columns"] = SENSOR_COLUMNS
    kafka = settings.kafka.model_copy(update={"topic_pattern": _SENSOR_TOPICS})
    return settings.model_copy(update={"capture": settings.capture.model_copy(update=capture), "kafka": kafka})


def build_capture_section(sensors: Settings) -> dict[str, Any]:
    """Returns the key `capture` of a configuration file that reads both sources."""
    feed = {"name": "sensors", "uses": "sessionlake", "topics": _SENSOR_TOPICS}
    return {**_POLICY, "feeds": [feed | {"columns": {ID: "string", **sensors.capture.columns}}, BOOK_FEED]}


def build_lake_settings(sensors: Settings) -> Settings:
    """Returns the settings of the demo's lake, which reads both sources."""
    capture = CaptureSettings.model_validate(build_capture_section(sensors))
    pattern = f"{_SENSOR_TOPICS}|{BOOK_FEED['topics']}"
    kafka = sensors.kafka.model_copy(update={"topic_pattern": pattern})
    return sensors.model_copy(update={"capture": capture, "kafka": kafka})


@dataclass(frozen=True)
class OrderBookVerification:
    """The lake's books, compared with those of the exchange.

    Attributes:
        books: Number of books.
        exact: Number of books whose levels are all as on the exchange.
        checks: Number of checksums that silver has compared.
        checks_failed: Number of these checksums that did not fit the book.
    """

    books: int
    exact: int
    checks: int
    checks_failed: int

    def __str__(self) -> str:
        failed = f"{self.checks_failed} did not fit, each after a lost update"
        if not self.checks_failed:
            failed = "all fitted"
        return f"{self.exact} of {self.books} order books exact; {self.checks} checksums compared: {failed}"


def verify_order_books(spark: SparkSession, settings: Settings, books: Sequence[OrderBook]) -> OrderBookVerification:
    """Compares the tables of the books with the exchange's own."""
    reader = Lake(settings).reader(spark)
    rows: defaultdict[str, set[tuple[str, Decimal, Decimal]]] = defaultdict(set)
    for row in reader.read_rows(ROWS, ("topic", eq, BOOK_TOPIC)):
        rows[row["session_id"]].add((row["side"], row["book_price"], row["book_qty"]))
    sessions = list(reader.read_rows(SESSIONS, ("topic", eq, BOOK_TOPIC)))
    return OrderBookVerification(
        books=len(books),
        exact=sum(rows[book.product] == book.list_expected_rows() for book in books),
        checks=sum(row["checks"] for row in sessions),
        checks_failed=sum(row["checks_failed"] for row in sessions),
    )
