"""What stops Spark in a task, in the driver or for good is told in one text, whichever command it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from sessionlake.cli import gold, maintain, rebuild, recover, rules, session, state
from sessionlake.cli.archive import iterate_bronze_messages
from sessionlake.cli.export import select_exported_rows
from sessionlake.cli.forget import forget_session
from sessionlake.cli.options import RecoverableLayer
from sessionlake.cli.query import fetch_query_result, show_query_result_as_of
from sessionlake.cli.reshard import reshard_all_layers
from sessionlake.cli.session import parse_session_moment
from sessionlake.cli.show import OutputFormat
from sessionlake.delta.lake import Lake
from sessionlake.delta.storage.reading import TableReader
from sessionlake.errors import LakeError, SessionlakeError, UsageError
from sessionlake.gold.query import metrics
from sessionlake.history.explain import explain
from sessionlake.history.report.page import write_report
from sessionlake.history.status import layer_statuses
from sessionlake.history.trace import trace
from sessionlake.operations import pipeline
from sessionlake.operations.rebuild.replay import SessionSelection
from sessionlake.settings.model import Settings, load_settings
from sessionlake.streaming.errors import raise_explained_errors
from support.command_names import unlisted_commands
from support.notebooks import CONFIG, fill
from support.seeds import long_beyond

BEGIN, END = datetime(2023, 11, 14, tzinfo=UTC), datetime(2023, 11, 16, tzinfo=UTC)
Work = Callable[[Any, Settings], object]
FORM = OutputFormat.JSON
LAYER = RecoverableLayer
WHOLE = SessionSelection(None, ())
ALL = "SELECT * FROM silver.session_changes"


def _reader(spark: Any, own: Settings) -> TableReader:
    return Lake(own).reader(spark)


def _say(text: str) -> None:
    del text


# What each command does with a session, and whether it must fail with damaged data files, and with damaged logs.
COMMANDS: dict[str, tuple[Work, bool, bool]] = {
    "query": (lambda spark, own: fetch_query_result(spark, own, ALL), True, True),
    "query as of": (lambda spark, own: show_query_result_as_of(spark, own, ALL, 0, FORM), True, True),
    "explain": (lambda spark, own: explain(spark, own, "gold.metrics_1h", ""), True, True),
    "export": (
        lambda spark, own: select_exported_rows(spark, own, "silver.session_changes", None, {}).toArrow(),
        True,
        True,
    ),
    "archive": (lambda spark, own: list(iterate_bronze_messages(spark, own)), True, True),
    "run silver": (lambda spark, own: pipeline.run_once(spark, own, pipeline.Layer.SILVER, _stop()), False, True),
    "run gold": (lambda spark, own: pipeline.run_once(spark, own, pipeline.Layer.GOLD, _stop()), False, True),
    "maintain": (lambda spark, own: maintain.maintain_once(spark, own, None, FORM), False, True),
    "rebuild silver": (lambda spark, own: rebuild.rebuild_silver(spark, own, None, WHOLE, _say), True, True),
    "rebuild gold": (lambda spark, own: gold.rebuild_gold_tables(spark, own, None, _say), True, True),
    "verify silver": (lambda spark, own: rebuild.verify_silver(spark, own, _say), True, True),
    "verify gold": (lambda spark, own: gold.verify_gold_tables(spark, own, _say), True, True),
    "state stats": (lambda spark, own: state.show_state_stats(spark, own, FORM), False, False),
    "recover silver": (lambda spark, own: recover.recover_layer(spark, own, LAYER.SILVER, _say), False, True),
    "recover ledger": (lambda spark, own: recover.recover_layer(spark, own, LAYER.LEDGER, _say), False, False),
    "reshard": (lambda spark, own: reshard_all_layers(spark, own, 2, 0), False, False),
    "forget": (lambda spark, own: forget_session(spark, own, "none", None, 0, shorten=False), False, True),
    "rules list": (lambda spark, own: rules.show_alert_rules(Lake(own).reader(spark), own, FORM), False, True),
    "status": (lambda spark, own: layer_statuses(Lake(own).reader(spark), own), True, True),
    "session show": (lambda spark, own: session.show_session(_reader(spark, own), own, "x", None, FORM), True, True),
    "trace": (lambda spark, own: trace(Lake(own).reader(spark), own, "capture.depth-00", 0, 0), True, True),
    "report": (lambda spark, own: write_report(Lake(own).reader(spark), own), True, True),
    "session as-of": (
        lambda spark, own: session.show_session_as_of(
            _reader(spark, own), own, "x", None, parse_session_moment(None, 1, None), FORM
        ),
        True, True,
    ),
    "metrics": (lambda spark, own: metrics(own, BEGIN, END, spark=spark), True, True),
    "rules apply": (lambda spark, own: rules.write_alert_rules(spark, own, [], _say, only=True), False, True),
    "recover gold": (lambda spark, own: recover.recover_layer(spark, own, LAYER.GOLD, _say), False, True),
}  # fmt: skip
# Commands that write from Kafka or to it, a file or a workspace. Other tests have them.
OTHERS = {
    "run bronze", "verify bronze", "bronze skip", "recover bronze", "publish", "reference load", "reference list",
    "resolve", "types", "rules check", "rules test", "doctor", "broker", "remote", "demo", "simulate",
    "feed",
}  # fmt: skip


# One of each way that a command reads: the rest are long tests.
USUAL = ("query", "export", "run silver", "rebuild silver", "verify gold", "status")
EACH = long_beyond([(name,) for name in USUAL], [(name,) for name in COMMANDS])


def test_every_command_is_here_or_among_the_others() -> None:
    missing = unlisted_commands({*COMMANDS, *OTHERS}, OTHERS)
    assert missing == {"state show"}  # it reads the same states as `state stats`


def _stop() -> threading.Event:
    return threading.Event()


@pytest.fixture(scope="module")
def filled(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("failures") / "home"
    home.mkdir()
    (home / "sessionlake.yml").write_text(CONFIG, encoding="utf-8")
    fill(spark, load_settings(home / "sessionlake.yml").model_copy(update={"home": home}))
    return home


@pytest.fixture
def own(filled: Path, tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    shutil.copytree(filled, home)
    return load_settings(home / "sessionlake.yml").model_copy(update={"home": home})


def told(spark: Any, own: Settings, work: Work) -> SessionlakeError | None:
    """What a command says, once Spark is gone: nothing is asked of the JVM any more."""
    try:
        with raise_explained_errors():
            work(spark, own)
    except SessionlakeError as error:
        text = str(error)
        assert "Traceback" not in text
        assert "An error occurred while calling" not in text
        assert "<unknown>" not in text
        assert len(text.splitlines()) <= 4, text
        return error
    return None


@pytest.mark.parametrize("command", EACH)
def test_damaged_data_files_are_reported_in_one_text(spark, own, command, capsys):
    work, must_fail, _ = COMMANDS[command]
    for file in _data_files(own):
        content = bytearray(file.read_bytes())
        content[4:-8] = bytes(len(content) - 12)
        file.write_bytes(content)
    error = told(spark, own, work)
    assert error is not None or not must_fail
    assert not isinstance(error, UsageError)
    del capsys


@pytest.mark.parametrize("command", EACH)
def test_damaged_logs_are_reported_in_one_text(spark, own, command, capsys):
    work, _, must_fail = COMMANDS[command]
    for file in own.warehouse.rglob("_delta_log/*.json"):
        file.write_text('{"add": {\n')
    error = told(spark, own, work)
    assert error is not None or not must_fail
    assert not isinstance(error, UsageError)
    del capsys


def test_files_that_are_gone_and_a_table_that_is_gone_are_reported(spark, own):
    for file in _data_files(own):
        file.unlink()
    assert isinstance(error := told(spark, own, lambda s, o: fetch_query_result(s, o, ALL)), LakeError)
    assert "sessionlake doctor" in str(error)
    shutil.rmtree(own.warehouse)
    assert told(spark, own, lambda s, o: fetch_query_result(s, o, ALL)) is not None


def test_a_fault_of_the_statement_stays_one_of_its_author(spark, own):
    for sql in ("SELECT nope FROM silver.sessions", "SELECT 1 / 0", "SELECT raise_error('x') FROM silver.sessions"):
        assert isinstance(told(spark, own, lambda s, o, sql=sql: fetch_query_result(s, o, sql)), UsageError), sql


def _data_files(own: Settings) -> list[Path]:
    return [file for file in own.warehouse.rglob("*.parquet") if "_delta_log" not in file.parts]


def _begun(home: Path, *words: str) -> subprocess.Popen[str]:
    given = {key: value for key, value in os.environ.items() if key != "JDK_JAVA_OPTIONS"}
    return subprocess.Popen(
        [sys.executable, "-c", "from sessionlake.cli.app import main; main()", *words],
        env=given | {"SESSIONLAKE_HOME": str(home)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip


def _jvm_of(process: subprocess.Popen[str], seconds: float = 120) -> psutil.Process:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for child in psutil.Process(process.pid).children():
            if "java" in child.name():
                return child
        time.sleep(0.02)
    raise AssertionError("no JVM was started")


LONG = "SELECT count(*) FROM range(1000000000000000) WHERE id % 7 = 3"


def _works(jvm: psutil.Process) -> bool:
    """Whether the statement is under way: Spark itself never keeps two cores busy for so long."""
    return jvm.num_threads() > 0 and any(thread.system_time + thread.user_time > 4 for thread in jvm.threads()[1:])


def test_ctrl_c_while_spark_starts_for_a_query_ends_it_with_130_and_no_traceback(tmp_path):
    process = _begun(tmp_path / "home", "query", "--engine", "spark", LONG)
    try:
        jvm = _jvm_of(process)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out, said) == (130, "", "interrupted\n")
    assert not jvm.is_running() or jvm.status() == psutil.STATUS_ZOMBIE


@pytest.mark.soak
@pytest.mark.parametrize("when", ["while Spark starts", "while it works"])
def test_a_jvm_that_is_killed_is_reported_with_its_signal(tmp_path, when):
    process = _begun(tmp_path / "home", "query", "--engine", "spark", LONG)
    try:
        jvm = _jvm_of(process)
        if when == "while it works":
            _wait_for(lambda: _works(jvm))
        jvm.kill()
        out, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (1, "")
    assert "Traceback" not in said
    assert said.startswith("error: Spark's Java process ")
    assert "killed by signal 9" in said or "did not start" in said


def _wait_for(condition: Callable[[], bool], seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.2)
