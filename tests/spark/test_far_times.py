"""Event times and Kafka timestamps of any size, through silver and gold, and built anew."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    LEDGER,
    MESSAGES,
)
from sessionlake.delta.storage.txn import Txn
from sessionlake.gold import job as gold
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import CaptureSettings, Settings, SilverSettings
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, write_bronze
from support.streams import NO_TIME, START, YEAR_10000

INT64_MAX = 2**63 - 1
YEAR_1 = -62_135_596_800_000
MOST_MS = INT64_MAX // 1000
EVENT_TIMES = [YEAR_10000, YEAR_10000 - 1, YEAR_1, YEAR_1 - 1, -1, 0, INT64_MAX, -INT64_MAX - 1]
TIMES = {
    # No Kafka timestamp: any event time is believed.
    **{f"event {ts}": (NO_TIME, ts) for ts in EVENT_TIMES},
    # When bronze read the message is not known: any Kafka timestamp is.
    **{f"kafka {at}": (at, 0) for at in (YEAR_10000, YEAR_1 - 1, -(10**14), 2**53, 2 - MOST_MS)},
    "usual": (START, START),
}
CAPTURE = {"integrity": "window", "on_violation": "record", "lateness": "0 ms"}
SILVER = {"shards": 2, "snapshot_interval": "1 s"}


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Silver and gold over a topic for each pair of times, each with a session of two messages."""
    home = tmp_path_factory.mktemp("far") / "home"
    settings = Settings(home=home, capture=CaptureSettings(**CAPTURE), silver=SilverSettings(**SILVER))
    made, messages = Lake(settings), []
    for number, (at, ts) in enumerate(TIMES.values()):
        for seq, kind in enumerate(("snapshot", "update", "end")):
            rows = {} if kind == "end" else {"rows": [{"id": "r", "qty": seq, "price": 1.5}]}
            body = {"type": kind, "seq": seq, "ts": ts} | rows
            messages.append(KafkaMessage(topic(number), 0, seq, at, b"s", json.dumps(body).encode()))
    made.create_or_update_tables(spark, [MESSAGES, LEDGER])
    write_bronze(spark, made, messages)
    version = made.last_commit(spark, MESSAGES).version
    entry = LedgerEntry(
        layer="bronze", txn=Txn("b", 0), source="kafka", started_at=datetime.now(UTC),
        offsets=tuple(OffsetRange(topic(number), 0, 0, 2, 3) for number in range(len(TIMES))),
        outputs=(TableOutput(MESSAGES, version, len(messages)),), messages=len(messages), applied=len(messages),
    )  # fmt: skip
    Ledger(made).write_entry(spark, entry)
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()
    gold.start(spark, settings, once=True).wait()
    assert_silver_is_the_truth(spark, settings, messages)
    return made


def topic(number: int) -> str:
    return f"capture.t{number:02}"


def test_what_was_built_equals_what_is_built_again(spark: Any, lake: Lake) -> None:
    assert verify_silver_tables(spark, lake.settings).is_exact
    assert [
        one.first_difference
        for one in verify_gold(spark, lake.settings, list_declared_gold_tables(lake.settings))
        if one.first_difference
    ] == []
