"""One writer a layer in a catalog: real processes, some of them stopped past their leases and continued."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from sessionlake.config import Settings, load_settings
from sessionlake.errors import ClaimedError
from sessionlake.lake import leases
from sessionlake.lake.faults import VARIABLE
from sessionlake.lake.names import CHANGES, LEASES, LEDGER, MESSAGES, ROWS, SESSIONS
from sessionlake.lake.schemas import TABLES
from sessionlake.lake.tables import Lake
from sessionlake.pipeline import Layer, claimed, run_once
from support.lakes import assert_silver_is_the_truth, write_bronze
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut

WORKER = Path(__file__).parents[1] / "support" / "lease_worker.py"
SECONDS = 8
START_SECONDS = 120
PARTS = 3


class Place:
    """A catalog's lake, whose bronze the test fills, and processes that run silver over it."""

    def __init__(self, spark: Any, location: dict[str, Any], folder: Path) -> None:
        self.spark, self.folder = spark, folder
        self.config, self.tables = folder / "sessionlake.yml", folder / "tables.json"
        capture = {"columns": COLUMNS, "on_violation": "isolate", "max_message_bytes": MAX_BYTES}
        silver = {"shards": 3, "snapshot_interval": "3 s", "merge_interval": "1 s"}
        content = {**location, "home": str(location["home"]), "capture": capture, "silver": silver}
        self.config.write_text(yaml.safe_dump(content))
        self.settings: Settings = load_settings(self.config)
        self.lake = Lake(self.settings)
        self.lake.ensure(spark, [table for table in TABLES if not table.startswith("gold.")])
        known = [table for table in TABLES if self.lake.exists(spark, table)]
        places = {self.lake.identifier(table): self.place_of(table) for table in known}
        self.tables.write_text(json.dumps(places))
        self._parts = list(cut(random.Random(3), StreamMaker(random.Random(7), LIGHT).make(60 * PARTS), PARTS))
        self.arrived = 0

    def place_of(self, table: str) -> str:
        return str(self.lake.delta(self.spark, table).detail().select("location").first()[0])

    def arrive(self) -> None:
        write_bronze(self.spark, self.lake, self._parts[self.arrived])
        self.arrived += 1

    def rows(self, table: str) -> int:
        return self.lake.read(self.spark, table).count()

    def batches(self) -> int:
        return self.lake.read(self.spark, LEDGER).where("layer = 'silver'").count()

    def run_once(self) -> None:
        assert run_once(self.spark, self.settings, Layer.SILVER, threading.Event())

    def assert_no_row_is_harmed(self) -> None:
        messages = [message for part in self._parts[: self.arrived] for message in part]
        held = self.lake.read(self.spark, MESSAGES).select("topic", "partition", "offset").collect()
        assert sorted(map(tuple, held)) == sorted((m.topic, m.partition, m.offset) for m in messages)
        assert_silver_is_the_truth(self.spark, self.settings, messages)
        merges = self.lake.read(self.spark, LEDGER).where("layer = 'silver_tables'").collect()
        taken = sorted((row["source_from"], row["source_to"]) for row in merges)
        assert all(last < first for (_, last), (first, _) in pairwise(taken))

    @contextmanager
    def process(self, fault: str | None = None) -> Iterator[subprocess.Popen[str]]:
        paths = os.pathsep.join([str(WORKER.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
        own = {"PYTHONPATH": paths} | ({VARIABLE: fault} if fault else {})
        args = [sys.executable, str(WORKER), str(self.config), str(self.tables), str(SECONDS)]
        # A group of its own: Python and its JVM are stopped together.
        with subprocess.Popen(
            args, env=_without_platform() | own, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as process:
            try:
                yield process
            finally:
                for number in (signal.SIGCONT, signal.SIGKILL):
                    if process.poll() is None:
                        os.killpg(process.pid, number)


def _without_platform() -> dict[str, str]:
    """The environment of a laptop's process: it makes a session of its own."""
    return {name: value for name, value in os.environ.items() if name != "DATABRICKS_RUNTIME_VERSION"}


def eventually(condition: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not reached in time"
        time.sleep(0.2)


@pytest.fixture
def place(spark: Any, location: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(leases, "LENGTH", timedelta(seconds=SECONDS))
    return Place(spark, location, tmp_path)


def test_two_sessions_that_want_one_lease_at_once_are_told_apart_by_delta(place: Place) -> None:
    """Whatever the table's isolation: of two changes of one number, Delta lets one be."""
    won, refused = [], []
    start = threading.Barrier(2)

    def want(doing: str) -> None:
        try:
            start.wait(30)
            with place.lake.storage.claim(place.spark, "gold", doing):
                won.append(doing)
                end.wait(60)
        except ClaimedError as error:
            refused.append(str(error))
            end.set()

    for attempt in range(3):  # a row that is not there yet, and one that was given back
        end = threading.Event()
        threads = [threading.Thread(target=want, args=(f"runs gold {attempt}{n}",)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert (len(won), len(refused)) == (attempt + 1, attempt + 1), refused
        assert f"another process {won[-1]} over catalog spark_catalog" in refused[-1]
    rows = place.lake.read(place.spark, LEASES).collect()
    assert [(row["name"], row["token"], row["holder"]) for row in rows] == [("gold", 3, None)]


def test_while_a_process_runs_silver_another_is_told_who_and_stopped_past_its_lease_it_finds_itself_replaced(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.arrive()
    with place.process() as first:
        eventually(lambda: place.batches() == 1 and place.rows(SESSIONS) > 0)
        for _ in range(2):  # in its own time, and though it renewed when it was about to end
            with pytest.raises(
                ClaimedError, match=rf"another process runs silver .*process {first.pid}, since .*taken"
            ):
                place.run_once()
            time.sleep(SECONDS)
        os.killpg(first.pid, signal.SIGSTOP)
        place.arrive()
        with pytest.raises(ClaimedError, match=f"process {first.pid}"):
            place.run_once()
        time.sleep(SECONDS)
        place.run_once()
        assert "silver: taken over from a process that runs silver and stands still, or is gone" in caplog.text
        assert str(first.pid) in caplog.text
        place.arrive()
        os.killpg(first.pid, signal.SIGCONT)
        place.run_once()
        _, said = first.communicate(timeout=START_SECONDS)
    assert first.returncode == 1
    assert "error: silver: this process did not renew its lease before" in said
    place.assert_no_row_is_harmed()


@pytest.mark.soak
@pytest.mark.parametrize("first", ["the one that stood still", "the other"])
@pytest.mark.parametrize("table", [CHANGES, LEDGER, ROWS])
def test_what_a_process_had_made_sure_of_when_it_was_stopped_harms_no_row_whoever_commits_first(
    place: Place, table: str, first: str
) -> None:
    place.arrive()
    with place.process(f"stop@sure:{table}") as stopped:
        of_python = psutil.Process(stopped.pid)
        eventually(lambda: of_python.status() == psutil.STATUS_STOPPED)
        place.arrive()
        time.sleep(SECONDS)
        if first == "the other":
            place.run_once()
            os.killpg(stopped.pid, signal.SIGCONT)
            _, said = stopped.communicate(timeout=START_SECONDS)
        else:
            with claimed(place.spark, place.settings, Layer.SILVER):
                os.killpg(stopped.pid, signal.SIGCONT)
                _, said = stopped.communicate(timeout=START_SECONDS)
    assert (stopped.returncode, "did not renew its lease before" in said) == (1, True), said
    place.arrive()
    place.run_once()
    place.assert_no_row_is_harmed()


@pytest.mark.soak
def test_of_two_processes_started_at_once_one_works_and_the_other_says_who(place: Place) -> None:
    place.arrive()
    with place.process() as one, place.process() as two:
        eventually(lambda: one.poll() is not None or two.poll() is not None)
        refused, works = (one, two) if one.poll() is not None else (two, one)
        _, said = refused.communicate(timeout=60)
        eventually(lambda: place.batches() == 1)
        works.send_signal(signal.SIGTERM)
        works.communicate(timeout=60)
    assert (refused.returncode, works.returncode) == (1, 0)
    assert "error: another process runs silver over catalog spark_catalog" in said
    assert f"process {works.pid}, since" in said
    place.run_once()
    place.assert_no_row_is_harmed()
