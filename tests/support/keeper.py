"""Operates a pipeline with random actions, and checks all layers after any sequence of them.

After every hundred actions, bronze must equal what was sent to Kafka, and silver the ground truth. Gold must equal a
recomputation from silver, and a processor's table the result of its class over bronze. The ledger must account for
every message.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from shutil import rmtree
from typing import Any

import yaml

from sessionlake.cli import doctor, gold, processors
from sessionlake.cli.doctor import CheckSeverity
from sessionlake.cli.forget import forget_session
from sessionlake.cli.options import RecoverableLayer
from sessionlake.cli.recover import recover_layer
from sessionlake.cli.reshard import reshard_all_layers
from sessionlake.cli.rules import load_alert_rules, write_alert_rules
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, GOLD, MESSAGES, SESSIONS, SILVER, SILVER_TABLES
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.operations.maintenance import TableMaintainer
from sessionlake.operations.rebuild.processors import preview_processor_rebuild
from sessionlake.operations.rebuild.silver import rebuild_silver_tables
from sessionlake.protocol.erased import ERASED_KEY
from sessionlake.settings.model import Settings, load_settings
from sessionlake.settings.section import Integrity
from sessionlake_lab.truth import KafkaMessage
from support.crash_worker import LAYERS, run_layer
from support.crashes import Death, lose_last_commits
from support.lakes import assert_silver_is_the_truth, rows_of
from support.sent_topics import SentTopics
from support.standby import Standby
from support.streams import COLUMNS, LIGHT, MAX_BYTES, WILD, StreamMaker

CHECKED = 100
"""Number of actions between two comparisons of everything."""
DEATHS = (
    *(Death(BRONZE, f"{when}:{MESSAGES}") for when in ("before", "after")),
    *(Death(SILVER, f"after:silver.{name}") for name in ("session_changes", "session_progress", "stream_times")),
    *(Death(SILVER, f"before:silver.{name}") for name in ("session_changes", "integrity_events", "quarantine")),
    *(Death(SILVER_TABLES, f"after:silver.{name}") for name in ("session_rows", "sessions", "session_snapshots")),
    *(Death(GOLD, f"before:gold.{name}") for name in ("rolling_average", "metrics_1m", "metrics_1d")),
    *(Death(layer, "after:ops.ledger") for layer in (*LAYERS, GOLD)),
)


class Keeper:
    """Takes random actions on one broker and one home, and records what was sent."""

    deaths: Sequence[Death] = DEATHS

    def __init__(self, spark: Any, file: Path, broker: Settings, rnd: random.Random) -> None:
        self.spark, self.file, self.broker, self.rnd = spark, file, broker, rnd
        self.actions_taken: list[str] = []
        self.prefix = f"life{rnd.randrange(1 << 30)}"
        self.file.write_text(yaml.safe_dump(self.content()))
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
            self.recreate_topic: 30,
            self.reshard: 30,
            self.restart_broker: 15,
            self.rebuild: 5,  # costs as much as the other 99 actions
        }

    def content(self) -> dict[str, Any]:
        """Returns the initial configuration."""
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
        return {
            "home": str(self.file.parent / "home"),
            "kafka": kafka,
            "capture": capture,
            "silver": {"shards": 3, "snapshot_interval": "7 s"},
            "gold": {"shards": 2, "rolling_points": 3},
        }

    def _coming(self, topic: str) -> Iterator[KafkaMessage]:
        maker = StreamMaker(self.rnd, self.rnd.choice([LIGHT, WILD]), [topic])
        while True:
            yield from maker.make(1)

    # -- actions

    def live(self, actions: int) -> None:
        """Takes this many actions, and compares everything from time to time."""
        for number in range(1, actions + 1):
            self.act()
            if number % CHECKED == 0 or number == actions:
                self.check()

    def act(self) -> None:
        """Takes one random action."""
        [action] = self.rnd.choices([*self.actions], [*self.actions.values()])
        self.actions_taken.append(action.__name__)
        action()

    def produce(self) -> None:
        """Sends messages of one or two topics."""
        for topic in self.rnd.sample([*self.coming], 2):
            self.sent.send(list(islice(self.coming[topic], self.rnd.randint(1, 15))))

    def run_layers(self) -> None:
        """Runs the layers up to a random one over all input."""
        for layer in (*LAYERS, GOLD)[: self.rnd.randint(1, 4)]:
            run_layer(self.spark, self.settings, layer)

    def kill(self) -> None:
        """Runs a process that dies at a random fault point, if it reaches it."""
        death = self.rnd.choice(self.deaths)
        self.actions_taken[-1] += f" {death.place} of {death.layer}"
        for layer in death.before if self.rnd.random() < 0.5 else ():
            run_layer(self.spark, self.settings, layer)
        self.standby.run(self.file, death)

    def lose_a_note(self) -> None:
        """Deletes the commit files of the last finished batches, so that these are repeated."""
        for lose in (lambda: None, lambda: lose_last_commits(self.settings)):
            lose()
            for layer in (BRONZE, SILVER):
                run_layer(self.spark, self.settings, layer)

    def maintain(self) -> None:
        """Merges small files and removes unused ones."""
        for _ in TableMaintainer(self.spark, self.settings).maintain_tables_once():
            pass

    def recreate_topic(self) -> None:
        """Deletes a topic after all of it was read, and creates it again."""
        run_layer(self.spark, self.settings, BRONZE)
        topic = self.rnd.choice([*self.coming])
        self.actions_taken[-1] += f" {topic}"
        self.sent.delete(topic)
        self.sent.make(topic)

    def rebuild(self) -> None:
        """Rebuilds silver from bronze."""
        for layer in (SILVER, SILVER_TABLES):
            run_layer(self.spark, self.settings, layer)
        rebuild_silver_tables(self.spark, self.settings)

    def reshard(self) -> None:
        """Changes the number of shards."""
        shards = self.rnd.randint(1, 5)
        self.actions_taken[-1] += f" {shards}"
        self.configure(silver={"shards": shards}, gold={"shards": shards})
        reshard_all_layers(self.spark, self.settings, shards, wait=0)

    def restart_broker(self) -> None:
        """Stops and starts the broker."""
        stop_broker(self.broker)
        start_broker(self.broker)

    def configure(self, **sections: dict[str, Any]) -> None:
        """Changes values in sections of the configuration."""
        content = yaml.safe_load(self.file.read_text())
        for name, values in sections.items():
            content[name] |= values
        self.file.write_text(yaml.safe_dump(content))
        self.settings = load_settings(self.file)

    # -- checks

    def in_lake(self) -> list[KafkaMessage]:
        """Returns all messages that the lake must have."""
        return self.sent.in_lake(self.spark, self.settings)

    def check(self) -> None:
        """Runs all layers over all input, and compares them with what was sent."""
        for layer in (*LAYERS, GOLD):
            run_layer(self.spark, self.settings, layer)
        lake = Lake(self.settings)
        sent = self.in_lake()
        held = [
            (r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in rows_of(self.spark, lake, MESSAGES)
        ]
        assert sorted(held, key=repr) == sorted(((m[0], m[1], m[2], m.key, m.value) for m in sent), key=repr)
        assert_silver_is_the_truth(self.spark, self.settings, sent, ledger=False)
        verified = verify_gold(self.spark, self.settings, list_declared_gold_tables(self.settings))
        assert [(one.table, one.first_difference) for one in verified if one.first_difference] == []
        assert [found for found in doctor._run_table_checks(self.settings) if found.level is CheckSeverity.FAIL] == []


COUNTED = """
from dataclasses import dataclass
from sessionlake.processors import Processor, Timer

