"""Messages written in Kafka transactions, over a real broker: only committed ones become rows, and nothing stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from operator import eq
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from integration.test_topics import BRONZE, World
from sessionlake.bronze.gaps import record_transaction_gaps
from sessionlake.cli.doctor import _check_offsets_are_contiguous, _check_table_row_counts
from sessionlake.cli.verify_bronze import verify_bronze
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.txn import Txn
from sessionlake.errors import OffsetHoleError
from sessionlake.history.missing import explain_absent_message
from sessionlake.history.status import layer_statuses
from sessionlake.kafka import transactions
from sessionlake.kafka.transactions import find_intervals_used_by_transactions
from sessionlake.ledger.absent import AbsentOffsetFinder, find_missing_offset_intervals
from sessionlake.operations.pipeline import Layer
from sessionlake.settings.model import OnTopicChange, Settings
from sessionlake_lab.simulate.readback import read_all_messages
from support.lakes import rows_of
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]
TOPIC = "t"


class Transactions:
    """A topic that is written in transactions, and what a run makes of it."""

    def __init__(self, world: World) -> None:
        self.world, self.settings = world, world.settings
        self.lake = Lake(self.settings)
        self.topic = world.name(TOPIC)
        self._producers: list[Producer] = []
        world.create(TOPIC)

    def producer(self, name: str) -> Producer:
        config = {
            "bootstrap.servers": self.settings.kafka.bootstrap_servers,
            "transactional.id": f"{self.topic}.{name}",
        }
        made = Producer(config | {"log_level": 0})
        made.init_transactions(30)
        self._producers.append(made)
        return made

    def send(self, producer: Producer, first: int, count: int, qty: int | None = None) -> None:
        """Messages of session `s` whose seq begins at `first`; `qty` is the value of its row, by default the seq."""
        for seq in range(first, first + count):
            value = {"type": "update" if seq else "snapshot", "seq": seq, "ts": 1000 + seq}
            value["rows"] = [{"id": "r", "qty": seq if qty is None else qty}]
            producer.produce(self.topic, json.dumps(value).encode(), b"s", 0, timestamp=1000 + seq)
        producer.flush(30)

    def run(self, layer: Layer = Layer.BRONZE) -> None:
        self.world.run(self.settings, layer)

    @property
    def offsets(self) -> list[int]:
        return self.world.offsets(TOPIC)

    @property
    def quantity(self) -> int:
        (row,) = rows_of(self.world.spark, self.lake, "silver.session_rows", ("topic", eq, self.topic))
        return int(row["qty"])

    def verify(self) -> tuple[bool, list[str]]:
        said: list[str] = []
        return verify_bronze(self.world.spark, self.settings, said.append), said

    def lag(self) -> dict[str, int | None]:
        statuses = layer_statuses(self.lake.reader(self.world.spark), self.settings)
        return {status.layer: status.behind for status in statuses if status.layer in {"bronze", "silver"}}


@pytest.fixture
def written(spark: Any, broker_settings: Settings, tmp_path: Path) -> Iterator[Transactions]:
    made = Transactions(World(spark, broker_settings, tmp_path.name))
    yield made
    for producer in made._producers:
        producer.purge()


def test_aborted_messages_are_no_rows_and_no_duplicates_and_their_offsets_are_no_gaps(written: Transactions) -> None:
    producer = written.producer("a")
    producer.begin_transaction()
    written.send(producer, 0, 2)
    producer.commit_transaction()  # offsets 0 and 1, marker 2
    producer.begin_transaction()
    written.send(producer, 2, 3, qty=99)
    producer.abort_transaction()  # offsets 3 to 5, marker 6
    producer.begin_transaction()
    written.send(producer, 2, 2)
    producer.commit_transaction()  # offsets 7 and 8, marker 9

    written.run(Layer.ALL)
    assert written.offsets == [0, 1, 7, 8]
    assert written.quantity == 3
    assert rows_of(written.world.spark, written.lake, "silver.integrity_events") == []
    assert written.verify() == (True, ["exact: 4 messages of 1 topic-partitions, as Kafka holds them"])
    assert written.lag() == {"bronze": 0, "silver": 0}
    assert [message.offset for message in read_all_messages(written.settings)] == [0, 1, 7, 8]
    reader = written.lake.reader(written.world.spark)
    _check_offsets_are_contiguous(reader, allow_gaps=False)
    _check_table_row_counts(written.world.spark, written.lake)
    assert "Kafka used it for a transaction" in (explain_absent_message(reader, written.topic, 0, 4) or "")
    noted = rows_of(written.world.spark, written.lake, "ops.absent_offsets", ("topic", eq, written.topic))
    assert [(row["first"], row["last"], row["reason"]) for row in noted] == [
        (2, 6, "transaction"),
        (9, 9, "transaction"),
    ]


def test_a_run_ends_before_an_open_transaction_and_a_later_run_reads_it_once_it_is_committed(
    written: Transactions,
) -> None:
    first, second = written.producer("a"), written.producer("b")
    first.begin_transaction()
    written.send(first, 0, 2)
    first.commit_transaction()  # offsets 0 and 1, marker 2
    second.begin_transaction()
    written.send(second, 2, 1)  # offset 3, open
    first.begin_transaction()
    written.send(first, 3, 1)
    first.commit_transaction()  # offset 4, marker 5: behind the last stable offset
    written.run(Layer.ALL)
    assert (written.offsets, written.lag()) == ([0, 1], {"bronze": 0, "silver": 0})
    assert written.verify() == (True, ["exact: 2 messages of 1 topic-partitions, as Kafka holds them"])
    assert [message.offset for message in read_all_messages(written.settings)] == [0, 1]

    second.commit_transaction()  # marker 6
    assert written.lag() == {"bronze": 4, "silver": 0}
    written.run(Layer.ALL)
    assert (written.offsets, written.quantity) == ([0, 1, 3, 4], 3)
    assert written.verify() == (True, ["exact: 4 messages of 1 topic-partitions, as Kafka holds them"])


@pytest.mark.soak
def test_a_batch_of_nothing_but_an_aborted_transaction_is_passed(written: Transactions) -> None:
    producer = written.producer("a")
    for ends in (producer.commit_transaction, producer.abort_transaction, producer.abort_transaction):
        producer.begin_transaction()
        written.send(producer, 0, 2)
        ends()
        written.run(Layer.ALL)
    assert (written.offsets, written.lag()) == ([0, 1], {"bronze": 0, "silver": 0})
    producer.begin_transaction()
    written.send(producer, 2, 1)
    producer.commit_transaction()
    written.run(Layer.ALL)
    assert (written.offsets, written.quantity) == ([0, 1, 9], 2)
    assert len(rows_of(written.world.spark, written.lake, "ops.ledger", BRONZE)) == 4


@pytest.mark.soak
def test_a_run_that_dies_after_it_has_noted_offsets_is_repeated(
    written: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = written.producer("a")
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        written.send(producer, 0, 2)
        ends()
    written.world.dies("Ledger.write_entry", written.settings, monkeypatch)
    written.run(Layer.ALL)
    assert (written.offsets, written.quantity) == ([0, 1], 1)
    assert written.verify() == (True, ["exact: 2 messages of 1 topic-partitions, as Kafka holds them"])


def test_only_offsets_that_a_transaction_used_are_without_a_message(written: Transactions) -> None:
    """Runs as a batch would show them that had lost messages: before, inside and behind aborted ones."""
    producer = written.producer("a")
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        written.send(producer, 0, 2)
        ends()  # messages 0 and 1, marker 2, aborted 3 and 4, marker 5
    runs = [(a, b) for a in range(6) for b in range(a + 1, 7)]
    place = written.topic, 0
    found = find_intervals_used_by_transactions(written.world.spark, written.settings, {place: runs})
    assert found == {place: [(a, b) for a, b in runs if a >= 2]}


@pytest.mark.soak
def test_of_many_small_transactions_only_the_first_are_looked_at_one_by_one(
    written: Transactions, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, looked_at = written.producer("a"), []
    for number in range(120):
        producer.begin_transaction()
        written.send(producer, number, 1)
        (producer.abort_transaction if number % 3 == 2 else producer.commit_transaction)()
    one_by_one = transactions._is_interval_used_by_transactions
    monkeypatch.setattr(
        transactions, "_is_interval_used_by_transactions", lambda *of: looked_at.append(of) or one_by_one(*of)
    )
    written.run()
    assert written.offsets == [2 * number for number in range(120) if number % 3 != 2]
    assert len(looked_at) == transactions.FEW_INTERVALS

    # As a batch would show it that had lost the message at offset 200, behind those that are looked at.
    held = np.array([offset for offset in written.offsets if offset != 200])
    runs = find_missing_offset_intervals(held, 0, 240)
    lost = next(run for run in runs if run[0] <= 200 < run[1])
    found = find_intervals_used_by_transactions(written.world.spark, written.settings, {(written.topic, 0): runs})
    assert found == {(written.topic, 0): [run for run in runs if run != lost]}


def test_messages_that_kafka_has_lost_stop_bronze_though_other_offsets_are_of_transactions(
    written: Transactions, spark: Any
) -> None:
    """Where the log begins at offset 4, what was before it is lost, whether or not it was aborted."""
    producer = written.producer("a")
    for ends in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        written.send(producer, 0, 2)
        ends()
    written.world.retain(TOPIC, 4)
    place, read = (written.topic, 0), written.lake.reader(spark)
    empty = pa.schema([("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64())]).empty_table()
    with pytest.raises(
        OffsetHoleError, match=r"no longer has offsets 2 to 5, and they are not markers of transactions"
    ):
        record_transaction_gaps(spark, written.lake, {place: (2, 6)}, empty, {}, Txn("a", 0))
    record_transaction_gaps(spark, written.lake, {place: (4, 6)}, empty, {}, Txn("a", 0))
    assert AbsentOffsetFinder(read).find_absent_offset_intervals({place: (0, 10)}) == {place: [(4, 6)]}


@pytest.mark.soak
def test_a_restarted_topic_keeps_its_transactions_apart_from_the_former_one(written: Transactions) -> None:
    producer = written.producer("a")
    producer.begin_transaction()
    written.send(producer, 0, 2)
    producer.commit_transaction()
    written.run()
    written.world.delete(TOPIC)
    written.world.create(TOPIC)
    again = written.producer("b")
    for ends in (again.abort_transaction, again.commit_transaction):
        again.begin_transaction()
        written.send(again, 0, 2)
        ends()
    restarting = written.world.under(OnTopicChange.RESTART)
    written.world.run(restarting)
    written.world.run(restarting, Layer.SILVER)
    shift = 3
    assert written.offsets == [0, 1, shift + 3, shift + 4]
    _check_offsets_are_contiguous(written.lake.reader(written.world.spark), allow_gaps=False)


@pytest.mark.soak
def test_messages_that_compaction_removed_are_not_taken_for_transactions(
    written: Transactions, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets as they look to a consumer whatever removed the messages: the record after them comes at once."""
    world, name = written.world, written.world.name("compacted")
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    world.admin.create_topics([NewTopic(name, 1, 1, config=config)])[name].result(30)
    for seq in range(4):  # of one key, each in a segment of its own; a segment ends by its messages' timestamps
        world.send("compacted", 1000 * seq, 1)

    def held() -> list[int]:
        only = world.of("compacted")
        return [message.offset for message in read_all_messages(only)]

    eventually(lambda: len(held()) < 4, 60)
    lost = sorted({*range(4)} - {*held()})
    place = name, 0
    runs = [(offset, offset + 1) for offset in range(4)]
    assert find_intervals_used_by_transactions(spark, written.settings, {place: runs}) == {place: []}
    monkeypatch.setattr(transactions, "FEW_INTERVALS", 0)
    assert find_intervals_used_by_transactions(spark, written.settings, {place: runs}) == {place: []}
    only = world.of("compacted")
    expected_text = rf"offsets {lost[0]} to .* not markers of transactions.*allow_offset_gaps"
    with pytest.raises(OffsetHoleError, match=expected_text):
        world.run(only)
    assert world.offsets("compacted") == []
    world.run(only.model_copy(update={"kafka": only.kafka.model_copy(update={"allow_offset_gaps": True})}))
    assert world.offsets("compacted") == held()
