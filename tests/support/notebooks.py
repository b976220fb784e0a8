"""Creates a small lake like the demo's without a broker, runs the notebooks on it, and checks what they show."""

from __future__ import annotations

import runpy
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, EVENTS, LEDGER, MESSAGES, METRICS_1M, QUARANTINE, SESSIONS
from sessionlake.delta.storage.txn import Txn
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange, TableOutput
from sessionlake.settings.model import Settings
from sessionlake_lab.simulate.generate import generate_messages
from sessionlake_lab.simulate.scenario import FaultRates, Scenario
from sessionlake_lab.truth import KafkaMessage
from support.lakes import rows_of, write_bronze
from support.layers import run_layers

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))
CONFIG = """
capture: {on_violation: isolate}
silver: {shards: 2}
gold: {shards: 2}
"""
SCENARIO = Scenario(
    sensors=2,
    sessions_per_sensor=3,
    rows=6,
    rate=12,
    duration_s=100,
    ended=0.5,
    faults=FaultRates(duplicates=0.03, gaps=0.004, malformed=0.01),
)


def fill(spark: Any, settings: Settings) -> None:
    """Fills all layers with simulated messages, in two batches of bronze."""
    messages = _messages(settings)
    half = len(messages) // 2
    fill_with(spark, settings, messages[:half], messages[half:])


def fill_with(spark: Any, settings: Settings, *batches: list[KafkaMessage]) -> None:
    """Fills all layers with messages, each list as a batch of bronze."""
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [MESSAGES, LEDGER])
    for number, part in enumerate(batches):
        write_bronze(spark, lake, part)
        Ledger(lake).write_entry(spark, _entry(number, part))
    run_layers(spark, settings)


def _messages(settings: Settings) -> list[KafkaMessage]:
    offsets: Counter[tuple[str, int]] = Counter()
    found = []
    for sent in generate_messages(SCENARIO, settings.capture.declared_columns):
        place = (sent.topic, sent.partition)
        found.append(KafkaMessage(*place, offsets[place], sent.timestamp, sent.key, sent.value))
        offsets[place] += 1
    return found


def _entry(number: int, messages: list[KafkaMessage]) -> LedgerEntry:
    offsets: dict[tuple[str, int], list[int]] = {}
    for message in messages:
        offsets.setdefault((message.topic, message.partition), []).append(message.offset)
    ranges = tuple(OffsetRange(*place, own[0], own[-1], len(own)) for place, own in offsets.items())
    output, count = TableOutput(MESSAGES, number + 1, len(messages)), len(messages)
    return LedgerEntry(
        BRONZE, Txn("b", number), "kafka", datetime.now(UTC), offsets=ranges, outputs=(output,), messages=count,
        parts=count, applied=count,
    )  # fmt: skip


def run_all(given: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Runs all notebooks and returns the variables of each, by its number.

    Args:
        given: Variables that a platform provides to a notebook.
    """
    return {path.name[:2]: runpy.run_path(str(path), init_globals=given) for path in NOTEBOOKS}


def require_true(spark: Any, settings: Settings, shown: dict[str, dict[str, Any]]) -> None:
    """Checks that the notebooks show the content of the tables."""
    lake = Lake(settings)
    explore, integrity, averages, own, operate = (shown[number] for number in ("01", "02", "03", "04", "05"))
    sessions = rows_of(spark, lake, SESSIONS)
    busiest = max(sessions, key=lambda row: row["messages"])
    assert explore["session"] == busiest["session_id"]
    captured, averaged = explore["metric"].axes[0].get_lines()
    assert list(captured.get_ydata()) == list(explore["points"]["value"])
    assert list(averaged.get_ydata()) == list(explore["points"]["average"])
    ids = {row["row_id"] for row in explore["rows"].collect()}
    assert ids <= {tick.get_text() for tick in explore["timeline"].axes[0].get_yticklabels()}
    assert 0 < len(explore["then"]) <= SCENARIO.rows

    events, quarantined = (rows_of(spark, lake, table) for table in (EVENTS, QUARANTINE))
    assert {row["event"] for row in events} >= {"duplicate", "gap"}
    assert drawn(integrity["judgements"]) == len(events)
    assert drawn(integrity["quarantined"]) == sum(row["reason"] != "session_broken" for row in quarantined)
    assert integrity["missing"] == {}
    broken = {(row["topic"], row["session_id"]) for row in sessions if row["status"] == "broken"}
    assert {(row["topic"], row["session_id"]) for row in integrity["broken"].collect()} == broken
    assert integrity["message"].judgement.reason == integrity["first"]["reason"]

    assert averages["disagreeing"] == 0
    points = sum(row["points"] for row in rows_of(spark, lake, METRICS_1M))
    assert sum(row["points"] for row in own["shown"].collect()) == points
    assert len(own["busy"]) == len(own["result"].rows) > 0
    assert operate["agree"]
    assert operate["totals"]["sessions"] == len(sessions)
    assert {lag.layer for lag in operate["behind"]} == {"silver", "silver_tables", "gold"}


def drawn(figure: Any) -> int:
    """Returns the sum of the bars by topic, which must equal the sum of the bars over time."""
    left, right = figure.axes
    by_topic = sum(bar.get_width() for bars in left.containers for bar in bars)
    assert by_topic == sum(bar.get_height() for bars in right.containers for bar in bars)
    return round(by_topic)
