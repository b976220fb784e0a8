"""The command line without a JVM: mistakes get one clear text and an exit code, and answers their format."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import threading
import time
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from sessionlake.cli import app as cli
from sessionlake.cli.show import OutputFormat, convert_to_json_value, show_rows
from sessionlake.cli.sql_names import find_table_and_function_names
from sessionlake.errors import ClaimedByOtherProcessError, IntegrityViolationError, MachineSetupError, ProcessorError
from sessionlake.local.home import hold_lock_without_waiting
from sessionlake.local.signals import StopFlag
from sessionlake.operations import pipeline
from sessionlake.settings.model import ProcessorSettings, Settings
from sessionlake.spark.failures import summarize_spark_message
from sessionlake_lab.cli.demo import run_demo
from sessionlake_lab.cli.simulate import set_rate_of_all_faults
from sessionlake_lab.simulate.scenario import FaultRates, MessageMix, Scenario


@pytest.fixture
def call(tmp_path: Path, free_port: int, monkeypatch: pytest.MonkeyPatch):
    """Runs a command in an empty folder, over a home below it and a broker address that nothing listens on."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, config: str | None = None, **environment: str) -> Result:
        if config is not None:
            (tmp_path / "sessionlake.yml").write_text(config, encoding="utf-8")
        kafka = {"SESSIONLAKE_KAFKA__BOOTSTRAP_SERVERS": f"127.0.0.1:{free_port}"}
        own = {"SESSIONLAKE_HOME": str(tmp_path / "home")} | ({} if config else kafka)
        return CliRunner().invoke(cli.app, list(words), env=own | environment)

    return run


def said(result) -> str:
    """What went to standard error, which must be no stack trace."""
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize("words", [["rum"], ["run"], ["run", "platinum"], ["run", "bronze", "--onse"], ["trace", "t"]])
def test_words_that_mean_nothing_are_a_usage_error(call, words):
    result = call(*words)
    assert result.exit_code == 2
    assert "Error" in said(result)


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ("kafka: {bootstrap_server: x}", "kafka.bootstrap_server: no such key"),
        ("bronze: {max_offsets_per_trigger: many}", "bronze.max_offsets_per_trigger = 'many'"),
        ("kafka: {topic_pattern: 'capture.('}", "not a regular expression"),
        ("capture: {columns: {price: money}}", "type 'money' is not one of"),
        ("- a list", "expected a mapping of keys"),
        ("kafka: {", "is not valid YAML"),
        ("kafka: {bootstrap_servers: nowhere}", "'nowhere' in it is not an address HOST:PORT"),
    ],
)
def test_a_bad_configuration_is_named_and_exits_with_2(call, tmp_path, config, text):
    result = call("run", "all", "--once", config=config)
    assert result.exit_code == 2
    assert text in said(result)
    assert not list((tmp_path / "home").glob("warehouse"))


def test_a_missing_config_file_is_named(call):
    result = call("status", "--config", "nowhere.yml")
    assert (result.exit_code, "nowhere.yml" in said(result)) == (2, True)


def test_the_config_file_may_stand_before_the_command(call):
    result = call("--config", "nowhere.yml", "status")
    assert (result.exit_code, "nowhere.yml" in said(result)) == (2, True)


def test_a_config_file_before_one_command_is_forgotten_by_the_next(call):
    call("--config", "nowhere.yml", "status")
    assert call("broker", "status").exit_code == 1


def test_an_unknown_environment_variable_is_named(call):
    result = call("status", SESSIONLAKE_KAFKAA="x")
    assert (result.exit_code, "SESSIONLAKE_KAFKAA" in said(result)) == (2, True)


@pytest.mark.parametrize("layers", ["bronze", "all"])
def test_an_unreachable_broker_is_reported_at_once_with_the_remedy(call, free_port, tmp_path, layers):
    result = call("run", layers, "--once")
    assert result.exit_code == 1
    assert f"no Kafka broker answers at 127.0.0.1:{free_port}" in said(result)
    assert "sessionlake broker up" in result.stderr
    assert not (tmp_path / "home" / "warehouse").exists()


