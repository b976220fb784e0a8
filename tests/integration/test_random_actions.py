"""What a keeper's years bring, in any order: messages, kills, maintenance, rebuilds, topics that go and come.

After every hundred actions bronze is what Kafka was sent, silver the truth, gold what a recomputation makes of silver,
and the books balance.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any

import pytest
import yaml

from sessionlake.commands import doctor
from sessionlake.commands.doctor import Level
from sessionlake.commands.reshard import reshard_all
from sessionlake.config import Integrity, KafkaSettings, Settings, load_settings
from sessionlake.gold.declared import tables_of
from sessionlake.gold.verify import verify_gold
from sessionlake.lab.truth import KafkaMessage
from sessionlake.lake.names import BRONZE, GOLD, MESSAGES, SILVER, SILVER_TABLES
from sessionlake.lake.storage import Kept
from sessionlake.lake.tables import Lake
from sessionlake.laptop.broker import down, up
from sessionlake.maintenance import Maintenance
from sessionlake.silver.rebuild.rebuild import rebuild
from spark.test_maintenance import eager  # noqa: F401 - a fixture
from support.crash_worker import LAYERS, run_layer
from support.crashes import Death, lose_last_commits
from support.lakes import assert_silver_is_the_truth, rows_of
from support.sent_topics import SentTopics
from support.standby import Standby
from support.streams import COLUMNS, LIGHT, MAX_BYTES, WILD, StreamMaker

ACTIONS = int(os.environ.get("ACTIONS", "10000"))
"""How many are taken of each seed: `make soak ACTIONS=1000`."""
CHECKED = 100
"""After so many, everything is compared."""
LIFE = 500
"""After so many, another lake is begun, with other settings: what is compared would else cost more and more.

