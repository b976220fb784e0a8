"""One session id in two partitions of a topic: two sessions, whatever the batches, through silver and gold."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sessionlake.cli.doctor import CheckSeverity, _check_session_ids_in_one_partition
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import (
    EVENTS,
    MESSAGES,
    METRICS_1H,
    METRICS_1M,
    ROWS,
    RULE_EVENTS,
    RULES,
    SENSOR_AVERAGES,
    SESSIONS,
)
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.rules.alerts import KEY
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.settings.model import CaptureSettings, GoldSettings, Settings, SilverSettings
from sessionlake.settings.section import OnViolation
from sessionlake.silver import job
from sessionlake.silver.merge.merger import TableMerger
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, in_order, rows_of, write_bronze, write_rows
from support.layers import run_layers
from support.streams import COLUMNS, LIGHT, StreamMaker, cut

TEXTS = {
    "window": "when: last(price) over 1 min != first(price) over 1 min",
    "figure": "{by: [topic, session_id], when: avg(small) over 3 min > min(small) over 2 min}",
    "across": "{by: [session_id], when: count(price) over 2 min > 3}",
    "pair": "{by: [topic, session_id], when: status != 'OPEN' then status != '7' within 5 min}",
    "alone": "{by: [topic, session_id, status], when: price > 0 not followed by price < 0 within 20 s}",
}
"""Rules of each kind, by name."""
OTHER_VALUES: dict[str, list[Any]] = {"price": [7.25, -3.5, 0.5], "small": [5, 9, -4], "status": ["OPEN", "SHUT", "7"]}
GOLD = ("gold.rolling_average", SENSOR_AVERAGES, METRICS_1M, METRICS_1H)
_OF_BATCHES = {"revision", "pane"}


def streams() -> list[KafkaMessage]:
    """Two producers that choose partitions differently: every id of one is among those of the other.

    What the second says of its sessions has other values, and mostly other times.
    """
    rnd = random.Random(11)
    messages = StreamMaker(rnd, LIGHT, ["capture.a"]).make(60)
    return [*messages, *(other(rnd, message) for message in messages)]


def other(rnd: random.Random, message: KafkaMessage) -> KafkaMessage:
    """The message of another session of its id, in another partition."""
    later = rnd.choice([0, 0, 900, 40_000])
    moved = message._replace(partition=message.partition + 3, timestamp=message.timestamp + later)
    try:
        body = json.loads(message.value or b"")
    except ValueError:  # what is malformed stays so
        return moved
    if not isinstance(body, dict) or not isinstance(body.get("ts"), int):
        return moved
    body["ts"] += later
    for row in body["rows"] if isinstance(body.get("rows"), list) else []:
        if isinstance(row, dict):
            row |= {name: rnd.choice(values) for name, values in OTHER_VALUES.items() if name in row}
    return moved._replace(value=json.dumps(body).encode())


def interleaved(rnd: random.Random, messages: list[KafkaMessage]) -> list[KafkaMessage]:
    """The same topic-partitions, read in another order."""
    lanes: dict[int, list[KafkaMessage]] = {}
    for message in messages:
        lanes.setdefault(message.partition, []).append(message)
    turns = [number for number, lane in lanes.items() for _ in lane]
    rnd.shuffle(turns)
    left = {number: iter(lane) for number, lane in lanes.items()}
    return [next(left[number]) for number in turns]


def run_silver(spark: Any, settings: Settings) -> None:
    job.start(spark, settings, once=True).wait()
    TableMerger(spark, settings).merge_all_pending_batches()


def filled(
    spark: Any, home: Path, batches: list[list[KafkaMessage]], run: Callable[[Any, Settings], None] = run_layers
) -> Settings:
    settings = Settings(
        home=home,
        capture=CaptureSettings(columns=COLUMNS, on_violation=OnViolation.ISOLATE, integrity="once", gap_timeout="5 s"),
        silver=SilverSettings(shards=2, max_files_per_trigger=1, snapshot_interval="7 s"),
        gold=GoldSettings(shards=2, rolling_points=3),
    )
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [MESSAGES, RULES])
    rules = [{"name": name, "text": text, "enabled": True, "updated_at": None} for name, text in TEXTS.items()]
    write_rows(spark, lake, RULES, rules)
    for batch in batches:
        write_bronze(spark, lake, batch)
        run(spark, settings)
    return settings


def held(spark: Any, settings: Settings, table: str) -> list[str]:
    rows = Lake(settings).reader(spark).read_arrow_table(table)
    return in_order(rows.drop_columns([name for name in rows.column_names if name in _OF_BATCHES]))


def alerts(spark: Any, settings: Settings) -> Counter[tuple[Any, ...]]:
    """The alerts that stand."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows_of(spark, Lake(settings), RULE_EVENTS):
        what = row["retracts"] or row["event"]
        found[row["rule"], *(row[name] for name in KEY), row["window_end"], what] += -1 if row["retracts"] else 1
    return +found


@pytest.mark.soak
def test_ids_in_two_partitions_give_the_same_tables_in_any_batches(spark: Any, tmp_path: Path) -> None:
    rnd, messages = random.Random(3), streams()
    once = filled(spark, tmp_path / "once", [messages])
    often = filled(spark, tmp_path / "often", list(cut(rnd, interleaved(rnd, messages), 2)))
    assert_silver_is_the_truth(spark, once, messages)
    assert_silver_is_the_truth(spark, often, messages)
    for table in (ROWS, SESSIONS, *GOLD):
        assert held(spark, once, table) == held(spark, often, table), table
    stand = alerts(spark, once)
    assert stand == alerts(spark, often)
    assert {rule for rule, *_ in stand} == {*TEXTS}
    apart = Counter((rule, session) for rule, _, session, *_ in {alert[:4] for alert in stand})
    assert {rule for (rule, _), partitions in apart.items() if partitions == 2} == {*TEXTS} - {"across"}

    reader = Lake(often).reader(spark)
    ids = {row["session_id"] for row in rows_of(spark, Lake(often), SESSIONS)}
    split = [row for row in rows_of(spark, Lake(often), EVENTS) if row["event"] == "split_session"]
    assert len(split) == reader.count_rows(SESSIONS)
    finding = _check_session_ids_in_one_partition(reader)
    assert (finding.level, finding.detail.startswith(f"{len(ids)} of capture.a occur")) == (CheckSeverity.WARN, True)
    assert verify_silver_tables(spark, often).is_exact
    assert [
        one.first_difference
        for one in verify_gold(spark, often, list_declared_gold_tables(often))
        if one.first_difference is not None
    ] == []


@pytest.mark.parametrize("partitions", [pytest.param((0, 0), marks=pytest.mark.soak), (0, 1)])
def test_the_event_is_of_ids_in_several_partitions_alone(
    spark: Any, tmp_path: Path, partitions: tuple[int, int]
) -> None:
    text = b'{"type":"snapshot","seq":%d,"ts":0,"rows":[]}'
    offsets = (0, 1) if partitions[0] == partitions[1] else (0, 0)
    batches = [
        [KafkaMessage("capture.a", number, offset, 1_700_000_000_000, b"s", text % offset)]
        for number, offset in zip(partitions, offsets, strict=True)
    ]
    settings = filled(spark, tmp_path / "home", batches, run=run_silver)
    split = [row["partition"] for row in rows_of(spark, Lake(settings), EVENTS) if row["event"] == "split_session"]
    assert sorted(split) == ([0, 1] if partitions == (0, 1) else [])