def test_a_home_that_cannot_be_made_is_reported_with_the_remedy(call, tmp_path):
    (tmp_path / "file").touch()
    result = call("run", "silver", "--once", SESSIONLAKE_HOME=str(tmp_path / "file" / "home"))
    assert result.exit_code == 1
    assert "cannot be written" in said(result)
    assert "SESSIONLAKE_HOME" in result.stderr


def test_a_home_that_is_a_file_is_a_bad_configuration(call, tmp_path):
    (tmp_path / "file").touch()
    result = call("status", SESSIONLAKE_HOME=str(tmp_path / "file"))
    assert (result.exit_code, "is a file, but must be a folder" in said(result)) == (2, True)


def test_doctor_reports_a_bad_configuration_as_a_failed_check(call):
    result = call("doctor", "--format", "json", config="kafka: {nope: 1}")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert (found["level"], found["check"]) == ("fail", "config")


def test_status_before_the_first_batch_needs_no_spark(call):
    begun = time.monotonic()
    result = call("status", "--format", "json")
    assert time.monotonic() - begun < 20
    assert result.exit_code == 0
    assert [json.loads(line)["batches"] for line in result.stdout.splitlines()] == [0, 0, 0, 0]


def test_trace_of_an_empty_home_says_how_to_fill_it_and_needs_no_spark(call):
    result = call("trace", "capture.a", "0", "0")
    assert result.exit_code == 1
    assert "bronze holds no messages yet. Run `sessionlake run all --once`" in said(result)


@pytest.mark.parametrize("place", [("a", "0", "x"), ("a", "-1", "0"), ("a", str(2**31), "0"), ("a", "0", str(2**63))])
def test_a_place_that_kafka_cannot_have_is_a_usage_error(call, place):
    assert call("trace", *place).exit_code == 2


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM silver.sessions",
        "-- why\nSELECT '--', * FROM silver.sessions",
        "--why\nSELECT * FROM silver.sessions",
        "--\n-- why=1\nSELECT * FROM silver.sessions",
        "WITH t AS (SELECT 'delete from', `insert into`, update -- merge into\n FROM silver.sessions) SELECT * FROM t",
    ],
)
def test_query_finds_tables_behind_comments_and_texts(call, sql):
    assert "silver.sessions does not exist yet" in said(call("query", sql))


def test_an_option_of_query_is_no_comment(call):
    assert "silver.sessions does not exist yet" in said(call("query", "--format=json", "SELECT * FROM silver.sessions"))
    assert "No such option: --formt" in said(call("query", "SELECT 1", "--formt", "json"))
    assert "silver.sessions does not exist yet" in said(call("query", "--", "SELECT * FROM silver.sessions"))


def test_query_of_nothing_is_a_usage_error(call):
    result = call("query", " ")
    assert (result.exit_code, "the statement is empty" in said(result)) == (2, True)


def test_query_of_a_table_that_is_not_there_yet_names_it_and_the_way_to_it(call):
    result = call("query", "SELECT * FROM silver.sessions")
    assert result.exit_code == 1
    assert "silver.sessions does not exist yet" in said(result)
    assert "sessionlake run all --once" in result.stderr


def test_verify_bronze_before_there_is_one_names_the_way_to_it(call):
    result = call("verify", "bronze")
    assert result.exit_code == 1
    assert "bronze.messages does not exist yet" in said(result)
    assert "sessionlake run bronze --once" in result.stderr


def test_simulate_refuses_an_option_out_of_range_by_its_name(call):
    result = call("simulate", "--duplicates", "2")
    assert (result.exit_code, "duplicates" in said(result)) == (2, True)


def test_simulate_has_an_option_for_every_field_of_a_scenario(call):
    text = call("simulate", "--help").stdout
    short = {"duration_s": "duration", "sessions_per_sensor": "sessions", "reordered": "reorder", "day_s": "day"}
    decided_by_config = {"mix", "faults", "lateness_s", "future_skew_s", "max_message_bytes"}
    names = [
        f.name for part in (Scenario, MessageMix, FaultRates) for f in fields(part) if f.name not in decided_by_config
    ]
    missing = [name for name in names if f"--{short.get(name, name).replace('_', '-')} " not in text]
    assert missing == []


