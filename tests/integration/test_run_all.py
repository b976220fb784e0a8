"""`run`, `status`, `doctor` and `query` over a real broker, and what stops a layer told in one text."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sessionlake.delta.lake import Lake
from sessionlake.errors import IntegrityViolationError, LakeError, SessionlakeError, TopicChangedError
from sessionlake.local.broker import BrokerStatus
from sessionlake.operations.pipeline import Layer, Pipeline, run_once, run_until_stopped
from sessionlake.settings.model import CaptureSettings, KafkaSettings, Settings
from sessionlake.settings.section import OnViolation
from sessionlake_lab.compare import verify_session_rows
from sessionlake_lab.simulate.readback import compute_truth_from_broker
from sessionlake_lab.simulate.run import run_simulation
from support.attached import COMMAND, open_to_another
from support.lakes import rows_of
from support.waiting import eventually

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]
SECONDS = 120


def isolating(folder: Path, broker: BrokerStatus) -> Settings:
    """Settings that see this folder's topics alone, and isolate."""
    kafka = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic_pattern=rf"{folder.name}\..+")
    return Settings(home=folder / "home", kafka=kafka, capture=CaptureSettings(on_violation=OnViolation.ISOLATE))


@pytest.fixture
def mine(broker: BrokerStatus, tmp_path: Path) -> Settings:
    return isolating(tmp_path, broker)


