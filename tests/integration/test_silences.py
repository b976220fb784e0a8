"""Sensors that say nothing more, over a real broker: their sessions expire and are forgotten, in every replay, too."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from integration.test_topics import World
from sessionlake.bronze.silences import SilenceWriter
from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.cli import doctor
from sessionlake.cli.doctor import CheckSeverity
from sessionlake.delta.catalog.clocks import ClockReading
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, SESSIONS, SILVER, SILVER_TABLES
from sessionlake.integrity.state import ShardState
from sessionlake.ledger.entries import OffsetRange
from sessionlake.ledger.silences import read_silences
from sessionlake.operations.pipeline import Layer, Pipeline
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.operations.rebuild.verify import verify_silver_tables
from sessionlake.protocol.silence import Silence
from sessionlake.settings.model import Settings, TopicChangePolicy
from sessionlake.silver.states import read_shard_states
from sessionlake_lab.compare import verify_session_rows
from sessionlake_lab.simulate.readback import compute_truth_from_broker
from support.crash_worker import run_layer
from support.lakes import rows_of
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
HOUR = timedelta(hours=1)


@pytest.fixture
def world(spark: Any, broker_settings: Settings, tmp_path: Path) -> World:
    """Messages are of the year 1970; a session expires after an hour."""
    made = World(spark, broker_settings, tmp_path.name)
    made.settings = made.settings.model_copy(update={"silver": made.settings.silver.model_copy(update={"shards": 2})})
    return made


def take_in(world: World) -> None:
    for layer in (BRONZE, SILVER, SILVER_TABLES):
        run_layer(world.spark, world.settings, layer)


def statuses(world: World) -> Counter[str]:
    return Counter(row["status"] for row in rows_of(world.spark, Lake(world.settings), SESSIONS))


def remembered(world: World) -> int:
    """How many sessions the states have."""
    states = read_shard_states(world.spark, world.settings)
    return sum(
        len(ShardState.decode_shard_state(state, world.settings.capture.declared_columns).cursors)
        for _, state in states
    )


def list_silences(world: World) -> list[Silence]:
    return read_silences(Lake(world.settings).reader(world.spark))


def assert_exact(world: World) -> None:
    truth = compute_truth_from_broker(world.settings, silences=list_silences(world))
    compared = verify_session_rows(world.spark, Lake(world.settings), truth)
    assert (compared.exact, compared.differences) == (compared.session_count, {})
    assert verify_silver_tables(world.spark, world.settings).is_exact


class _Later:
    """So much later, by both clocks; or by one, since the other was set."""

    def __init__(self, by: timedelta, steady: timedelta | None = None) -> None:
        self._by, self._steady = by, by if steady is None else steady

    def __call__(self) -> ClockReading:
        now = ClockReading.read_clocks()
        return ClockReading(now.wall_time + self._by, now.monotonic_seconds + self._steady.total_seconds())


def later(monkeypatch: pytest.MonkeyPatch, by: timedelta) -> None:
    """Bronze takes it to be so much later."""
    monkeypatch.setattr("sessionlake.bronze.silences._read_clocks_now", _Later(by))


@pytest.mark.soak
def test_a_sensor_that_says_nothing_more_leaves_no_session_open_for_ever(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("t", 2)
    world.send("t", 0, 3)
    world.send("t", 0, 2, partition=1)
    take_in(world)
    assert (statuses(world), list_silences(world)) == (Counter(open=2), [])
    later(monkeypatch, 1.5 * HOUR)
    take_in(world)
    assert statuses(world) == Counter(expired=2)
    first = sorted(list_silences(world), key=lambda one: one.partition)
    assert [(one.topic_partition, one.behind, one.until - one.lasted) for one in first] == [
        ((world.name("t"), 0), 2, 1002),
        ((world.name("t"), 1), 1, 1001),
    ]
    run_layer(world.spark, world.settings, BRONZE)
    assert len(list_silences(world)) == 2, "each is reported once"
    later(monkeypatch, 2.5 * HOUR)
    run_layer(world.spark, world.settings, BRONZE)
    assert len(list_silences(world)) == 4
    assert_exact(world)  # though silver has not read what bronze tells now
    take_in(world)
    assert (statuses(world), remembered(world)) == (Counter(expired=2), 0)
    world.send("t", 3, 2)  # of a session that is forgotten: it begins anew, and is held to that
    take_in(world)
    assert_exact(world)
    assert [found for found in doctor._run_table_checks(world.settings) if found.level is CheckSeverity.FAIL] == []


def test_only_those_are_silent_of_which_neither_bronze_nor_kafka_has_anything_new(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("t", 3)
    for partition in range(3):
        world.send("t", 0, 3, partition=partition)
    run_layer(world.spark, world.settings, BRONZE)
    later(monkeypatch, 2.5 * HOUR)
    lake = Lake(world.settings)
    book = TopicRegister(world.spark, lake, world.settings)
    try:
        watch = SilenceWriter(world.spark, lake, world.settings, book)
        topic = world.name("t")
        assert [one.partition for one, _ in watch.find_silences()] == [0, 1, 2]
        watch.remember_read_offsets([OffsetRange(topic, 0, 3, 3, 1)])
        with monkeypatch.context() as set_forward:
            set_forward.setattr("sessionlake.bronze.silences._read_clocks_now", _Later(48 * HOUR, steady=2.5 * HOUR))
            assert [one.partition for one, _ in watch.find_silences()] == [1, 2]
        world.send("t", 3, 1, partition=1)
        found = watch.find_silences()
        assert [(one.partition, one.behind) for one, _ in found] == [(2, 2)]
        book.remember_read_offsets([OffsetRange(topic, 2, 3, 3, 1)])  # meanwhile there was a message, after all
        watch.write_silences(found)
        assert list_silences(world) == []
    finally:
        book.close()


@pytest.mark.soak
def test_a_rebuild_comes_to_silences_where_they_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.create("t")
    world.send("t", 0, 3)
    take_in(world)
    later(monkeypatch, 2.5 * HOUR)
    run_layer(world.spark, world.settings, BRONZE)  # silver reads of it by the rebuild alone
    rebuild_silver_tables(world.spark, world.settings)
    assert (statuses(world), remembered(world)) == (Counter(expired=1), 0)
    world.send("t", 3, 2)
    take_in(world)
    assert_exact(world)


@pytest.mark.soak
def test_a_running_bronze_notes_what_falls_silent(world: World) -> None:
    short, often = {"session_timeout": timedelta(seconds=3)}, {"silent_after": timedelta(seconds=1)}
    own = world.settings
    changed = {"capture": own.capture.model_copy(update=short), "bronze": own.bronze.model_copy(update=often)}
    world.settings = own.model_copy(update=changed)
    world.create("t")
    world.send("t", 0, 3)
    with Pipeline(world.spark, world.settings, Layer.ALL) as pipeline:
        eventually(
            lambda: statuses(world) == Counter(expired=1) and not remembered(world),
            120,
            meanwhile=pipeline.raise_error_of_failed_layer,
        )
    assert len(list_silences(world)) in (1, 2)  # if nobody looked sooner, both times at once
    assert_exact(world)


@pytest.mark.soak
def test_a_partition_of_a_topic_that_was_made_again_without_it_falls_silent_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.settings = world.under(TopicChangePolicy.RESTART)
    world.create("t", 3)
    world.send("t", 0, 3)
    world.send("t", 0, 3, partition=2)
    take_in(world)
    world.delete("t")
    world.create("t", 2)
    world.send("t", 0, 2, partition=1)
    take_in(world)
    assert statuses(world) == Counter(open=3)
    later(monkeypatch, 1.5 * HOUR)
    take_in(world)
    assert statuses(world) == Counter(expired=3)
    assert sorted(one.partition for one in list_silences(world)) == [0, 1, 2]


@pytest.mark.soak
def test_what_was_reported_is_known_without_looking_through_bronze(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.create("t")
    world.send("t", 0, 3)
    take_in(world)
    later(monkeypatch, 1.5 * HOUR)
    run_layer(world.spark, world.settings, BRONZE)
    assert len(list_silences(world)) == 1
    with monkeypatch.context() as patch:
        patch.setattr("sessionlake.bronze.silences.read_silences", None)
        run_layer(world.spark, world.settings, BRONZE)
        later(patch, 2.5 * HOUR)
        run_layer(world.spark, world.settings, BRONZE)
    assert len(list_silences(world)) == 2
    take_in(world)
    assert_exact(world)