def test_faults_sets_every_fault_that_is_not_given():
    told = set_rate_of_all_faults(0.1, {"gaps": 0.5, "late": None, "rows": None})
    assert (told["gaps"], told["late"], told["reorder"], told["rows"]) == (0.5, 0.1, 0.1, None)


def test_broker_status_of_a_stopped_broker_says_how_to_start_it(call):
    result = call("broker", "status")
    assert (result.exit_code, "sessionlake broker up" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("raised", "code", "text"),
    [
        (IntegrityViolationError("gap in session s"), 3, "error: gap in session s\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (LookupError("one\ntwo"), 1, "error: unexpected LookupError: one (SESSIONLAKE_DEBUG=1 shows where)\n"),
    ],
)
def test_whatever_is_raised_becomes_one_text_and_its_exit_code(call, monkeypatch, raised, code, text):
    def fail(_config: object) -> None:
        raise raised

    monkeypatch.setattr(cli, "load_config", fail)
    result = call("status")
    assert (result.exit_code, result.stdout, result.stderr) == (code, "", text)


def test_debug_shows_the_stack_trace_too(call):
    result = call("status", "--config", "nowhere.yml", SESSIONLAKE_DEBUG="1")
    assert result.exit_code == 2
    assert "Traceback" in result.stderr


def test_main_returns_where_all_went_well_as_a_databricks_job_expects(monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["sessionlake", "--version"])
    cli.main()
    assert capsys.readouterr().out.strip()


def test_main_exits_with_the_code_of_what_failed(monkeypatch, tmp_path):
    monkeypatch.setattr("sys.argv", ["sessionlake", "status", "--config", str(tmp_path / "nowhere.yml")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2


ROW = (1, 0.5, None, "ä", b"text", b"\xff", datetime(2026, 1, 2, tzinfo=UTC), float("nan"), ["a"], True)
NAMES = tuple("abcdefghij")


def test_json_is_one_object_a_line_in_types_that_json_has():
    out = io.StringIO()
    show_rows(NAMES, [ROW, ROW], OutputFormat.JSON, out)
    first, second = out.getvalue().splitlines()
    assert first == second
    assert list(json.loads(first).values()) == [
        1, 0.5, None, "ä", "text", "/w==", "2026-01-02T00:00:00+00:00", "nan", ["a"], True,
    ]  # fmt: skip


def test_csv_has_a_header_and_empty_cells_for_null():
    out = io.StringIO()
    show_rows(("a", "b"), [(None, 'say "x", y')], OutputFormat.CSV, out)
    assert out.getvalue() == 'a,b\n,"say ""x"", y"\n'


@pytest.mark.parametrize(("form", "text"), [(OutputFormat.JSON, ""), (OutputFormat.CSV, "a\n")])
def test_an_empty_answer_is_fine(form, text):
    out = io.StringIO()
    show_rows(("a",), [], form, out)
    assert out.getvalue() == text


def test_a_table_in_a_pipe_is_neither_cut_nor_folded():
    out = io.StringIO()
    show_rows(("a",), [("x" * 300,)], OutputFormat.TABLE, out)
    assert "x" * 300 in out.getvalue()


def test_a_table_in_a_pipe_has_no_line_longer_than_what_it_says():
    out = io.StringIO()
    show_rows(("name", "n"), [("a", 1), ("b", None)], OutputFormat.TABLE, out)
    assert out.getvalue() == "\n name      n\n ───────────\n a         1\n b      null\n\n"
    out = io.StringIO()
    show_rows(("name", "n"), [("x" * 20_000, "long"), ("y", "s")], OutputFormat.TABLE, out)
    assert [len(line) for line in out.getvalue().split("\n")] == [0, 20_005, 20_008, 20_008, 20_005, 0, 0]
    out = io.StringIO()
    show_rows(("name",), [], OutputFormat.TABLE, out)
    assert out.getvalue() == "\n name\n ────\n\nno rows\n"


def test_nested_values_become_plain():
    assert convert_to_json_value({"at": [datetime(2026, 1, 2, tzinfo=UTC)]}) == {"at": ["2026-01-02T00:00:00+00:00"]}


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT * FROM silver.sessions s JOIN `silver`.`session_rows` r", ["silver.sessions", "silver.session_rows"]),
        ("SELECT 1 -- silver.sessions", []),
        ("SELECT 'silver.sessions', '--' FROM gold.metrics_1m", ["gold.metrics_1m"]),
        ("SELECT * FROM main.silver.sessions", []),
        ("SELECT * FROM silver.sessions_old", ["silver.sessions_old"]),
        ("select * from GOLD.metrics_1m", ["gold.metrics_1m"]),
        ("EXPLAIN EXTENDED SELECT * FROM gold.metrics_1m", ["gold.metrics_1m"]),
        ("SELECT s.topic, silver.sessions FROM t AS silver", []),
        ("SELECT (", []),
    ],
)
def test_the_names_of_tables_are_found_by_a_parser(sql, tables):
    assert [str(one) for one in find_table_and_function_names(sql)] == tables


def test_what_spark_says_of_a_statement_becomes_one_line():
    text = "[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. (line 1, pos 7)\n\n== SQL ==\nSELECT x\n-------^^^"
    assert summarize_spark_message(text) == "[PARSE_SYNTAX_ERROR] Syntax error at or near 'x'. (line 1, pos 7)"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_sets_the_flag_and_interrupts_nothing(number):
    before = signal.getsignal(number)
    with StopFlag() as stop:
        os.kill(os.getpid(), number)
        assert stop.wait(5)
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_a_second_process_is_refused_the_layers_that_the_first_one_runs(tmp_path):
    settings = Settings(home=tmp_path)
    said = rf"another process rebuilds silver over .* {tmp_path} \(.*, process {os.getpid()}, .*\. Stop it or wait"
    for _ in range(2):  # again with what the one before has left in the file
        with (
            hold_lock_without_waiting(settings, "silver", "rebuilds silver"),
            pytest.raises(ClaimedByOtherProcessError, match=said),
        ):
            pipeline.run_once(None, settings, pipeline.Layer.ALL, StopFlag())


def test_the_first_processor_that_has_stopped_is_raised_and_the_others_are_reported(tmp_path, monkeypatch):
    def run_to_end(_spark: object, _settings: object, part: str, _stop: object) -> bool:
        if part.startswith("processor-"):
            raise ProcessorError(part)
        return True

    monkeypatch.setattr("sessionlake.operations.pipeline.run_layer_until_caught_up", run_to_end)
    processors = tuple(ProcessorSettings.model_validate({"name": name, "class": "a:B"}) for name in ("p", "q"))
    settings, told, stop = Settings(home=tmp_path, processors=processors), list[str](), threading.Event()
    with pytest.raises(ProcessorError, match="processor-p"):
        pipeline.run_once(None, settings, pipeline.Layer.ALL, stop, lambda error: told.append(str(error)))
    assert told == ["processor-q"]  # the first is said by whoever catches it


def test_one_that_has_the_lock_and_has_not_said_yet_who_it_is_keeps_others_out_too(tmp_path):
    (tmp_path / "locks").mkdir()
    with (tmp_path / "locks" / "silver").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with (
            pytest.raises(ClaimedByOtherProcessError, match="another process has silver over"),
            hold_lock_without_waiting(Settings(home=tmp_path), "silver", "runs silver"),
        ):
            pass


def test_a_second_demo_of_a_home_is_refused(tmp_path):
    with (tmp_path / "demo.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(MachineSetupError, match="a demo is running"):
            run_demo(Settings(home=tmp_path))


@pytest.mark.parametrize(
    "words",
    [[], ["--accept-gap", "--isolate"], ["--isolate", "--skip-message", "3"], ["--withdraw", "--isolate"]],
)
def test_resolve_takes_exactly_one_decision(call, words):
    result = call("resolve", "--session", "s", *words)
    assert result.exit_code == 2
    assert "Give one of --accept-gap" in said(result)


def test_resolve_says_where_silver_stopped(call):
    result = call("resolve", "--session", "s", "--accept-gap")
    assert result.exit_code == 2
    assert "no layer has stopped at session 's', so there is nothing to decide; known stops: silver" in said(result)
