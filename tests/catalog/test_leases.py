"""One writer a layer in a catalog: real processes, some of them stopped past their leases and continued."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from sessionlake.cli.rebuild import rebuild_silver
from sessionlake.cli.resolve import record_or_withdraw_decision
from sessionlake.delta.catalog import leases
from sessionlake.delta.catalog.clocks import ClockReading
from sessionlake.delta.catalog.lease_table import SparkLeaseTable
from sessionlake.delta.commit import append_rows, make_delta_skip_transaction, merge_rows
from sessionlake.delta.lake import Lake
from sessionlake.delta.schemas.names import CHANGES, DECISIONS, LEASES, LEDGER, MESSAGES, ROWS, SESSIONS, SILVER
from sessionlake.delta.storage.faults import VARIABLE
from sessionlake.delta.storage.txn import Txn
from sessionlake.delta.storage.upsert import Upsert
from sessionlake.errors import ClaimedByOtherProcessError
from sessionlake.integrity.rules import OperatorDecision
from sessionlake.operations.pipeline import Layer, claim_layers, run_once
from sessionlake.operations.rebuild.replay import REPLAYED
from sessionlake.operations.rebuild.silver import EVERYTHING
from sessionlake.settings.model import Settings, load_settings
from support.lakes import assert_silver_is_the_truth, write_bronze
from support.streams import COLUMNS, LIGHT, MAX_BYTES, StreamMaker, cut
from support.waiting import eventually

WORKER = Path(__file__).parents[1] / "support" / "lease_worker.py"
SECONDS = 15
START_SECONDS = 300  # a machine of two cores that does much else
PARTS = 3


class Place:
    """A catalog's lake, whose bronze the test fills, and processes that work over it.

    Args:
        tables: those that there are.
    """

    def __init__(self, spark: Any, location: dict[str, Any], folder: Path, tables: Iterable[str]) -> None:
        self.spark, self.folder = spark, folder
        self.config, self.places = folder / "sessionlake.yml", folder / "tables.json"
        capture = {"columns": COLUMNS, "on_violation": "isolate", "max_message_bytes": MAX_BYTES}
        silver = {"shards": 2, "snapshot_interval": "3 s", "merge_interval": "1 s"}
        content = {**location, "home": str(location["home"]), "capture": capture, "silver": silver}
        self.config.write_text(yaml.safe_dump(content))
        self.settings: Settings = load_settings(self.config)
        self.lake = Lake(self.settings)
        self.lake.create_or_update_tables(spark, tables)
        self.places.write_text(
            json.dumps({self.lake.to_sql_identifier(table): self.place_of(table) for table in tables})
        )
        self._parts = list(cut(random.Random(3), StreamMaker(random.Random(7), LIGHT).make(40 * PARTS), PARTS))
        self.arrived = 0

    def place_of(self, table: str) -> str:
        return str(self.lake.open_delta_table(self.spark, table).detail().select("location").first()[0])

    def arrive(self) -> None:
        write_bronze(self.spark, self.lake, self._parts[self.arrived])
        self.arrived += 1

    def rows(self, table: str) -> int:
        return self.lake.read(self.spark, table).count()

    def batches(self) -> int:
        return self.lake.read(self.spark, LEDGER).where("layer = 'silver'").count()

    def is_past_its_lease(self) -> bool:
        own = self.lake.read(self.spark, LEASES).where(f"name = '{SILVER}'")
        return not own.where("expires_at < current_timestamp()").isEmpty()

    def run_once(self) -> None:
        assert run_once(self.spark, self.settings, Layer.SILVER, threading.Event())

    def rebuild(self) -> None:
        rebuild_silver(self.spark, self.settings, None, EVERYTHING, print)

    def resolve(self) -> None:
        record_or_withdraw_decision(
            self.spark, self.settings, "s", OperatorDecision.ISOLATE, offset=None, topic=None, why=None
        )

    def assert_no_row_is_harmed(self) -> None:
        messages = [message for part in self._parts[: self.arrived] for message in part]
        held = self.lake.read(self.spark, MESSAGES).select("topic", "partition", "offset").collect()
        assert sorted(map(tuple, held)) == sorted((m.topic, m.partition, m.offset) for m in messages)
        assert_silver_is_the_truth(self.spark, self.settings, messages)
        merges = self.lake.read(self.spark, LEDGER).where("layer = 'silver_tables'").collect()
        taken = sorted((row["source_from"], row["source_to"]) for row in merges)
        assert all(last < first for (_, last), (first, _) in pairwise(taken))

    @contextmanager
    def process(self, *words: str, fault: str | None = None) -> Iterator[subprocess.Popen[str]]:
        own = {VARIABLE: fault} if fault else {}
        args = [sys.executable, str(WORKER), str(self.config), str(self.places), str(SECONDS), *words]
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


def of_process(pid: int) -> str:
    return f"{socket.gethostname()}, process {pid}, since "


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "LENGTH", timedelta(seconds=SECONDS))


@pytest.fixture
def empty(spark: Any, location: dict[str, Any], tmp_path: Path, short: None) -> Place:
    """Where there is no table yet but that of leases."""
    del short
    return Place(spark, location, tmp_path, [LEASES])


@pytest.fixture
def place(spark: Any, location: dict[str, Any], tmp_path: Path, short: None) -> Place:
    """With all that silver has to do with."""
    del short
    return Place(spark, location, tmp_path, [MESSAGES, *REPLAYED, DECISIONS, LEDGER, LEASES])


@pytest.mark.soak
def test_two_sessions_that_want_one_lease_at_once_are_reported_apart_by_delta(spark: Any, settings: Settings) -> None:
    storage = Lake(settings).storage
    won, refused = [], []
    start = threading.Barrier(2)

    def want(doing: str) -> None:
        start.wait(30)  # at first with no row, nor a table, and then with one that was given back
        try:
            with storage.hold_exclusive_claim(spark, SILVER, doing):
                won.append(doing)
                end.wait()
        except ClaimedByOtherProcessError as error:
            refused.append(str(error))
            end.set()

    for attempt in range(2):
        end = threading.Event()
        threads = [threading.Thread(target=want, args=(f"is {attempt}{n}",)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(refused)) == (attempt + 1, attempt + 1), refused
        assert f"another process {won[-1]} over the tables in catalog spark_catalog" in refused[-1]
    last = SparkLeaseTable(spark, storage).read_lease(SILVER)
    assert last is not None
    assert (last.token, last.holder) == (2, None)
    # The second holder replaced the first one's rows, and added one when it gave the lease back.
    assert [row["token"] for row in storage.read(spark, LEASES, {}).collect()] == [2, 2]


def test_a_lease_is_given_back_with_one_spark_job(spark: Any, settings: Settings) -> None:
    scheduler, storage = spark.sparkContext._jsc.sc().dagScheduler(), Lake(settings).storage
    with storage.hold_exclusive_claim(spark, SILVER, "runs silver"):
        before = scheduler.nextJobId()
    assert scheduler.nextJobId() - before == 1


def test_one_that_was_replaced_and_gives_back_late_leaves_the_lease_to_the_other(
    spark: Any, settings: Settings
) -> None:
    table = SparkLeaseTable(spark, Lake(settings).storage)
    past = ClockReading.read_clocks().convert_utc_time(datetime.now(UTC) - 2 * leases.LENGTH)
    stopped = leases.HeldLease(settings, table, SILVER, "runs silver", lambda: past)
    other = leases.HeldLease(settings, table, SILVER, "rebuilds silver")
    stopped.release_lease()
    with pytest.raises(ClaimedByOtherProcessError, match="another process rebuilds silver"):
        leases.HeldLease(settings, table, SILVER, "runs silver")
    other.renew_lease()
    other.release_lease()
    assert not leases.HeldLease(settings, table, SILVER, "runs silver").took_over


@pytest.mark.soak
def test_one_process_holds_silver_and_stopped_past_its_lease_it_finds_itself_replaced(
    empty: Place, caplog: pytest.LogCaptureFixture
) -> None:
    storage = empty.lake.storage
    with empty.process("hold") as other:
        eventually(lambda: empty.rows(LEASES) == 1, START_SECONDS)
        for act in (empty.run_once, empty.rebuild, empty.resolve):
            with pytest.raises(
                ClaimedByOtherProcessError, match=rf"another process runs silver .*process {other.pid}, since .*Z\)"
            ):
                act()
        os.killpg(other.pid, signal.SIGSTOP)
        eventually(empty.is_past_its_lease, START_SECONDS)
        with storage.hold_exclusive_claim(empty.spark, SILVER, "rebuilds silver"):
            os.killpg(other.pid, signal.SIGCONT)
            _, said = other.communicate(timeout=START_SECONDS)
            storage.require_claims_still_held()
    assert (
        f"taken over from a process that runs silver and stands still, or is gone ({of_process(other.pid)}"
        in caplog.text
    )
    assert other.returncode == 1
    assert "error: silver: this process had to renew its lease, which allows it to write, before" in said
    assert f"another process rebuilds silver now ({of_process(os.getpid())}" in said


@pytest.mark.soak
def test_what_is_retired_and_what_a_holder_before_writes_late_delta_passes_over(spark: Any, settings: Settings) -> None:
    lake = Lake(settings)
    lake.create_or_update_tables(spark, [SESSIONS])
    of_stream, of_merges = "stream", "merges"

    def write(number: int, txn: Txn) -> None:
        row = spark.sql(f"SELECT 'a' topic, 's' session_id, {number}L messages").coalesce(1)
        if txn.app_id == of_stream:
            append_rows(spark, lake, SESSIONS, row, txn)
        else:
            merge_rows(spark, lake, SESSIONS, row, Upsert(("topic", "session_id", "messages"), (), updates=False), txn)

    write(1, Txn(of_stream, 1))
    make_delta_skip_transaction(spark, lake, [SESSIONS], Txn(of_stream, 5))
    for number in (4, 5, 6):
        write(number, Txn(of_stream, number))
    write(7, Txn(of_merges, 7).add_fencing_token(2))
    make_delta_skip_transaction(spark, lake, [SESSIONS], Txn.build_txn_before_lease_holder(of_merges, 3))
    write(8, Txn(of_merges, 8).add_fencing_token(2))
    write(9, Txn(of_merges, 0).add_fencing_token(3))
    assert sorted(row["messages"] for row in lake.read(spark, SESSIONS).collect()) == [1, 6, 7, 9]


@pytest.mark.soak
def test_silver_goes_on_where_a_process_was_stopped_past_its_lease_and_no_row_is_harmed(place: Place) -> None:
    place.arrive()
    with place.process() as first:
        eventually(lambda: place.batches() == 1 and place.rows(SESSIONS) > 0, START_SECONDS)
        time.sleep(2 * SECONDS)
        with pytest.raises(ClaimedByOtherProcessError, match=f"process {first.pid}"):  # it has renewed
            place.run_once()
        os.killpg(first.pid, signal.SIGSTOP)
        place.arrive()
        eventually(place.is_past_its_lease, START_SECONDS)
        place.run_once()
        place.arrive()
        os.killpg(first.pid, signal.SIGCONT)
        place.run_once()
        _, said = first.communicate(timeout=START_SECONDS)
    assert (first.returncode, "had to renew its lease, which allows it to write, before" in said) == (1, True), said
    place.assert_no_row_is_harmed()


@pytest.mark.soak
@pytest.mark.parametrize("first", ["the one that stood still", "the other"])
@pytest.mark.parametrize("table", [CHANGES, LEDGER, ROWS])
def test_what_a_process_had_made_sure_of_when_it_was_stopped_harms_no_row_whoever_commits_first(
    place: Place, table: str, first: str
) -> None:
    place.arrive()
    with place.process(fault=f"stop@sure:{table}") as stopped:
        of_python = psutil.Process(stopped.pid)
        eventually(lambda: of_python.status() == psutil.STATUS_STOPPED, START_SECONDS)
        place.arrive()
        eventually(place.is_past_its_lease, START_SECONDS)
        if first == "the other":
            place.run_once()
            os.killpg(stopped.pid, signal.SIGCONT)
            _, said = stopped.communicate(timeout=START_SECONDS)
        else:
            with claim_layers(place.spark, place.settings, Layer.SILVER):
                os.killpg(stopped.pid, signal.SIGCONT)
                _, said = stopped.communicate(timeout=START_SECONDS)
    assert (stopped.returncode, "had to renew its lease, which allows it to write, before" in said) == (1, True), said
    place.arrive()
    place.run_once()
    place.assert_no_row_is_harmed()


@pytest.mark.soak
def test_of_two_processes_started_at_once_one_works_and_the_other_says_who(place: Place) -> None:
    place.arrive()
    with place.process() as one, place.process() as two:
        eventually(lambda: one.poll() is not None or two.poll() is not None, START_SECONDS)
        refused, works = (one, two) if one.poll() is not None else (two, one)
        _, said = refused.communicate(timeout=60)
        eventually(lambda: place.batches() == 1, START_SECONDS)
        works.send_signal(signal.SIGTERM)
        works.communicate(timeout=60)
    assert (refused.returncode, works.returncode) == (1, 0)
    assert "error: another process runs silver over the tables in catalog spark_catalog" in said
    assert f"process {works.pid}, since" in said
    place.run_once()
    place.assert_no_row_is_harmed()
