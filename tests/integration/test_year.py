"""A year in some hours: thousands of small batches, and what they leave behind does not grow with their number.

A process with all layers and maintenance is sent a few messages at a time, whose timestamps are spread over a year.
Topics go and come, sessions end, are silent and are forgotten; the process is killed and started again. Every hundred
batches, when all is taken in, as much time passes as makes what is older than `maintain.retention` too old: that goes
by the wall clock, which cannot be hurried, so maintenance is told another time. For the same reason `maintain.keep` is
over then. All else (merging of files, sums of the ledger, states, checkpoints) is as in production.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import psutil
import pytest
import yaml
from rich.console import Console
from rich.table import Table

from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import BRONZE, EVENTS, GOLD, MESSAGES, QUARANTINE, SILVER
from sessionlake.delta.schemas.tables import TABLES
from sessionlake.gold.declared.tables import list_declared_gold_tables
from sessionlake.gold.verify.tables import verify_gold
from sessionlake.ledger.retained import TABLES_REMOVED_TOGETHER, read_partition_starts
from sessionlake.settings.model import Settings, load_settings
from sessionlake.settings.section import Integrity
from sessionlake_lab.truth import KafkaMessage
from support.lakes import assert_silver_is_the_truth, find_table_folder, rows_of
from support.sent_topics import SentTopics
from support.streams import COLUMNS, LIGHT, MAX_BYTES, START, StreamMaker

BATCHES = int(os.environ.get("BATCHES", "2400"))
"""Of bronze: `make soak BATCHES=300` takes minutes."""
WINDOW = min(100, BATCHES // 4)
"""Between two nights, in which time passes; the first ones warm up."""
PROBED = min(20, WINDOW)
"""Of the second window, and of the last, so many are taken one by one through all layers: their costs are compared."""
YEAR = 365 * 86_400_000
TOPICS = 4
MESSAGES_A_BATCH = 24
KEPT_WINDOWS = 3
"""Rows stay so long: `maintain.retention`."""
MOST_FILES = 200
COSTLIER = 1.2
FLAT = 64 << 20
"""So many bytes of heap, or of Python, a process may hold more at its end than when it was warm."""
ANSWER_SECONDS = 300
RETAINED = ("bronze", "progress", "snapshots", "quarantine", "events", "ledger")  # gold is computed from all changes
REMOVED = {EVENTS, QUARANTINE, *(table for tables in TABLES_REMOVED_TOGETHER.values() for table in tables)}


@dataclass(frozen=True)
class Figures:
    """What is there, and what a window cost.

    Attributes:
        files: live files of each table.
        log: files of each table's log.
        notes: files of each layer's checkpoint.
        memory: bytes of the heap behind a collection, and of processes.
        costs: CPU and wall seconds of a batch that is taken through all layers by itself.
    """

    files: dict[str, int]
    log: dict[str, int]
    notes: dict[str, int]
    memory: dict[str, int]
    costs: dict[str, float]


class Runner:
    """The process that runs all layers, and is told what to do."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._start()

    def _start(self) -> None:
        self._log = self._file.with_suffix(".stderr").open("a")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "support.year_worker", str(self._file)],
            env={name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._said: Queue[dict[str, int] | None] = Queue()
        Thread(target=self._listen, args=(self._process, self._said), daemon=True).start()

    @staticmethod
    def _listen(process: subprocess.Popen[str], said: Queue[dict[str, int] | None]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            said.put(json.loads(line))
        said.put(None)

    def _next(self) -> dict[str, int]:
        said = self._said.get(timeout=ANSWER_SECONDS)
        assert said is not None, self._file.with_suffix(".stderr").read_text()[-5000:]
        return said

    def wait_for(self, messages: int) -> None:
        """Returns when bronze has so many more."""
        while messages > 0:
            messages -= self._next()["messages"]

    def ask(self, word: str) -> dict[str, int]:
        """Tells it what to do; what it says behind that."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        while "heap" not in (said := self._next()):
            pass
        return said

    def kill(self) -> None:
        """Kills it, and starts another, which takes in all that is there."""
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._start()
        self.ask("drain")

    def end(self) -> None:
        """Kills it if it is there."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    @property
    def processes(self) -> list[psutil.Process]:
        """It, and those that it has started."""
        own = psutil.Process(self._process.pid)
        return [own, *own.children(recursive=True)]

    @property
    def cpu_seconds(self) -> float:
        """Of all of them, and those that have ended."""
        found = 0.0
        for process in self.processes:
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                found += times.user + times.system + times.children_user + times.children_system
        return found

    @property
    def memory(self) -> dict[str, int]:
        """Bytes by kind of process; of Spark's Python workers, whose number changes, the largest."""
        found = {"driver": 0, "JVM": 0, "worker": 0}
        for number, process in enumerate(self.processes):
            kind = "driver" if number == 0 else "JVM" if _name(process) == "java" else "worker"
            with suppress(psutil.NoSuchProcess):
                here = process.memory_info().rss
                found[kind] = max(found[kind], here)
        return found


@dataclass
class Year:
    """What is sent, in which order, and what is measured on the way."""

    settings: Settings
    prefix: str
    sent: SentTopics
    runner: Runner
    rnd: random.Random
    say: Callable[[str], None]
    makers: dict[str, StreamMaker] = field(default_factory=dict)
    made: int = 0
    windows: list[Figures] = field(default_factory=list)
    nights: list[datetime] = field(default_factory=lambda: [datetime.now(UTC)])
    begun: int = 0

    @property
    def kills(self) -> set[int]:
        """In which windows the process is killed: from behind the first that is measured until the half."""
        return set(range(2, max(3, BATCHES // WINDOW // 2)))

    def run(self) -> None:
        """All of it."""
        for number in range(BATCHES // WINDOW):
            self._change_topics()
            self._window(number, self.rnd.randrange(WINDOW) if number in self.kills else None)
        self.runner.ask("end")

    def _change_topics(self) -> None:
        """One goes, for good or to be made anew; the sessions of all others are over, or silent from now on."""
        if len(self.makers) == TOPICS:
            gone = self.rnd.choice([*self.makers])
            self.sent.delete(gone)
            del self.makers[gone]
            if self.rnd.random() < 0.5:
                self.sent.make(gone)
                self.makers[gone] = self._maker(gone)
        while len(self.makers) < TOPICS:
            integrity = self.rnd.choice([*Integrity])
            topic = f"{self.prefix}.{integrity}.{self.made}"
            self.made += 1
            self.sent.make(topic)
            self.makers[topic] = self._maker(topic)
        for topic in self.makers:
            self.makers[topic] = self._maker(topic)

    def _maker(self, topic: str) -> StreamMaker:
        return StreamMaker(self.rnd, LIGHT, [topic])

    def _window(self, number: int, killed: int | None) -> None:
        cpu, wall, probed = 0.0, 0.0, PROBED if number in {1, BATCHES // WINDOW - 1} else 0
        for batch in range(WINDOW):
            if batch == WINDOW - probed:
                self.runner.ask("drain")
                cpu, wall = self.runner.cpu_seconds, time.monotonic()
            self._batch(number, batch)
            if batch == killed:
                time.sleep(self.rnd.uniform(0, 3))
                self.runner.kill()
                self.begun = number + 1
            else:
                self.runner.wait_for(MESSAGES_A_BATCH)
            if batch >= WINDOW - probed:
                self.runner.ask("drain")
        assert self.sent.there() >= self.makers.keys()
        spent = {"CPU": self.runner.cpu_seconds - cpu, "wall": time.monotonic() - wall} if probed else {}
        memory = {**self.runner.ask("measure"), **self.runner.memory}
        night = f"night {self.nights[-KEPT_WINDOWS:][0].isoformat()}"
        for word in (night, "drain", night):  # files go once the layers have read what has removed rows of them
            self.runner.ask(word)
        self.nights.append(datetime.now(UTC))
        self.windows.append(self._figures(memory, {name: seconds / PROBED for name, seconds in spent.items()}))
        self.say(f"{(number + 1) * WINDOW} batches: {self.windows[-1].costs}, {memory}\n")

    def _batch(self, number: int, batch: int) -> None:
        now = START + (number * WINDOW + batch) * (YEAR // BATCHES)
        messages: list[KafkaMessage] = []
        for topic, maker in self.makers.items():
            maker.now = now
            for said in maker.make(MESSAGES_A_BATCH // TOPICS):
                key = None if said.key is None else said.key + f".{topic.rsplit('.', 1)[1]}.{number}".encode()
                messages.append(said._replace(key=key))
        self.sent.send(messages)

    def _figures(self, memory: dict[str, int], costs: dict[str, float]) -> Figures:
        lake = Lake(self.settings)
        folders = {table: find_table_folder(lake, table) for table in TABLES}
        there = {table: folder for table, folder in folders.items() if folder.exists()}
        reader = lake.reader(None)
        return Figures(
            {table: reader.read_size(table).files for table in there},
            {table: _files(folder / "_delta_log") for table, folder in there.items()},
            {layer: _files(Path(self.settings.checkpoint_path(layer))) for layer in (BRONZE, SILVER, GOLD)},
            memory,
            costs,
        )


def _name(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


def _files(folder: Path) -> int:
    return sum(file.is_file() for file in folder.rglob("*"))


def shown(first: Figures, last: Figures) -> str:
    """Both, beside each other."""
    table = Table(title=f"{BATCHES} batches: {WINDOW} of the first, and the last", title_justify="left")
    for name in ("", "first", "last"):
        table.add_column(name, justify="right" if name else "left")
    for kind in ("files", "log", "notes"):
        for name, found in getattr(last, kind).items():
            table.add_row(f"{kind}: {name}", str(getattr(first, kind).get(name, 0)), str(found))
    for name in last.memory:
        table.add_row(f"{name}, MiB", *(str(one.memory[name] >> 20) for one in (first, last)))
    for name in last.costs:
        table.add_row(f"{name}, seconds a batch", *(f"{one.costs[name]:.2f}" for one in (first, last)))
    console = Console(width=100)
    with console.capture() as text:
        console.print(table)
    return text.get()


def configured(file: Path, broker: Settings, prefix: str) -> Settings:
    """All classes of integrity by the topics' names, and times that fit a year in few batches."""
    rules = [
        {"pattern": rf"{prefix}\.{integrity}\..+", "integrity": str(integrity), "on_violation": policy}
        for integrity, policy in zip(Integrity, ["record", "isolate"] * 3, strict=False)
    ]
    content = {
        "home": str(file.parent / "home"),
        "kafka": {
            "bootstrap_servers": broker.kafka.bootstrap_servers,
            "topic_pattern": rf"{prefix}\..+",
            "on_topic_change": "restart",
        },
        "capture": {
            "columns": COLUMNS,
            "max_message_bytes": MAX_BYTES,
            "by_topic": rules,
            "lateness": "1 hour",
            "gap_timeout": "12 hours",
            "session_timeout": "2 days",
        },
        "bronze": {"trigger": "200 ms"},
        "silver": {"shards": 4, "trigger": "200 ms", "merge_interval": "1 s", "snapshot_interval": "1 day"},
        "gold": {"shards": 2, "trigger": "200 ms", "rolling_points": 3},
        "maintain": {
            "interval": "10 s",
            "keep": "1 hour",
            "retention": dict.fromkeys(RETAINED, "30 days"),
        },
    }
    file.write_text(yaml.safe_dump(content))
    return load_settings(file)


@contextmanager
def running(file: Path) -> Iterator[Runner]:
    """A process with all layers, which is gone at the end."""
    runner = Runner(file)
    try:
        yield runner
    finally:
        runner.end()


@pytest.mark.soak
@pytest.mark.timeout(24 * 60 * 60)
def test_a_year_of_small_batches_leaves_little_behind_and_the_truth(
    spark: Any, broker_settings: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, prefix = tmp_path / "sessionlake.yml", f"year{tmp_path.parent.name.rpartition('-')[2]}x"
    settings = configured(file, broker_settings, prefix)

    def say(text: str) -> None:
        with capsys.disabled():
            sys.stdout.write(text)
            sys.stdout.flush()

    with running(file) as runner:
        year = Year(settings, prefix, SentTopics(settings), runner, random.Random(0), say)
        year.run()
    first, warm, last = year.windows[1], year.windows[year.begun], year.windows[-1]
    say(f"\n{shown(first, last)}\n")
    assert_exact(spark, settings, year.sent.in_lake(spark, settings))
    assert {table: count for table, count in last.files.items() if count >= MOST_FILES} == {}
    assert last.costs["CPU"] < COSTLIER * first.costs["CPU"]  # how long that takes is the machine's matter
    grown = {name: last.memory[name] - warm.memory[name] for name in ("heap", "driver", "worker")}
    assert {name: more for name, more in grown.items() if more > FLAT} == {}


def assert_exact(spark: Any, settings: Settings, sent: list[KafkaMessage]) -> None:
    """Bronze is what was sent, behind what retention has removed; silver the truth; gold what it is computed from."""
    lake = Lake(settings)
    gone = {place: at.last_removed for place, at in read_partition_starts(lake.reader(spark)).items()}
    held = [(r["topic"], r["partition"], r["offset"], r["key"], r["value"]) for r in rows_of(spark, lake, MESSAGES)]
    stay = [(m[0], m[1], m[2], m.key, m.value) for m in sent if m.offset > gone.get((m.topic, m.partition), -1)]
    assert sorted(held, key=repr) == sorted(stay, key=repr)
    assert len(held) < len(sent)
    assert_silver_is_the_truth(spark, settings, sent, ledger=False, cut=REMOVED)
    verified = verify_gold(spark, settings, list_declared_gold_tables(settings))
    assert [(one.table, one.first_difference) for one in verified if one.first_difference] == []
