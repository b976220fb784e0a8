"""Kills a pipeline's processes at named fault points, resumes it, and compares the tables with the ground truth.

All fault points are visited in one home, one after the other. A process is killed at the first. The next process
resumes, also reads new messages, and is killed at the second, and so on. So each fault point needs one process, and
the final tables have been through all of them.

- Layers share only tables, so a process runs only the layer in which it dies. The test's own process runs the other
  layers, in the session that the tests share.
- Every other process of silver and its tables finds no new messages, so it is killed in the same batch as the one
  before it.
- At every fourth fault point, Spark's commit file of the last finished batch is deleted too, as if the disk had not
  written it. That batch is then repeated.

All commits are made by the driver, in Python, while its JVM waits. So usually only the driver's Python process is
killed, over the JVM that the tests share. At some fault points, or all, a process with its own JVM is killed with it.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import cycle, product
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, LEDGER, MESSAGES
from sessionlake.delta.storage.faults import VARIABLE
from sessionlake.kafka.clients import build_librdkafka_client_config
from sessionlake.settings.model import Settings, load_settings
from sessionlake.streaming.generations import CheckpointGenerations
from sessionlake_lab.truth import KafkaMessage
from support.attached import open_to_another
from support.checkpoints import lose_last_commit
from support.crash_worker import LAYERS, main, run_layer
from support.lakes import assert_silver_is_the_truth, rows_of
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut

WORKER = Path(__file__).parent / "crash_worker.py"
PARTITIONS = range(3)
SECONDS = 240
# Imports take longer than the rest of a driver's work, so drivers are forked from a process that has imported all.
DRIVERS = multiprocessing.get_context("forkserver")
DRIVERS.set_forkserver_preload(
    ["deltalake", "pandas", "pyspark.sql.streaming", "sessionlake.bronze.job", "sessionlake.silver.merge.merger"]
)


class Death(NamedTuple):
    """A process that is killed: its layer, and the fault point at which it dies.

    Attributes:
        layer: The layer in which it dies.
        place: The fault point.
        own_jvm: True if the process has its own JVM, which dies too, and runs all layers up to its layer.
    """

    layer: str
    place: str
    own_jvm: bool = False

    @property
    def before(self) -> Sequence[str]:
        """Layers before the one in which the process dies."""
        return LAYERS[: LAYERS.index(self.layer)] if self.layer in LAYERS else LAYERS


def fill(settings: Settings, messages: list[KafkaMessage]) -> None:
    """Sends messages to their partitions. The broker must assign the offsets that the messages have."""
    producer = Producer(build_librdkafka_client_config(settings) | {"enable.idempotence": True})
    for message in messages:
        producer.produce(
            message.topic,
            partition=message.partition,
            timestamp=message.timestamp,
            key=message.key,
            value=message.value,
        )
    assert producer.flush(60) == 0


def topics(folder: Path) -> tuple[str, str]:
    """Returns topic names that no other test uses."""
    return f"{folder.name}.a", f"{folder.name}.b"


def make(folder: Path, count: int) -> list[KafkaMessage]:
    """Returns a stream whose partitions all start at offset 0, as in new topics."""
    made = StreamMaker(random.Random(7), LIGHT, topics(folder)).make(count)
    places = product(topics(folder), PARTITIONS)
    first = {place: min((m.offset for m in made if (m.topic, m.partition) == place), default=0) for place in places}
    return [m._replace(offset=m.offset - first[m.topic, m.partition]) for m in made]


def configured(file: Path, broker: Settings) -> Settings:
    """Writes a configuration with two topics that have different integrity classes, and returns its settings."""
    names = topics(file.parent)
    kafka = {"bootstrap_servers": broker.kafka.bootstrap_servers, "topic_pattern": "|".join(map(re.escape, names))}
    rules = [{"pattern": re.escape(names[1]), "integrity": "window", "on_violation": "record", "lateness": "2 s"}]
    capture = {"columns": COLUMNS, "on_violation": "isolate", "max_message_bytes": MAX_BYTES, "by_topic": rules}
    place = {"catalog": broker.catalog, "schemas": broker.schemas.model_dump()} if broker.catalog else {}
    content = place | {
        "home": str(file.parent / "home"),
        "kafka": kafka,
        "capture": capture,
        "silver": {"shards": 3, "snapshot_interval": "3 s"},
    }
    file.write_text(yaml.safe_dump(content))
    settings = load_settings(file)
    admin = AdminClient(build_librdkafka_client_config(settings))
    for created in admin.create_topics([NewTopic(topic, num_partitions=len(PARTITIONS)) for topic in names]).values():
        created.result(30)
    return settings


def lose_last_commits(settings: Settings) -> None:
    """Deletes the commit file of the last batch of each stream."""
    for layer in ("bronze", "silver"):
        lose_last_commit(CheckpointGenerations(settings.checkpoint_path(layer), layer).current_generation.folder)


def worker(file: Path, death: Death | None = None) -> dict[str, Any]:
    """Returns the arguments of `subprocess.run` for a process of all layers, or for one that dies."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    environment |= {VARIABLE: death.place} if death else {}
    layers = [] if death is None else [*(death.before if death.own_jvm else ()), death.layer]
    return {"args": [sys.executable, str(WORKER), str(file), *layers], "env": environment}


