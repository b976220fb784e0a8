"""A home whose path has characters that URIs encode: every command works in it, from the broker to forgetting."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import GOLD, MESSAGES, ROWS, SILVER
from sessionlake.local.broker import start_broker, stop_broker
from sessionlake.local.broker_config import find_free_port
from sessionlake.settings.model import Settings, load_settings
from support.lakes import rows_of

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

NAME = "a b#c%d+ü"
GONE, OTHER = f"gone {NAME}/?*", f"other {NAME}/?*"
TOPIC = "capture.a"


@pytest.fixture
def settings(tmp_path: Path) -> Iterator[Settings]:
    """A configuration file in the home, whose broker runs."""
    home = tmp_path / NAME / NAME
    home.mkdir(0o700, parents=True)
    file = home / "sessionlake.yml"
    content = {
        "home": str(home),
        "kafka": {"bootstrap_servers": f"127.0.0.1:{find_free_port()}"},
        "capture": {"columns": {"qty": "bigint"}, "on_violation": "isolate"},
        "silver": {"shards": 2},
        "gold": {"shards": 2},
        "processors": [{"name": "top", "target": "sessionlake.examples.top_of_book:TopOfBook"}],
        "maintain": {"keep": "1 hour"},
    }
    file.write_text(yaml.safe_dump(content), encoding="utf-8")
    settings = load_settings(file)
    try:
        start_broker(settings)
        yield settings
    finally:
        stop_broker(settings)


def reconfigured(settings: Settings, **sections: Any) -> None:
    file = settings.home / "sessionlake.yml"
    file.write_text(yaml.safe_dump(yaml.safe_load(file.read_text(encoding="utf-8")) | sections), encoding="utf-8")


def send(settings: Settings, *seqs: int) -> None:
    producer = Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for seq in seqs:
        for session in (GONE, OTHER):
            kind = "update" if seq else "snapshot"
            value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": NAME, "qty": seq}]}
            producer.produce(TOPIC, json.dumps(value).encode(), session.encode(), 0, timestamp=1000 + seq)
    assert producer.flush(30) == 0


class World:
    """A home, and what commands answer in it."""

    def __init__(self, spark: Any, settings: Settings, ask: Callable[..., str]) -> None:
        self.spark, self.settings, self._ask = spark, settings, ask
        self.environment = os.environ | {"SESSIONLAKE_HOME": str(settings.home)}

    def called(self, *words: str) -> str:
        return self._ask(self.environment, *words)

    def answers(self, *words: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.called(*words, "--format", "json").splitlines()]

    def quantities(self) -> dict[str, int]:
        return {row["session_id"]: row["qty"] for row in rows_of(self.spark, Lake(self.settings), ROWS)}

    def arrive(self, seq: int) -> None:
        send(self.settings, seq)
        self.called("run", "all", "--once")

    def verify(self) -> None:
        for checked in ("bronze", "silver", "gold"):
            self.called("verify", checked)

    def replace_everything(self) -> None:
        """By each command that does."""
        reconfigured(self.settings, silver={"shards": 3}, gold={"shards": 3})
        self.called("reshard", "3")
        self.called("rebuild", "silver")
        self.called("rebuild", "processor:top")
        self.called("run", "all", "--once")
        for layer in (SILVER, GOLD, "bronze"):
            shutil.rmtree(self.settings.checkpoint_path(layer))
            self.called("recover", layer)
        self.called("run", "all", "--once")
        self.called("recover", "ledger")
        self.called("rebuild", "gold")

    def maintain(self) -> None:
        """As hours later."""
        for file in self.settings.warehouse.rglob("*"):
            os.utime(file, (time.time() - 7200,) * 2)
        self.called("maintain", "--once")

    def read(self) -> None:
        """By each command that only reads."""
        assert self.answers("query", "SELECT max(qty) AS most FROM silver.session_rows") == [{"most": 4}]
        assert self.answers("query", "SELECT count(*) AS n FROM silver.sessions", "--as-of-batch", "0")
        assert self.called("session", "as-of", OTHER, "--ts", "1002", "--format", "json")
        assert self.called("session", "show", OTHER)
        assert self.called("state", "show", "--session", OTHER)
        assert self.called("trace", TOPIC, "0", "1")
        assert self.called("export", ROWS, str(self.settings.home / "exported"))
        assert self.called("report")
        assert {finding["level"] for finding in self.answers("doctor")} == {"ok"}


def test_every_command_works_in_a_home_whose_path_has_characters_that_uris_encode(
    settings: Settings, spark: Any, ask: Callable[..., str]
) -> None:
    world, around = World(spark, settings, ask), settings.home.parents[1]
    beside = sorted(around.iterdir())
    send(settings, 0, 1, 2)
    command = [sys.executable, "-m", "sessionlake", "run", "all", "--once"]
    first = subprocess.run(command, env=world.environment, capture_output=True, text=True, check=False, timeout=300)
    assert (first.returncode, "Traceback" in first.stderr) == (0, False), first.stderr
    assert world.quantities() == {GONE: 2, OTHER: 2}
    world.verify()
    world.arrive(3)
    world.replace_everything()
    world.maintain()
    world.arrive(4)
    assert world.quantities() == {GONE: 4, OTHER: 4}
    world.read()

    shutil.rmtree(settings.home / "exported")  # copies are their maker's to remove
    (settings.home / "report.html").unlink()
    receipt = json.loads(world.called("forget", "--session", GONE))
    assert (receipt["messages"], receipt["search"]["found"]) == (5, [])
    world.arrive(5)
    assert world.quantities() == {OTHER: 5}
    world.maintain()
    world.verify()
    world.called("archive", str(settings.home / "captures"))
    assert len(rows_of(spark, Lake(settings), MESSAGES)) == 12
    assert (settings.home / "logs" / "sessionlake.log").exists()
    assert (
        sorted(around.iterdir()) == beside
    )  # nothing was written to a path that was encoded or decoded once too often
