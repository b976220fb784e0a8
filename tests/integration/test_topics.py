"""The life of topics over a real broker: deleted, made anew, quiet and speaking again; never a silent loss."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from operator import eq, itemgetter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from sessionlake.bronze import job as bronze
from sessionlake.bronze import query
from sessionlake.bronze.topic_book import TopicRegister
from sessionlake.cli.doctor import (
    _check_checkpoints_match_tables,
    _check_offsets_are_contiguous,
    _check_table_row_counts,
    _check_topic_states,
)
from sessionlake.delta.folders import staging as folder_staging
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import OffsetHoleError, SessionlakeError, TopicChangedError
from sessionlake.kafka.admin import KafkaAdmin
from sessionlake.ledger.entries import Ledger, LedgerEntry, OffsetRange
from sessionlake.ledger.topics import (
    TopicGeneration,
    TopicState,
    read_topics,
    select_latest_generations,
)
from sessionlake.operations.pipeline import Layer, Pipeline, run_once
from sessionlake.settings.model import Settings, TopicChangePolicy
from sessionlake.settings.section import OnViolation
from sessionlake.streaming.generations import CheckpointGeneration, CheckpointGenerations
from support.lakes import limit, rows_of
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
SECONDS = 60
BRONZE = ("layer", eq, "bronze")


class World:
    """One test's topics, and what a run makes of them."""

    def __init__(self, spark: Any, settings: Settings, prefix: str) -> None:
        capture = settings.capture.model_copy(update={"on_violation": OnViolation.ISOLATE})
        kafka = settings.kafka.model_copy(update={"topic_pattern": rf"{prefix}\..+"})
        self.spark, self.prefix = spark, prefix
        bronze = settings.bronze.model_copy(update={"topic_refresh": timedelta(milliseconds=500)})
        self.settings = settings.model_copy(update={"kafka": kafka, "capture": capture, "bronze": bronze})
        self.admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def name(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    def under(self, rule: TopicChangePolicy, **kafka: Any) -> Settings:
        changed = self.settings.kafka.model_copy(update={"on_topic_change": rule, **kafka})
        return self.settings.model_copy(update={"kafka": changed})

    def send(self, topic: str, first: int, count: int, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.settings.kafka.bootstrap_servers})
        for seq in range(first, first + count):
            kind = "update" if seq else "snapshot"
            value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
            key = f"s{partition}".encode()
            producer.produce(self.name(topic), json.dumps(value).encode(), key, partition, timestamp=1000 + seq)
        assert producer.flush(30) == 0

    def create(self, topic: str, partitions: int = 1) -> None:
        self.admin.create_topics([NewTopic(self.name(topic), partitions, 1)])[self.name(topic)].result(30)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([self.name(topic)])[self.name(topic)].result(30)
        eventually(lambda: self.name(topic) not in self.admin.list_topics(timeout=10).topics, SECONDS)

    def retain(self, topic: str, first: int) -> None:
        """Deletes messages before an offset, as Kafka's retention does."""
        place = TopicPartition(self.name(topic), 0, first)
        self.admin.delete_records([place])[TopicPartition(self.name(topic), 0)].result(30)

    def create_and_read_until(self, power_cut_before: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """Topics `a` and `b`: their first batch dies half done, then both are made anew with more messages."""
        for topic in ("a", "b"):
            self.create(topic, 2)
            self.send(topic, 0, 3)
            self.send(topic, 0, 2, partition=1)
        self.dies(power_cut_before, self.settings, monkeypatch)
        for topic in ("a", "b"):
            self.delete(topic)
            self.create(topic)
            self.send(topic, 3, 7)

    def run(self, settings: Settings, layer: Layer = Layer.BRONZE) -> None:
        assert run_once(self.spark, settings, layer, threading.Event())

    def offsets(self, topic: str) -> list[int]:
        rows = rows_of(self.spark, Lake(self.settings), "bronze.messages", ("topic", eq, self.name(topic)))
        return sorted(row["offset"] for row in rows)

    def rows(self, topic: str) -> list[TopicGeneration]:
        return [row for row in read_topics(self.spark, Lake(self.settings)) if row.topic == self.name(topic)]

    @property
    def generations(self) -> CheckpointGenerations:
        return CheckpointGenerations(self.settings.checkpoint_path(Layer.BRONZE), Layer.BRONZE)

    def of(self, *topics: str) -> Settings:
        """Settings under which just these topics are read."""
        return self.under(TopicChangePolicy.FAIL, topic_pattern=rf"{self.prefix}\.({'|'.join(topics)})")

    def dies(self, power_cut_before: str, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
        """Runs bronze, which dies before it writes its messages (`_load_batch_rows`) or ledger row (`write_entry`)."""
        with monkeypatch.context() as dying:
            dying.setattr(f"sessionlake.bronze.job.{power_cut_before}", power_cut)
            with pytest.raises(SessionlakeError, match="power cut"):
                self.run(settings)

    def assert_one_query_read_everything_once(self, **topics: int) -> None:
        """Whatever the generations: one id, rising batch numbers, every message once, and the books balance."""
        lake = Lake(self.settings)
        rows = sorted(rows_of(self.spark, lake, "ops.ledger", BRONZE), key=itemgetter("committed_at"))
        batches = [row["batch_id"] for row in rows]
        assert batches == sorted(set(batches))
        assert len({row["app_id"] for row in rows}) == 1
        assert {topic: self.offsets(topic) for topic in topics} == {t: list(range(n)) for t, n in topics.items()}
        _check_offsets_are_contiguous(lake.reader(self.spark), allow_gaps=False)
        _check_table_row_counts(self.spark, lake)
        assert _check_checkpoints_match_tables(self.settings) == "bronze"

    def state(self, topic: str) -> TopicState:
        return select_latest_generations(self.rows(topic))[self.name(topic)].state


@pytest.fixture
def world(spark: Any, broker_settings: Settings, tmp_path: Path) -> World:
    return World(spark, broker_settings, tmp_path.name)


def test_a_topic_made_again_with_more_messages_than_the_old_is_refused_forgotten_or_read_on_behind_it(
    world, monkeypatch
):
    world.create_and_read_until(power_cut_before="Ledger.write_entry", monkeypatch=monkeypatch)  # the ledger row
    with pytest.raises(TopicChangedError, match=rf"{world.name('a')} was deleted and created again.*up to offset 2"):
        world.run(world.settings)
    assert (world.state("a"), world.offsets("a")) == (TopicState.RECREATED, [0, 0, 1, 1, 2])

    # The new topic's offsets 0 to 6 lie beyond every offset of the old one, in any partition.
    world.run(world.under(TopicChangePolicy.RESTART, topic_pattern=rf"{world.prefix}\.a"))
    assert world.offsets("a") == [0, 0, 1, 1, 2, *range(3, 10)]
    old, new = world.rows("a")
    assert (old.state, new.state, new.generation, new.offset_shift) == (
        TopicState.RECREATED,
        TopicState.ACTIVE,
        1,
        3,
    )

    world.send("b", 10, 1)
    world.send("a", 10, 1)
    world.run(world.under(TopicChangePolicy.FORGET))
    assert world.offsets("b") == [0, 0, 1, 1, 2]
    assert [(row.state, row.lost) for row in world.rows("b")] == [
        (TopicState.RECREATED, 0),
        (TopicState.FORGOTTEN, 8),
    ]
    assert world.offsets("a")[-1] == 10

    world.run(world.settings, Layer.SILVER)
    lake = Lake(world.settings)
    sessions = rows_of(world.spark, lake, "silver.sessions", ("topic", eq, world.name("a")), ("session_id", eq, "s0"))
    assert [(row["status"], row["next_seq"]) for row in sessions] == [("open", 11)]
    _check_offsets_are_contiguous(lake.reader(world.spark), allow_gaps=False)
    assert _check_topic_states(world.spark, lake).detail.startswith(
        f"1 active, 1 forgotten ({world.name('b')}); messages of {world.name('b')} were lost before bronze read them:"
    )


@pytest.mark.soak
def test_messages_planned_but_not_captured_when_their_topic_was_made_again_are_recorded_as_lost(world, monkeypatch):
    world.create_and_read_until(
        power_cut_before="_BronzeBatchWriter._load_batch_rows", monkeypatch=monkeypatch
    )  # the messages
    world.run(world.under(TopicChangePolicy.RESTART))
    for topic in ("a", "b"):
        assert world.offsets(topic) == list(range(7))
        assert [(row.state, row.lost) for row in world.rows(topic)] == [
            (TopicState.RECREATED, 5),
            (TopicState.ACTIVE, None),
        ]
    for topic in ("a", "b"):
        world.delete(topic)
    world.run(world.under(TopicChangePolicy.FORGET))  # nothing is left to subscribe to
    world.send("c", 0, 2)
    world.run(world.settings)
    assert (world.state("a"), world.state("c"), world.offsets("c")) == (
        TopicState.FORGOTTEN,
        TopicState.ACTIVE,
        [0, 1],
    )


def test_a_topic_made_again_is_refused_though_the_process_was_killed_just_behind_its_first_batch(world, monkeypatch):
    world.send("a", 0, 1)
    with monkeypatch.context() as killed:
        killed.setattr(TopicRegister, "close", lambda book: book._admin.close())  # it writes nothing more down
        with Pipeline(world.spark, world.settings, Layer.BRONZE) as live:
            eventually(lambda: world.offsets("a") == [0], SECONDS, meanwhile=live.raise_error_of_failed_layer)
            world.create("b")
            world.send("b", 0, 3)
            eventually(lambda: world.offsets("b") == [0, 1, 2], SECONDS, meanwhile=live.raise_error_of_failed_layer)
    world.delete("b")
    world.create("b")
    world.send("b", 3, 7)
    with pytest.raises(TopicChangedError, match=rf"{world.name('b')} was deleted and created again.*up to offset 2"):
        world.run(world.settings)
    assert world.offsets("b") == [0, 1, 2]


@pytest.mark.soak
def test_a_planned_batch_that_a_topic_made_again_does_not_reach_to_is_planned_again(world, monkeypatch):
    world.create("a")
    world.send("a", 0, 5)
    world.dies("_BronzeBatchWriter._load_batch_rows", world.settings, monkeypatch)
    world.delete("a")
    world.create("a")
    world.send("a", 10, 3)  # it begins at offset 0, as the batch does, and ends before it
    world.run(world.under(TopicChangePolicy.RESTART))
    world.assert_one_query_read_everything_once(a=3)


@pytest.mark.soak
def test_a_large_batch_read_from_a_topic_that_was_just_made_again_leaves_nothing_of_it(world, monkeypatch):
    world.create("a")
    world.send("a", 0, 3)
    world.run(world.settings)
    world.send("a", 3, 2)
    real, reads = folder_staging.write_files_with_spark, []

    def made_anew_before_it_is_read(*args: Any) -> Any:
        reads.append(args)
        if len(reads) == 1:
            world.delete("a")
            world.create("a")
            world.send("a", 10, 7)  # it has offsets 3 and 4, too
        return real(*args)

    limit(monkeypatch, few_messages=0)
    monkeypatch.setattr(folder_staging, "write_files_with_spark", made_anew_before_it_is_read)
    world.run(world.under(TopicChangePolicy.RESTART))
    world.assert_one_query_read_everything_once(a=10)
    assert [(row.state, row.lost, row.offset_shift) for row in world.rows("a")] == [
        (TopicState.RECREATED, 2, 0),
        (TopicState.ACTIVE, None, 3),
    ]


@pytest.mark.soak
def test_a_batch_in_the_table_that_goes_over_what_the_ledger_has_is_refused_at_every_start(world, monkeypatch):
    world.send("a", 0, 3)
    world.run(world.settings)
    world.send("a", 3, 2)
    world.dies("Ledger.write_entry", world.settings, monkeypatch)
    foreign = OffsetRange(world.name("a"), 0, 3, 3, 1)
    entry = LedgerEntry("bronze", Txn("another checkpoint", 0), "kafka", datetime.now(UTC), offsets=(foreign,))
    lake = Lake(world.settings)
    Ledger(lake).write_entry(world.spark, entry)
    for _ in range(2):
        with pytest.raises(OffsetHoleError, match="starts at offset 3, but offsets up to 3 were read before"):
            world.run(world.settings)
        assert len(rows_of(world.spark, lake, "ops.ledger", BRONZE)) == 2


@pytest.mark.parametrize("lost", ["the ledger row", "Spark's note"])
def test_a_batch_in_the_tables_is_not_read_again_when_kafka_has_deleted_it_since(world, monkeypatch, lost):
    world.send("a", 0, 3)
    world.run(world.settings)
    world.send("a", 3, 2)
    if lost == "the ledger row":
        world.dies("Ledger.write_entry", world.settings, monkeypatch)
    else:
        world.run(world.settings)
        (world.generations.current_generation.folder / "commits" / "1").unlink()
    world.retain("a", 5)
    world.send("a", 5, 1)
    world.run(world.settings)
    assert world.generations.current_generation.number == 1
    world.assert_one_query_read_everything_once(a=6)


def test_an_error_behind_a_batch_that_is_in_the_tables_is_reported(world, monkeypatch):
    world.send("a", 0, 3)
    with monkeypatch.context() as failing:
        failing.setattr("sessionlake.bronze.topic_book.TopicRegister.remember_read_offsets", power_cut)
        with pytest.raises(SessionlakeError, match="power cut"):
            world.run(world.settings)
    world.send("a", 3, 1)
    world.run(world.settings)
    world.assert_one_query_read_everything_once(a=4)


def power_cut(*_: Any) -> None:
    raise SessionlakeError("power cut")


@pytest.mark.soak
def test_live_a_deleted_topic_is_forgotten_a_partition_is_added_and_a_quiet_topic_speaks_again(world, monkeypatch):
    monkeypatch.setattr("sessionlake.bronze.topic_book._IDLE_CHECK_SECONDS", 0.5)
    for topic in ("gone", "stays", "quiet"):
        world.create(topic)
    world.send("quiet", 0, 2)
    world.run(world.settings)
    world.send("gone", 0, 3)
    world.send("stays", 0, 3)
    with Pipeline(
        world.spark, world.under(TopicChangePolicy.FORGET, inactive_after=timedelta(0)), Layer.BRONZE
    ) as live:

        def reached(condition: Callable[[], bool]) -> None:
            def looked() -> bool:
                live.raise_error_of_failed_layer()
                return condition()

            eventually(looked, SECONDS)

        assert world.state("quiet") is TopicState.INACTIVE
        reached(lambda: world.offsets("stays") == world.offsets("gone") == [0, 1, 2])
        query = live.queries[Layer.BRONZE].query.runId
        world.admin.create_partitions([NewPartitions(world.name("stays"), 2)])[world.name("stays")].result(30)
        world.send("stays", 0, 4, partition=1)
        reached(lambda: world.offsets("stays") == [0, 0, 1, 1, 2, 2, 3])
        assert live.queries[Layer.BRONZE].query.runId == query
        world.delete("gone")
        reached(lambda: world.state("gone") is TopicState.FORGOTTEN)
        world.send("quiet", 2, 2)
        reached(lambda: world.offsets("quiet") == [0, 1, 2, 3])
        world.send("stays", 3, 1)
        reached(lambda: world.offsets("stays") == [0, 0, 1, 1, 2, 2, 3, 3])
    assert world.offsets("gone") == [0, 1, 2]
    (gone,) = world.rows("gone")
    assert (gone.lost, gone.partitions[0].next_offset) == (0, 3)
    _check_offsets_are_contiguous(Lake(world.settings).reader(world.spark), allow_gaps=False)


def test_a_normal_restart_and_a_new_topic_stay_in_their_generation(world):
    world.send("a", 0, 2)
    world.run(world.settings)
    world.send("a", 2, 2)
    world.send("b", 0, 3)
    world.run(world.settings)
    assert world.generations.current_generation.number == 0
    world.assert_one_query_read_everything_once(a=4, b=3)


def test_a_process_killed_between_the_note_of_a_generation_and_its_start_goes_on_in_it(world):
    world.send("a", 0, 3)
    world.send("b", 0, 3)
    world.run(world.settings)
    present = world.generations.current_generation
    world.generations.create_next_generation(present.next_batch, present.app_id)  # and there it died
    world.send("a", 3, 2)
    world.send("c", 0, 2)  # its partition was not there when the generation was noted
    world.run(world.settings)
    present = world.generations.current_generation
    assert (present.number, (present.folder / "commits" / "0").is_file()) == (1, True)
    world.assert_one_query_read_everything_once(a=5, b=3, c=2)


@pytest.mark.soak
def test_generations_that_die_half_done_one_after_the_other_leave_every_message_once(world, monkeypatch):
    for topic in ("a", "b", "c"):
        world.send(topic, 0, 3)
    world.run(world.settings)

    def numbers(generation: CheckpointGeneration) -> tuple[int, int | None]:
        return generation.number, generation.last_planned_batch

    world.send("a", 3, 1)
    world.dies("_BronzeBatchWriter._load_batch_rows", world.of("a", "b"), monkeypatch)  # planned, nothing committed
    assert numbers(world.generations.current_generation) == (1, 1)
    world.send("a", 4, 1)
    world.send("b", 3, 1)
    world.dies(
        "Ledger.write_entry", world.of("a", "c"), monkeypatch
    )  # another change; messages committed, no ledger row
    assert numbers(world.generations.current_generation) == (2, 2)
    assert world.offsets("a") == [0, 1, 2, 3, 4]
    world.send("c", 3, 2)
    world.run(world.of("b"))  # yet another; it died before it had anything to read
    assert numbers(world.generations.current_generation) == (3, 3)
    world.dies("_BronzeBatchWriter._load_batch_rows", world.settings, monkeypatch)
    assert numbers(world.generations.current_generation) == (4, 4)
    world.run(world.settings)  # nothing has changed: Spark finishes what it had planned
    assert numbers(world.generations.current_generation) == (4, 4)
    world.send("a", 5, 1)
    world.run(world.settings)
    assert [entry.name for entry in sorted((world.generations.current_generation.folder.parent).iterdir())] == [
        "4",
        "4.json",
    ]
    world.assert_one_query_read_everything_once(a=6, b=4, c=5)


@pytest.mark.soak
def test_a_batch_that_died_before_another_topic_came_is_read_with_it(world, monkeypatch):
    world.send("a", 0, 3)
    world.dies("_BronzeBatchWriter._load_batch_rows", world.settings, monkeypatch)
    world.send("b", 0, 2)
    world.run(world.settings)  # Spark would repeat the batch as it was, and refuses that under `--once`
    world.assert_one_query_read_everything_once(a=3, b=2)


@pytest.mark.soak
@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_a_topic_created_between_looking_and_starting_is_read_and_stops_nothing(world, monkeypatch, partitions):
    world.send("a", 0, 3)
    world.send("b", 0, 3)
    world.run(world.of("a"))
    real, starts = bronze._read_kafka_stream, []

    def created_meanwhile(*args: Any) -> Any:
        starts.append(args[2].starting_offsets)
        if len(starts) == 1:
            world.create("late", partitions)
            world.send("late", 0, 2)
        return real(*args)

    world.send("b", 3, 1)
    monkeypatch.setattr("sessionlake.bronze.job._read_kafka_stream", created_meanwhile)
    world.run(world.of("b", "late"))
    assert len(starts) > 1
    assert world.name("late") not in starts[0]
    assert world.generations.current_generation.number == 1
    world.assert_one_query_read_everything_once(a=3, b=4, late=2)


def test_a_topic_that_goes_while_kafka_is_asked_about_it_stops_no_start(world, monkeypatch):
    for topic in ("goes", "stays"):
        world.create(topic)
        world.send(topic, 0, 2)
    told, gone = KafkaAdmin.read_first_and_end_offsets, list[str]()

    def offsets(admin: KafkaAdmin, places: Any, **how: Any) -> Any:
        if not gone:
            gone.append("goes")
            world.delete("goes")
        return told(admin, places, **how)

    monkeypatch.setattr(KafkaAdmin, "read_first_and_end_offsets", offsets)
    world.run(world.under(TopicChangePolicy.FORGET))
    assert gone
    assert world.offsets("stays") == [0, 1]
    assert world.offsets("goes") == []


@pytest.mark.soak
def test_starting_offsets_that_spark_refuses_are_tried_again_and_in_the_end_reported(world, monkeypatch):
    """As by a cluster whose brokers do not all know of a topic yet."""
    monkeypatch.setattr("sessionlake.bronze.query._PAUSE_SECONDS", 0.0)
    monkeypatch.setattr("sessionlake.bronze.query._MAX_ATTEMPTS", 2)
    real, refused = query.encode_starting_offsets, iter(range(9))
    for topic in ("a", "b"):
        world.send(topic, 0, 3)
    world.run(world.of("a"))

    with monkeypatch.context() as lagging:
        lagging.setattr(query, "encode_starting_offsets", lambda _: "{}")
        with pytest.raises(SessionlakeError, match="you must specify all TopicPartitions"):
            world.run(world.of("b"))
        lagging.setattr(query, "encode_starting_offsets", lambda said: "{}" if next(refused) < 2 else real(said))
        world.run(world.of("b"))
    assert world.generations.current_generation.number == 1
    world.assert_one_query_read_everything_once(a=3, b=3)