Each life has a seed of its own and is a test of its own, so that one that fails is run again by itself.
"""
DEATHS = [
    *(Death(BRONZE, f"{when}:{MESSAGES}") for when in ("before", "after")),
    *(Death(SILVER, f"after:silver.{name}") for name in ("session_changes", "session_progress", "stream_times")),
    *(Death(SILVER, f"before:silver.{name}") for name in ("session_changes", "integrity_events", "quarantine")),
    *(Death(SILVER_TABLES, f"after:silver.{name}") for name in ("session_rows", "sessions", "session_snapshots")),
    *(Death(GOLD, f"before:gold.{name}") for name in ("rolling_average", "metrics_1m", "metrics_1d")),
    *(Death(layer, "after:ops.ledger") for layer in (*LAYERS, GOLD)),
]


class Keeper:
    """Takes actions at random, of one broker and one home, and knows what was sent."""

    def __init__(self, spark: Any, file: Path, broker: Settings, rnd: random.Random) -> None:
        self.spark, self.file, self.broker, self.rnd = spark, file, broker, rnd
        self.told: list[str] = []
        self.prefix = f"life{rnd.randrange(1 << 30)}"
        self._configure()
        self.settings = load_settings(file)
        self.sent = SentTopics(self.settings)
        topics = [f"{self.prefix}.{integrity}.{n}" for integrity in Integrity for n in range(2)]
        for topic in topics:
            self.sent.make(topic)
        self.coming = {topic: self._coming(topic) for topic in topics}
        self.standby = Standby(spark)
        self.actions: dict[Callable[[], object], int] = {
            self.produce: 400,
            self.run_layers: 250,
            self.kill: 170,
            self.lose_a_note: 50,
            self.maintain: 50,
            self.make_anew: 30,
            self.reshard: 30,
            self.restart_broker: 15,
            self.rebuild: 5,  # costs as much as all others of a hundred
        }

    def _configure(self) -> None:
        rules = [
            {"pattern": rf"{self.prefix}\.{integrity}\..", "integrity": str(integrity)}
            | {"on_violation": self.rnd.choice(["isolate", "record"]), "lateness": "2 s"}
            for integrity in Integrity
        ]
        kafka = {
            "bootstrap_servers": self.broker.kafka.bootstrap_servers,
            "topic_pattern": rf"{re.escape(self.prefix)}\..+",
            "on_topic_change": "restart",
        }
        capture = {"columns": COLUMNS, "max_message_bytes": MAX_BYTES, "by_topic": rules, "gap_timeout": "5 s"}
        content = {
            "home": str(self.file.parent / "home"),
            "kafka": kafka,
            "capture": capture,
            "silver": {"shards": 3, "snapshot_interval": "7 s"},
            "gold": {"shards": 2, "rolling_points": 3},
        }
        self.file.write_text(yaml.safe_dump(content))

    def _coming(self, topic: str) -> Iterator[KafkaMessage]:
        maker = StreamMaker(self.rnd, self.rnd.choice([LIGHT, WILD]), [topic])
        while True:
            yield from maker.make(1)

    # -- actions

    def live(self, actions: int) -> None:
        """Takes so many, and compares everything now and then."""
        for number in range(1, actions + 1):
            self.act()
            if number % CHECKED == 0 or number == actions:
                self.check()

    def act(self) -> None:
        """Takes one."""
        [action] = self.rnd.choices([*self.actions], [*self.actions.values()])
        self.told.append(action.__name__)
        action()

    def produce(self) -> None:
        """A sensor or two say something."""
        for topic in self.rnd.sample([*self.coming], 2):
            self.sent.send(list(islice(self.coming[topic], self.rnd.randint(1, 15))))

    def run_layers(self) -> None:
        """Those up to one of them take in what is there."""
        for layer in (*LAYERS, GOLD)[: self.rnd.randint(1, 4)]:
            run_layer(self.spark, self.settings, layer)

    def kill(self) -> None:
        """A process dies, if it comes to that place."""
        death = self.rnd.choice(DEATHS)
        self.told[-1] += f" {death.place} of {death.layer}"
        for layer in death.before if self.rnd.random() < 0.5 else ():
            run_layer(self.spark, self.settings, layer)
        self.standby.run(self.file, death)

    def lose_a_note(self) -> None:
        """Spark's notes of the last batches that were finished are not on disk: these are made once more."""
        for lose in (lambda: None, lambda: lose_last_commits(self.settings)):
            lose()
            for layer in (BRONZE, SILVER):
                run_layer(self.spark, self.settings, layer)

    def maintain(self) -> None:
        """Files are merged, and those that nobody reads removed."""
        for _ in Maintenance(self.spark, self.settings).once():
            pass

    def make_anew(self) -> None:
        """A topic is deleted when all of it has been read, and made anew."""
        run_layer(self.spark, self.settings, BRONZE)
        topic = self.rnd.choice([*self.coming])
        self.told[-1] += f" {topic}"
        self.sent.delete(topic)
        self.sent.make(topic)

    def rebuild(self) -> None:
        """Silver is made anew from bronze."""
        for layer in (SILVER, SILVER_TABLES):
            run_layer(self.spark, self.settings, layer)
        rebuild(self.spark, self.settings)

    def reshard(self) -> None:
        """States come into another number of shards."""
        content = yaml.safe_load(self.file.read_text())
        shards = content["silver"]["shards"] = content["gold"]["shards"] = self.rnd.randint(1, 5)
        self.told[-1] += f" {shards}"
        self.file.write_text(yaml.safe_dump(content))
        self.settings = load_settings(self.file)
        reshard_all(self.spark, self.settings, shards, wait=0)

    def restart_broker(self) -> None:
        """The broker is stopped, and started."""
        down(self.broker)
        up(self.broker)

    # -- what must hold

    def check(self) -> None:
        """Takes in all that is there, and compares all layers with what was sent."""
        for layer in (*LAYERS, GOLD):
            run_layer(self.spark, self.settings, layer)
        lake = Lake(self.settings)
        sent = self.sent.in_lake(self.spark, self.settings)
        held = [
            (r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in rows_of(self.spark, lake, MESSAGES)
        ]
        assert sorted(held, key=repr) == sorted(((m[0], m[1], m[2], m.key, m.value) for m in sent), key=repr)
        assert_silver_is_the_truth(self.spark, self.settings, sent, ledger=False)
        verified = verify_gold(self.spark, self.settings, tables_of(self.settings))
        assert [(one.table, one.first) for one in verified if one.first] == []
        assert [found for found in doctor._books(self.settings) if found.level is Level.FAIL] == []


@pytest.fixture
def broker_of_its_own(tmp_path: Path, free_port: int) -> Iterator[Settings]:
    """One that may be stopped."""
    own = Settings(home=tmp_path / "broker", kafka=KafkaSettings(bootstrap_servers=f"127.0.0.1:{free_port}"))
    try:
        up(own)
        yield own
    finally:
        down(own)


@pytest.mark.soak
@pytest.mark.timeout(2 * 60 * 60)
@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("life", range(-(-ACTIONS // LIFE)))
@pytest.mark.parametrize("seed", range(3))
def test_any_actions_in_any_order_leave_what_was_sent(
    spark: Any,
    broker_of_its_own: Settings,
    tmp_path: Path,
    seed: int,
    life: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sessionlake.maintenance.Kept", lambda _, since: Kept(timedelta(0), since))
    keeper = Keeper(spark, tmp_path / "sessionlake.yml", broker_of_its_own, random.Random(f"{seed}.{life}"))
    try:
        keeper.live(min(LIFE, ACTIONS - life * LIFE))
    except BaseException as error:
        error.add_note(f"seed {seed}, life {life}, after {len(keeper.told)} actions; the last: {keeper.told[-12:]}")
        raise
    finally:
        keeper.standby.end()
        rmtree(tmp_path / "home", ignore_errors=True)