def run(file: Path, death: Death | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(**worker(file, death), capture_output=True, text=True, timeout=SECONDS, check=False)


def in_the_same_batch(deaths: Sequence[Death], number: int) -> bool:
    """Returns True if a process is killed in the same batch as the process before it."""
    return number % 2 == 1 and deaths[number].layer == deaths[number - 1].layer != BRONZE


def die(file: Path, death: Death, spark: Any, *, fresh: bool, surely: bool = True) -> None:
    """Runs a process over all input until it dies at its fault point.

    Args:
        file: The configuration file.
        death: The layer and the fault point.
        spark: The session that the tests share.
        fresh: True if there are new messages, so that the layers before it must run first.
        surely: True if the process must reach the fault point.
    """
    if death.own_jvm:
        ended = run(file, death)
        assert ended.returncode == -signal.SIGKILL, (death, ended.stderr[-3000:])
        return
    for layer in death.before if fresh else ():
        run_layer(spark, load_settings(file), layer)
    with open_to_another(spark) as environment:
        driver = DRIVERS.Process(target=drive, args=(file, death.layer, {**environment, VARIABLE: death.place}))
        driver.start()
        driver.join(SECONDS)
        assert driver.exitcode in {-signal.SIGKILL, *(() if surely else (0,))}, death


def drive(file: Path, layer: str, environment: Mapping[str, str]) -> None:
    """Runs a layer as a driver in a separate process."""
    os.environ.update(environment)
    main(file, layer)


def assert_equal_to_the_truth_when_killed_at(
    deaths: Sequence[Death], spark: Any, broker: Settings, folder: Path
) -> None:
    """Runs all deaths in a new home and checks the tables. Each process reads its share of the messages.

    At the first half of the deaths, the subscribed topics change each time.
    """
    file = folder / "sessionlake.yml"
    settings = configured(file, broker)
    both, content = settings.kafka.topic_pattern, yaml.safe_load(file.read_text())
    patterns = cycle([*map(re.escape, topics(folder)), both])
    messages = make(folder, 45 * (len(deaths) + 1))
    fresh = [number for number, death in enumerate(deaths) if not in_the_same_batch(deaths, number)]
    *batches, last = cut(random.Random(7), messages, len(fresh) + 1)
    arriving = dict(zip(fresh, batches, strict=True))
    for number, death in enumerate(deaths):
        if number in arriving:
            fill(settings, arriving[number])
        if number % 4 == 3:
            lose_last_commits(settings)
        pattern = next(patterns) if number < len(deaths) // 2 else both
        file.write_text(yaml.safe_dump(content | {"kafka": content["kafka"] | {"topic_pattern": pattern}}))
        die(file, death, spark, fresh=number in arriving)
    fill(settings, last)
    for layer in LAYERS:
        run_layer(spark, settings, layer)
    assert CheckpointGenerations(settings.checkpoint_path("bronze"), "bronze").current_generation.number > 0
    assert_every_message_once(spark, settings, messages)


def assert_every_message_once(spark: Any, settings: Settings, messages: list[KafkaMessage]) -> None:
    assert_silver_is_the_truth(spark, settings, messages)
    lake = Lake(settings)
    bronze = [(row["topic"], row["partition"], row["offset"]) for row in rows_of(spark, lake, MESSAGES)]
    assert sorted(bronze) == sorted((m.topic, m.partition, m.offset) for m in messages)
    ledger = sorted(rows_of(spark, lake, LEDGER), key=itemgetter("committed_at"))
    assert len({(row["layer"], row["app_id"], row["batch_id"]) for row in ledger}) == len(ledger)
    batches = [row["batch_id"] for row in ledger if row["layer"] == "bronze"]
    assert batches == sorted(batches)
    assert len({row["app_id"] for row in ledger if row["layer"] == "bronze"}) == 1
