"""How far each layer is, by the ledger: is it complete, is it right, is it fresh?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sessionlake.lake.ledger import LEDGER
from sessionlake.lake.tables import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LAYERS = ("bronze", "silver", "silver_tables", "gold")


@dataclass(frozen=True)
class LayerStatus:
    """One layer's state.

    Attributes:
        messages: taken in, over all its batches; `behind` is how many its source holds beyond that, None if unknown.
        age_seconds: since its last commit.
    """

    layer: str
    batches: int
    messages: int
    duplicates: int
    quarantined: int
    behind: int | None
    committed_at: datetime | None
    age_seconds: float | None
    balanced: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        at = self.committed_at.isoformat() if self.committed_at else None
        return asdict(self) | {"committed_at": at}


def read_status(spark: SparkSession, lake: Lake, kafka_messages: int | None) -> list[LayerStatus]:
    """Reads the ledger.

    Args:
        kafka_messages: what the topics hold (the sum of their end offsets), None if Kafka was not asked.
    """
    from pyspark.sql import functions as F

    if not lake.exists(spark, LEDGER):
        return [LayerStatus(layer, 0, 0, 0, 0, None, None, None, balanced=True) for layer in LAYERS]
    sums = [F.sum(name).alias(name) for name in ("messages", "applied", "duplicates", "quarantined", "held")]
    grouped = (
        lake.read(spark, LEDGER)
        .groupBy("layer")
        .agg(F.count("*").alias("batches"), F.unix_micros(F.max("committed_at")).alias("at"), *sums)
    )
    found = {row["layer"]: row for row in grouped.collect()}
    statuses: list[LayerStatus] = []
    available = kafka_messages
    for layer in LAYERS:
        row = found.get(layer)
        messages = row["messages"] if row else 0
        at = datetime.fromtimestamp(row["at"] / 1e6, UTC) if row else None
        accounted = row["applied"] + row["duplicates"] + row["quarantined"] + row["held"] if row else 0
        statuses.append(
            LayerStatus(
                layer=layer,
                batches=row["batches"] if row else 0,
                messages=messages,
                duplicates=row["duplicates"] if row else 0,
                quarantined=row["quarantined"] if row else 0,
                behind=None if available is None or layer == "gold" else available - messages,
                committed_at=at,
                age_seconds=None if at is None else (datetime.now(UTC) - at).total_seconds(),
                balanced=layer not in {"bronze", "silver"} or accounted == messages,
            )
        )
        available = messages
    return statuses