@pytest.fixture(scope="module")
def taken_in(broker: BrokerStatus, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A home that `run all --once` has taken everything into."""
    settings = isolating(tmp_path_factory.mktemp("once"), broker)
    simulated(settings)
    done = subprocess.run(
        command("run", "all", "--once"),
        env=environment(settings), capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    bronze, silver, gold, last = done.stderr.splitlines()
    assert re.fullmatch(r"bronze: ([\d,]+) messages; \1 rows into 1 table, in [\d.]+ s", bronze)
    assert re.fullmatch(r"silver: [\d,]+ messages: [\d,]+ applied, .*\d+ quarantined.*; .* tables, in [\d.]+ s", silver)
    assert re.fullmatch(r"gold: [\d,]+ changes; [\d,]+ rows into \d+ tables, in [\d.]+ s", gold)
    assert re.fullmatch(r"done, [\d.]+ s in all", last)
    return settings


def prefix(settings: Settings) -> str:
    return settings.kafka.topic_pattern.replace(r"\..+", ".")


def simulated(settings: Settings, messages: int = 2000, seed: int = 0) -> None:
    options = {"duplicates": 0.003, "gaps": 0.001, "malformed": 0.003}
    run_simulation(
        settings, mode="burst", messages=messages, rows=10, sensors=2, sessions=4, rate=500, seed=seed,
        prefix=prefix(settings), **options,
    )  # fmt: skip


def send(settings: Settings, *seqs: int, topic: str = "t") -> str:
    """A snapshot, then an update for each further seq, all of one session in partition 0."""
    name, producer = prefix(settings) + topic, Producer({"bootstrap.servers": settings.kafka.bootstrap_servers})
    for seq in seqs:
        kind = "snapshot" if seq == 0 else "update"
        value = {"type": kind, "seq": seq, "ts": 1000 + seq, "rows": [{"id": "r", "qty": seq}]}
        producer.produce(name, json.dumps(value).encode(), b"s", 0, timestamp=1000 + seq)
    assert producer.flush(30) == 0
    return name


def count(spark, settings: Settings, table: str) -> int:
    return len(rows_of(spark, Lake(settings), table))


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "sessionlake", *words]


def through_silver(spark, settings: Settings) -> None:
    for layer in (Layer.BRONZE, Layer.SILVER):
        assert run_once(spark, settings, layer, threading.Event())


def environment(settings: Settings) -> dict[str, str]:
    own = {
        "SESSIONLAKE_HOME": str(settings.home),
        "SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": settings.kafka.bootstrap_servers,
        "SESSIONLAKE_KAFKA__TOPIC_PATTERN": settings.kafka.topic_pattern,
        "SESSIONLAKE_CAPTURE__ON_VIOLATION": "isolate",
    }
    return os.environ | own


def test_once_takes_everything_in_and_the_commands_agree_about_it(taken_in, spark, ask):
    outcome = verify_session_rows(spark, Lake(taken_in), truth := compute_truth_from_broker(taken_in))
    assert (outcome.exact, outcome.differences) == (len(truth.session_rows), {})

    def called(*words: str) -> list[dict]:
        said = ask(environment(taken_in), *words, "--format", "json")
        return [json.loads(line) for line in said.splitlines()]

    layers = called("status")
    assert {layer["layer"]: (layer["behind"], layer["unaccounted"]) for layer in layers} == dict.fromkeys(
        ("bronze", "silver", "silver_tables", "gold"), (0, 0)
    )
    assert {finding["level"] for finding in called("doctor")} == {"ok"}
    sessions = called("query", "SELECT session_id FROM silver.sessions")
    assert {row["session_id"] for row in sessions} == {session for *_, session in truth.sessions}


def test_once_again_changes_nothing_and_more_messages_are_taken_in(taken_in, spark):
    stop = threading.Event()
    before = count(spark, taken_in, "ops.ledger")
    assert run_once(spark, taken_in, Layer.ALL, stop)
    assert count(spark, taken_in, "ops.ledger") == before
    simulated(taken_in, seed=1)
    assert run_once(spark, taken_in, Layer.ALL, stop)
    assert count(spark, taken_in, "ops.ledger") > before
    assert verify_session_rows(spark, Lake(taken_in), compute_truth_from_broker(taken_in)).differences == {}


def test_live_layers_stop_in_order_on_sigterm(mine, spark):
    simulated(mine, messages=500)
    with open_to_another(spark) as jvm:
        process = subprocess.Popen(
            [*COMMAND, "run", "all"],
            env={**environment(mine), **jvm}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            eventually(lambda: count(spark, mine, "ops.ledger") >= 3, SECONDS)
            process.send_signal(signal.SIGTERM)
            out, said = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, said.splitlines()[-1]) == (0, "", "stopped")
    assert "Traceback" not in said
    assert run_once(spark, mine, Layer.ALL, threading.Event())
    assert verify_session_rows(spark, Lake(mine), compute_truth_from_broker(mine)).differences == {}


def test_a_violation_under_fail_stops_all_layers_with_nothing_of_the_batch_committed(mine, spark):
    capture = mine.capture.model_copy(update={"on_violation": OnViolation.FAIL})
    strict = mine.model_copy(update={"capture": capture})
    send(strict, 0, 1, 3)
    with pytest.raises(IntegrityViolationError, match="expected seq 2, found seq 3") as raised:
        run_until_stopped(spark, strict, Layer.ALL, threading.Event())
    assert raised.value.exit_code == 3
    assert spark.streams.active == []
    assert count(spark, strict, "silver.session_changes") == 0


def test_a_topic_that_appears_while_bronze_runs_is_taken_in_within_seconds(mine, spark):
    send(mine, 0, 1)
    with Pipeline(spark, mine, Layer.BRONZE) as pipeline:
        eventually(lambda: count(spark, mine, "bronze.messages") == 2, SECONDS)
        send(mine, 0, 1, 2, topic="later")
        eventually(lambda: count(spark, mine, "bronze.messages") == 5, seconds=30)
        pipeline.raise_error_of_failed_layer()


@pytest.mark.soak
def test_a_topic_deleted_under_the_job_stops_it_and_leaves_the_tables_as_they_were(mine, spark):
    topic = send(mine, 0, 1, 2)
    admin = AdminClient({"bootstrap.servers": mine.kafka.bootstrap_servers})
    with Pipeline(spark, mine, Layer.BRONZE) as pipeline:
        eventually(lambda: count(spark, mine, "bronze.messages") == 3, SECONDS)
        admin.delete_topics([topic])[topic].result(30)
        admin.create_topics([NewTopic(prefix(mine) + "other", 1, 1)])[prefix(mine) + "other"].result(30)

        def stopped() -> bool:
            try:
                pipeline.raise_error_of_failed_layer()
            except SessionlakeError as error:
                errors.append(error)
            return bool(errors)

        errors: list[SessionlakeError] = []
        eventually(stopped, SECONDS)
    assert isinstance(errors[0], TopicChangedError)
    assert f"topic {topic} was deleted" in str(errors[0])
    assert "up to offset 2" in str(errors[0])
    assert "kafka.on_topic_change: forget" in str(errors[0])
    assert "Traceback" not in str(errors[0])
    assert count(spark, mine, "bronze.messages") == 3


@pytest.mark.soak
def test_a_damaged_or_lost_checkpoint_is_reported_changes_no_table_and_can_be_put_back(mine, spark, tmp_path):
    send(mine, 0, 1)
    through_silver(spark, mine)
    send(mine, 2)
    for layer in (Layer.BRONZE, Layer.SILVER):
        with damaged(Path(mine.checkpoint_path(layer)), tmp_path / layer) as checkpoint:
            for file in (checkpoint / "offsets").glob("[0-9]*"):
                file.write_text("v1\n{not json", encoding="utf-8")
                file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
            with pytest.raises(LakeError, match="checkpoint") as raised:
                run_once(spark, mine, Layer.ALL, threading.Event())
            assert mine.checkpoint_path(layer) in str(raised.value)
    with damaged(Path(mine.checkpoint_path("silver")), tmp_path / "lost") as checkpoint:
        shutil.rmtree(checkpoint)
        with pytest.raises(LakeError, match="sessionlake recover silver"):
            run_once(spark, mine, Layer.SILVER, threading.Event())
    assert spark.streams.active == []
    assert count(spark, mine, "silver.session_changes") == 3
    through_silver(spark, mine)
    assert count(spark, mine, "silver.session_changes") == 4


@contextmanager
def damaged(checkpoint: Path, backup: Path) -> Iterator[Path]:
    """A checkpoint that is put back from its backup afterwards."""
    shutil.copytree(checkpoint, backup)
    yield checkpoint
    shutil.rmtree(checkpoint, ignore_errors=True)
    backup.rename(checkpoint)


def test_an_early_stop_of_once_is_reported_and_leaves_later_layers_unbegun(mine, spark):
    send(mine, 0, 1)
    stop = threading.Event()
    stop.set()
    assert not run_once(spark, mine, Layer.ALL, stop)
    assert count(spark, mine, "silver.session_changes") == 0
