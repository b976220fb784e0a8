"""Killed for real between any two commits, the pipeline leaves what one that was never killed leaves.

The places are visited in one home, one after the other: a process is killed at the first, the next one resumes what
it left, takes in new messages as well, and is killed at the second, and so on; the last runs to its end. So every
place costs one process, and what is compared at the end has been through all of them. At every other place Spark's note
of the last batch that it finished is lost as well, as by a disk that had not written it: that batch is repeated too.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.config import Settings, load_settings
from sessionlake.lab.truth import KafkaMessage
from sessionlake.lake.faults import VARIABLE
from sessionlake.lake.names import LEDGER
from sessionlake.lake.tables import Lake
from sessionlake.runtime.kafka import client_config
from sessionlake.streaming.generations import Generations
from support.lakes import assert_silver_is_the_truth
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut

WORKER = Path(__file__).parents[1] / "support" / "crash_worker.py"
TOPICS = ("crash.a", "crash.b")
# In the order of a run's commits. After one commit is before the next: nothing is written in between.
PLACES = [
    "before:bronze.messages",
    "after:bronze.messages",
    "after:ops.ledger",  # bronze's; Spark has not noted the batch as done
    "before:silver.session_changes",
    "after:silver.session_changes",
    "after:silver.session_progress",
    "after:silver.integrity_events",
    "after:silver.session_cuts",
    "after:silver.quarantine",
    "after:ops.ledger#2",  # silver's
    "after:silver.session_rows",
    "after:silver.sessions",
    "after:silver.session_snapshots",
    "after:ops.ledger#3",  # the merge's
]
SECONDS = 240


def fill(settings: Settings, messages: list[KafkaMessage]) -> None:
    """Produces messages to their partitions; the broker gives them the offsets they expect."""
    producer = Producer(client_config(settings) | {"enable.idempotence": True})
    for message in messages:
        producer.produce(
            message.topic,
            partition=message.partition,
            timestamp=message.timestamp,
            key=message.key,
            value=message.value,
        )
    assert producer.flush(60) == 0


def make(count: int, topics: tuple[str, str] = TOPICS) -> list[KafkaMessage]:
    """A stream whose partitions all begin at offset 0, as new topics do."""
    made = StreamMaker(random.Random(7), LIGHT, topics).make(count)
    lanes = {(m.topic, m.partition) for m in made}
    first = {lane: min(m.offset for m in made if (m.topic, m.partition) == lane) for lane in lanes}
    return [m._replace(offset=m.offset - first[m.topic, m.partition]) for m in made]


def configured(file: Path, broker: Settings, topics: tuple[str, str] = TOPICS) -> Settings:
    """Two topics, judged by two classes, and their partitions."""
    kafka = {"bootstrap_servers": broker.kafka.bootstrap_servers, "topic_pattern": "|".join(topics)}
    rules = [{"pattern": topics[1], "integrity": "window", "on_violation": "record", "lateness": "2 s"}]
    capture = {"columns": COLUMNS, "on_violation": "isolate", "max_message_bytes": MAX_BYTES, "by_topic": rules}
    content = {
        "home": str(file.parent / "home"),
        "kafka": kafka,
        "capture": capture,
        "silver": {"shards": 3, "snapshot_interval": "3 s"},
    }
    file.write_text(yaml.safe_dump(content))
    settings = load_settings(file)
    admin = AdminClient(client_config(settings))
    for created in admin.create_topics([NewTopic(topic, num_partitions=3) for topic in topics]).values():
        created.result(30)
    return settings


def lose_last_commit(settings: Settings) -> None:
    """Removes Spark's note of the last batch that each stream finished."""
    for layer in ("bronze", "silver"):
        notes = (Generations(settings.checkpoint(layer), layer).present.folder / "commits").glob("[0-9]*")
        last = max(notes, key=lambda note: int(note.name), default=None)
        if last is not None:
            last.unlink()
            last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def run(file: Path, place: str | None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {VARIABLE: place} if place else {}
    command = [sys.executable, str(WORKER), str(file)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False)


@pytest.mark.timeout(len(PLACES) * SECONDS)
def test_killed_between_any_two_commits_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "sessionlake.yml"
    settings = configured(file, broker_settings)
    messages = make(650)
    batches = list(cut(random.Random(7), messages, len(PLACES) + 1))
    for number, (place, batch) in enumerate(zip([*PLACES, None], batches, strict=True)):
        fill(settings, batch)
        if number % 2:
            lose_last_commit(settings)
        ended = run(file, place)
        assert ended.returncode == (-signal.SIGKILL if place else 0), (place, ended.stderr[-3000:])

    assert_every_message_once(spark, settings, messages)


@pytest.mark.timeout(5 * SECONDS)
def test_killed_whenever_its_subscription_has_changed_and_resumed_equals_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path
) -> None:
    file, topics = tmp_path / "sessionlake.yml", ("changing.a", "changing.b")
    settings = configured(file, broker_settings, topics)
    whole = yaml.safe_load(file.read_text())
    messages = make(300, topics)
    places = ["after:ops.ledger", "before:bronze.messages", "after:bronze.messages", "after:ops.ledger", None]
    patterns = [topics[0], topics[1], topics[0], topics[1], "|".join(topics)]
    runs = zip(places, patterns, cut(random.Random(7), messages, len(places)), strict=True)
    for number, (place, pattern, batch) in enumerate(runs):
        fill(settings, batch)
        if number % 2:
            lose_last_commit(settings)
        file.write_text(yaml.safe_dump(whole | {"kafka": whole["kafka"] | {"topic_pattern": pattern}}))
        ended = run(file, place)
        assert ended.returncode == (-signal.SIGKILL if place else 0), (place, ended.stderr[-3000:])

    # The fourth one died while it gave the third one's batch its ledger row, before it had begun a generation.
    assert Generations(settings.checkpoint("bronze"), "bronze").present.number == 3
    assert_every_message_once(spark, settings, messages)


def assert_every_message_once(spark: Any, settings: Settings, messages: list[KafkaMessage]) -> None:
    assert_silver_is_the_truth(spark, settings, messages)
    lake = Lake(settings)
    bronze = lake.read(spark, "bronze.messages").select("topic", "partition", "offset").collect()
    assert sorted(map(tuple, bronze)) == sorted((m.topic, m.partition, m.offset) for m in messages)
    ledger = lake.read(spark, LEDGER).orderBy("committed_at").select("layer", "app_id", "batch_id").collect()
    assert len(set(map(tuple, ledger))) == len(ledger)
    batches = [row["batch_id"] for row in ledger if row["layer"] == "bronze"]
    assert batches == sorted(batches)
    assert len({row["app_id"] for row in ledger if row["layer"] == "bronze"}) == 1
