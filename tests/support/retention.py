"""A small lake whose rows have different ages: an old ended session, a continuing one, and a new one."""

from __future__ import annotations

import json
import shutil
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    BRONZE,
    CHANGES,
    EVENTS,
    MESSAGES,
    METRICS_1M,
    PROGRESS,
    QUARANTINE,
    SNAPSHOTS,
)
from sessionlake.delta.storage.reading import TableReader
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold import job as gold
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.operations.retention.removal import RetentionRunner, RowRemovalResult
from sessionlake.settings.model import CaptureSettings, MaintenanceSettings, Settings, SilverSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.lakes import write_bronze

TOPIC, START, MINUTE = "capture.a", 1_700_000_040_000, 60_000
CUT = (MESSAGES, CHANGES, PROGRESS, SNAPSHOTS, QUARANTINE, EVENTS)
SPAN = timedelta(hours=1)
NAMES = ("bronze", "changes", "progress", "snapshots", "quarantine", "events", "ledger")


@dataclass(frozen=True)
class Said:
    """A message of a session at a given minute."""

    minute: int
    session: str
    type: str
    seq: int
    rows: tuple[tuple[str, float], ...] = ()

    @property
    def value(self) -> bytes:
        rows = {"rows": [{"id": name, "price": price} for name, price in self.rows]} if self.rows else {}
        ts = START + self.minute * MINUTE
        return json.dumps({"type": self.type, "seq": self.seq, "ts": ts, **rows}).encode()


def _old() -> list[Said]:
    """Returns a session that ends after three minutes, with a duplicate and a malformed message."""
    updates = [Said(n, "old", "update", n, (("a", float(n)),)) for n in (1, 2)]
    begun = Said(0, "old", "snapshot", 0, (("a", 0.5), ("b", 1.5)))
    return [begun, *updates, updates[-1], Said(2, "old", "nonsense", 9), Said(3, "old", "end", 3)]


def _long(first: int, end: int) -> list[Said]:
    """Returns a continuing session with a message every half hour."""
    head = [Said(4, "long", "snapshot", 0, (("x", 0.25), ("y", 0.5), ("z", 1.0)))] if first == 0 else []
    return head + [
        Said(4 + 30 * n, "long", "update", n, (("xyz"[n % 3], float(n)),)) for n in range(max(1, first), end)
    ]


BATCHES = [
    [*_old(), *_long(0, 3)],
    _long(3, 9),
    [*_long(9, 12), Said(340, "new", "snapshot", 0, (("n", 7.0),)), Said(341, "new", "update", 1, (("n", 8.0),))],
    [*_long(12, 14), Said(400, "new", "end", 2)],
]


def aging_settings(location: dict[str, Any]) -> Settings:
    """Returns settings that remove rows of every table after the same time."""
    capture = CaptureSettings(columns={"price": "double"}, on_violation=OnViolation.ISOLATE)
    maintain = MaintenanceSettings(retention=dict.fromkeys(NAMES, SPAN))
    silver = SilverSettings(shards=2, snapshot_interval="10 minutes")
    return Settings(**location, capture=capture, silver=silver, maintain=maintain)


class Aging:
    """The lake. Each batch of bronze, silver, the merger and gold is older than the next."""

    def __init__(self, spark: Any, location: dict[str, Any]) -> None:
        self.spark = spark
        self.settings = aging_settings(location)
        self.lake, self.come = Lake(self.settings), list[KafkaMessage]()
        self.moments: list[datetime] = []
        self.removed: dict[str, RowRemovalResult] = {}
        self.lake.create_or_update_tables(spark, [MESSAGES])

    def take_in(self, *, with_gold: bool = True) -> None:
        """Runs one more batch through all layers."""
        number, first = len(self.moments), len(self.come)
        messages = [
            KafkaMessage(TOPIC, 0, first + n, START + said.minute * MINUTE, said.session.encode(), said.value)
            for n, said in enumerate(BATCHES[number])
        ]
        write_bronze(self.spark, self.lake, messages)
        self.come += messages
        place = OffsetRange(TOPIC, 0, first, len(self.come) - 1, len(messages))
        output = TableOutput(MESSAGES, number + 1, len(messages))
        now = datetime.now(UTC)
        entry = LedgerEntry(
            BRONZE, Txn("b", number), "kafka", now, offsets=(place,), outputs=(output,), messages=len(messages),
            applied=len(messages),
        )  # fmt: skip
        self.lake.create_or_update_tables(self.spark, ["ops.ledger"])
        Ledger(self.lake).write_entry(self.spark, entry)
        job.start(self.spark, self.settings, once=True).wait()
        TableMerger(self.spark, self.settings).merge_all_pending_batches()
        if with_gold:
            gold.start(self.spark, self.settings, once=True).wait()
        self.moments.append(datetime.now(UTC))

    def cut_and_go_on(self) -> None:
        """Removes rows committed up to the second batch, and runs one more batch."""
        self.removed = self.cut(1)
        self.take_in()

    def copied(self, home: Path) -> Aging:
        """Returns an independent copy of the lake in another home."""
        shutil.copytree(self.settings.home, home)
        found = copy(self)
        found.settings = self.settings.model_copy(update={"home": home})
        found.lake, found.come, found.moments = Lake(found.settings), [*self.come], [*self.moments]
        return found

    @property
    def reader(self) -> TableReader:
        return self.lake.reader(self.spark)

    def offsets(self) -> list[int]:
        """Returns the offsets of the messages in bronze."""
        return sorted(row["offset"] for row in self.reader.read_rows(MESSAGES, columns=["offset"]))

    def points(self) -> dict[tuple[str, str, int], tuple[int, float]]:
        """Returns number and sum of gold's points, by session, row and minute."""
        found = {}
        for row in self.reader.read_rows(METRICS_1M):
            minute = (round(row["window_start"].timestamp() * 1000) - START) // MINUTE
            found[row["session_id"], row["row_id"], minute] = row["points"], row["sum"]
        return found

    def cut(self, batch: int, *tables: str) -> dict[str, RowRemovalResult]:
        """Removes rows that were committed up to a batch."""
        retention = RetentionRunner(self.spark, self.settings)
        return {table: retention.remove_expired_rows(table, self.moments[batch] + SPAN) for table in tables or CUT}