@dataclass
class Count:
    seen: int = 0

class Counted(Processor[Count]):
    state = Count
    output = {"seen": "bigint", "why": "string"}

    def on_message(self, state, message):
        state.seen += 1
        yield {"seen": state.seen, "why": message.type}
        yield Timer(message.stream_time + 5000)

    def on_timeout(self, state, timer):
        yield {"seen": state.seen, "why": "expired" if timer.expired else "quiet"}
"""
RULES = {
    "high": {"by": ["session_id"], "when": "max(price) over 2 min > 3"},
    "fading": {"when": "sum(qty) over 10 min < 100 and count(price) over 1 h > 2"},
    "opened": {"when": "status = 'OPEN' then status = '7' within 1 h"},
    "unopened": {"by": ["topic", "row_id"], "when": "status = 'ü' without status = 'OPEN' before it"},
}
PROCESSOR = "counted"


class KeeperOfAll(Keeper):
    """Also uses a processor, declared tables, rules, forgetting, and lost checkpoints."""

    deaths = (
        *DEATHS,
        *(Death(f"processor-{PROCESSOR}", f"{when}:silver.{PROCESSOR}") for when in ("before", "after")),
        Death(f"processor-{PROCESSOR}", "after:ops.ledger"),
        *(Death(GOLD, f"{when}:gold.each_final") for when in ("before", "after")),
        *(Death(GOLD, f"after:gold.{name}") for name in ("each", "late_points", "rule_events", "rule_matches")),
    )

    def __init__(self, spark: Any, file: Path, broker: Settings, rnd: random.Random) -> None:
        (file.parent / "counted_by_keeper.py").write_text(COUNTED)
        super().__init__(spark, file, broker, rnd)
        self.forgotten = set[tuple[str, bytes]]()
        self.actions |= {
            self.run_processor: 100,
            self.forget: 8,
            self.lose_a_checkpoint: 12,
            self.rebuild_processor: 6,
            self.other_rules: 15,
            self.other_points: 6,
        }

    def content(self) -> dict[str, Any]:
        """Returns the initial configuration, with a processor and declared tables."""
        per_minute = {"bucket": "1 minute", "aggregates": {"n": "count", "low": "min", "high": "max"}}
        appended = {"name": "each", "keys": ["topic", "session_id"], "lateness": "30 s", "output": "append"}
        products = [
            per_minute | appended,
            per_minute | {"name": "usage", "keys": ["topic"], "lateness": "20 s", "retention": "2 hours"},
            {"name": "seen", "of": "texts", "keys": ["column", "value"], "aggregates": {"n": "count"}},
        ]
        averages = [
            {"name": "rolling_average", "watermark": "5 s", "early": False},
            {"name": "by_metric", "keys": ["topic", "metric"], "points": 5},
        ]
        content = super().content()
        content["gold"] |= {"products": products, "averages": averages, "retention": {"metrics_1m": "3 hours"}}
        return content | {"processors": [{"name": PROCESSOR, "class": "counted_by_keeper:Counted"}]}

    # -- further actions

    def run_processor(self) -> None:
        """Runs the processor over all input."""
        run_layer(self.spark, self.settings, f"processor-{PROCESSOR}")

    def forget(self) -> None:
        """Forgets a session. Its later messages must not enter the lake either."""
        known = {(row["topic"], row["session_id"]) for row in rows_of(self.spark, Lake(self.settings), SESSIONS)}
        if known:
            topic, session = self.rnd.choice(sorted(known))
            self.actions_taken[-1] += f" {session} of {topic}"
            found = forget_session(self.spark, self.settings, session, topic, wait=0)
            self.forgotten.add((topic, session.encode()))
            assert found.messages

    def lose_a_checkpoint(self) -> None:
        """Deletes a checkpoint and recovers the layer."""
        layer = self.rnd.choice([BRONZE, SILVER, GOLD, f"processor-{PROCESSOR}"])
        self.actions_taken[-1] += f" {layer}"
        for before in dict.fromkeys([BRONZE, SILVER, layer]):
            run_layer(self.spark, self.settings, before)
        rmtree(self.settings.checkpoint_path(layer))
        if layer in {BRONZE, SILVER, GOLD}:
            recover_layer(self.spark, self.settings, RecoverableLayer(layer), self.actions_taken.append)
        else:
            self.rebuild_processor()

    def rebuild_processor(self) -> None:
        """Rebuilds the processor's table from bronze."""
        say: Callable[[str], None] = self.actions_taken.append
        processors.rebuild_processor(self.spark, self.settings, PROCESSOR, OutputFormat.JSON, say)

    def other_rules(self) -> None:
        """Replaces the rules by a random choice."""
        chosen = self.rnd.sample([*RULES], self.rnd.randint(1, len(RULES)))
        self.actions_taken[-1] += f" {chosen}"
        file = self.file.with_name("rules.yml")
        file.write_text(yaml.safe_dump({"rules": [{"name": name, **RULES[name]} for name in chosen]}))
        write_alert_rules(
            self.spark, self.settings, load_alert_rules(self.settings, file), self.actions_taken.append, only=True
        )

    def other_points(self) -> None:
        """Changes the number of points of the rolling averages."""
        for layer in (BRONZE, SILVER, GOLD):
            run_layer(self.spark, self.settings, layer)
        self.configure(gold={"rolling_points": self.rnd.randint(2, 5)})
        self.actions_taken[-1] += f" {self.settings.gold.rolling_points}"
        gold.rebuild_gold_tables(self.spark, self.settings, None, self.actions_taken.append)

    # -- further checks

    def in_lake(self) -> list[KafkaMessage]:
        """Returns all messages that the lake must have, with those of forgotten sessions erased."""
        return [
            message._replace(key=ERASED_KEY, value=None) if (message.topic, message.key) in self.forgotten else message
            for message in super().in_lake()
        ]

    def check(self) -> None:
        """Compares all layers, the processor's table and the declared tables."""
        super().check()
        self.run_processor()
        assert not (found := preview_processor_rebuild(self.spark, self.settings, PROCESSOR)), found
